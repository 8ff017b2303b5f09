"""How long work waited and was computed, by model: what statistics and metrics are made of. Counts alone, no clock.

Rule: its size is bounded by the models and by their largest batch, never by what callers send.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

MAX_MODELS = 256
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Sum:
    """How many, and how long together."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self.count += count
        self.seconds += seconds


class Spread:
    """A histogram over `BUCKETS_S`; its last bucket is everything above."""

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKETS_S) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(BUCKETS_S, seconds)] += 1
        self.seconds += seconds


class ModelTimings:
    """Of one version of one model. `batches` by size; `failed` counts items of batches that failed."""

    def __init__(self) -> None:
        self.items = 0
        self.batches: dict[int, Sum] = {}
        self.failed = Sum()
        self.queue = Spread()
        self.compute = Spread()
        self.last_ms = 0


class Timings:
    def __init__(self) -> None:
        self.models: dict[str, ModelTimings] = {}

    def of(self, model: str) -> ModelTimings:
        """Those of `digits@7`; more models than the hub can hold share one."""
        if model not in self.models and len(self.models) >= MAX_MODELS:
            model = "other"
        return self.models.setdefault(model, ModelTimings())

    def done(self, model: str, waited_s: Sequence[float], compute_s: float, now: float) -> None:
        """A batch was computed; `waited_s`, of each item, from its arrival to its batch."""
        found = self.of(model)
        found.items += len(waited_s)
        found.batches.setdefault(len(waited_s), Sum()).add(compute_s)
        found.compute.add(compute_s)
        for waited in waited_s:
            found.queue.add(max(0.0, waited))
        found.last_ms = int(now * 1000)

    def failed(self, model: str, items: int, compute_s: float) -> None:
        self.of(model).failed.add(compute_s, items)


def total(sums: Iterable[Sum]) -> tuple[int, float]:
    """(how many, seconds together)."""
    kept = list(sums)
    return sum(each.count for each in kept), sum(each.seconds for each in kept)
