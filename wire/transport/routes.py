"""How a connection reaches its broker: direct, through an HTTP proxy (CONNECT), over WebSocket, or both.

TLS is spoken with the broker, or with the server of the WebSocket, inside of whatever lies between: a proxy sees names
and sizes.
"""

import base64
import socket
import ssl
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_private_text
from wire.transport.sockets import ByteSocket, HttpHead, dial_tcp, exchange_head, wrap_tls

_PORTS = {"ws": 80, "wss": 443, "http": 3128}


class LinkRoute(NamedTuple):
    """The way to a broker. `websocket`: a URL, "" = MQTT on the broker's own port; `proxy`: a URL, "" = none.

    `credentials_file`: a private file whose first line is USER:PASSWORD for the proxy, "" = none.
    """

    websocket: str = ""
    proxy: str = ""
    credentials_file: str = ""


DIRECT = LinkRoute()


def check_route(route: LinkRoute) -> None:
    """Refuse a route that cannot be taken: ExitError(CONFIG), or (CREDENTIALS) for a file others may read."""
    for name, text, schemes in (("websocket", route.websocket, ("ws", "wss")), ("proxy", route.proxy, ("http",))):
        if text and not _is_address(text, schemes):
            known = " or ".join(f"{each}://HOST:PORT" for each in schemes)
            raise ExitError(ExitCode.CONFIG, f"link.{name}: write {known}, without a user")
    if route.credentials_file:
        if not route.proxy:
            raise ExitError(ExitCode.CONFIG, "link.proxy_credentials_file: there is no link.proxy")
        read_credentials(route)


def _is_address(text: str, schemes: tuple[str, ...]) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in schemes and bool(url.hostname) and not url.username and url.port != 0
    except ValueError:
        return False


def read_credentials(route: LinkRoute) -> str:
    """USER:PASSWORD of the proxy, "" if it asks for none. ExitError(CREDENTIALS) if the file cannot be used."""
    if not route.credentials_file:
        return ""
    text = read_private_text(Path(route.credentials_file)).split("\n", 1)[0].strip()
    if ":" not in text:
        raise ExitError(ExitCode.CREDENTIALS, f"{route.credentials_file}: its first line is not USER:PASSWORD")
    return text


async def open_route(route: LinkRoute, host: str, port: int, tls: ssl.SSLContext | None) -> ByteSocket:
    """A connection to a broker by a route. OSError if it cannot be made, with what refused it.

    `tls` None: plain TCP, or ws:// for a WebSocket. ExitError(CREDENTIALS) if the proxy's credentials are unreadable.
    """
    url = urlsplit(route.websocket) if route.websocket else None
    if url is not None:
        host, port = url.hostname or "", url.port or _PORTS[url.scheme]
        tls = tls if url.scheme == "wss" else None
    sock = await (_dial_proxy(route, host, port) if route.proxy else dial_tcp(host, port))
    try:
        sock = await wrap_tls(sock, tls, host) if tls else sock
        return sock if url is None else await _upgrade(sock, url)
    except BaseException:
        sock.close()
        raise


async def _upgrade(sock: socket.socket, url: SplitResult) -> ByteSocket:
    from wire.transport.websocket import upgrade_socket  # noqa: PLC0415 - most links have none

    return await upgrade_socket(sock, url)


async def _dial_proxy(route: LinkRoute, host: str, port: int) -> socket.socket:
    """A connection through the proxy, which has not sent anything yet."""
    proxy = urlsplit(route.proxy)
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    credentials = read_credentials(route)
    sock = await dial_tcp(proxy.hostname or "", proxy.port or _PORTS["http"])
    try:
        lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}"]
        if credentials:
            lines.append(f"Proxy-Authorization: Basic {base64.b64encode(credentials.encode()).decode()}")
        head, rest = await exchange_head(sock, "\r\n".join((*lines, "", "")).encode())
        _check_answer(head, rest, f"the proxy {proxy.hostname}", where)
    except BaseException:
        sock.close()
        raise
    return sock


def _check_answer(head: HttpHead, rest: bytes, proxy: str, where: str) -> None:
    if head.status // 100 != 2:
        why = " (it wants link.proxy_credentials_file)" if head.status == 407 else ""
        raise OSError(f"{proxy} refused {where}: HTTP {head.status}{why}")
    if rest:
        raise OSError(f"{proxy} said more than it was asked")
