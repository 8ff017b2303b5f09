"""Constants shared by all parts of a simulated fleet, and per-device random numbers drawn by hash.

Names, message sizes, the model that every device runs, how fast disks are. `draw_bits` and `draw_share` are a function
of seed, device and number alone, so that nobody has to store what was drawn. Pure.
"""

from functools import cache

import msgspec
import numpy as np
import numpy.typing as npt

from policies.model.policy import EscalationMode
from wire.protocol.messages import FieldSpec, ModelRef, Prediction, SensitivityLevel, TensorDType
from wire.protocol.topics import join_device_id

HUB_ZERO_S = 1_700_438_400.0  # hub time when virtual time is 0: a Monday, 00:00 UTC
DAY_S = 86_400.0
FRAME_BYTES = 448
PADDED_BYTES = 320
LABELS = 256
TENANT = "sim"
MODEL = ModelRef("sim", 1, "cut", "pack8")
FEATURES = FieldSpec(
    name="features",
    dtype=TensorDType.UINT8,
    shape=(16,),
    low=0.0,
    high=255.0,
    level=SensitivityLevel.P1,
    category="features",
)


class SimulationDelays(msgspec.Struct, frozen=True):
    """Delays in seconds that a scenario does not state."""

    commit_s: float = 0.005  # a commit of a device or of a hub
    round_s: float = 0.001  # how long a hub gathers messages before it works on them
    broker_retry_s: float = 1.0  # how often a hub tries to reach its broker


def format_device_name(number: int) -> str:
    """Wire name (`tenant--dN`) of the device with this number, counted over the whole fleet from 0."""
    return join_device_id(TENANT, f"d{number}")


def parse_device_number(name: str) -> int:
    """Number of a device in the whole fleet, from its wire name. ValueError for a name of another form."""
    return int(name.rpartition("--d")[2])


@cache
def build_hub_prediction(label: int, model: str) -> Prediction:
    """Prediction of the hub's model for a sample that it labels `label`, with confidence 0.99."""
    return Prediction(label, 0.99, (0.01, 0.99), model)


__all__ = ["EscalationMode"]


Bits = npt.NDArray[np.uint64]
_MASK = 0xFFFF_FFFF_FFFF_FFFF
_STEP = 0x9E37_79B9_7F4A_7C15  # the generator SplitMix64 (Steele, Lea and Flood 2014), used as a hash


def draw_bits(seed: int, device: int, which: int) -> int:
    """64 random bits of a device, the same whenever asked.

    `device`: its number in the whole fleet; `which`: the number of the draw among those of this device. Source:
    SplitMix64 (Steele, Lea and Flood 2014) used as a hash.
    """
    return _mix_bits(_mix_bits(seed + _STEP * (device + 1)) + _STEP * (which + 1))


def draw_share(seed: int, device: int, which: int) -> float:
    """Uniform random number from [0, 1) of a device, the same whenever asked; parameters as `draw_bits`."""
    return (draw_bits(seed, device, which) >> 11) * 2.0**-53


def draw_shares(seed: int, devices: npt.NDArray[np.int64], which: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The same number as `draw_share` for each of many devices: draw `which[i]` of device `devices[i]`.

    `seed` is below 2**64, the others below 2**32.
    """
    bits = _step_and_mix(np.full(len(devices), seed, np.uint64), devices)
    bits = _step_and_mix(bits, which)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _step_and_mix(bits: Bits, count: npt.NDArray[np.int64]) -> Bits:
    """`_mix_bits(bits + _STEP * (count + 1))` of each, with the bits beyond the 64th that the sum may have."""
    half, times = np.uint64(32), (count + 1).astype(np.uint64)
    low = np.uint64(_STEP & 0xFFFF_FFFF) * times
    high = np.uint64(_STEP >> 32) * times + (low >> half)
    low = (high << half) | (low & np.uint64(0xFFFF_FFFF))
    total = low + bits
    over = (high >> half) + (total < low)
    bits = (total ^ ((total >> np.uint64(30)) | (over << np.uint64(34)))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return bits ^ (bits >> np.uint64(31))


def _mix_bits(bits: int) -> int:
    bits = (bits ^ (bits >> 30)) * 0xBF58_476D_1CE4_E5B9 & _MASK
    bits = (bits ^ (bits >> 27)) * 0x94D0_49BB_1331_11EB & _MASK
    return bits ^ (bits >> 31)
