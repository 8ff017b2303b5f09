"""Tests of graphs divided among ranks (threads here): equal answers, few collectives, no whole weight held twice."""

from functools import cache

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from models.bundle.manifest import BundleError
from models.graph.format import HubModelDocument, TensorSignature
from models.graph.hub_model import decode_all_graphs, encode_graphs, export_graph
from models.sharding.program import ParallelShape, stage_values
from models.sharding.sizes import fullest_rank, measure_model, measure_ranks
from models.sharding.split import WeightPiece
from models.sharding.weights import RankShare, count_piece_bytes, count_spec_bytes
from tests.cloud_hub.doubles.gangs import SHAPES, hub_files
from tests.examples import further, mark_further
from tests.models.doubles.spread import Spread, read_files

TOLERANCE = 1e-5
BATCHES = (1, 2, 5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("weights")


def spread(folder, kind: str, shape: ParallelShape) -> Spread:
    graph, weights = hub_files(kind)
    file = folder / f"{kind}.safetensors"
    if not file.exists():
        file.write_bytes(weights)
    return Spread(graph, [str(file)], shape)


SPREADS = [ParallelShape(2, 1), ParallelShape(2, 2), ParallelShape(4, 1), ParallelShape(1, 3)]


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        further("transformer", ParallelShape(2, 2)),
        *(pytest.param("transformer", shape, marks=pytest.mark.further) for shape in SPREADS if shape != (2, 2)),
        ("pictures", ParallelShape(2, 1)),
        pytest.param("pictures", ParallelShape(1, 3), marks=pytest.mark.further),
    ],
    ids=str,
)
def test_a_spread_model_answers_as_the_whole_one_on_every_batch(folder, kind, shape):
    over = spread(folder, kind, shape)
    whole = decode_all_graphs(*_files(kind))
    for name in ("tail", "whole"):
        xs = [torch.rand(batch, *SHAPES[kind]) for batch in BATCHES]
        for x, found in zip(xs, over.answers(name, xs)[0], strict=True):
            assert torch.allclose(found, whole[name](x), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("kind", ["transformer", "pictures"])
def test_tensor_parallel_ranks_meet_four_times_an_answer_and_never_to_put_tensors_together(folder, kind):
    """Two for each block of the transformer; one for each second convolution that is large enough."""
    _, counts = spread(folder, kind, ParallelShape(2, 1)).answer("tail", torch.rand(3, *SHAPES[kind]))
    assert counts == {"reduce": 4}


def test_pipeline_stages_do_not_meet_but_hand_on(folder):
    over = spread(folder, "transformer", ParallelShape(1, 2))
    _, counts = over.answer("tail", torch.rand(3, *SHAPES["transformer"]))
    assert counts == {}
    handed = stage_values(over.made.blanks["tail"], over.made.stretches["tail"][0].gives, 3)
    assert [edge.shape for edge in handed if edge.dtype] == [(3, 16, 64)]


@pytest.mark.parametrize("shape", mark_further(SPREADS, SPREADS[:1]), ids=str)
@pytest.mark.parametrize("kind", ["transformer", "pictures"])
def test_no_rank_holds_much_more_than_its_share(folder, kind, shape):
    over = spread(folder, kind, shape)
    whole = sum(count_spec_bytes(port) for port in over.form.weights.values())
    held = [
        count_piece_bytes(over.form.weights, over.made.stage_pieces(at), shape.tensor) for at in range(shape.pipeline)
    ]
    largest = max(count_spec_bytes(port) for port in over.form.weights.values()) // shape.tensor
    assert max(held) <= 1.1 * whole / (shape.tensor * shape.pipeline) + (largest if shape.pipeline > 1 else 0)
    found = measure_ranks(over.form, shape, 4)
    assert [rank.weight_bytes for rank in found] == held
    assert fullest_rank(found) in found


def test_the_pieces_of_all_ranks_are_the_weight(folder):
    over = spread(folder, "transformer", ParallelShape(2, 1))
    (whole,) = read_files(over.files, over.form.weights, [WeightPiece("w5", None)], RankShare(0, 1)).values()
    for axis in range(whole.ndim):
        parts = [
            read_files(over.files, over.form.weights, [WeightPiece("w5", axis)], RankShare(at, 2)).popitem()[1]
            for at in (0, 1)
        ]
        assert torch.equal(torch.cat(parts, axis), whole)
        assert all(part.is_contiguous() and part._base is None for part in parts)


def test_sizes_are_those_of_the_model(folder):
    found = measure_model(spread(folder, "pictures", ParallelShape()).form, 8)
    assert found.parameters == 610_864
    assert found.weight_bytes == pytest.approx(4 * found.parameters, rel=0.01)
    assert found.activation_bytes >= 2 * 8 * 32 * 32 * 32 * 4  # a convolution's input and output


class Odd(nn.Module):
    """What no rule carries on: the softmax is over the divided axis, and the sort too."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 256), nn.Linear(256, 10)
        self.table = nn.Embedding(100, 32)

    def forward(self, ids: Tensor) -> Tensor:
        deep = torch.softmax(self.up(self.table(ids).mean(1)), 1)
        mixed: Tensor = self.down(torch.sort(deep, 1)[0] + deep.flip(1))
        return mixed


@cache
def _odd() -> tuple[bytes, bytes]:
    torch.manual_seed(3)
    return encode_graphs({"whole": export_graph(Odd(), (torch.zeros(2, 6, dtype=torch.int64),))})


def test_where_no_rule_is_sure_the_tensor_is_put_together_and_the_answer_is_right(tmp_path):
    graph, weights = _odd()
    (tmp_path / "w").write_bytes(weights)
    over = Spread(graph, [str(tmp_path / "w")], ParallelShape(2, 1))
    ids = torch.randint(0, 100, (5, 6))
    found, counts = over.answer("whole", ids)
    assert torch.allclose(found, decode_all_graphs(graph, [weights])["whole"](ids), atol=TOLERANCE)
    assert counts == {"gather": 1}


def _files(kind: str) -> tuple[bytes, list[bytes]]:
    graph, weights = hub_files(kind)
    return graph, [weights]


def test_a_piece_is_read_under_the_name_that_the_file_gives_its_weight(tmp_path):
    file, ports = str(tmp_path / "w"), {"w0": TensorSignature("float32", (4, 2), "vit.layernorm.weight")}
    held = torch.arange(8.0).view(4, 2)
    save_file({"vit.layernorm.weight": held, "not.asked.for": torch.zeros(3)}, file)
    found = read_files([file], ports, [WeightPiece("w0", 0)], RankShare(1, 2))
    assert found["w0_0"].tolist() == held[2:].tolist()
    with pytest.raises(BundleError, match="missing or too many: w0"):
        read_files([file], {"w0": TensorSignature("float32", (4, 2))}, [WeightPiece("w0", None)], RankShare(0, 1))


def test_weights_that_are_not_what_the_graph_says_are_refused_by_name(folder, tmp_path):
    over = spread(folder, "transformer", ParallelShape())
    wanted: HubModelDocument = over.form
    wrong = {**wanted.weights, "w5": TensorSignature("float32", (3, 3))}
    with pytest.raises(BundleError, match=r"weights: w5 is float32 \["):
        read_files(over.files, wrong, [WeightPiece("w5", None)], RankShare(0, 1))
    with pytest.raises(BundleError, match="missing or too many: w999"):
        read_files(over.files, wanted.weights, [WeightPiece("w999", None)], RankShare(0, 1))
    with pytest.raises(BundleError, match=r"plan: w5 .* cannot be divided in 7 along axis 0"):
        read_files(over.files, wanted.weights, [WeightPiece("w5", 0)], RankShare(0, 7))
    (tmp_path / "junk").write_bytes(b"junk" * 100)
    with pytest.raises(BundleError, match="weights: "):
        read_files([str(tmp_path / "junk")], wanted.weights, [WeightPiece("w5", None)], RankShare(0, 1))
