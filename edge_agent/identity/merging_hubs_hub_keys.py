"""The hub keys of a region as the update repository has them (`keys/{region}.json`).

Law: this file, brought and verified by TUF, is the only place from which a device learns a hub key once it has it.
"""

import msgspec

from edge_agent.identity.identity import HubKeys

KEY_BYTES = 32


class _Document(msgspec.Struct, frozen=True):
    region: str
    hubs: tuple[HubKeys, ...]


def read_keys(data: bytes, region: str) -> tuple[HubKeys, ...]:
    """Keys are raw 32 bytes, base64 in the file. ValueError, in one line, if it cannot be used for that region."""
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not a file of hub keys: {error}") from None
    if not document.hubs or {document.region, *(hub.region for hub in document.hubs)} != {region}:
        raise ValueError(f"no hub keys of region {region[:40]!r} alone")
    if len({hub.name for hub in document.hubs}) != len(document.hubs):
        raise ValueError("one hub has two entries")
    if any(len(key) != KEY_BYTES for hub in document.hubs for key in (hub.hpke_key, hub.signing_key)):
        raise ValueError(f"a hub key has not {KEY_BYTES} bytes")
    return document.hubs
