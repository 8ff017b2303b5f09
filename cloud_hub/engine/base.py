"""The engine seam: what a model on the hub can be asked, and `EchoEngine`, its double for tests and simulations.

Rule: one thread calls an engine, one batch at a time; an engine never waits for anything but its own accelerator.
"""

import time
from collections.abc import Sequence
from typing import Protocol

from cloud_hub.work import ModelCard, Work
from wire.messages import Prediction

__all__ = ["FAULTS", "EchoEngine", "Engine", "EngineError", "ModelCard", "Work"]


class EngineError(Exception):
    """A batch could not be computed. The core tries again, then item by item."""


# What running a model can raise beside EngineError: out of memory, an operator's complaint, a wrong shape.
FAULTS = (EngineError, ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)


class Engine(Protocol):
    """One loaded model."""

    @property
    def card(self) -> ModelCard: ...

    def run(self, batch: Sequence[Work]) -> list[Prediction]:
        """One prediction per item, in order; at most `card.max_batch` items. EngineError if the batch fails."""
        ...

    def sample(self) -> Work:
        """An item that must work: for warm-up, and to tell a poisoned question from a broken engine."""
        ...

    def close(self) -> None: ...


class EchoEngine:
    """Predicts from the bytes themselves: label = sum of all bytes modulo the number of labels. Takes `compute_s`.

    A field or sample that contains `poison` fails its whole batch; `broken` fails everything.
    """

    def __init__(self, card: ModelCard, compute_s: float = 0.0, poison: bytes = b"") -> None:
        self.card = card
        self.compute_s = compute_s
        self.poison = poison
        self.broken = False
        self.batches: list[int] = []  # sizes, as they came

    def run(self, batch: Sequence[Work]) -> list[Prediction]:
        self.batches.append(len(batch))
        if self.compute_s:
            time.sleep(self.compute_s)
        contents = [_bytes_of(work) for work in batch]
        if self.broken or (self.poison and any(self.poison in content for content in contents)):
            raise EngineError("the echo engine was told to fail")
        return [self._predict(content) for content in contents]

    def sample(self) -> Work:
        return Work()

    def close(self) -> None:
        """Nothing to give back."""

    def _predict(self, content: bytes) -> Prediction:
        labels = max(2, len(self.card.labels))
        label = sum(content) % labels
        scores = tuple(1.0 if index == label else 0.0 for index in range(labels))
        return Prediction(label, 1.0, scores, self.card.name)


def _bytes_of(work: Work) -> bytes:
    raw = b"" if work.raw is None else work.raw.tobytes()
    return raw + b"".join(work.codes[name].tobytes() for name in sorted(work.codes))
