"""Mixtures of experts as hub graphs answer as their modules, whole and over ranks; what is not sure to is refused."""

import pytest
import torch
from torch import Tensor, nn

from models.forge.data.types import ForgeError
from models.graph.hub_model import check_graph, decode_graphs, encode_graphs, export_graph
from models.sharding.program import ParallelShape
from tests.examples import further, mark_further
from tests.models.doubles.mixtures import MIXTURES, build_mixture
from tests.models.doubles.spread import Spread

TOLERANCE = 1e-5


def draw_samples(count: int, *, steps: bool) -> Tensor:
    return torch.randn(count, 5, 8) if steps else torch.randn(count, 8)


@pytest.mark.parametrize("steps", [False, further(True)])
@pytest.mark.parametrize("kind", mark_further(MIXTURES, ("scattered", "one")))
def test_a_mixture_answers_as_its_module_at_every_batch(kind, steps):
    module = build_mixture(kind)
    graph, weights = encode_graphs({"whole": export_graph(module, (draw_samples(2, steps=steps),))})
    served = decode_graphs(graph, [weights], "whole")
    for count in (1, 3, 17):
        x = draw_samples(count, steps=steps)
        with torch.no_grad():
            assert torch.allclose(served(x), module(x), atol=TOLERANCE, rtol=TOLERANCE), count


@pytest.mark.further
@pytest.mark.parametrize("kind", MIXTURES)
def test_a_mixture_over_ranks_answers_as_its_module(kind, tmp_path):
    module = build_mixture(kind)
    graph, weights = encode_graphs({"whole": export_graph(module, (draw_samples(2, steps=True),))})
    (tmp_path / "weights.safetensors").write_bytes(weights)
    x = draw_samples(7, steps=True)
    with torch.no_grad():
        wanted = module(x)
    for shape in (ParallelShape(2, 1), ParallelShape(4, 1), ParallelShape(1, 2), ParallelShape(2, 2)):
        (found,), _ = Spread(graph, [str(tmp_path / "weights.safetensors")], shape).answers("whole", [x])
        assert torch.allclose(found, wanted, atol=TOLERANCE, rtol=TOLERANCE), shape


def test_stacked_experts_are_divided_among_ranks_which_add_up_once(tmp_path):
    graph, weights = encode_graphs({"whole": export_graph(build_mixture("stacked"), (draw_samples(2, steps=False),))})
    (tmp_path / "weights.safetensors").write_bytes(weights)
    over = Spread(graph, [str(tmp_path / "weights.safetensors")], ParallelShape(2, 1))
    held = {piece.axis for piece in over.made.stage_pieces(0) if len(over.form.weights[piece.name].shape) == 3}
    assert held == {0}
    _, counts = over.answer("whole", draw_samples(3, steps=False))
    assert counts == {"reduce": 1}


class Rows(nn.Module):
    """What `use` does with rows that a mask selects."""

    def __init__(self, use) -> None:
        super().__init__()
        self.layer, self.use = nn.Linear(8, 8), use

    def forward(self, x):
        made = self.layer(x)
        return self.use(made, made[:, 0] > 0)


def write_mean(made, mask):
    made = made.clone()
    made[mask] = made[mask] - made[mask].mean(0)
    return made


def write_running_sum(made, mask):
    made = made.clone()
    made[mask] = made[mask].cumsum(0)
    return made


def write_twice(made, mask):
    made = made.clone()
    made[mask] = made[mask.roll(1)]
    return made


def count_rows(made, mask):
    return made / (1 + mask.nonzero().shape[0])


def pool_rows(made, mask):
    return made + made[mask].amax(0)


def skip_or_double(made, mask):
    return made if mask.any() else made * 2


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (write_mean, "mean.dim needs to know which were selected"),
        (write_running_sum, "cumsum.default needs to know"),
        (write_twice, "needs to know"),
        (pool_rows, "amax.default needs to know"),
        (count_rows, "is not the model"),
        (skip_or_double, "answers otherwise for an empty mask"),
        (lambda made, mask: made[mask], "the answer needs to know"),
    ],
)
def test_what_depends_on_which_rows_were_selected_is_refused_in_one_line(use, says):
    torch.manual_seed(0)
    with pytest.raises(ForgeError, match=says) as caught:
        check_graph(export_graph(Rows(use).eval(), (torch.randn(2, 8),)))
    assert "\n" not in str(caught.value)
