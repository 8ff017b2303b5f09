"""In which states a device can be and which lead to which. Pure.

Rule: a state only ever changes along `may_become`; revoked is the end of an id, retired the end of one machine's keys.

The seam to the registry: all that the hub asks about a device, on every message and so from memory.
"""

from enum import StrEnum
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey


class DeviceState(StrEnum):
    ACTIVE = "active"
    SUSPENDED = "suspended"  # not heard, may come back
    RETIRING = "retiring"  # gets what it is owed and nothing new; becomes retired by itself
    RETIRED = "retired"  # its keys count no more; the name may be given to another machine
    REVOKED = "revoked"  # never again under this id


class Because(StrEnum):
    """Why a device is in its state."""

    ENROLLED = "enrolled"
    OPERATOR = "operator"  # a person said so
    CLONE_SUSPECT = "clone_suspect"  # two machines spoke with its keys
    DEVICE = "device"  # it said itself, signed, that it retires
    RETIREMENT_OVER = "retirement_over"  # the time to drain has passed


_NEXT = {
    DeviceState.ACTIVE: frozenset(DeviceState) - {DeviceState.ACTIVE},
    DeviceState.SUSPENDED: frozenset((DeviceState.ACTIVE, DeviceState.RETIRED, DeviceState.REVOKED)),
    DeviceState.RETIRING: frozenset(DeviceState) - {DeviceState.RETIRING},
    DeviceState.RETIRED: frozenset((DeviceState.REVOKED,)),
    DeviceState.REVOKED: frozenset(),
}
HEARD = frozenset((DeviceState.ACTIVE, DeviceState.RETIRING))  # whose signed messages are answered
GONE = frozenset((DeviceState.RETIRED, DeviceState.REVOKED))  # whose keys will never count again
_WHY_NOT = {
    DeviceState.REVOKED: "is revoked for good: invite it under another name",
    DeviceState.RETIRED: "is retired: `skerry hub invite` makes the name welcome again, with new keys",
    DeviceState.SUSPENDED: "is suspended: resume it first, or retire or revoke it",
}


def may_become(now: DeviceState, wanted: DeviceState) -> bool:
    """Staying what it is is always allowed."""
    return wanted is now or wanted in _NEXT[now]


def refusal(now: DeviceState, wanted: DeviceState) -> str:
    """Why not, for a person."""
    return _WHY_NOT.get(now, f"is {now}, it cannot become {wanted}")


def may_be_invited(now: DeviceState | None, *, replace: bool) -> bool:
    """`None` = never enrolled. `replace`: a person said that a suspended device shall enrol anew, with new keys."""
    if now in (None, DeviceState.ACTIVE, DeviceState.RETIRED):
        return True
    return replace and now is DeviceState.SUSPENDED


Standing = DeviceState  # the states under the name the hub's core uses


class Device(Protocol):
    """One enrolled device. What its state means: `cloud_hub.registry.device_states`."""

    @property
    def id(self) -> str: ...
    @property
    def state(self) -> StrEnum: ...
    @property
    def signing_key(self) -> Ed25519PublicKey: ...
    @property
    def hpke_key(self) -> X25519PublicKey: ...
    @property
    def device_class(self) -> str: ...
    @property
    def region(self) -> str: ...


class Registry(Protocol):
    """Answers in microseconds, with the truth of this moment: a revocation counts for the next message."""

    def device(self, device: str, /) -> Device | None: ...

    def suspect(self, device: str, now_ms: int, /) -> bool:
        """Two machines speak with its keys: suspend it. False if there was nothing to suspend."""
        ...
