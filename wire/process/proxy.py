"""An HTTP proxy on the way to other machines (CONNECT, RFC 9110, section 9.3.6): its address, password and answers.

TLS is spoken with the server through it, so that it sees names and sizes. The two that dial by it are
`wire.transport.routes`, for MQTT, and `wire.http.client`, for web requests.
"""

import base64
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_private_text

DEFAULT_PORT = 3128
MAX_HEAD_BYTES = 16_384
_ASKS_PASSWORD = 407


class ForwardProxy(NamedTuple):
    """`url`: http://HOST:PORT, "" = none; `credentials_file`: a private file with USER:PASSWORD, "" = none."""

    url: str = ""
    credentials_file: str = ""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        where = urlsplit(self.url)
        return where.hostname or "", where.port or DEFAULT_PORT


NO_PROXY = ForwardProxy()


class HttpHead(NamedTuple):
    """Status and fields (names in small letters) of an HTTP answer."""

    status: int
    fields: dict[str, str]


def check_proxy(proxy: ForwardProxy, name: str = "link.proxy") -> None:
    """Refuse a proxy that cannot be used: ExitError(CONFIG), or (CREDENTIALS) for a file others may read.

    `name`: of the key or option that names it, for the error line.
    """
    if proxy.url and not is_address(proxy.url, ("http",)):
        raise ExitError(ExitCode.CONFIG, f"{name}: write http://HOST:PORT, without a user")
    if proxy.credentials_file:
        if not proxy.url:
            raise ExitError(ExitCode.CONFIG, f"{name}_credentials_file: there is no {name}")
        read_credentials(proxy)


def is_address(text: str, schemes: tuple[str, ...]) -> bool:
    """Whether a text is a URL with one of these schemes and a host, and without a user."""
    try:
        url = urlsplit(text)
        return url.scheme in schemes and bool(url.hostname) and not url.username and url.port != 0
    except ValueError:
        return False


def read_credentials(proxy: ForwardProxy) -> str:
    """USER:PASSWORD of the proxy, "" if it asks for none. ExitError(CREDENTIALS) if the file cannot be used."""
    if not proxy.credentials_file:
        return ""
    text = read_private_text(Path(proxy.credentials_file)).split("\n", 1)[0].strip()
    if ":" not in text:
        raise ExitError(ExitCode.CREDENTIALS, f"{proxy.credentials_file}: its first line is not USER:PASSWORD")
    return text


def name_target(host: str, port: int) -> str:
    """Host and port as one text, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def make_connect_request(proxy: ForwardProxy, host: str, port: int) -> bytes:
    """What asks a proxy for a connection. ExitError(CREDENTIALS) if its credentials cannot be read."""
    where = name_target(host, port)
    lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}"]
    if credentials := read_credentials(proxy):
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(credentials.encode()).decode()}")
    return "\r\n".join((*lines, "", "")).encode()


def parse_http_head(data: bytes) -> HttpHead:
    """The head of an HTTP answer, without the empty line behind it. OSError for what is none."""
    first, *lines = data.decode("latin-1").split("\r\n")
    version, _, status = first.partition(" ")
    if not version.startswith("HTTP/1.") or not status[:3].isdigit():
        raise OSError("what answers speaks no HTTP")
    pairs = (line.partition(":") for line in lines)
    return HttpHead(int(status[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs})


def check_connect_answer(proxy: ForwardProxy, where: str, head: HttpHead, rest: bytes) -> None:
    """OSError unless the proxy has let us through to `where`. `rest`: what came behind its answer."""
    host = proxy.address[0]
    if head.status // 100 != 2:
        why = " (it wants link.proxy_credentials_file)" if head.status == _ASKS_PASSWORD else ""
        raise OSError(f"the proxy {host} refused {where}: HTTP {head.status}{why}")
    if rest:
        raise OSError(f"the proxy {host} said more than it was asked")
