"""States of a device and the allowed transitions, and the registry protocol that the core uses. Pure.

Rule: a state changes only as `may_become` allows; revoked is final for a device id, retired is final for its keys. The
registry is asked on every message, so it answers from memory.
"""

from enum import StrEnum
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey


class DeviceState(StrEnum):
    """Life-cycle state of an enrolled device."""

    ACTIVE = "active"
    SUSPENDED = "suspended"  # its messages are refused until it is resumed
    RETIRING = "retiring"  # still gets its outstanding answers, nothing new; becomes retired after its drain time
    RETIRED = "retired"  # its keys are invalid; the name may be given to another machine
    REVOKED = "revoked"  # never again under this id


class StateReason(StrEnum):
    """Reason for a device's state."""

    ENROLLED = "enrolled"
    OPERATOR = "operator"  # set by an administrator
    CLONE_SUSPECT = "clone_suspect"  # two machines used its keys
    DEVICE = "device"  # the device itself asked to retire, signed
    RETIREMENT_OVER = "retirement_over"  # the time to drain has passed


_NEXT = {
    DeviceState.ACTIVE: frozenset(DeviceState) - {DeviceState.ACTIVE},
    DeviceState.SUSPENDED: frozenset((DeviceState.ACTIVE, DeviceState.RETIRED, DeviceState.REVOKED)),
    DeviceState.RETIRING: frozenset(DeviceState) - {DeviceState.RETIRING},
    DeviceState.RETIRED: frozenset((DeviceState.REVOKED,)),
    DeviceState.REVOKED: frozenset(),
}
HEARD = frozenset((DeviceState.ACTIVE, DeviceState.RETIRING))  # whose signed messages are answered
GONE = frozenset((DeviceState.RETIRED, DeviceState.REVOKED))  # whose keys are invalid for ever
_REFUSALS = {
    DeviceState.REVOKED: "is revoked for good: invite it under another name",
    DeviceState.RETIRED: "is retired: `skerry hub invite` lets a device of this name enrol again, with new keys",
    DeviceState.SUSPENDED: "is suspended: resume it first, or retire or revoke it",
}


def may_become(now: DeviceState, wanted: DeviceState) -> bool:
    """Whether the transition is allowed; staying in the same state always is."""
    return wanted is now or wanted in _NEXT[now]


def explain_refusal(now: DeviceState, wanted: DeviceState) -> str:
    """Why a transition is not allowed, as readable text after the device's name."""
    return _REFUSALS.get(now, f"is {now}, it cannot become {wanted}")


def may_be_invited(now: DeviceState | None, *, replace: bool) -> bool:
    """Whether a device in this state may be invited to enrol.

    `None` = never enrolled. `replace`: an administrator wants a suspended device to enrol again with new keys.
    """
    if now in (None, DeviceState.ACTIVE, DeviceState.RETIRED):
        return True
    return replace and now is DeviceState.SUSPENDED


Standing = DeviceState  # alias used by the core


class Device(Protocol):
    """One enrolled device, as the core sees it."""

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


class DeviceLookup(Protocol):
    """Look-up of devices, answered from memory: a revocation takes effect with the next message."""

    def device(self, device: str, /) -> Device | None: ...

    def suspect(self, device: str, now_ms: int, /) -> bool:
        """Suspend a device whose keys two machines use. False if there was nothing to suspend."""
        ...
