"""Roles of the update repository: who signs what, for how long, which paths a role may list; and downgrade permits.

Rule: values only. Root and targets are signed offline; snapshot and timestamp by the hub; a delegated role speaks for
its own folder and for nothing else (TUF specification 2.1 and 4.5). Nothing here needs more than Python.

A permit lets devices of one family go down to one older version.
Rule: a permit is the `custom.permit` of a target below `permits/`, which the top-level targets role alone may list; so
what its signers saw is what holds, and no hub can make one. Its path says what it does.
"""

import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

ROOT, TARGETS, SNAPSHOT, TIMESTAMP = "root", "targets", "snapshot", "timestamp"
TOP_LEVEL = (ROOT, TARGETS, SNAPSHOT, TIMESTAMP)
ONLINE = (SNAPSHOT, TIMESTAMP)  # always at the hub
POLICY, KEYS = "policy", "keys"
PERMITS = "permits"  # permits for downgrades: listed by targets itself, since no hub may sign them
MODELS_PREFIX = "models-"
BUNDLE_SUFFIX = ".skb"
HUB_SUFFIX = ".hub.json"  # of the target beside a bundle that describes its hub part
HUB_FIELD = "hub"  # of a bundle's `custom`: SHA-256 of the target that describes its hub part; absent = it has none
PART_FIELD, HUB_PART = "part", "hub"  # of a hub part's `custom`
EDGE_FIELD = "edge"  # of a hub part's `custom`: SHA-256 of the bundle that it belongs to
SIZE_FIELD, FILES_FIELD = "size_bytes", "files"  # of a hub part's `custom`: all its files together, and their number
INTERFACE_FIELD = "new_interface"  # of a bundle's `custom`: true = its signers let input, kind and labels change
CLOCK_SLACK = timedelta(days=2)  # between the clocks of two machines
_DAYS = {ROOT: 365, TARGETS: 180, SNAPSHOT: 30, TIMESTAMP: 7}
_DELEGATED_DAYS = 90
_PART = r"[a-z0-9][a-z0-9_-]*(?:\.[a-z0-9_-]+)*"
_NAME = re.compile(rf"(?=.{{1,64}}\Z){_PART}")
MODEL_PATTERN = f"{_PART}@[0-9]{{1,15}}"  # a family and a version, for readers without Python; ECMA 262
_PATH = re.compile(rf"(?=.{{1,255}}\Z){_PART}(?:/{_PART}){{1,4}}")


@dataclass(frozen=True)
class KeyThresholds:
    """Key thresholds of root and targets: keys made, and how many of them must sign."""

    root_keys: int
    root_threshold: int
    targets_keys: int
    targets_threshold: int


FLEET_THRESHOLDS = KeyThresholds(3, 2, 2, 2)
SMALL_THRESHOLDS = KeyThresholds(1, 1, 1, 1)  # of one person: whoever gets that one key owns the fleet


def model_role(family: str) -> str:
    """Return the role of a model family, as in `models-digits`.

    ValueError if the family cannot be a part of a path.
    """
    if not _NAME.fullmatch(family):
        raise ValueError(f"{family!r} cannot name a family: a-z, 0-9, dash, underscore and single dots inside")
    return MODELS_PREFIX + family


def is_delegated(role: str) -> bool:
    """Tell whether a role is one of the delegated ones: policy, keys, or a model family's."""
    return role in (POLICY, KEYS) or (
        role.startswith(MODELS_PREFIX) and bool(_NAME.fullmatch(role.removeprefix(MODELS_PREFIX)))
    )


def parse_role(word: str) -> str:
    """Parse a role as typed.

    As `root`, `policy`, `models-digits`, or a family, `digits`. ValueError otherwise.
    """
    return word if word in TOP_LEVEL or is_delegated(word) else model_role(word)


def path_pattern(role: str) -> str:
    """Return the paths a role may list: `models/digits/*`, `policy/*`, `keys/*`. Targets itself: `permits/*/*`."""
    if role == TARGETS:
        return f"{PERMITS}/*/*"
    return f"models/{role.removeprefix(MODELS_PREFIX)}/*" if role.startswith(MODELS_PREFIX) else f"{role}/*"


def model_path(family: str, version: int) -> str:
    """Return the target path of a packed bundle."""
    return f"models/{family}/{family}-{version}{BUNDLE_SUFFIX}"


def hub_path(bundle_path: str) -> str:
    """Return the path of the hub part that belongs to a bundle's path: `models/digits/digits-7.hub.json`."""
    return bundle_path.removesuffix(BUNDLE_SUFFIX) + HUB_SUFFIX


def bundle_path_of(hub_path: str) -> str:
    """Return the path of the bundle that a hub part's path belongs to."""
    return hub_path.removesuffix(HUB_SUFFIX) + BUNDLE_SUFFIX


def is_hub_path(path: str) -> bool:
    """Tell whether a target path is a hub part's, which no device is ever given."""
    return path.startswith("models/") and path.endswith(HUB_SUFFIX)


def policy_path(name: str) -> str:
    """Return the target path of a policy."""
    return f"policy/{name}.toml"


def keys_path(region: str) -> str:
    """Return the target path of a region's hub keys."""
    return f"keys/{region}.json"


def permit_path(family: str, from_below: int, to_version: int, devices: tuple[str, ...] = ()) -> str:
    """Return the target path of a permit. The devices that it names are a digest in it, so that permits stand apart."""
    named = f"-for-{sha256(' '.join(devices).encode()).hexdigest()[:_NAMED_HEX]}" if devices else ""
    return f"{PERMITS}/{family}/to-{to_version}-from-below-{from_below}{named}.json"


def is_repository_path(path: str) -> bool:
    """Tell whether a path is one of ours: two to five plain parts, so it cannot leave a folder.

    A part: lower-case ASCII letters, digits, `_`, `-` and single dots inside.
    """
    return bool(_PATH.fullmatch(path))


def may_list_path(role: str, path: str) -> bool:
    """Tell whether a role may list a path: one of ours, and inside the role's own folder."""
    parts, wanted = path.split("/"), path_pattern(role).split("/")
    inside = len(parts) == len(wanted) and all(want in ("*", part) for part, want in zip(parts, wanted, strict=True))
    return is_repository_path(path) and inside


def role_lifetime(role: str) -> timedelta:
    """Return the lifetime of a role's metadata."""
    return timedelta(days=_DAYS.get(role, _DELEGATED_DAYS))


def expiry_for(role: str, now: datetime) -> datetime:
    """Return when a version signed now expires. Whole seconds, as the metadata has them."""
    return now.astimezone(UTC).replace(microsecond=0) + role_lifetime(role)


def is_renewal_due(role: str, expires: datetime, now: datetime) -> bool:
    """Tell whether a role must be signed again: the timestamp daily, others with a third of their life left."""
    left = role_lifetime(role) - timedelta(days=1) if role == TIMESTAMP else role_lifetime(role) / 3
    return expires - now <= left


PERMIT_FIELD = "permit"  # of the target's `custom`
_DEVICES = "devices"
MAX_VERSION = 2**53
MAX_REASON_CHARS = 200
LAST_MS = 4_102_444_800_000  # 2100-01-01: latest end of a permit
MAX_PERMIT_DEVICES = 1000
_NAMED_HEX = 16
_DEVICE = re.compile(r"[a-z0-9-]{1,64}")
_PERMIT_TYPES = {"family": str, "from_below": int, "to_version": int, "expires_ms": int, "why": str}


@dataclass(frozen=True)
class Permit:
    """Permit for a downgrade: devices below `from_below` may go down to `to_version`, until `expires_ms`.

    `devices`: ids of those that may, sorted; none = every device of the fleet, those that enrol later among them.
    """

    family: str
    from_below: int
    to_version: int
    expires_ms: int
    why: str = ""
    devices: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Target path of this permit."""
        return permit_path(self.family, self.from_below, self.to_version, self.devices)

    def covers(self, device: str) -> bool:
        """Tell whether this device may use it."""
        return not self.devices or device in self.devices

    def custom_fields(self) -> dict[str, Any]:
        """Return the `custom` field of its target. A later permit for the same way down is a later version."""
        fields = asdict(self)
        del fields[_DEVICES]
        named = {_DEVICES: list(self.devices)} if self.devices else {}
        return {"version": self.expires_ms // 1000, PERMIT_FIELD: {**fields, **named}}

    def describe(self) -> str:
        """Describe the permit for whoever signs it."""
        until = datetime.fromtimestamp(self.expires_ms / 1000, UTC)
        whose = f"{len(self.devices)} devices ({', '.join(self.devices)})" if self.devices else "devices"
        below = f"{whose} below {self.family}@{self.from_below}"
        return f"lets {below} go down to {self.to_version} until {until:%Y-%m-%d %H:%M}: {self.why!a}"


def _read_devices(values: dict[str, Any]) -> tuple[str, ...]:
    """Parse the devices that a permit names; none if it names nobody. ValueError for anything but a list of ids."""
    if _DEVICES not in values:
        return ()
    given: Any = values[_DEVICES]
    named = tuple(given) if isinstance(given, list | tuple) else ()
    if not all(isinstance(each, str) and _DEVICE.fullmatch(each) for each in named) or (
        not 1 <= len(named) <= MAX_PERMIT_DEVICES or list(named) != sorted(set(named))
    ):
        raise ValueError(f"a permit names 1 to {MAX_PERMIT_DEVICES} devices, sorted, each once")
    return named


def read_permit(path: str, custom: object) -> Permit:
    """Parse a permit. ValueError if it is none, could not mean anything, or its path says something else."""
    values = custom.get(PERMIT_FIELD) if isinstance(custom, dict) else None
    if not isinstance(values, dict) or set(values) - {_DEVICES} != set(_PERMIT_TYPES):
        raise ValueError("no permit")
    if any(type(values[name]) is not kind for name, kind in _PERMIT_TYPES.items()):
        raise ValueError("no permit: a value of the wrong type")
    permit = Permit(**{**values, _DEVICES: _read_devices(values)})
    if not 1 <= permit.to_version < permit.from_below <= MAX_VERSION:
        raise ValueError(f"a permit leads down: to {permit.to_version}, from below {permit.from_below}")
    if not 0 < permit.expires_ms <= LAST_MS or len(permit.why) > MAX_REASON_CHARS:
        raise ValueError(f"a permit ends, and its reason has at most {MAX_REASON_CHARS} characters")
    if path != permit.path:
        raise ValueError(f"a permit at {path[:80]!r} belongs at {permit.path}")
    return permit
