"""What a batch does on a graphics card: staged in pinned memory, copied on one stream, computed on another.

Rule: two threads may each have a batch on the way. While the card computes the first, the second is staged and copied;
batches are computed in the order in which they were copied, and nobody waits for the card while it holds the lock.
Sources: torch's notes "CUDA semantics" (streams, pinned memory, CUDA graphs) and of `Tensor.record_stream`.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

CARD_DEPTH = 2  # batches on the way: one is copied while the other is computed
_WARM_ROUNDS = 3  # before a recording: libraries choose their algorithms in the first runs


class CardCalls(Protocol):
    """Calls of a card's driver that a batch needs; `TorchCard`, or a double without a card."""

    def open_stream(self) -> Any:
        """A new stream, with `wait_event` and `record_event` of torch."""
        ...

    def enter(self, stream: Any) -> AbstractContextManager[object]:
        """Context in which operations of this thread go to the stream."""
        ...

    def pin(self, tensor: Tensor) -> Tensor:
        """A copy in pinned memory; that of earlier batches is used again."""
        ...

    def place(self, pinned: Tensor) -> Tensor:
        """Begin to copy to the card, on the present stream."""
        ...

    def keep(self, placed: Tensor, stream: Any) -> None:
        """Keep the memory of a tensor until `stream` has used it."""
        ...

    def fetch(self, made: Tensor) -> Tensor:
        """Begin to copy a result to pinned memory as float32, on the present stream."""
        ...


class TorchCard:
    """Calls of one graphics card, by torch."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def open_stream(self) -> Any:
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def enter(self, stream: Any) -> AbstractContextManager[object]:
        return torch.cuda.stream(stream)

    def pin(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory()

    def place(self, pinned: Tensor) -> Tensor:
        return pinned.to(self._device, non_blocking=True)

    def keep(self, placed: Tensor, stream: Any) -> None:
        placed.record_stream(stream)

    def fetch(self, made: Tensor) -> Tensor:
        found = torch.empty(made.shape, dtype=torch.float32, pin_memory=True)
        return found.copy_(made, non_blocking=True)


class CardStreams:
    """The two streams of one model on a card. Threads of the same model may call `run` at once."""

    def __init__(self, calls: CardCalls) -> None:
        self._calls = calls
        self._copies, self._computing = calls.open_stream(), calls.open_stream()
        self._order = threading.Lock()

    def run(self, columns: Sequence[Tensor], compute: Callable[..., Tensor]) -> Tensor:
        """Compute a batch from columns of this machine's memory; the result as float32 in it."""
        calls = self._calls
        staged = [calls.pin(column) for column in columns]
        with self._order:
            with calls.enter(self._copies):
                given = [calls.place(each) for each in staged]
                arrived = self._copies.record_event()
            with calls.enter(self._computing):
                self._computing.wait_event(arrived)
                for each in given:
                    calls.keep(each, self._computing)
                found = calls.fetch(compute(*given))
                done = self._computing.record_event()
        done.synchronize()
        return found


class StepRecorder:
    """Records steps as CUDA graphs. All recordings of one model share memory, for they are played one after another.

    Used on the stream that plays them, under its lock.
    """

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, graph: Callable[..., Any], inputs: Sequence[Tensor]) -> "RecordedStep":
        """Record a graph for inputs of these shapes."""
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        return RecordedStep(graph, inputs, self._pool)


class RecordedStep:
    """A step recorded as a CUDA graph: inputs are copied to where the recording reads them, the result lies in it.

    The result holds until the next step of the same pool on the same stream.
    """

    def __init__(self, graph: Callable[..., Any], inputs: Sequence[Tensor], pool: Any = None) -> None:
        self._inputs = [given.clone() for given in inputs]
        side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_ROUNDS):
                graph(*self._inputs)
        torch.cuda.current_stream().wait_stream(side)
        self._recording = torch.cuda.CUDAGraph()
        # of this thread alone: in the usual mode a version that is loaded would break the batches of those that serve
        with torch.cuda.graph(self._recording, pool=pool, capture_error_mode="thread_local"):
            self._output: Tensor = first_output(graph(*self._inputs))

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Play the recording on other inputs of the same shapes."""
        for place, given in zip(self._inputs, inputs, strict=True):
            place.copy_(given, non_blocking=True)
        self._recording.replay()
        return self._output


def first_output(made: Tensor | Sequence[Tensor]) -> Tensor:
    """The first of what a graph gives."""
    return made if isinstance(made, Tensor) else made[0]
