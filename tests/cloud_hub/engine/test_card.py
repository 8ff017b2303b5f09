"""What a batch does on a graphics card, on a double of its driver: computed here at once, awaited as a card is."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from cloud_hub.engine.card import CARD_DEPTH, CardStreams

PATIENT_S = 30.0


class DoubleStream:
    """Stream that writes down what goes to it; its events are reached when the test says so."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name
        self.reached = threading.Event()
        self.reached.set()

    def record_event(self) -> "DoubleEvent":
        return DoubleEvent(self)

    def wait_event(self, event: "DoubleEvent") -> None:
        self.log.append(f"{self.name} waits for {event.stream.name}")


class DoubleEvent:
    def __init__(self, stream: DoubleStream) -> None:
        self.stream = stream

    def synchronize(self) -> None:
        assert self.stream.reached.wait(PATIENT_S)
        self.stream.log.append("answered")


class DoubleCard:
    """Driver of a card that is not there: every operation is done at once and written down with its stream."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.streams: list[DoubleStream] = []
        self.present = threading.local()

    def open_stream(self) -> DoubleStream:
        self.streams.append(DoubleStream(self.log, ("copies", "computing")[len(self.streams)]))
        return self.streams[-1]

    @contextmanager
    def enter(self, stream: DoubleStream) -> Iterator[None]:
        self.present.name = stream.name
        yield
        self.present.name = "none"

    def pin(self, tensor: Tensor) -> Tensor:
        self.log.append("staged")
        return tensor.clone()

    def place(self, pinned: Tensor) -> Tensor:
        assert self.present.name == "copies"
        self.log.append("copied")
        return pinned

    def keep(self, placed: Tensor, stream: DoubleStream) -> None:
        self.log.append(f"kept for {stream.name}")

    def fetch(self, made: Tensor) -> Tensor:
        assert self.present.name == "computing"
        self.log.append("fetched")
        return made.float()


def test_a_batch_is_staged_copied_computed_and_fetched_in_this_order() -> None:
    card = DoubleCard()
    found = CardStreams(card).run([torch.ones(2, 3), torch.ones(2, 3)], lambda a, b: (a + b).sum(1))
    assert found.tolist() == [6.0, 6.0]
    assert card.log == [
        "staged", "staged", "copied", "copied", "computing waits for copies", "kept for computing",
        "kept for computing", "fetched", "answered",
    ]  # fmt: skip


def test_the_next_batch_is_copied_while_the_card_computes_the_one_before() -> None:
    card = DoubleCard()
    streams = CardStreams(card)
    computing = card.streams[1]
    computing.reached.clear()
    with ThreadPoolExecutor(CARD_DEPTH) as threads:
        running = [threads.submit(streams.run, [torch.full((1, 1), float(at))], lambda x: 2 * x) for at in range(2)]
        until = threading.Event()
        while card.log.count("fetched") < CARD_DEPTH:
            assert not until.wait(0.001)
        assert "answered" not in card.log, "both are on the way before the first is answered"
        computing.reached.set()
        assert sorted(each.result().item() for each in running) == [0.0, 2.0]


def test_a_batch_that_fails_on_the_card_leaves_it_to_the_next() -> None:
    streams = CardStreams(DoubleCard())

    def fail(_x: Tensor) -> Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="CUDA error"):
        streams.run([torch.ones(1)], fail)
    assert streams.run([torch.ones(1)], lambda x: x).item() == 1.0
