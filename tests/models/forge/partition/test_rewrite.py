"""Rewrites of a traced graph: weights computed once, views that can be exported again; the answers stay the same."""

import pytest
import torch
from torch import nn

from models.forge.partition.cost import export_heads
from models.forge.partition.cuts import find_cuts, trace_model
from models.forge.partition.rewrite import fold_weights, separate_views
from models.forge.partition.split import split_model
from models.graph.exporter import export_graph
from models.graph.hub_model import check_graph
from tests.models.doubles.unseen_nets import NormalisedConv, WindowAttention

SIGNAL = torch.randn(2, 2, 40, generator=torch.Generator().manual_seed(1))
PICTURES = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def operations(gm):
    return [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]


def test_normalised_weights_are_computed_once_and_the_hub_runs_what_is_left():
    model = NormalisedConv().eval()
    found = trace_model(model, SIGNAL)
    assert not [name for name in operations(found.gm) if "weight_norm" in name or "linalg" in name]
    check_graph(found.gm)
    with torch.no_grad():
        assert torch.equal(found.gm(SIGNAL), model(SIGNAL))


def test_folded_weights_can_be_trained_in_the_tail():
    found = trace_model(NormalisedConv().eval(), SIGNAL)
    tail = split_model(found, find_cuts(found)[0]).tail
    shapes = {tuple(weight.shape) for weight in tail.parameters() if weight.requires_grad}
    assert {(8, 8, 3), (4, 8)} <= shapes


def test_the_users_model_keeps_its_normalisation():
    model = NormalisedConv().eval()
    before = list(model.state_dict())
    trace_model(model, SIGNAL)
    assert list(model.state_dict()) == before


def test_a_table_that_is_looked_up_by_constants_stays_a_table():
    class Places(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.last = nn.Parameter(torch.randn(5, 8)), nn.Linear(8, 3)
            self.register_buffer("which", torch.tensor([0, 1, 2, 3, 4, 0, 1, 2]))

        def forward(self, x):
            return self.last(torch.relu(x @ self.table[self.get_buffer("which")]))

    gm = export_graph(Places(), (torch.randn(2, 8),))
    before = operations(gm)
    fold_weights(gm)
    assert operations(gm) == before


@pytest.mark.further
def test_attention_with_a_learned_bias_becomes_onnx():
    model = WindowAttention().eval()
    found = trace_model(model, PICTURES)
    assert "aten.clone.default" in operations(found.gm)
    exported = export_heads(found, find_cuts(found))
    assert len(exported.graph.output) == len(find_cuts(found))
    with torch.no_grad():
        assert torch.equal(found.gm(PICTURES), model(PICTURES))


def test_a_network_without_odd_strides_gets_no_copy():
    gm = export_graph(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(784, 3)), (PICTURES,))
    before = operations(gm)
    separate_views(gm)
    assert operations(gm) == before


@pytest.mark.parametrize("dims", [(0, 2, 1), (0, 1, 2)])
def test_a_view_behind_a_permutation_is_copied_once(dims):
    class Turned(nn.Module):
        def forward(self, x):
            return x.permute(dims).reshape(x.shape[0], -1)

    gm = export_graph(Turned(), (torch.randn(2, 3, 4),))
    separate_views(gm)
    gm.recompile()
    assert operations(gm).count("aten.clone.default") == 1
    x = torch.randn(5, 3, 4)
    assert torch.equal(gm(x), Turned()(x))
