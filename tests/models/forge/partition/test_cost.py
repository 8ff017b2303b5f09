"""Cost measurement of cuts, within bounds; and the training-free codec."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from models.forge.data.types import Data, DataPart, ForgeError
from models.forge.partition.code_levels import LEVELS, QuantisationRange, fit_range, measure_coded_size
from models.forge.partition.cost import MeasurementBounds, count_samples, find_hopeful_cuts, measure_frontier
from models.forge.partition.cuts import Cut, find_cuts, trace_model
from tests.examples import count_examples
from tests.models.doubles.nets import packed, traced

QUICK = MeasurementBounds(latency_s=0.005, samples=200)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["two_towers", "masked_text"])
def test_a_frontier_has_a_row_for_each_cut_by_depth(name):
    cuts = find_cuts(traced(name))
    told: list[float] = []
    rows = measure_frontier(traced(name), cuts, packed(name, 300).data, QUICK, told.append)
    assert [row.cut for row in rows] == list(cuts)
    assert told == pytest.approx([(i + 1) / len(cuts) for i in range(len(cuts))])
    for row in rows:
        assert row.head_us > 0
        assert row.tail_us > 0
        assert row.raw_bytes == 4 * row.cut.values
        assert row.coded_bytes <= row.packed_bytes < row.raw_bytes
        assert row.levels in LEVELS
        assert row.whole == 1.0
        assert row.lost == pytest.approx(row.whole - row.accuracy)
        assert row.leakage is None


@pytest.mark.further
def test_fewer_levels_are_chosen_when_more_may_be_lost():
    whole, data = traced("embedding_mlp"), packed("embedding_mlp", 300).data
    cuts = find_cuts(whole)[-1:]
    strict, loose = (measure_frontier(whole, cuts, data, QUICK._replace(max_loss=loss))[0] for loss in (0.0, 0.5))
    assert loose.levels < strict.levels
    assert loose.coded_bytes < strict.coded_bytes


def make_cut(name, share, values):
    return Cut(name, (name,), ((values,),), share)


def test_hopeful_cuts_are_early_and_have_no_much_smaller_one_before_them():
    cuts = [make_cut("a", 0.02, 900), make_cut("b", 0.1, 1000), make_cut("c", 0.2, 300), make_cut("d", 0.4, 10)]
    assert [cut.name for cut in find_hopeful_cuts(cuts, 0.25)] == ["a", "b", "c"]
    assert [cut.name for cut in find_hopeful_cuts([*cuts, make_cut("e", 0.05, 400)], 0.25)] == ["a", "c", "e"]
    assert [cut.name for cut in find_hopeful_cuts(cuts, 0.01)] == ["a"]
    assert "d" in [cut.name for cut in find_hopeful_cuts(cuts, 1.0)]


@pytest.mark.further
def test_a_cut_without_hope_gets_few_samples_and_none_when_the_time_is_over():
    torch.manual_seed(0)
    x = torch.randn(300, 8)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)).eval()
    with torch.no_grad():
        part = DataPart((x.numpy(),), model(x).argmax(1).numpy())
    whole, data = trace_model(model, x[:2]), Data(part, part, part, ("a", "b", "c"))
    cuts = find_cuts(whole)
    assert [cut.share > 0.25 for cut in cuts] == [False, True]
    rows = measure_frontier(whole, cuts, data, QUICK)
    assert [row.samples for row in rows] == [200, 100]
    assert [row.cut for row in measure_frontier(whole, cuts, data, QUICK._replace(seconds=0.0))] == [cuts[0]]


def test_the_budget_is_shared_by_hopeful_cuts_and_leaves_each_200_samples_at_least():
    bounds = MeasurementBounds(samples=1000, macs=3e6)
    assert count_samples(bounds, 1_000, 1) == 1000
    assert count_samples(bounds, 1_000, 4) == 250
    assert count_samples(bounds, 1_000_000, 4) == 200


@pytest.mark.further
def test_a_regressor_is_scored_by_its_error():
    torch.manual_seed(0)
    x = torch.randn(200, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).eval()
    with torch.no_grad():
        y = model(x)[:, 0] + 0.1
    part = DataPart((x.numpy(),), y.numpy())
    whole = trace_model(model, x[:2])
    row = measure_frontier(whole, find_cuts(whole), Data(part, part, part), QUICK)[0]
    assert row.whole == pytest.approx(0.1, abs=1e-4)
    assert row.accuracy >= row.whole * 0.9
    assert row.lost == pytest.approx(row.accuracy / row.whole - 1)


@pytest.mark.further
def test_an_operator_that_onnx_has_not_is_one_line_that_names_it():
    class Odd(nn.Module):
        def forward(self, x):
            return x.median(1, keepdim=True)[0] + x

    whole = trace_model(
        nn.Sequential(nn.Linear(8, 4), Odd(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.rand(2, 8)
    )
    part = DataPart((np.zeros((20, 8), np.float32),), np.arange(20) % 2)
    with pytest.raises(ForgeError, match=r"cannot become ONNX: .*aten\.median.*; replace that operator") as error:
        measure_frontier(whole, find_cuts(whole), Data(part, part, part, ("a", "b")), QUICK)
    assert "\n" not in str(error.value)
    assert "\x1b" not in str(error.value)


@settings(max_examples=count_examples(50), deadline=None)
@given(st.integers(0, 9999), st.sampled_from(LEVELS), st.booleans())
def test_codes_stay_in_range_and_restore_within_half_a_step(seed, levels, positive):
    feature = torch.randn(20, 30, generator=torch.Generator().manual_seed(seed))
    feature = feature.relu() if positive else feature
    limits = fit_range(feature, levels)
    codes = limits.quantise(feature)
    assert codes.dtype == torch.uint8
    assert int(codes.max()) < levels
    clipped = feature.clamp(limits.low, limits.high)
    step = (limits.high - limits.low) / (levels - 1)
    assert float((limits.dequantise(codes) - clipped).abs().max()) <= step / 2 + 1e-5
    assert torch.equal(limits.quantise(limits.dequantise(codes)), codes)


def test_constant_features_are_no_trouble():
    for value in (0.0, 3.0, -2.0):
        limits = fit_range(torch.full((10, 4), value), 4)
        assert limits.high > limits.low
        assert float(limits.dequantise(limits.quantise(torch.full((1, 4), value)))[0, 0]) == pytest.approx(
            value, abs=1e-4
        )


def test_a_mask_keeps_every_number():
    mask = torch.randint(0, 2, (50, 12)).float()
    assert fit_range(mask, 16, whole=True) == QuantisationRange(0.0, 1.0, 2)
    kinds = torch.arange(40.0).reshape(10, 4)
    limits = fit_range(kinds, 2, whole=True)
    assert torch.equal(limits.dequantise(limits.quantise(kinds)), kinds)


def test_an_entropy_code_is_as_long_as_the_entropy():
    numbers = torch.Generator().manual_seed(0)
    codes = (torch.rand(4000, 100, generator=numbers) < 0.1).to(torch.uint8)
    found = measure_coded_size([codes[:2000]], [codes[2000:]], [2])
    entropy = -(0.1 * math.log2(0.1) + 0.9 * math.log2(0.9)) * 100 / 8
    assert found.packed == math.ceil(100 / 8)
    assert found.mean == pytest.approx(entropy, rel=0.03)
    assert found.mean < found.capped
