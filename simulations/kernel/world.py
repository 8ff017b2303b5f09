"""What all parts of a simulated region agree on: names, sizes, the model that everyone speaks, how fast disks are.

What is drawn for one device once and for all: asked again, the same again, so that nobody need remember it. Pure.
"""

from functools import cache

import msgspec

from policies.model.policy import Mode
from wire.protocol.messages import DType, FieldSpec, Level, ModelRef, Prediction
from wire.protocol.topics import device_id

HUB_ZERO_S = 1_700_438_400.0  # hub time when virtual time is 0: a Monday, 00:00 UTC
DAY_S = 86_400.0
FRAME_BYTES = 448
PADDED_BYTES = 320
LABELS = 256
TENANT = "sim"
MODEL = ModelRef("sim", 1, "cut", "pack8")
FEATURES = FieldSpec(
    name="features", dtype=DType.UINT8, shape=(16,), low=0.0, high=255.0, level=Level.P1, category="features"
)


class Pace(msgspec.Struct, frozen=True):
    """How fast things go that a scenario does not speak of."""

    commit_s: float = 0.005  # a commit of a device or of a hub
    round_s: float = 0.001  # how long a hub gathers messages before it works on them
    broker_retry_s: float = 1.0  # how often a hub tries to reach its broker


def name_of(number: int) -> str:
    """Of the device with this number in the whole fleet."""
    return device_id(TENANT, f"d{number}")


def number_of(name: str) -> int:
    return int(name.rpartition("--d")[2])


@cache
def verdict_of(label: int, model: str) -> Prediction:
    """What the hub's model answers: it is sure of itself."""
    return Prediction(label, 0.99, (0.01, 0.99), model)


__all__ = ["Mode"]


_MASK = 0xFFFF_FFFF_FFFF_FFFF
_STEP = 0x9E37_79B9_7F4A_7C15  # the generator SplitMix64 (Steele, Lea and Flood 2014), used as a hash


def lot(seed: int, device: int, which: int) -> int:
    """64 bits. `which`: number of the lot among those of this device."""
    return _mixed(_mixed(seed + _STEP * (device + 1)) + _STEP * (which + 1))


def share(seed: int, device: int, which: int) -> float:
    """Evenly from [0, 1)."""
    return (lot(seed, device, which) >> 11) * 2.0**-53


def _mixed(bits: int) -> int:
    bits = (bits ^ (bits >> 30)) * 0xBF58_476D_1CE4_E5B9 & _MASK
    bits = (bits ^ (bits >> 27)) * 0x94D0_49BB_1331_11EB & _MASK
    return bits ^ (bits >> 31)
