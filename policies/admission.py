"""Hub side: queue this question, or refuse it while refusing is still cheap? Nothing is written for a refusal."""

import msgspec

from wire.messages import Reason

SHORTEST_RETRY_S = 1.0
LONGEST_RETRY_S = 60.0


class Load(msgspec.Struct, frozen=True, gc=False):
    """The hub now, and the asking device: its open questions and how many it asks a second."""

    queued: int
    device_open: int
    device_rate_per_s: float = 0.0
    draining: bool = False


class Limits(msgspec.Struct, frozen=True, gc=False):
    """`served_per_s` is what the engine manages: a full queue is answered with the time it takes to empty."""

    max_queued: int = 4096
    max_device_open: int = 64
    max_device_rate_per_s: float = 200.0
    served_per_s: float = 500.0


class Queue(msgspec.Struct, frozen=True, gc=False):
    """Take it in."""


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """`final`: asking again is no use."""

    reason: Reason
    retry_after_s: float
    final: bool = False


class Bucket(msgspec.Struct, frozen=True, gc=False):
    """A token bucket as a value: `tokens` left at time `at` (seconds)."""

    tokens: float
    at: float


_QUEUE = Queue()
_DRAINING = Refuse(Reason.DRAINING, 5.0)
_RATE = Refuse(Reason.RATE, 2.0)


def decide(load: Load, limits: Limits) -> Queue | Refuse:
    """Draining refuses all; then the device's own limits; then the queue. A number that is not one refuses."""
    if load.draining:
        return _DRAINING
    if not load.device_rate_per_s <= limits.max_device_rate_per_s:
        return _RATE
    if load.queued >= limits.max_queued:
        return Refuse(Reason.BUSY, _time_to_empty_s(load, limits))
    if load.device_open >= open_share(load.queued, limits):
        return _RATE
    return _QUEUE


def open_share(queued: int, limits: Limits) -> int:
    """Open questions one device may have: its whole limit while the queue is half empty, then less and less.

    A device without open questions is always let in before one that has some, and one device cannot fill the queue.
    """
    free = 1.0 - queued / limits.max_queued
    return max(1, int(limits.max_device_open * min(1.0, 2.0 * free)))


def take(bucket: Bucket, rate_per_s: float, burst: float, now: float) -> Bucket | None:
    """The bucket after one token is taken, or None if there is none. A clock that goes back adds nothing."""
    earned = max(0.0, now - bucket.at) * rate_per_s
    tokens = min(burst, bucket.tokens + earned)
    return Bucket(tokens - 1.0, max(now, bucket.at)) if tokens >= 1.0 else None


def _time_to_empty_s(load: Load, limits: Limits) -> float:
    return min(LONGEST_RETRY_S, max(SHORTEST_RETRY_S, load.queued / limits.served_per_s))
