"""Distillation training: modules learn the given model, at their own places, and a killed training goes on."""

from typing import cast

import numpy as np
import pytest
import torch
from torch import nn

from models.forge.data.augment import Augmentation
from models.forge.data.types import Data, DataPart
from models.forge.partition.cuts import find_cuts, trace_model
from models.forge.training.distillation import (
    DistillationConfig,
    choose_batch,
    choose_entry,
    count_steps_per_epoch,
    train_modules,
)
from models.forge.training.leakage_penalty import LeakagePenalty
from models.forge.training.modules import build_edge_module, build_tail_module, edge_output_names

KINDS = ("left", "middle", "right")
WISH = DistillationConfig(max_bytes=24, epochs=3, batch=32)


class Bands(nn.Module):
    """Bright bands at one of three places: three convolutions and a linear layer."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.third = nn.Conv2d(16, 16, 3, padding=1)
        self.last = nn.Linear(16 * 16, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x))))
        last: torch.Tensor = self.last(torch.relu(self.third(x)).flatten(1))
        return last


def _part(count: int, seed: int, *, values: bool) -> DataPart:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    x = rng.normal(0, 0.3, (count, 1, 8, 8)).astype(np.float32)
    for row, place in enumerate(y):
        x[row, 0, :, 3 * place : 3 * place + 2] += 1
    return DataPart((x,), (y * 100.0 + 7).astype(np.float32) if values else y.astype(np.int64))


def _data(*, values: bool) -> Data:
    training, calibration, heldout = (_part(count, seed, values=values) for seed, count in enumerate((480, 240, 200)))
    return Data(training, calibration, heldout, () if values else KINDS)


def _given(data: Data) -> nn.Module:
    torch.manual_seed(0)
    model = Bands(len(data.labels) or 1)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    x, y = torch.from_numpy(data.training.x[0]), torch.from_numpy(data.training.y)
    for _ in range(60):
        out = model(x)
        loss = nn.functional.cross_entropy(out, y) if data.labels else ((out[:, 0] - (y - 107) / 100) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    if not data.labels:
        with torch.no_grad():
            model.last.weight.mul_(100)
            model.last.bias.mul_(100).add_(107)
    return model.eval()


class World:
    def __init__(self, *, values: bool) -> None:
        self.data = _data(values=values)
        self.traced = trace_model(_given(self.data), torch.from_numpy(self.data.training.x[0][:2]))
        self.cuts = find_cuts(self.traced)


@pytest.fixture(scope="module")
def labels() -> World:
    return World(values=False)


def _silent(_what: str, _share: float) -> None:
    """Progress callback that does nothing."""


def _answers(pieces, x):
    with torch.no_grad():
        outputs = build_edge_module(pieces)(torch.from_numpy(x))
        found = dict(zip(edge_output_names(pieces), outputs, strict=True))
        return found, build_tail_module(pieces)(found["codes"].float())


@pytest.mark.heavy
@pytest.mark.parametrize("spatial", [True, False], ids=["grid", "vector"])
def test_edge_and_hub_learn_what_the_given_model_knows(labels, spatial):
    pieces = train_modules(labels.traced, labels.data, labels.cuts[0], WISH._replace(spatial=spatial), _silent)
    held = labels.data.heldout
    found, answers = _answers(pieces, held.x[0])
    assert (found["logits"].argmax(1).numpy() == held.y).mean() > 0.95
    assert (answers.argmax(1).numpy() == held.y).mean() > 0.95
    assert found["codes"].dtype == torch.uint8
    assert pieces.codebook.payload_bytes <= 24
    assert 0 <= found["novelty"].min() <= found["novelty"].max() <= 1


@pytest.mark.further
def test_a_regressor_learns_its_values_and_how_wrong_they_are():
    world = World(values=True)
    pieces = train_modules(world.traced, world.data, world.cuts[0], WISH._replace(epochs=5), _silent)
    held = world.data.heldout
    found, answers = _answers(pieces, held.x[0])
    value, log_scale = found["logits"].unbind(1)
    error = np.abs(value.numpy() - held.y)
    assert error.mean() < 20  # values lie 100 apart
    assert np.abs(answers[:, 0].numpy() - held.y).mean() < 20
    assert 0.25 < log_scale.exp().mean().item() / error.mean() < 4


@pytest.mark.further
def test_a_users_own_small_model_can_be_the_exit(labels):
    torch.manual_seed(1)
    small = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    weight = cast("nn.Linear", small[1]).weight
    before = weight.clone()
    pieces = train_modules(labels.traced, labels.data, labels.cuts[0], WISH._replace(edge_model=small), _silent)
    found, _ = _answers(pieces, labels.data.heldout.x[0])
    assert (found["logits"].argmax(1).numpy() == labels.data.heldout.y).mean() > 0.9
    assert torch.equal(before, weight)  # the user's own object is not changed


@pytest.mark.further
def test_the_given_model_is_not_changed_by_teaching(labels):
    before = {key: value.clone() for key, value in labels.traced.gm.state_dict().items()}
    train_modules(labels.traced, labels.data, labels.cuts[0], WISH._replace(epochs=1), _silent)
    assert all(torch.equal(before[key], value) for key, value in labels.traced.gm.state_dict().items())


class Killed(Exception):  # noqa: N818 - it is not an error
    pass


@pytest.mark.heavy
def test_a_killed_teaching_goes_on_and_ends_as_if_it_had_not_been(labels, tmp_path):
    wish = WISH._replace(epochs=2, augment=Augmentation(crop=1, cutout=2, mirror=False).__call__, copies=2)
    whole = train_modules(labels.traced, labels.data, labels.cuts[0], wish, _silent)

    def killer(_what: str, share: float) -> None:
        if share > 0.4:
            raise Killed

    with pytest.raises(Killed):
        train_modules(labels.traced, labels.data, labels.cuts[0], wish._replace(folder=tmp_path), killer)
    told: list[str] = []
    again = train_modules(
        labels.traced,
        labels.data,
        labels.cuts[0],
        wish._replace(folder=tmp_path),
        lambda what, _share: told.append(what),
    )
    assert sum("loss" in what for what in told) == 1  # the second epoch alone
    for one, other in zip(whole.encoder.state_dict().values(), again.encoder.state_dict().values(), strict=True):
        assert torch.allclose(one.float(), other.float(), atol=1e-5)


@pytest.mark.further
def test_the_decoder_enters_later_than_the_cut_where_the_model_is_narrow(labels):
    entry = choose_entry(labels.traced, labels.cuts[0])
    assert entry.share >= labels.cuts[0].share
    assert np.prod(entry.shapes[0]) <= np.prod(labels.cuts[0].shapes[0])


def test_shaken_pictures_follow_from_the_generator_alone():
    pictures = torch.rand(4, 1, 16, 16)
    one, other = (Augmentation(crop=1, mirror=False)(pictures, torch.Generator().manual_seed(2)) for _ in range(2))
    assert torch.equal(one, other)
    assert not torch.equal(one, pictures)


@pytest.mark.parametrize("samples", [1, 40, 2280, 50_000])
def test_a_plan_counts_the_steps_that_an_epoch_really_takes(samples):
    """Epochs of small sets were planned for batches of 256 and taught in batches of a thirtieth of the set."""
    steps = count_steps_per_epoch(samples, 256)
    assert steps == max(1, samples // choose_batch(samples, 256))
    assert steps >= min(32, max(1, samples // 16))
    assert choose_batch(samples, 256) <= 256


@pytest.mark.further
def test_codes_taught_to_leak_less_tell_fewer_bits_beyond_the_label():
    data = _data(values=False)
    traced = trace_model(_given(data), torch.from_numpy(data.training.x[0][:2]))
    cut, y, bits = find_cuts(traced)[0], torch.from_numpy(data.calibration.y), []
    for weight in (0.0, 3.0):
        pieces = train_modules(traced, data, cut, WISH._replace(leakage_weight=weight), lambda _, __: None)
        with torch.inference_mode():
            codes = build_edge_module(pieces)(torch.from_numpy(data.calibration.x[0]))[1]
            answers = build_tail_module(pieces)(codes.float())
        assert (answers.argmax(1) == y).float().mean() > 0.9
        bits.append(float(LeakagePenalty(1.0, 3).bits_beyond_label(codes, y)))
    assert bits[1] < 0.7 * bits[0]
