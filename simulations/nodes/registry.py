"""The registry of a simulated fleet: every device whose name has the right form is enrolled. All have one key.

Nothing is sealed or signed here, but a registry names keys; and a million rows of equal keys would tell nothing.
"""

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from cloud_hub.registry.device_states import Standing

_SIGNING = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key()


_HPKE = X25519PrivateKey.from_private_bytes(bytes(32)).public_key()


class Known(msgspec.Struct, frozen=True, gc=False):
    """One enrolled device."""

    id: str
    state: Standing = Standing.ACTIVE
    signing_key: Ed25519PublicKey = _SIGNING
    hpke_key: X25519PublicKey = _HPKE
    device_class: str = ""
    region: str = ""


class SimulatedRegistry:
    """Only of whom there is something to say it remembers anything."""

    def __init__(self) -> None:
        self._marked: dict[str, Known] = {}

    def device(self, device: str, /) -> Known | None:
        return self._marked.get(device) or Known(device)

    def suspect(self, device: str, now_ms: int, /) -> bool:
        del now_ms
        found = self._marked.get(device, Known(device))
        if found.state is not Standing.ACTIVE:
            return False
        self._marked[device] = msgspec.structs.replace(found, state=Standing.SUSPENDED)
        return True
