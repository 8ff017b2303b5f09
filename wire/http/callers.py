"""Who called: the address behind trusted proxies, and whether a caller is sure to be on this machine. Pure.

Rule: `X-Forwarded-For` and `Forwarded` (RFC 7239) are read only of a connection from a proxy that is configured as
trusted, from the right, up to the first address that is none. What cannot be read ends there: the last address that is
sure counts. Rule: a request that a proxy passed on is never one from this machine, whoever the proxy is.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Protocol

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from wire.http.access import Network

UNIX = "unix"  # the name of a caller on a Unix socket
MOST_HOPS = 32
_NETWORK_BITS = 64  # of an IPv6 address: one site has all of the others
_FOR = re.compile(r'(?:^|;)\s*for=(?:"([^"]*)"|([^;\s"]*))', re.IGNORECASE)


class HeaderList(Protocol):
    """Headers of a request, of which one may stand several times."""

    def getall(self, key: str, default: list[str], /) -> list[str]: ...


def find_address(peer: str, forwarded: Sequence[str], trusted: Sequence[Network]) -> str:
    """Address of the caller. `peer`: of the connection; `forwarded`: what the proxies say, the nearest last."""
    address = peer
    for hop in reversed(forwarded[-MOST_HOPS:]):
        if not is_trusted(address, trusted):
            break
        found = _parse_hop(hop)
        if found is None:
            break
        address = found
    return address


def is_trusted(address: str, trusted: Sequence[Network]) -> bool:
    """Whether an address is that of a trusted proxy."""
    found = parse_address(address)
    return found is not None and any(found in network for network in trusted)


def read_forwarded(headers: HeaderList) -> list[str]:
    """The addresses that proxies wrote, the nearest last; [] where none did, or both headers are there.

    A proxy writes one of the two headers, and passes on the other one as its caller wrote it.
    """
    listed = _split(headers.getall("X-Forwarded-For", []))
    elements = _split(headers.getall("Forwarded", []))
    if listed and elements:
        return []
    return listed or [_find_for(element) for element in elements]


def is_forwarded(headers: Mapping[str, str]) -> bool:
    """Whether a proxy passed the request on, or a caller says that one did."""
    return any(name in headers for name in ("X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"))


def make_caller_middleware(trusted: Sequence[Network]) -> Middleware:
    """Middleware after which `request.remote` is the caller's address, not that of a trusted proxy."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        peer = request.remote or UNIX
        if trusted and is_trusted(peer, trusted):
            address = find_address(peer, read_forwarded(request.headers), trusted)
            if address != peer:
                request = request.clone(remote=address)
        return await handler(request)

    return middleware


def _split(values: Iterable[str]) -> list[str]:
    return [each.strip() for value in values for each in value.split(",")]


def _find_for(element: str) -> str:
    found = _FOR.search(element)
    return (found[1] or found[2] or "") if found else ""


def _parse_hop(text: str) -> str | None:
    """Address of one hop, without a port; None for a name, `unknown` and what is obscured (`_hidden`)."""
    host = text.strip()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    found = parse_address(host)
    return None if found is None else str(found)


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address, an IPv4 one within IPv6 as what it is; None for anything else."""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


def find_network(address: str) -> str:
    """Return the network whose addresses one caller may have: of IPv6 the first 64 bits, else the address itself."""
    found = parse_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        return str(ip_network((found, _NETWORK_BITS), strict=False))
    return str(found or address)
