"""Drift alarm: raised when inputs no longer look like the calibration data, with the time since when."""

import msgspec
import numpy as np
import pytest

from edge_agent.cli.agent import _drift
from edge_agent.inference.model import Absent, Model
from edge_agent.system.clock import HubClock
from models.bundle.measurements import Gate
from models.runtime.runner import EchoRunner, Inference
from wire.protocol.messages import Prediction

TENTHS = tuple(tenth / 10 for tenth in range(1, 10))
NOW_MS = 1_800_000_000_000


def model(gate: Gate, *notes: str) -> Model:
    runner = EchoRunner(2)
    runner.manifest = msgspec.structs.replace(runner.manifest, gate=gate)
    runner.notes = notes
    return Model(runner, 1.0)


def answered(confidence: float, novelty: float) -> Inference:
    return Inference(Prediction(0, confidence, (confidence, 1 - confidence), "echo@1"), {}, novelty)


@pytest.fixture
def clock() -> HubClock:
    return HubClock(NOW_MS, lambda: 0.0, lambda: NOW_MS)


def test_strange_samples_ring_and_the_status_says_since_when(clock):
    watched = model(Gate(novelty_output=True, novelty_deciles=TENTHS))
    for value in np.random.default_rng(1).random(500).tolist():
        watched.watch(answered(0.9, value), clock)
    assert watched.alarms() == set()
    assert "none seen in 500 samples" in _drift(watched.facts()["drift"])
    for _ in range(60):
        watched.watch(answered(0.9, 0.99), clock)
    assert watched.alarms() == {"drift"}
    facts = watched.facts()["drift"]
    assert facts["since_ms"] == NOW_MS
    assert facts["level"] >= 1
    assert _drift(facts).startswith("alarm since 2027-01-15T08:00:00+00:00: inputs no longer look like")


def test_a_model_without_reference_is_not_watched(clock):
    plain = model(Gate())
    plain.watch(answered(0.1, 0.99), clock)
    assert plain.facts() == {}
    assert Model(None, 1.0).facts() == {}
    assert Absent.notes == ()


def test_where_it_does_not_run_as_it_was_made_to_is_told(capsys):
    noted = model(Gate(), "CUDAExecutionProvider is not to be had here")
    noted.measure()
    assert noted.facts() == {"notes": ["CUDAExecutionProvider is not to be had here"]}
    assert "CUDAExecutionProvider" in capsys.readouterr().err
