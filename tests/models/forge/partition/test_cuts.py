"""Tracing and split points of many architectures; what cannot be traced is refused with one line."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from models.forge.data.types import ForgeError
from models.forge.partition.cuts import find_cuts, trace_model
from models.forge.partition.trace import first_error_line
from tests.examples import mark_further
from tests.models.doubles.nets import ARCHITECTURES, traced
from tests.models.doubles.unseen_nets import UNSEEN

FIRST = ("embedding_mlp", "two_inputs", "two_towers")
FLOATS = torch.randn(2, 8)


class Net(nn.Module):
    """One irregular operation in an otherwise sound model."""

    def __init__(self, odd):
        super().__init__()
        self.first, self.last, self.odd = nn.Linear(8, 8), nn.Linear(8, 3), odd

    def forward(self, x):
        return self.odd(self, self.first(x).relu(), x)


def refused(odd, example=FLOATS):
    with pytest.raises(ForgeError) as error:
        find_cuts(trace_model(Net(odd), example))
    line = str(error.value)
    assert "\n" not in line
    assert ";" in line  # what; what to try
    return line


@pytest.mark.parametrize("name", mark_further(ARCHITECTURES, FIRST))
def test_every_architecture_has_cuts_by_depth_with_names_for_a_manifest(name):
    cuts = find_cuts(traced(name))
    assert len(cuts) >= 2
    assert [cut.share for cut in cuts] == sorted(cut.share for cut in cuts)
    assert len({cut.name for cut in cuts}) == len(cuts)
    for cut in cuts:
        assert re.fullmatch(r"[a-z0-9](?:[a-z0-9_.-]{0,62}[a-z0-9])?", cut.name)
        assert 1 <= len(cut.nodes) == len(cut.shapes) <= 3
        assert 0 < cut.share < 1


@pytest.mark.further
@pytest.mark.parametrize("name", UNSEEN)
def test_architectures_that_nothing_was_written_for_are_traced_and_cut(name):
    torch.manual_seed(0)
    found = trace_model(UNSEEN[name].build().eval(), *UNSEEN[name].draw(2))
    assert len(find_cuts(found)) >= 2


@pytest.mark.parametrize("name", mark_further(ARCHITECTURES, FIRST))
def test_the_few_cuts_are_among_all_and_no_worse(name):
    few, every = find_cuts(traced(name)), find_cuts(traced(name), every=True)
    single = [cut for cut in few if "-x" not in cut.name]
    assert {cut.nodes for cut in single} <= {cut.nodes for cut in every}
    for cut in every:
        assert min(one.values for one in few if one.share <= cut.share) <= cut.values or "-x" in cut.name


def test_a_residual_block_is_not_cut_where_its_skip_is_alive():
    names = {cut.name for cut in find_cuts(traced("resnet"), every=True)}
    assert {"body.0.add", "body.1.add"} <= names
    assert not {name for name in names if name.startswith(("body.0.first", "body.0.one", "body.1.short"))}


def test_a_mask_travels_beside_the_features_until_nobody_needs_it():
    cuts = find_cuts(traced("masked_text"))
    assert cuts[0].shapes == ((12, 16), (12,))
    assert cuts[-1].shapes == ((16,),)


def test_words_never_travel_as_a_mask():
    """The residual path of the first layer is made of words alone: sending them would send the input."""
    for name in ("bert_masked", "masked_text"):
        for cut in find_cuts(traced(name), every=True):
            assert cut.share > 0.1, cut


def test_two_towers_are_cut_across_both():
    first = find_cuts(traced("two_towers"))[0]
    assert first.shapes == ((12,), (8,))


def test_a_scaled_or_joined_input_is_not_a_feature():
    def joined(net, deep, x):
        return nn.functional.linear(torch.cat([deep, x * 2], 1), torch.ones(3, 16)) + net.last(deep)

    sent = {name for cut in find_cuts(trace_model(Net(joined), FLOATS), every=True) for name in cut.nodes}
    assert sent
    assert not any(name.startswith(("cat", "mul")) for name in sent)


def test_a_model_of_one_layer_has_no_cut():
    with pytest.raises(ForgeError, match="no valid cut"):
        find_cuts(trace_model(nn.Linear(8, 3), FLOATS))


@pytest.mark.further
def test_multiply_accumulates_are_counted_by_hand():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 64, 5))
    found = trace_model(model, torch.rand(2, 3, 8, 8))
    assert found.macs == 4 * 64 * 27 + 4 * 64 * 5
    assert found.outputs == 5
    gru = trace_model(nn.Sequential(nn.GRU(4, 6, batch_first=True), Last()), torch.rand(2, 7, 4))
    assert gru.macs == 7 * 18 * (4 + 6)


class Last(nn.Module):
    def forward(self, x):
        return x[0][:, -1]


def test_a_regressor_of_one_value_per_sample_becomes_a_column():
    found = trace_model(Net(lambda net, deep, _: net.last(deep)[:, 0]), FLOATS)
    assert found.outputs == 1
    assert found.gm(torch.randn(5, 8)).shape == (5, 1)


def test_a_model_with_data_dependent_flow_is_refused_with_one_line():
    line = refused(lambda net, deep, _: net.last(deep) if deep.sum() > 0 else net.last(-deep))
    assert "data-dependent" in line
    assert "torch.where" in line


def test_a_model_that_leaves_torch_is_refused():
    line = refused(lambda net, deep, _: net.last(torch.from_numpy(np.abs(deep.detach().numpy()))))
    assert "cannot" in line
    assert "trace" in line


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        (lambda net, deep, _: (net.last(deep), deep), "returns tuple, not one tensor"),
        (lambda net, deep, _: {"logits": net.last(deep)}, "returns dict"),
        (lambda net, deep, _: net.last(deep).sum(), "not float [n, k]"),
        (lambda net, deep, _: net.last(deep).argmax(1), "not float [n, k]"),
        (lambda net, deep, _: net.last(deep) / 0, "NaN or infinite"),
        (lambda net, deep, _: net.last(torch.dropout(deep, 0.5, True)), "differently each time"),
        (lambda net, deep, _: net.last(deep - deep.mean(0) * deep.std(0)), "depends on its batch"),
        (lambda net, deep, _: net.last(deep.reshape(2, 8)), "does not run on a batch [5"),
        (lambda net, deep, _: net.missing(deep), "no attribute 'missing'"),
    ],
)
def test_what_a_model_may_not_answer(odd, says):
    assert says in refused(odd)


def test_operators_that_the_hub_does_not_run_are_named_right_after_tracing():
    said = refused(lambda net, deep, _: net.last(torch.special.i0(deep) + torch.special.erfcx(deep)))
    assert "the hub does not run the operations aten.special_i0.default, aten.special_erfcx.default" in said
    assert "replace it" in said


def test_an_operator_is_named_with_the_module_that_uses_it():
    class Odd(nn.Module):
        def forward(self, x):
            return torch.special.i0(x)

    with pytest.raises(ForgeError, match=r"aten\.special_i0\.default \(in 1\)"):
        trace_model(nn.Sequential(nn.Linear(8, 4), Odd(), nn.Linear(4, 2)), FLOATS)


@pytest.mark.further
def test_a_tensor_that_no_hub_would_hold_is_refused_right_after_tracing():
    assert "beyond the memory allowed" in refused(
        lambda net, deep, _: net.last(deep) + deep[:, :1, None, None].expand(-1, 1, 8192, 8192).sum((2, 3)) * 0
    )


def test_errors_hold_no_colours_for_a_terminal():
    assert first_error_line(ValueError("\x1b[96mstep 2/3\x1b[0m failed\nmore")) == "ValueError: step 2/3 failed"


def test_weights_that_are_not_numbers_are_named():
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))
    nn.init.constant_(model[2].get_parameter("weight"), float("nan"))
    with pytest.raises(ForgeError, match=r"weight 2\.weight has NaN"):
        trace_model(model, FLOATS)


def test_a_model_that_ignores_all_but_two_samples_is_refused():
    assert "batch" in refused(lambda net, deep, _: net.last(deep)[:2])
