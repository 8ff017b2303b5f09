"""The further hubs of a device: each an enrolment of its own in a folder of its own, with its own broker and keys.

Law: no two hubs that one device may ask have the same name, since policies know them by it.

The hub keys of a region as the update repository has them (`keys/{region}.json`).

Law: this file, brought and verified by TUF, is the only place from which a device learns a hub key once it has it.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from edge_agent.identity.identity import HubKeys, Identity, load
from wire.process.exit_codes import Exit, ExitError


class HubWish(Protocol):
    """One `[[hub]]` of the configuration."""

    @property
    def state(self) -> str: ...
    @property
    def price(self) -> int: ...


class Hubs(NamedTuple):
    """Identities of the further lines, each line named by its first hub; prices of one question by hub."""

    further: dict[str, Identity]
    prices: dict[str, int]


def open_hubs(wishes: Iterable[HubWish], home: Identity) -> Hubs:
    """ExitError(ENROLMENT or CREDENTIALS) for a folder that is not enrolled, ExitError(CONFIG) for a hub twice."""
    found = Hubs({}, {})
    known = {hub.name for hub in home.hubs}
    for wish in wishes:
        identity = load(Path(wish.state)) if wish.state else home
        names = [hub.name for hub in identity.hubs]
        if identity is not home:
            _check_new(names, known, wish.state)
            identity.tls()
            found.further[names[0]] = identity
            known.update(names)
        found.prices.update(dict.fromkeys(names, wish.price))
    return found


def _check_new(names: list[str], known: set[str], folder: str) -> None:
    twice = next((name for name in names if name in known), "")
    if twice or not names:
        raise ExitError(Exit.CONFIG, f"[[hub]] {folder}: the hub '{twice}' is known already: names must differ")


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
