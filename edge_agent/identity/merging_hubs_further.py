"""The further hubs of a device: each an enrolment of its own in a folder of its own, with its own broker and keys.

Law: no two hubs that one device may ask have the same name, since policies know them by it.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

from edge_agent.identity.identity import Identity, load
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
