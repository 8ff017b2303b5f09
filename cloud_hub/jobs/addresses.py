"""Which addresses a webhook may be at: those of other networks, never this machine's or its own network's. Pure.

Rule: an address that carries another one inside (IPv4 in IPv6, 6to4, NAT64, Teredo) is judged by both.
"""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

from wire.http.oip import OipError

MAX_URL = 500
_NAT64 = IPv6Network("64:ff9b::/96")
_HIDDEN_NAMES = ("localhost", "local", "internal", "localdomain")


def is_outward(address: str) -> bool:
    """Whether an IP address is a public one; False of anything that is no address."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    inner = list_inner(found) if isinstance(found, IPv6Address) else ()
    judged = inner if found in _NAT64 else (found, *inner)  # the prefix itself is nobody's
    return all(each.is_global and not each.is_multicast for each in judged)


def list_inner(address: IPv6Address) -> tuple[IPv4Address, ...]:
    """Return the IPv4 addresses that an IPv6 address carries."""
    carried = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        carried.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return tuple(each for each in carried if each is not None)


def check_hook(url: str, *, inwards: bool) -> None:
    """OipError(400) if a webhook's address is none, or names this machine or its network.

    What a name stands for is looked at again when a connection is made.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise OipError(400, "webhook: this is no URL") from None
    plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= MAX_URL
    if not plain or parts.scheme not in ("http", "https") or not host or parts.fragment:
        raise OipError(400, f"webhook: an http or https URL of at most {MAX_URL} characters, without a fragment")
    if parts.username is not None or parts.password is not None:
        raise OipError(400, "webhook: a URL without user or password")
    if not inwards and _names_inside(host):
        raise OipError(400, "webhook: this address is inside the hub's own network")


def _names_inside(host: str) -> bool:
    name = host.rstrip(".").lower()
    if name.rpartition(".")[2] in _HIDDEN_NAMES:
        return True
    is_number = ":" in host or name.replace(".", "").isdigit() or name.startswith("0x")
    return is_number and not is_outward(host)
