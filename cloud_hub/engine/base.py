"""The `Engine` protocol that runs one loaded model, and `EchoEngine`, its double for tests and simulations.

Rule: one thread calls an engine, one batch at a time; an engine waits for nothing but its own accelerators and
processes, and for those only up to a stated limit.
"""

import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from cloud_hub.engine.types import EngineSetup, ModelCard, WorkItem
from wire.protocol.messages import Prediction

__all__ = [
    "ENGINE_FAULTS",
    "ClusterError",
    "EchoEngine",
    "Engine",
    "EngineError",
    "EngineHealth",
    "EngineState",
    "ModelCard",
    "WorkItem",
]


class EngineError(Exception):
    """A batch could not be computed, or an engine did not get ready. The core tries again, then item by item."""


class ClusterError(EngineError):
    """The machines that a model is to be spread over are not there, or have no room. It may go well later."""


# What running a model can raise beside EngineError: out of memory, an error of an operator, a wrong shape.
ENGINE_FAULTS = (EngineError, ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)


class EngineState(StrEnum):
    """Life-cycle state of an engine."""

    NEW = "new"
    READY = "ready"
    LOST = "lost"  # a process died or hangs; the next call starts new ones
    DRAINING = "draining"
    STOPPED = "stopped"


class EngineHealth(msgspec.Struct, frozen=True):
    """State of an engine. `why`: one line if it is not ready; `generation`: how often its processes were started."""

    state: EngineState
    why: str = ""
    generation: int = 1


class Engine(Protocol):
    """One loaded model. Life cycle: start, warm, then infer and health at will, drain, stop."""

    @property
    def card(self) -> ModelCard: ...

    @property
    def inline(self) -> bool:
        """Whether a short batch may be computed on the event loop's own thread."""
        ...

    @property
    def ranks(self) -> tuple[tuple[int, float], ...]:
        """(rank, seconds) of the last batch; () if one process computes."""
        ...

    @property
    def setup(self) -> EngineSetup:
        """The device and precision it runs on, and whether that is a fallback."""
        ...

    @property
    def replicas(self) -> "Sequence[Engine]":
        """The replicas that compute in parallel, each called by threads of its own.

        An engine of one process is its own replica.
        """
        ...

    @property
    def depth(self) -> int:
        """Batches that a replica has on the way at once, each called for by a thread: 1 = one after the other."""
        ...

    def start(self) -> None:
        """Load the weights. BundleError or EngineError with one line, within the time limit."""
        ...

    def warm(self) -> None:
        """Run every batch size once, so that no request pays for the first run of its shape."""
        ...

    def infer(self, batch: Sequence[WorkItem]) -> list[Prediction]:
        """One prediction per item, in order; at most `card.max_batch` items. EngineError if the batch fails."""
        ...

    def health(self) -> EngineHealth:
        """Check its processes; called by its thread whenever there is nothing to compute."""
        ...

    def drain(self) -> None:
        """Refuse further batches."""
        ...

    def stop(self) -> None:
        """Release everything; the engine is unusable afterwards."""
        ...

    def sample(self) -> WorkItem:
        """An item that must succeed: for warm-up and self tests."""
        ...


class EchoEngine:
    """Test double that predicts from the bytes: label = sum of all bytes modulo the number of labels.

    Each batch takes `compute_s` seconds. A field or sample that contains `poison` fails its whole batch; `broken` fails
    all.
    """

    inline = True
    depth = 1
    ranks: tuple[tuple[int, float], ...] = ()
    setup = EngineSetup()

    def __init__(self, card: ModelCard, compute_s: float = 0.0, poison: bytes = b"") -> None:
        self.card = card
        self.compute_s = compute_s
        self.poison = poison
        self.broken = False
        self.state = EngineState.NEW
        self.batches: list[int] = []  # sizes, as they came

    @property
    def replicas(self) -> "Sequence[Engine]":
        return (self,)

    def start(self) -> None:
        self.state = EngineState.READY

    def warm(self) -> None:
        """Nothing to do: every batch size costs the same."""

    def infer(self, batch: Sequence[WorkItem]) -> list[Prediction]:
        """One prediction per item; EngineError if the batch is poisoned or the engine broken."""
        self.batches.append(len(batch))
        if self.compute_s:
            time.sleep(self.compute_s)
        contents = [_work_bytes(work) for work in batch]
        if self.broken or (self.poison and any(self.poison in content for content in contents)):
            raise EngineError("the echo engine is set to fail")
        return [self._predict_content(content) for content in contents]

    def health(self) -> EngineHealth:
        return EngineHealth(self.state)

    def drain(self) -> None:
        self.state = EngineState.DRAINING

    def stop(self) -> None:
        self.state = EngineState.STOPPED

    def sample(self) -> WorkItem:
        return WorkItem()

    def _predict_content(self, content: bytes) -> Prediction:
        labels = max(2, len(self.card.labels))
        label = sum(content) % labels
        scores = tuple(1.0 if index == label else 0.0 for index in range(labels))
        return Prediction(label, 1.0, scores, self.card.name)


def _work_bytes(work: WorkItem) -> bytes:
    raw = b"" if work.raw is None else work.raw.tobytes()
    return raw + b"".join(work.codes[name].tobytes() for name in sorted(work.codes))
