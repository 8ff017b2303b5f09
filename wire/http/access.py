"""Where an HTTP server listens and who may call it: address, TLS, bearer token. Without aiohttp, for every process.

Rule: closed unless opened. A loopback address or a Unix socket needs nothing; every other address needs TLS and a
bearer token, or the server does not start.
"""

import ipaddress
import re
import secrets
import ssl
from collections.abc import Iterable
from pathlib import Path

import msgspec

from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_private_text, write_private_file

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
WILDCARD_HOSTS = ("", "0.0.0.0", "::")  # noqa: S104 - never a name a caller may use
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,128}")


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class ServerAccess(msgspec.Struct, frozen=True):
    """Where a server listens and how callers authenticate.

    `unix` (socket path) beats host and port; port 0 = any free one. `names`: further host names callers may use.
    `token_file`: holds the bearer token, "" for none.
    """

    host: str = "127.0.0.1"
    port: int = 0
    unix: str = ""
    names: tuple[str, ...] = ()
    tls_cert: str = ""
    tls_key: str = ""
    token_file: str = ""

    @property
    def local(self) -> bool:
        """Whether it can be reached from this machine alone."""
        return bool(self.unix) or is_loopback(self.host)

    @property
    def tls(self) -> bool:
        """Whether a certificate and a key are named."""
        return bool(self.tls_cert and self.tls_key)

    @property
    def hosts(self) -> frozenset[str]:
        """Names and addresses that may stand in `Host`, in lower case."""
        return frozenset(
            text.lower() for text in (*LOOPBACK_NAMES, self.host, *self.names) if text not in WILDCARD_HOSTS
        )


def is_loopback(host: str) -> bool:
    """Whether `host` is "localhost" or a loopback address (127.0.0.0/8, ::1)."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Networks in CIDR form, or single addresses. ValueError, with its text, for what is none."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def validate_access(access: ServerAccess) -> None:
    """Refuse a non-local address without TLS and a token file. Raises ExitError(CONFIG)."""
    if access.local:
        return
    missing = [key for key in ("tls_cert", "tls_key", "token_file") if not getattr(access, key)]
    if missing:
        raise ExitError(ExitCode.CONFIG, f"{access.host} is not a loopback address: also set {', '.join(missing)}")


def load_token(access: ServerAccess) -> str:
    """Read the bearer token, creating it with mode 0600 at first start; "" where none is asked for.

    Raises ExitError(CREDENTIALS) if the file is readable by others or holds no token.
    """
    if not access.token_file:
        return ""
    path = Path(access.token_file)
    if not path.exists():
        write_private_file(path, (secrets.token_urlsafe(32) + "\n").encode())
    token = read_private_text(path)
    if not _TOKEN.fullmatch(token):
        raise ExitError(
            ExitCode.CREDENTIALS, f"{path} holds no token (32 to 128 of A-Z a-z 0-9 - _); remove it to get a new one"
        )
    return token


def build_tls_context(access: ServerAccess) -> ssl.SSLContext | None:
    """TLS context (1.2 and 1.3) with the server's certificate; None where it has none.

    Raises ExitError(CREDENTIALS) if the certificate or key cannot be loaded.
    """
    if not access.tls:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(access.tls_cert, access.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ExitError(
            ExitCode.CREDENTIALS, f"{access.tls_cert}, {access.tls_key}: {error.strerror or error}"
        ) from None
    return context
