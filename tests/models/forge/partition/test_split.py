"""Model splitting: both halves together are the model, at any batch size; the tail can be trained independently."""

import copy

import pytest
import torch

from models.forge.data.types import ForgeError
from models.forge.partition.cuts import Cut, find_cuts, trace_model
from models.forge.partition.split import run_head, split_model
from models.forge.partition.trace import outputs_match
from tests.models.doubles.nets import ARCHITECTURES, packed, traced


@pytest.mark.heavy
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_cut_of_every_architecture_splits_into_the_whole(name):
    whole = traced(name)
    x = torch.from_numpy(packed(name, 7).data.training.x[0])
    for cut in find_cuts(whole, every=True):
        found = split_model(whole, cut)
        features = run_head(found.head, x)
        assert [tuple(one.shape) for one in features] == [(7, *shape) for shape in cut.shapes]
        assert all(one.dtype == torch.float32 for one in features)
        assert outputs_match(found.tail(*features), whole.gm(x)), cut


def test_halves_hold_each_weight_of_the_model_once():
    whole = traced("resnet")
    found = split_model(whole, find_cuts(whole)[1])
    count = [sum(weight.numel() for weight in half.parameters()) for half in (*found, whole.gm)]
    assert count[0] + count[1] == count[2]


@pytest.mark.further
def test_the_tail_is_trained_and_the_model_stays_as_it_was():
    whole = traced("mobilenet")
    cut = find_cuts(whole)[2]
    before = copy.deepcopy(dict(whole.gm.named_parameters()))
    found = split_model(whole, cut)
    x = whole.example
    features = [one.detach() for one in run_head(found.head, x)]
    step = torch.optim.SGD(found.tail.parameters(), 0.1)
    first = found.tail(*features).square().mean()
    first.backward()
    step.step()
    assert found.tail(*features).square().mean() < first
    assert all(torch.equal(weight, before[name]) for name, weight in whole.gm.named_parameters())
    assert outputs_match(split_model(whole, cut).tail(*features), whole.gm(x))


def test_a_mask_survives_a_codec_that_moves_it_a_little():
    whole = traced("masked_text")
    found = split_model(whole, find_cuts(whole)[0])
    features, mask = run_head(found.head, whole.example)
    assert set(mask.unique().tolist()) <= {0.0, 1.0}
    assert outputs_match(found.tail(features, mask * 0.8 + 0.1), whole.gm(whole.example))


@pytest.mark.further
def test_a_tail_can_be_exported_again():
    whole = traced("vit")
    found = split_model(whole, find_cuts(whole)[1])
    with torch.no_grad():
        features = found.head(whole.example)
    again = trace_model(found.tail, features)
    assert outputs_match(again.gm(features), whole.gm(whole.example))


def test_a_cut_of_another_model_is_refused():
    with pytest.raises(ForgeError, match="find its cuts again"):
        split_model(traced("resnet"), Cut("elsewhere", ("nowhere",), ((1,),), 0.5))
