"""What all parts of a simulated region agree on: names, sizes, the model that everyone speaks, how fast disks are."""

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
