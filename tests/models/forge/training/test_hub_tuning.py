"""Fine-tuning of the hub's layers: codes that other arithmetic made are read, and samples count as they are told."""

import numpy as np
import pytest
import torch
from torch import nn

from models.forge.training.code_path import CodePath, Route
from models.forge.training.hub_tuning import HubTuningConfig, ShippedSamples, fine_tune_hub
from models.forge.training.losses import LossConfig
from models.forge.training.modules import build_hub_module

COURSE = HubTuningConfig(LossConfig(3), epochs=8, batch=32, rate=1e-2)


def _path(decoder: nn.Module | None = None) -> CodePath:
    torch.manual_seed(0)
    tail = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    return CodePath("codes", Route.LEARNED, nn.Identity(), decoder or nn.Linear(6, 6), tail, (6,), 4)


def _shown(count: int = 600) -> ShippedSamples:
    codes = np.random.default_rng(0).integers(0, 4, (count, 6)).astype(np.uint8)
    y = np.minimum(codes[:, 0], 2).astype(np.int64)
    return ShippedSamples(codes, np.eye(3, dtype=np.float32)[y] * 8, y)


def _accuracy(path: CodePath, shown: ShippedSamples) -> float:
    with torch.no_grad():
        found = build_hub_module(path)(torch.from_numpy(shown.codes).float()).argmax(1).numpy()
    return float((found == shown.y).mean())


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
def test_tuning_reads_codes_that_the_hub_has_not_seen(bf16):
    path, shown = _path(), _shown()
    told: list[float] = []
    fine_tune_hub(path, shown, COURSE._replace(bf16=bf16), told.append)
    assert _accuracy(path, shown) > 0.9
    assert told[-1] == 1.0


def test_a_decoded_sample_needs_no_decoder_that_learns():
    """Behind the sample itself the whole given model is tuned, and its decoder has no weights."""
    path, shown = _path(nn.Identity()), _shown()
    fine_tune_hub(path, shown, COURSE)
    assert _accuracy(path, shown) > 0.9


@pytest.mark.further
def test_samples_that_count_nothing_teach_nothing():
    path, shown = _path(), _shown()
    wrong = shown._replace(y=(shown.y + 1) % 3, answers=np.roll(shown.answers, 1, 1))
    both = ShippedSamples(*(np.concatenate([one, other]) for one, other in zip(shown[:3], wrong[:3], strict=True)))
    weights = np.repeat(np.array([1, 0], np.float32), len(shown.y))
    fine_tune_hub(path, both._replace(weights=weights), COURSE)
    assert _accuracy(path, shown) > 0.9


def test_a_hub_without_weights_stays_as_it_is():
    path = CodePath("codes", Route.SAMPLE, nn.Identity(), nn.Identity(), nn.Flatten(), (6,), 4)
    fine_tune_hub(path, _shown(40), COURSE)
