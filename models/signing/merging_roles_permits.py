"""Permits: signed offline, each lets devices of one family go down to one older version. Plain values, plain Python.

Law: a permit is the `custom.permit` of a target below `permits/`, which the top-level targets role alone may list; so
what its signers saw is what holds, and no hub can make one. Its path says what it does.
"""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from models.signing.merging_roles_roles import permit_path

FIELD = "permit"  # of the target's `custom`
MAX_VERSION = 2**53
MAX_WHY_CHARS = 200
LAST_MS = 4_102_444_800_000  # 2100-01-01: a permit without an end is none
_KINDS = {"family": str, "from_below": int, "to_version": int, "expires_ms": int, "why": str}


@dataclass(frozen=True)
class Permit:
    """Devices whose version of `family` is below `from_below` may go down to `to_version`, until `expires_ms`."""

    family: str
    from_below: int
    to_version: int
    expires_ms: int
    why: str = ""

    @property
    def path(self) -> str:
        return permit_path(self.family, self.from_below, self.to_version)

    def custom(self) -> dict[str, Any]:
        """Of its target. A later permit for the same way down is a later version."""
        return {"version": self.expires_ms // 1000, FIELD: asdict(self)}

    def words(self) -> str:
        """For whoever signs it."""
        until = datetime.fromtimestamp(self.expires_ms / 1000, UTC)
        below = f"devices below {self.family}@{self.from_below}"
        return f"lets {below} go down to {self.to_version} until {until:%Y-%m-%d %H:%M}: {self.why!a}"


def read_permit(path: str, custom: object) -> Permit:
    """ValueError if it is none, could not mean anything, or its path says something else."""
    values = custom.get(FIELD) if isinstance(custom, dict) else None
    if not isinstance(values, dict) or set(values) != set(_KINDS):
        raise ValueError("no permit")
    if any(type(values[name]) is not kind for name, kind in _KINDS.items()):
        raise ValueError("no permit: a value of another kind")
    permit = Permit(**values)
    if not 1 <= permit.to_version < permit.from_below <= MAX_VERSION:
        raise ValueError(f"a permit leads down: to {permit.to_version}, from below {permit.from_below}")
    if not 0 < permit.expires_ms <= LAST_MS or len(permit.why) > MAX_WHY_CHARS:
        raise ValueError(f"a permit ends, and its reason has at most {MAX_WHY_CHARS} characters")
    if path != permit.path:
        raise ValueError(f"a permit at {path[:80]!r} that is one for {permit.path}")
    return permit
