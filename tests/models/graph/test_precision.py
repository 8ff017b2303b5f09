"""Graphs in other numbers: bfloat16 and float16 products, int8 linear layers, shared weights, and what stays."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from models.bundle.manifest import BundleError
from models.graph.hub_model import decode_all_graphs, encode_graphs, export_graph
from models.graph.module import HubGraphModule
from models.graph.precision import (
    DynamicInt8Linear,
    GraphNumbers,
    WeightOnlyInt8Linear,
    compute_in,
    convert_graphs,
    count_weight_bytes,
    quantize_weight,
)
from tests.examples import further

CPU = torch.device("cpu")
SAMPLE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
CODES = torch.randn(2, 64, generator=torch.Generator().manual_seed(2))


class Tail(nn.Module):
    """A normalisation, a table, and linear layers: one of them is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(64, 64), nn.Linear(64, 64, bias=False), nn.Linear(64, 10)
        self.norm = nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.twice(torch.relu(self.twice(self.norm(self.first(x)))))
        return self.last(made)  # type: ignore[no-any-return]


class Whole(nn.Module):
    def __init__(self, tail: nn.Module) -> None:
        super().__init__()
        self.stem, self.norm, self.tail = nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), tail

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tail(torch.relu(self.norm(self.stem(x))).flatten(1))  # type: ignore[no-any-return]


@pytest.fixture
def graphs() -> dict[str, HubGraphModule]:
    torch.manual_seed(3)
    tail = Tail()
    exported = {"tail": export_graph(tail, (CODES,)), "whole": export_graph(Whole(tail), (SAMPLE,))}
    graph, weights = encode_graphs(exported)
    return decode_all_graphs(graph, [weights])


def outputs(made: dict[str, torch.fx.GraphModule], numbers: GraphNumbers) -> dict[str, torch.Tensor]:
    with torch.inference_mode(), compute_in(numbers):
        return {"tail": made["tail"](CODES).float(), "whole": made["whole"](SAMPLE).float()}


@pytest.mark.parametrize(
    ("numbers", "tolerance", "share"),
    [
        further(GraphNumbers(CPU), 0.0, 1.0),
        further(GraphNumbers(CPU, torch.bfloat16), 0.03, 0.55),
        further(GraphNumbers(CPU, torch.float16), 0.01, 0.55),
        (GraphNumbers(CPU, None, int8=True), 0.03, 0.45),
    ],
    ids=["as stored", "bfloat16", "float16", "int8"],
)
def test_a_precision_keeps_the_outputs_within_its_tolerance_in_less_memory(graphs, numbers, tolerance, share):
    exact = {"tail": graphs["tail"](CODES), "whole": graphs["whole"](SAMPLE)}
    stored = count_weight_bytes({name: each.graph for name, each in graphs.items()})
    made = convert_graphs(graphs, numbers, consume=False)
    for name, found in outputs(made, numbers).items():
        assert (found - exact[name]).abs().max() <= tolerance * exact[name].abs().max()
        assert tolerance == 0 or not torch.equal(found, exact[name]), "nothing was converted"
    assert count_weight_bytes(made) <= share * stored
    assert torch.equal(graphs["tail"](CODES), exact["tail"]), "the graphs that were given changed"


@pytest.mark.parametrize(
    "numbers", [further(GraphNumbers(CPU, torch.bfloat16)), GraphNumbers(CPU, None, int8=True)], ids=str
)
def test_weights_that_two_graphs_share_are_converted_once_and_the_given_ones_are_freed(graphs, numbers):
    made = convert_graphs(graphs, numbers, consume=True)
    alone = count_weight_bytes({"tail": made["tail"]})
    both = count_weight_bytes(made)
    assert alone < both < 1.2 * alone  # the stem is all that the whole model has for itself
    assert not any(list(each.graph.buffers()) for each in graphs.values() if each is graphs["tail"])


@pytest.mark.further
def test_a_copy_without_weights_judges_batches_as_the_graph_does(graphs):
    twin = graphs["tail"].copy_without_weights()
    twin.check_inputs([torch.zeros(5, 64)])
    assert twin.outputs == ((10,),)
    with pytest.raises(BundleError, match=r"an input torch.float32 \[5, 63\]"):
        twin.check_inputs([torch.zeros(5, 63)])
    assert all(tensor.is_meta for tensor in twin.graph.state_dict().values())


@given(
    rows=st.integers(1, 5),
    inputs=st.integers(2, 40),
    width=st.integers(1, 40),
    seed=st.integers(0, 2**16),
    scale=st.sampled_from([1e-6, 1.0, 1e4]),
)
def test_an_int8_linear_layer_is_within_its_rounding(rows, inputs, width, seed, scale):
    made = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(rows, 3, inputs, generator=made) * scale, torch.randn(width, inputs, generator=made)
    weight[0] = 0.0  # a channel of zeros
    bias = torch.randn(width, generator=made)
    exact = nn.functional.linear(x, weight, bias)
    # half a step of a weight times the inputs, and half a step of an input times the weights
    room = x.abs().sum(-1, keepdim=True) * weight.abs().amax(1) / 254 * 1.01
    room = room + x.abs().amax(-1, keepdim=True) / 254 * weight.abs().sum(1) * 1.02
    room = room + 1e-5 * exact.abs() + 1e-6 * scale
    for kind in (DynamicInt8Linear, WeightOnlyInt8Linear):
        found = kind(quantize_weight(weight), bias)(x)
        assert found.shape == exact.shape
        assert bool(((found - exact).abs() <= room).all())


@given(st.integers(2, 70), st.integers(1, 70), st.integers(1, 40), st.integers(0, 2**16))
def test_products_in_int8_are_exact(inputs, width, rows, seed):
    made = torch.Generator().manual_seed(seed)
    left = torch.randint(-127, 128, (rows, inputs), dtype=torch.int8, generator=made)
    right = torch.randint(-127, 128, (width, inputs), dtype=torch.int8, generator=made)
    assert torch.equal(torch._int_mm(left, right.t()).long(), left.long() @ right.t().long())


def test_a_layer_of_one_input_is_refused():
    with pytest.raises(ValueError, match="one input"):
        DynamicInt8Linear(quantize_weight(torch.ones(2, 1)), None)


def test_a_layer_of_zeros_is_quantised_to_zeros():
    values, scales = quantize_weight(torch.zeros(3, 4))
    assert not values.any()
    assert scales.tolist() == [1.0, 1.0, 1.0]
