"""How a connection reaches its broker: direct, through an HTTP proxy (CONNECT), over WebSocket, or both.

TLS is spoken with the broker, or with the server of the WebSocket, inside of whatever lies between: a proxy sees names
and sizes. Rule: each step has the time limit for itself, and an error names the step: TCP, CONNECT, TLS, WebSocket.
"""

import socket
import ssl
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from wire.process.exit_codes import ExitCode, ExitError
from wire.process.proxy import (
    ForwardProxy,
    check_connect_answer,
    check_proxy,
    is_address,
    make_connect_request,
    name_target,
)
from wire.process.time_limits import limit_step
from wire.transport.sockets import ByteSocket, dial_tcp, exchange_head, wrap_tls

_PORTS = {"ws": 80, "wss": 443}


class LinkRoute(NamedTuple):
    """The way to a broker. `websocket`: a URL, "" = MQTT on the broker's own port; `proxy`: a URL, "" = none.

    `credentials_file`: a private file whose first line is USER:PASSWORD for the proxy, "" = none.
    """

    websocket: str = ""
    proxy: str = ""
    credentials_file: str = ""

    @property
    def forward_proxy(self) -> ForwardProxy:
        """The proxy, which web requests of the device take too."""
        return ForwardProxy(self.proxy, self.credentials_file)


DIRECT = LinkRoute()


def check_route(route: LinkRoute) -> None:
    """Refuse a route that cannot be taken: ExitError(CONFIG), or (CREDENTIALS) for a file others may read."""
    if route.websocket and not is_address(route.websocket, ("ws", "wss")):
        raise ExitError(ExitCode.CONFIG, "link.websocket: write ws://HOST:PORT or wss://HOST:PORT, without a user")
    check_proxy(route.forward_proxy)


async def open_route(
    route: LinkRoute, host: str, port: int, tls: ssl.SSLContext | None, step_s: float = 10.0
) -> ByteSocket:
    """A connection to a broker by a route. OSError if it cannot be made, with the step that failed.

    `tls` None: plain TCP, or ws:// for a WebSocket. `step_s`: limit of each step, in seconds. ExitError(CREDENTIALS) if
    the proxy's credentials are unreadable.
    """
    url = urlsplit(route.websocket) if route.websocket else None
    if url is not None:
        host, port = url.hostname or "", url.port or _PORTS[url.scheme]
        tls = tls if url.scheme == "wss" else None
    where = name_target(host, port)
    if route.proxy:
        sock = await _dial_proxy(route.forward_proxy, host, port, step_s)
    else:
        async with limit_step(f"TCP to {where}", step_s):
            sock = await dial_tcp(host, port)
    try:
        if tls:
            async with limit_step(f"TLS with {where}", step_s):
                sock = await wrap_tls(sock, tls, host)
        if url is None:
            return sock
        async with limit_step(f"WebSocket at {route.websocket}", step_s):
            return await _upgrade(sock, url)
    except BaseException:
        sock.close()
        raise


async def _upgrade(sock: socket.socket, url: SplitResult) -> ByteSocket:
    from wire.transport.websocket import upgrade_socket  # noqa: PLC0415 - most links have none

    return await upgrade_socket(sock, url)


async def _dial_proxy(proxy: ForwardProxy, host: str, port: int, step_s: float) -> socket.socket:
    """A connection through the proxy, which has not sent anything yet."""
    request = make_connect_request(proxy, host, port)
    there = name_target(*proxy.address)
    async with limit_step(f"TCP to the proxy {there}", step_s):
        sock = await dial_tcp(*proxy.address)
    try:
        async with limit_step(f"CONNECT at the proxy {there}", step_s):
            head, rest = await exchange_head(sock, request)
        check_connect_answer(proxy, name_target(host, port), head, rest)
    except BaseException:
        sock.close()
        raise
    return sock
