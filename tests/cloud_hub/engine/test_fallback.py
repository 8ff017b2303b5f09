"""What a hub computes on when a card vanishes or is full, and when a precision breaks the golden set."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cloud_hub.engine.base import EngineError, EngineHealth, EngineState
from cloud_hub.engine.fallback import DeviceFaultError, FallbackGraphRunner
from cloud_hub.engine.precision import PrecisionError
from cloud_hub.engine.torch import TorchGraphRunner
from cloud_hub.engine.types import EngineSetup
from models.bundle.manifest import BundleError
from policies.serving.computing import ComputeTarget, Precision

ONE = [np.ones((2, 3), np.float32)]
GONE = DeviceFaultError("digits@7: cannot compute in bfloat16 on a graphics card: CUDA error: unspecified")


class StubRunner:
    """Graph runner that adds up its inputs until it is told to fail."""

    depth = 1
    ranks = ()

    def __init__(self, device: str, refuses: Exception | None = None) -> None:
        self.inline = device == "cpu"
        self.setup = EngineSetup(device, Precision.FLOAT32, 12)
        self.refuses = refuses
        self.fault: Exception | None = None
        self.started = self.stopped = 0
        self.batches = 0

    def start(self) -> None:
        self.started += 1
        if self.refuses is not None:
            raise self.refuses

    def run(self, graph, columns):
        self.batches += 1
        if self.fault is not None:
            raise self.fault
        return columns[0].sum(1, keepdims=True)

    def health(self) -> EngineHealth:
        return EngineHealth(EngineState.READY)

    def stop(self) -> None:
        self.stopped += 1


def test_a_card_that_vanishes_costs_no_batch_where_a_fallback_is_allowed():
    card, host = StubRunner("cuda:0"), StubRunner("cpu")
    runner = FallbackGraphRunner([lambda: card, lambda: host])
    runner.start()
    assert runner.run("tail", ONE).tolist() == [[3.0], [3.0]]
    assert (runner.setup.device, runner.setup.fallback, runner.inline) == ("cuda:0", "", False)
    card.fault = GONE
    assert runner.run("tail", ONE).tolist() == [[3.0], [3.0]]
    assert (runner.setup.device, runner.setup.fallback, runner.inline) == ("cpu", str(GONE), True)
    assert (card.stopped, host.started, host.batches) == (1, 1, 1)
    runner.run("tail", ONE)
    assert card.batches == 2, "the card was asked again"


def test_a_card_that_vanishes_fails_the_batch_where_no_fallback_is_allowed():
    card = StubRunner("cuda:0")
    runner = FallbackGraphRunner([lambda: card])
    runner.start()
    card.fault = GONE
    for _ in range(2):
        with pytest.raises(EngineError, match="CUDA error"):
            runner.run("tail", ONE)
    assert runner.setup.fallback == ""
    card.fault = None
    assert len(runner.run("tail", ONE)) == 2, "a card that comes back serves again"


def test_a_card_that_is_full_at_the_start_gives_way_and_so_does_a_precision_that_breaks_the_golden_set():
    full, coarse, host = (
        StubRunner("cuda:0", DeviceFaultError("out of memory")),
        StubRunner("cpu", PrecisionError("int8 breaks the golden set")),
        StubRunner("cpu"),
    )
    runner = FallbackGraphRunner([lambda: full, lambda: coarse, lambda: host])
    runner.start()
    assert runner.setup.fallback == "int8 breaks the golden set"
    assert (full.stopped, coarse.stopped, host.started) == (1, 1, 1)


def test_the_last_one_that_cannot_start_is_the_error():
    runner = FallbackGraphRunner([lambda: StubRunner("cpu", PrecisionError("int8 breaks the golden set"))])
    with pytest.raises(PrecisionError, match="int8 breaks"):
        runner.start()


def test_damaged_weights_give_way_to_nothing():
    runner = FallbackGraphRunner([lambda: StubRunner("cuda:0", BundleError("weights: NaN")), lambda: StubRunner("cpu")])
    with pytest.raises(BundleError, match="NaN"):
        runner.start()


def test_a_fault_of_a_batch_on_the_cpu_replaces_nothing():
    card, host = StubRunner("cpu"), StubRunner("cpu")
    runner = FallbackGraphRunner([lambda: card, lambda: host])
    runner.start()
    card.fault = ValueError("a bad batch")
    with pytest.raises(ValueError, match="a bad batch"):
        runner.run("tail", ONE)
    assert host.started == 0


def test_weights_that_went_bad_before_they_were_needed_again_fail_the_batch_and_are_tried_again():
    card, host = StubRunner("cuda:0"), StubRunner("cpu", BundleError("hub-00001: its content differs"))
    runner = FallbackGraphRunner([lambda: card, lambda: host])
    runner.start()
    card.fault = GONE
    with pytest.raises(EngineError, match="its content differs"):
        runner.run("tail", ONE)
    host.refuses = None
    assert len(runner.run("tail", ONE)) == 2


def test_what_was_asked_for_and_is_not_there_from_the_start_is_said():
    runner = FallbackGraphRunner([lambda: StubRunner("cpu")], "no graphics card is there")
    runner.start()
    assert runner.setup.fallback == "no graphics card is there"


def test_two_batches_that_meet_a_vanished_card_replace_it_once_and_both_are_answered(monkeypatch):
    card, host = StubRunner("cuda:0"), StubRunner("cpu")
    both = threading.Barrier(2, timeout=60)

    def fail(graph, columns):
        both.wait()  # both are on the card when it goes
        raise GONE

    runner = FallbackGraphRunner([lambda: card, lambda: host])
    runner.start()
    monkeypatch.setattr(card, "run", fail)
    with ThreadPoolExecutor(2) as threads:
        found = [each.tolist() for each in threads.map(lambda _: runner.run("tail", ONE), range(2))]
    assert found == [[[3.0], [3.0]]] * 2
    assert (card.stopped, host.started, host.batches) == (1, 1, 2)
    assert runner.setup.fallback == str(GONE)


def test_a_card_that_cannot_even_be_let_go_gives_way(monkeypatch):
    def refuse() -> None:
        raise RuntimeError("CUDA error: device not found")

    monkeypatch.setattr(torch.cuda, "empty_cache", refuse)
    bundle: Any = SimpleNamespace(manifest=SimpleNamespace(model="digits@7"))
    TorchGraphRunner(bundle, ComputeTarget(cuda=True, precision=Precision.BFLOAT16)).stop()
