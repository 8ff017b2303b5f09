"""Drift alarm: raised when inputs no longer look like the calibration data, with the time since when."""

import msgspec
import numpy as np
import pytest

from edge_agent.api.explanation import format_drift
from edge_agent.inference.model import AbsentRunner, ServingModel
from edge_agent.system.clock import HubClock
from models.bundle.measurements import GateFigures
from models.runtime.runner import EchoRunner, Inference
from wire.protocol.messages import Prediction

TENTHS = tuple(tenth / 10 for tenth in range(1, 10))
NOW_MS = 1_800_000_000_000


def model(gate: GateFigures, *notes: str) -> ServingModel:
    runner = EchoRunner(2)
    runner.manifest = msgspec.structs.replace(runner.manifest, gate=gate)
    runner.notes = notes
    return ServingModel(runner, 1.0)


def answered(confidence: float, novelty: float) -> Inference:
    return Inference(Prediction(0, confidence, (confidence, 1 - confidence), "echo@1"), {}, novelty)


@pytest.fixture
def clock() -> HubClock:
    return HubClock(NOW_MS, lambda: 0.0, lambda: NOW_MS)


def test_strange_samples_ring_and_the_status_says_since_when(clock):
    watched = model(GateFigures(novelty_output=True, novelty_deciles=TENTHS))
    for value in np.random.default_rng(1).random(500).tolist():
        watched.observe_answer(answered(0.9, value), clock)
    assert watched.alarms() == set()
    assert "none seen in 500 samples" in format_drift(watched.status_fields()["drift"])
    for _ in range(60):
        watched.observe_answer(answered(0.9, 0.99), clock)
    assert watched.alarms() == {"drift"}
    facts = watched.status_fields()["drift"]
    assert facts["since_ms"] == NOW_MS
    assert facts["level"] >= 1
    assert format_drift(facts).startswith("alarm since 2027-01-15T08:00:00+00:00: inputs no longer look like")


def test_a_model_without_reference_is_not_watched(clock):
    plain = model(GateFigures())
    plain.observe_answer(answered(0.1, 0.99), clock)
    assert plain.status_fields() == {}
    assert ServingModel(None, 1.0).status_fields() == {}
    assert AbsentRunner.notes == ()


def test_where_it_does_not_run_as_it_was_made_to_is_told(capsys):
    noted = model(GateFigures(), "CUDAExecutionProvider is not to be had here")
    noted.measure_speed()
    assert noted.status_fields() == {"notes": ["CUDAExecutionProvider is not to be had here"]}
    assert "CUDAExecutionProvider" in capsys.readouterr().err
