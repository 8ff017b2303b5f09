"""How a web request reaches another machine: direct, or through the HTTP proxy of the configuration.

Rule: whatever a device asks of a hub, or of a mirror of its repository, is dialled here, so that one proxy does for all
of it. This machine itself is always reached direct, as no proxy could.
"""

import http.client
import socket
import ssl

from wire.http.access import is_loopback
from wire.process.proxy import (
    MAX_HEAD_BYTES,
    ForwardProxy,
    check_connect_answer,
    make_connect_request,
    name_target,
    parse_http_head,
)
from wire.process.time_limits import StepTimeoutError
from wire.process.tls import start_tls


class OutwardConnection(http.client.HTTPConnection):
    """HTTP connection, by TLS where there is a `context`, through `proxy` where there is one.

    Its OSError names the step that failed: the proxy, the connection, the TLS handshake.
    """

    def __init__(
        self, host: str, port: int | None, timeout_s: float, *, context: ssl.SSLContext | None, proxy: ForwardProxy
    ) -> None:
        self.default_port = 443 if context else 80
        super().__init__(host, port or self.default_port, timeout=timeout_s)
        self._timeout_s = timeout_s
        self.tls_context = context
        self.proxy = proxy

    def connect(self) -> None:
        """Dial, and shake hands."""
        sock = dial_outward(self.proxy, self.host, self.port, self._timeout_s)
        try:
            self.sock = self._wrap(sock)
        except BaseException:
            sock.close()
            raise

    def _wrap(self, sock: socket.socket) -> socket.socket:
        if self.tls_context is None:
            return sock
        try:
            return start_tls(self.tls_context, sock, self.host)
        except TimeoutError:
            raise StepTimeoutError(f"TLS with {name_target(self.host, self.port)}", self._timeout_s) from None


def dial_outward(proxy: ForwardProxy, host: str, port: int, timeout_s: float) -> socket.socket:
    """A connected socket with that time limit for each call. OSError with the step that failed."""
    if not proxy.url or is_loopback(host):
        return _dial_tcp(host, port, timeout_s)
    request = make_connect_request(proxy, host, port)
    there, at = proxy.address
    sock = _dial_tcp(there, at, timeout_s)
    try:
        sock.sendall(request)
        _read_answer(sock, proxy, name_target(host, port))
    except TimeoutError:
        sock.close()
        raise StepTimeoutError(f"CONNECT at the proxy {name_target(there, at)}", timeout_s) from None
    except BaseException:
        sock.close()
        raise
    return sock


def _dial_tcp(host: str, port: int, timeout_s: float) -> socket.socket:
    try:
        sock = socket.create_connection((host, port), timeout_s)
    except TimeoutError:
        raise StepTimeoutError(f"TCP to {name_target(host, port)}", timeout_s) from None
    except UnicodeError:  # of a name that cannot be looked up
        raise OSError(f"'{host}' is no name of a machine") from None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _read_answer(sock: socket.socket, proxy: ForwardProxy, where: str) -> None:
    """Read the proxy's answer to CONNECT; OSError unless it lets us through."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(4096)
        data += more
        if not more or len(data) > MAX_HEAD_BYTES:
            raise OSError(f"the proxy {proxy.address[0]} ended the connection" if not more else "an endless answer")
    head, _, rest = data.partition(b"\r\n\r\n")
    check_connect_answer(proxy, where, parse_http_head(head), rest)
