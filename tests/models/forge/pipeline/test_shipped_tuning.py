"""Tuning on the codes that ship: rounds go on while calibration gains, and what does not help is put back."""

from collections.abc import Callable
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from models.forge.evaluation.shipped import EdgeAnswers
from models.forge.partition.cuts import PreparedModel
from models.forge.pipeline import shipped_tuning
from models.forge.pipeline.shipped_tuning import ShippedJudge, ShippedTuner, TuningPlan
from models.forge.routes.judgement import PathJudge
from models.forge.training.code_path import CodePath, Route, SampleCoder
from models.forge.training.hub_tuning import HubTuningConfig, ShippedSamples
from models.forge.training.losses import LossConfig
from tests.examples import further
from tests.models.forge.routes.stripes_world import build_world

SAMPLES = 64


class Passing:
    """Codes arrive as they are."""

    def deliver(self, codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        return codes


class ScriptedJudge:
    """Gives the scores of a list, one after another; the last for ever."""

    graph, sending = b"", Passing()

    def __init__(self, path: CodePath, scores: list[float]) -> None:
        self.path, self._scores = path, scores

    def score(self) -> float:
        return self._scores.pop(0) if len(self._scores) > 1 else self._scores[0]


class Rounds:
    """Runs a tuner over the stripes of `build_world`; what each round is shown, and a weight after all of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, scores: list[float], plan: TuningPlan) -> None:
        traced, data, _, pieces = build_world()
        judge = PathJudge(traced.gm, data, pieces, 0.5, samples=100, fitted=100)
        self.weight = nn.Parameter(torch.zeros(1))
        decoder = nn.Module()
        decoder.register_parameter("weight", self.weight)
        path = CodePath("sample-4", Route.SAMPLE, SampleCoder(nn.Identity()), decoder, nn.Identity(), (1, 8, 8), 4)
        self.shown: list[ShippedSamples] = []
        self.seen: list[npt.NDArray[np.generic]] = []

        def run_edge(_graph: bytes, x: npt.NDArray[np.float32]) -> EdgeAnswers:
            self.seen.append(x)
            return EdgeAnswers(judge.answer_edge(x), (x > 0).astype(np.uint8), None, None)

        def tune(_path: CodePath, shown: ShippedSamples, _course: HubTuningConfig, _tell: Callable[..., None]) -> None:
            self.shown.append(shown)
            with torch.no_grad():
                self.weight.add_(1)

        monkeypatch.setattr(shipped_tuning, "run_edge_graph", run_edge)
        monkeypatch.setattr(shipped_tuning, "fine_tune_hub", tune)
        self.x = data.training.x[0]
        found = PreparedModel(data, traced, (), None, "", "", "")
        course = HubTuningConfig(LossConfig(3), epochs=1)
        scripted = cast("ShippedJudge", ScriptedJudge(path, scores))
        tuner = ShippedTuner(found, scripted, plan, course)
        tuner.run(run_edge(b"", self.x[: plan.samples]), lambda _share: None)


@pytest.mark.parametrize(
    ("scores", "rounds", "kept"),
    [
        further([0.5, 0.7, 0.8, 0.81, 0.9], 3, 3),  # no more rounds than planned
        ([0.5, 0.7, 0.705], 2, 2),  # a round that brings next to nothing is the last, and kept
        further([0.5, 0.7, 0.6], 2, 1),  # one that harms is put back
        ([0.995], 0, 0),  # what keeps nearly all is left alone
    ],
)
def test_rounds_go_on_while_calibration_gains_and_harm_is_put_back(monkeypatch, scores, rounds, kept):
    found = Rounds(monkeypatch, scores, TuningPlan(3, SAMPLES))
    assert (len(found.shown), found.weight.item()) == (rounds, kept)


@pytest.mark.further
def test_each_round_sees_other_samples_from_the_second_on_varied_as_the_user_says(monkeypatch):
    found = Rounds(monkeypatch, [0.1, 0.3, 0.5, 0.7], TuningPlan(3, SAMPLES, lambda x, _chance: -x))
    first, second, third = found.seen
    assert np.array_equal(first, found.x[:SAMPLES])
    assert np.array_equal(second, -found.x[SAMPLES : 2 * SAMPLES])
    assert np.array_equal(third, -found.x[2 * SAMPLES : 3 * SAMPLES])
