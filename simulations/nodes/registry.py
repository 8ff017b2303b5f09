"""Device registry of a simulated hub: every device whose name has the right form is enrolled, all with one key.

Nothing is sealed or signed in a simulation, but the hub's core expects keys; a million rows of equal keys would serve
nothing, so only devices that are suspended are stored.
"""

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from cloud_hub.registry.device_states import Standing

_SIGNING = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key()


_HPKE = X25519PrivateKey.from_private_bytes(bytes(32)).public_key()


class EnrolledDevice(msgspec.Struct, frozen=True, gc=False):
    """One enrolled device, as the hub's core sees it."""

    id: str
    state: Standing = Standing.ACTIVE
    signing_key: Ed25519PublicKey = _SIGNING
    hpke_key: X25519PublicKey = _HPKE
    device_class: str = ""
    region: str = ""


class SimulatedRegistry:
    """Registry that remembers suspended devices only."""

    def __init__(self) -> None:
        self._marked: dict[str, EnrolledDevice] = {}

    def device(self, device: str, /) -> EnrolledDevice | None:
        """The enrolled device of this name."""
        return self._marked.get(device) or EnrolledDevice(device)

    def suspect(self, device: str, now_ms: int, /) -> bool:
        """Suspend a device. False if it was suspended already."""
        del now_ms
        found = self._marked.get(device, EnrolledDevice(device))
        if found.state is not Standing.ACTIVE:
            return False
        self._marked[device] = msgspec.structs.replace(found, state=Standing.SUSPENDED)
        return True
