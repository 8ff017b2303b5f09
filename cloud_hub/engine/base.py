"""The engine seam: what a model on the hub can be asked, and `EchoEngine`, its double for tests and simulations.

Rule: one thread calls an engine, one batch at a time; an engine never waits for anything but its own accelerators, and
for those never longer than it says.
"""

import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from cloud_hub.engine.types import ModelCard, Work
from wire.protocol.messages import Prediction

__all__ = ["FAULTS", "EchoEngine", "Engine", "EngineError", "Health", "ModelCard", "State", "Work"]


class EngineError(Exception):
    """A batch could not be computed, or an engine did not get ready. The core tries again, then item by item."""


# What running a model can raise beside EngineError: out of memory, an operator's complaint, a wrong shape.
FAULTS = (EngineError, ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)


class State(StrEnum):
    NEW = "new"
    READY = "ready"
    LOST = "lost"  # some of its processes died or hang; the next call makes new ones
    DRAINING = "draining"
    STOPPED = "stopped"


class Health(msgspec.Struct, frozen=True):
    """`why`: one line if it is not ready. `generation` counts how often its processes were made anew."""

    state: State
    why: str = ""
    generation: int = 1


class Engine(Protocol):
    """One loaded model. Its life: start, warm, infer and health as often as you like, drain, stop."""

    @property
    def card(self) -> ModelCard: ...

    @property
    def inline(self) -> bool:
        """Whether a quick batch may be computed on the event loop's own thread."""
        ...

    @property
    def ranks(self) -> tuple[tuple[int, float], ...]:
        """(rank, seconds) of the last batch; () if one process computes."""
        ...

    @property
    def replicas(self) -> "Sequence[Engine]":
        """The parts that compute side by side, each called by a thread of its own; one piece is its own part."""
        ...

    def start(self) -> None:
        """Load the weights. BundleError or EngineError, one line, in bounded time."""
        ...

    def warm(self) -> None:
        """Compute every bucket once, so that no request pays for the first of its shape."""
        ...

    def infer(self, batch: Sequence[Work]) -> list[Prediction]:
        """One prediction per item, in order; at most `card.max_batch` items. EngineError if the batch fails."""
        ...

    def health(self) -> Health:
        """Look after what belongs to it; called by its thread whenever there is nothing to compute."""
        ...

    def drain(self) -> None:
        """Take no more batches."""
        ...

    def stop(self) -> None:
        """Give everything back; nothing may be asked after this."""
        ...

    def sample(self) -> Work:
        """An item that must work: for warm-up, and to tell a poisoned question from a broken engine."""
        ...


class EchoEngine:
    """Predicts from the bytes themselves: label = sum of all bytes modulo the number of labels. Takes `compute_s`.

    A field or sample that contains `poison` fails its whole batch; `broken` fails everything.
    """

    inline = True
    ranks: tuple[tuple[int, float], ...] = ()

    def __init__(self, card: ModelCard, compute_s: float = 0.0, poison: bytes = b"") -> None:
        self.card = card
        self.compute_s = compute_s
        self.poison = poison
        self.broken = False
        self.state = State.NEW
        self.batches: list[int] = []  # sizes, as they came

    @property
    def replicas(self) -> "Sequence[Engine]":
        return (self,)

    def start(self) -> None:
        self.state = State.READY

    def warm(self) -> None:
        """Every size costs the same."""

    def infer(self, batch: Sequence[Work]) -> list[Prediction]:
        self.batches.append(len(batch))
        if self.compute_s:
            time.sleep(self.compute_s)
        contents = [_bytes_of(work) for work in batch]
        if self.broken or (self.poison and any(self.poison in content for content in contents)):
            raise EngineError("the echo engine was told to fail")
        return [self._predict(content) for content in contents]

    def health(self) -> Health:
        return Health(self.state)

    def drain(self) -> None:
        self.state = State.DRAINING

    def stop(self) -> None:
        self.state = State.STOPPED

    def sample(self) -> Work:
        return Work()

    def _predict(self, content: bytes) -> Prediction:
        labels = max(2, len(self.card.labels))
        label = sum(content) % labels
        scores = tuple(1.0 if index == label else 0.0 for index in range(labels))
        return Prediction(label, 1.0, scores, self.card.name)


def _bytes_of(work: Work) -> bytes:
    raw = b"" if work.raw is None else work.raw.tobytes()
    return raw + b"".join(work.codes[name].tobytes() for name in sorted(work.codes))
