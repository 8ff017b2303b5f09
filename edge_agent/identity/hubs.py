"""Additional hubs of a device, and the hub keys that the update repository publishes (`keys/{region}.json`).

Each additional hub is an enrolment of its own, in a folder of its own, with its own broker and keys.
Rule: no two hubs of one device have the same name, since policies name them by it.
Rule: once a device has the published key file, verified by TUF, it learns hub keys from nowhere else.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from edge_agent.identity.identity import HubKeys, Identity, load_identity
from wire.process.exit_codes import ExitCode, ExitError


class HubConfig(Protocol):
    """One `[[hub]]` table of the configuration: its identity folder and its price per question."""

    @property
    def state(self) -> str: ...
    @property
    def price(self) -> int: ...


class AdditionalHubs(NamedTuple):
    """Identities of the additional hubs by connection name, and prices per question by hub.

    A connection is named by the first of its hubs.
    """

    further: dict[str, Identity]
    prices: dict[str, int]


def load_additional_hubs(wishes: Iterable[HubConfig], home: Identity) -> AdditionalHubs:
    """Load the identities of the additional hubs.

    ExitError(ENROLMENT or CREDENTIALS) for a folder that is not enrolled, ExitError(CONFIG) for a hub that is listed
    twice.
    """
    found = AdditionalHubs({}, {})
    known = {hub.name for hub in home.hubs}
    for wish in wishes:
        identity = load_identity(Path(wish.state)) if wish.state else home
        names = [hub.name for hub in identity.hubs]
        if identity is not home:
            _check_new_names(names, known, wish.state)
            identity.tls_context()
            found.further[names[0]] = identity
            known.update(names)
        found.prices.update(dict.fromkeys(names, wish.price))
    return found


def _check_new_names(names: list[str], known: set[str], folder: str) -> None:
    twice = next((name for name in names if name in known), "")
    if twice or not names:
        raise ExitError(ExitCode.CONFIG, f"[[hub]] {folder}: the hub '{twice}' is configured twice: names must differ")


KEY_BYTES = 32


class _HubKeysFile(msgspec.Struct, frozen=True):
    """The published key file of one region."""

    region: str
    hubs: tuple[HubKeys, ...]
    committed: dict[str, int] = {}


def read_committed_version(data: bytes, family: str) -> int:
    """Version of a model family that the region's fleet has committed, by its key file; 0 if that says nothing."""
    try:
        return msgspec.json.decode(data, type=_HubKeysFile).committed.get(family, 0)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0


def parse_hub_keys(data: bytes, region: str) -> tuple[HubKeys, ...]:
    """Parse the hub keys of a region (raw 32 bytes, base64). ValueError with a one-line reason if unusable."""
    try:
        document = msgspec.json.decode(data, type=_HubKeysFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a file of hub keys: {error}") from None
    if not document.hubs or {document.region, *(hub.region for hub in document.hubs)} != {region}:
        raise ValueError(f"the file is not for region {region[:40]!r} alone")
    if len({hub.name for hub in document.hubs}) != len(document.hubs):
        raise ValueError("one hub has two entries")
    if any(len(key) != KEY_BYTES for hub in document.hubs for key in (hub.hpke_key, hub.signing_key)):
        raise ValueError(f"the length of a hub key is not {KEY_BYTES} bytes")
    return document.hubs
