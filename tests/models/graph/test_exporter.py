"""Tests of the exporter: what of a user's module is rewritten in the graph, and what is refused."""

import pytest
import torch
from torch import nn

from models.forge.data.types import ForgeError
from models.graph.aten_operations import ALLOWED_OPERATIONS
from models.graph.hub_model import check_graph, decode_graphs, encode_graphs, export_graph

EXAMPLE = (torch.rand(2, 4),)


class Untidy(nn.Module):
    """Writes in place, into a view too, without gradients, under autocast, and with constants made on the spot."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.rectify = nn.ReLU(inplace=True)

    def forward(self, x):
        with torch.no_grad():
            y = self.rectify(self.layer(x))
        y += torch.arange(4)
        y[:, 0] = 0
        with torch.autocast("cpu"):
            z = self.layer(y * torch.tensor([1.0, 2.0, 3.0, 4.0]))
        return {"logits": z.float(), "more": (y.sum(1),)}


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Noisy(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


class OneBatchOnly(nn.Module):
    def forward(self, x):
        return x.reshape(2, 4) + torch.zeros(2, 4)


class ByBatchSize(nn.Module):
    """The batch's size in arithmetic."""

    def forward(self, x):
        doubled = x.repeat(2, 1).reshape(x.shape[0] * 2, -1)
        return doubled[: x.shape[0]] / x.shape[0]


@pytest.mark.further
def test_in_place_writes_autocast_and_constants_become_plain_operations():
    torch.manual_seed(2)
    module = Untidy().eval()
    graph = export_graph(module, EXAMPLE)
    assert {str(node.target) for node in graph.graph.nodes if node.op == "call_function"} <= ALLOWED_OPERATIONS
    served = decoded(graph)
    x = torch.rand(3, 4)
    wanted = module(x.clone())
    logits, more = served(x)
    assert torch.allclose(logits, wanted["logits"], atol=1e-5)
    assert torch.allclose(more, wanted["more"][0])


def decoded(graph):
    encoded, weights = encode_graphs({"whole": graph})
    return decode_graphs(encoded, [weights], "whole")


def test_one_tensor_as_the_example_of_two_inputs_stays_two_inputs():
    module = nn.Bilinear(4, 4, 2)
    served = decoded(export_graph(module, EXAMPLE * 2))
    x, y = torch.rand(3, 4), torch.rand(3, 4)
    assert torch.allclose(served(x, y), module(x, y), atol=1e-6)


def test_idle_dropout_and_checks_are_left_out():
    graph = export_graph(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU(inplace=True)), EXAMPLE)
    names = [str(node.target) for node in graph.graph.nodes if node.op.startswith("call")]
    assert names == ["aten.linear.default", "aten.relu.default"]


def test_a_number_drawn_for_nothing_is_left_out():
    class LayerDrop(nn.Module):
        """A layer that is dropped by chance in training; the number is drawn in evaluation, too."""

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            drawn = torch.rand([])
            if self.training and drawn < 0.5:
                return x[:, :2]
            return self.layer(x)

    exported = export_graph(LayerDrop().eval(), (torch.zeros(2, 3),))
    assert [str(node.target) for node in exported.graph.nodes if node.op == "call_function"] == ["aten.linear.default"]


def test_sizes_may_be_reckoned_with():
    served = decoded(export_graph(ByBatchSize(), EXAMPLE))
    for count in (1, 3, 7):
        x = torch.rand(count, 4)
        assert torch.allclose(served(x), ByBatchSize()(x))


@pytest.mark.parametrize(
    ("module", "says"), [(Branching(), "cannot be traced"), (Noisy(), "random"), (OneBatchOnly(), "batch")]
)
def test_a_model_with_data_dependent_flow_chance_or_a_fixed_batch_is_refused_with_one_line(module, says):
    with pytest.raises(ForgeError, match=says) as caught:
        decoded(export_graph(module, EXAMPLE))
    assert "\n" not in str(caught.value)


def test_an_operation_the_hub_does_not_run_is_named():
    class Shuffled(nn.Module):
        def forward(self, x):
            return torch.fft.rfft(x).abs()

    with pytest.raises(ForgeError, match=r"the hub does not run the operation aten\.fft_rfft\.default"):
        decoded(export_graph(Shuffled(), EXAMPLE))


def test_a_model_that_looks_at_its_neighbours_in_the_batch_is_refused():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False))
    with pytest.raises(ForgeError, match="batch"):
        decoded(export_graph(module, EXAMPLE))


def test_an_operation_without_a_deterministic_algorithm_is_fine_for_a_hub():
    class Middle(nn.Module):
        def forward(self, x):
            return x.median(1, keepdim=True)[0] + x

    graph = export_graph(Middle(), EXAMPLE)
    torch.use_deterministic_algorithms(mode=True)
    try:
        check_graph(graph)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(mode=False)


@pytest.mark.further
def test_what_encoding_refuses_is_refused_without_reading_a_weight():
    class Spread(nn.Module):
        def forward(self, x):
            return x[:, :1, None, None].expand(-1, 1, 8192, 8192).sum((2, 3))

    graph = export_graph(Spread(), EXAMPLE)
    with pytest.raises(ForgeError, match=r"the hub would refuse this model: .*memory allowed") as checked:
        check_graph(graph)
    assert "plainer operations" in str(checked.value)
