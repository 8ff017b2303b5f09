"""Which addresses a webhook may be at: those of other networks, never this machine's or its own network's. Pure.

Rule: an IPv4 address is refused if it stands in a block that IANA reserves. Of IPv6 only global unicast (2000::/3) is
taken, without the blocks that are reserved in it, and the forms that a gateway turns into IPv4 (mapped, NAT64, 6to4) if
the address that they carry is taken. Whatever is not known is refused.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

from wire.http.oip import OipError

MAX_URL = 500
_HIDDEN_NAMES = ("localhost", "local", "internal", "localdomain")
# Blocks of the IANA special-purpose registries that are not globally reachable, or lead to a relay
_RESERVED_V4 = tuple(
    map(
        IPv4Network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
            *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        ),
    )
)
_GLOBAL_V6 = IPv6Network("2000::/3")
_RESERVED_V6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))  # Teredo is in the first
_MAPPED = IPv6Network("::ffff:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR = IPv6Network("2002::/16")
_ISATAP = (0x00005EFE, 0x02005EFE)  # before the IPv4 address in the lower half


def is_outward(address: str) -> bool:
    """Whether an IP address is a public one; False of anything that is no address."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return _is_public_v4(found) if isinstance(found, IPv4Address) else _is_public_v6(found)


def _is_public_v4(address: IPv4Address) -> bool:
    return not any(address in block for block in _RESERVED_V4)


def _is_public_v6(address: IPv6Address) -> bool:
    number = int(address)
    if address in _MAPPED or address in _NAT64:
        return _is_public_v4(IPv4Address(number & 0xFFFF_FFFF))
    if address not in _GLOBAL_V6 or any(address in block for block in _RESERVED_V6):
        return False
    if (number >> 32) & 0xFFFF_FFFF in _ISATAP and not _is_public_v4(IPv4Address(number & 0xFFFF_FFFF)):
        return False
    return address not in _SIX_TO_FOUR or _is_public_v4(IPv4Address((number >> 80) & 0xFFFF_FFFF))


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
