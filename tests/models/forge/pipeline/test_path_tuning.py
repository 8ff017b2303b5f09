"""Tuning before a choice: codes that the hub's half reads badly keep more once it has learnt to read them."""

import pytest
import torch
from torch import nn

from models.forge.partition.cuts import PreparedModel
from models.forge.pipeline.path_tuning import PathTuner
from models.forge.routes.judgement import PathJudge
from models.forge.training.code_path import CodePath, Route, SampleCoder
from models.forge.training.hub_tuning import HubTuningConfig
from models.forge.training.losses import LossConfig
from tests.models.forge.routes.stripes_world import build_world


class FourLevels(nn.Module):
    """Codes 0..3 of a sample."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.round((x + 1) * 1.2).clamp(0, 3)


class FaintDecoder(nn.Module):
    """Gives samples back at a fortieth of their contrast and on the wrong ground."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.ground = nn.Parameter(torch.tensor(0.02)), nn.Parameter(torch.tensor(-3.0))

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        return codes * self.scale + self.ground


@pytest.fixture(scope="module")
def tuned():
    """The judge, a path that the given model reads badly, the same path tuned, and the given weights as they were."""
    traced, data, _, pieces = build_world()
    judge = PathJudge(traced.gm, data, pieces, 0.5, samples=200, fitted=200)
    path = CodePath("sample-4", Route.SAMPLE, SampleCoder(FourLevels()), FaintDecoder(), traced.gm, (1, 8, 8), 4)
    before = {name: weight.clone() for name, weight in traced.gm.state_dict().items()}
    course = HubTuningConfig(LossConfig(3), epochs=20, batch=64, rate=1e-2)
    tuner = PathTuner(PreparedModel(data, traced, (), None, "", "", ""), judge, course, samples=640)
    return judge, path, tuner.tune(path), before


@pytest.mark.further
def test_codes_that_are_read_badly_keep_more_once_the_hub_is_tuned(tuned):
    judge, path, own, _ = tuned
    assert judge.measure(path, 0.1).point.lost > 0.2
    assert judge.measure(own, 0.1).point.lost < 0.1


@pytest.mark.further
def test_the_given_model_is_not_changed_by_tuning_one_path(tuned):
    _, path, own, before = tuned
    assert all(torch.equal(weight, before[name]) for name, weight in path.tail.state_dict().items())
    assert own.coder is path.coder
