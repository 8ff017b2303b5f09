"""Who signs what in the update repository, for how long, and which paths a role may list: the one table.

Law: values only. Root and targets are signed offline; snapshot and timestamp by the hub; a delegated role speaks for
its own folder and for nothing else (TUF specification 2.1 and 4.5). Nothing here needs more than Python.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

ROOT, TARGETS, SNAPSHOT, TIMESTAMP = "root", "targets", "snapshot", "timestamp"
TOP_LEVEL = (ROOT, TARGETS, SNAPSHOT, TIMESTAMP)
ONLINE = (SNAPSHOT, TIMESTAMP)  # always at the hub
POLICY, KEYS = "policy", "keys"
PERMITS = "permits"  # ways down to an older version: listed by targets itself, since no hub ever signs that
MODELS = "models-"
SLACK = timedelta(days=2)  # between the clocks of two machines
_DAYS = {ROOT: 365, TARGETS: 180, SNAPSHOT: 30, TIMESTAMP: 7}
_DELEGATED_DAYS = 90
_PART = r"[a-z0-9][a-z0-9_-]*(?:\.[a-z0-9_-]+)*"
_NAME = re.compile(rf"(?=.{{1,64}}\Z){_PART}")
_PATH = re.compile(rf"(?=.{{1,255}}\Z){_PART}(?:/{_PART}){{1,4}}")


@dataclass(frozen=True)
class Fleet:
    """How many people must agree: keys made, and how many of them it takes."""

    root_keys: int
    root_threshold: int
    targets_keys: int
    targets_threshold: int


FLEET = Fleet(3, 2, 2, 2)
SMALL = Fleet(1, 1, 1, 1)  # of one person: whoever gets that one key owns the fleet


def model_role(family: str) -> str:
    """`models-digits`. ValueError if the family cannot be a part of a path."""
    if not _NAME.fullmatch(family):
        raise ValueError(f"{family!r} cannot name a family: a-z, 0-9, dash, underscore and single dots inside")
    return MODELS + family


def is_delegated(role: str) -> bool:
    return role in (POLICY, KEYS) or (role.startswith(MODELS) and bool(_NAME.fullmatch(role.removeprefix(MODELS))))


def role_named(word: str) -> str:
    """The role a person means: `root`, `policy`, `models-digits`, or a family, `digits`. ValueError otherwise."""
    return word if word in TOP_LEVEL or is_delegated(word) else model_role(word)


def pattern(role: str) -> str:
    """The paths a delegated role may list: `models/digits/*`, `policy/*`, `keys/*`. Targets itself: `permits/*/*`."""
    if role == TARGETS:
        return f"{PERMITS}/*/*"
    return f"models/{role.removeprefix(MODELS)}/*" if role.startswith(MODELS) else f"{role}/*"


def model_path(family: str, version: int) -> str:
    return f"models/{family}/{family}-{version}.skb"


def policy_path(name: str) -> str:
    return f"policy/{name}.toml"


def keys_path(region: str) -> str:
    return f"keys/{region}.json"


def permit_path(family: str, from_below: int, to_version: int) -> str:
    return f"{PERMITS}/{family}/to-{to_version}-from-below-{from_below}.json"


def path_fits(path: str) -> bool:
    """Two to five parts of small ASCII letters, digits, `_`, `-` and single dots inside: it cannot leave a folder."""
    return bool(_PATH.fullmatch(path))


def may_list(role: str, path: str) -> bool:
    """Whether the path is one of ours, and inside the role's own folder."""
    parts, wanted = path.split("/"), pattern(role).split("/")
    inside = len(parts) == len(wanted) and all(want in ("*", part) for part, want in zip(parts, wanted, strict=True))
    return path_fits(path) and inside


def life(role: str) -> timedelta:
    return timedelta(days=_DAYS.get(role, _DELEGATED_DAYS))


def expiry(role: str, now: datetime) -> datetime:
    """When a version signed now ends. Whole seconds, as the metadata has them."""
    return now.astimezone(UTC).replace(microsecond=0) + life(role)


def due(role: str, expires: datetime, now: datetime) -> bool:
    """Time to sign it again: daily for the timestamp, with a third of its life left for the others."""
    left = life(role) - timedelta(days=1) if role == TIMESTAMP else life(role) / 3
    return expires - now <= left
