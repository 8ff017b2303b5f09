"""What breaks, when, and for how long: values that a fleet acts out, and schedules of them drawn from a seed."""

from random import Random

import msgspec


class KillAgent(msgspec.Struct, frozen=True):
    """One device loses its process and all memory; `lasts_s` later it starts again from its database."""

    at_s: float
    lasts_s: float
    device: int


class KillHub(msgspec.Struct, frozen=True):
    """The hub loses its process and all memory; `lasts_s` later it starts again from its store."""

    at_s: float
    lasts_s: float


class KillBroker(msgspec.Struct, frozen=True):
    """Every link breaks and what was in flight is gone; links come back from `lasts_s` later on."""

    at_s: float
    lasts_s: float


class Partition(msgspec.Struct, frozen=True):
    """A share of the devices (0..1) is cut off: what they send and what is sent to them vanishes."""

    at_s: float
    lasts_s: float
    share: float


class Recall(msgspec.Struct, frozen=True):
    """Every device gets a newer policy that lets nothing leave; `lasts_s` later one more that lets it leave again."""

    at_s: float
    lasts_s: float


Fault = KillAgent | KillHub | KillBroker | Partition | Recall


def ended_s(faults: tuple[Fault, ...]) -> float:
    """When the last of them is over; 0 if there is none."""
    return max((fault.at_s + fault.lasts_s for fault in faults), default=0.0)


def draw(rng: Random, devices: int, until_s: float, count: int) -> tuple[Fault, ...]:
    """`count` random faults that begin and end within `until_s`, in order of time. They may overlap."""
    faults = [_one(rng, devices, until_s) for _ in range(count)]
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _one(rng: Random, devices: int, until_s: float) -> Fault:
    at_s = rng.uniform(0.0, until_s)
    lasts_s = rng.uniform(0.0, until_s - at_s)
    match rng.randrange(5):
        case 0:
            return KillAgent(at_s, lasts_s, rng.randrange(devices))
        case 1:
            return KillHub(at_s, lasts_s)
        case 2:
            return KillBroker(at_s, lasts_s)
        case 3:
            return Recall(at_s, lasts_s)
        case _:
            return Partition(at_s, lasts_s, rng.random())
