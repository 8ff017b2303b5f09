"""Whatever a plan measures can start: nets of every common kind, cut and divided, hand on values and answer alike."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from models.graph.hub_model import decode_all_graphs, encode_graphs, export_graph
from models.sharding.program import ParallelShape, stage_values
from models.sharding.sizes import measure_ranks
from tests.examples import mark_further
from tests.models.doubles.spread import Spread

TOLERANCE = 1e-5


class Recurrent(nn.Module):
    """A recurrent layer, of which the last step is classified."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.last = layer, nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.layer(x)[0][:, -1])
        return found


class States(nn.Module):
    """Two recurrent layers; the second begins with the states of the first, and all of them are read at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTM(16, 32, batch_first=True), nn.LSTM(32, 32, batch_first=True)
        self.last = nn.Linear(96, 5)

    def forward(self, x: Tensor) -> Tensor:
        steps, state = self.first(x)
        steps, (hidden, cell) = self.second(steps, state)
        found: Tensor = self.last(torch.cat([steps[:, -1], hidden[0], cell[0]], 1))
        return found


class SelfAttention(nn.Module):
    """Attention of a sequence on itself, of which the last step is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.layer(x, x, x)[0][:, -1])
        return found


class Pieces(nn.Module):
    """Chunks, an unbound axis and the places of largest values: operations of several results."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.last = nn.Linear(16, 96), nn.Linear(33, 5)

    def forward(self, x: Tensor) -> Tensor:
        one, two, three = self.wide(x).chunk(3, -1)
        first, *_ = (one * two + three).unbind(1)
        top, places = first.topk(1, 1)
        found: Tensor = self.last(torch.cat([first, top * (places >= 0)], 1))
        return found


NETS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: Recurrent(nn.LSTM(16, 64, batch_first=True), 64),
    "lstm of two layers, both ways": lambda: Recurrent(nn.LSTM(16, 32, 2, batch_first=True, bidirectional=True), 64),
    "gru": lambda: Recurrent(nn.GRU(16, 64, batch_first=True), 64),
    "rnn": lambda: Recurrent(nn.RNN(16, 64, batch_first=True), 64),
    "states": States,
    "pieces": Pieces,
    "transformer": lambda: nn.Sequential(nn.TransformerEncoderLayer(16, 2, 64, batch_first=True), nn.Flatten()),
    "attention": SelfAttention,
    "convolution": lambda: nn.Sequential(nn.Conv1d(8, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 14, 5)),
    "norms": lambda: nn.Sequential(nn.BatchNorm1d(8), nn.LayerNorm(16), nn.Flatten(), nn.Linear(128, 5)),
}
SHAPES = [ParallelShape(1, 2), ParallelShape(1, 3), ParallelShape(1, 4), ParallelShape(2, 1), ParallelShape(2, 2)]


def build(name: str) -> nn.Module:
    torch.manual_seed(4)
    return NETS[name]().eval()


@pytest.mark.parametrize("name", mark_further(NETS, ("lstm", "pieces")))
def test_what_is_measured_for_a_plan_starts_and_answers_as_the_whole_net(name: str, tmp_path):
    net = build(name)
    x = torch.randn(3, 8, 16)
    exported = export_graph(net, (torch.zeros(2, 8, 16),))
    graph, weights = encode_graphs({"tail": exported, "whole": exported})
    (tmp_path / "weights.safetensors").write_bytes(weights)
    wanted = decode_all_graphs(graph, [weights])["whole"](x)
    for shape in SHAPES:
        over = Spread(graph, [str(tmp_path / "weights.safetensors")], shape)
        assert len(measure_ranks(over.form, shape, 3)) == shape.pipeline  # what a plan asks
        for graph_name, segments in over.made.stretches.items():
            for segment in segments:  # what the engine asks when it starts
                assert all(value.name for value in stage_values(over.made.blanks[graph_name], segment.gives, 3))
        (found,), _ = over.answers("whole", [x])
        assert torch.allclose(found, wanted, atol=TOLERANCE, rtol=TOLERANCE), shape
