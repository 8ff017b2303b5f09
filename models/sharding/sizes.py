"""Sizes of a hub model, whole and divided among ranks: computed from its graphs, before a weight is read.

Rule: what is counted is what the ranks will hold, by the same division they use; activations are those alive at once.
"""

from collections.abc import Iterable, Sequence

import msgspec
from torch import fx

from models.graph.format import HubForm
from models.graph.shapes import LIKE, nbytes, shapes
from models.sharding.pipeline import Stretch
from models.sharding.program import Programs, Shape, programs
from models.sharding.weights import piece_bytes, port_bytes


class Sizes(msgspec.Struct, frozen=True):
    """Size of a whole model. `parameters` counts numbers, buffers among them."""

    parameters: int
    weight_bytes: int
    activation_bytes: int


class Rank(msgspec.Struct, frozen=True):
    """Size of what each rank of one stage holds; `activation_bytes` at the batch asked for, undivided."""

    stage: int
    weight_bytes: int
    activation_bytes: int


def sizes(form: HubForm, batch: int) -> Sizes:
    """Measure the whole model at a batch size."""
    whole = ranks(form, Shape(), batch)[0]
    count = sum(_elements(port.shape) for port in form.weights.values())
    held = sum(map(port_bytes, form.weights.values()))
    return Sizes(count, held, whole.activation_bytes)


def ranks(form: HubForm, shape: Shape, batch: int) -> tuple[Rank, ...]:
    """Measure one rank of each stage. BundleError if the graphs do not fit together."""
    made = programs(form, shape)
    found = []
    for stage in range(shape.pipeline):
        held = piece_bytes(form.weights, made.pieces(stage), shape.tensor)
        found.append(Rank(stage, held, _busiest(made, stage, batch)))
    return tuple(found)


def _busiest(made: Programs, stage: int, batch: int) -> int:
    """Return the highest activation bytes of a stage over its graphs, which never run at once."""
    peaks = []
    for name, stretches in made.stretches.items():
        found = shapes(made.blanks[name], batch)
        peaks.append(_peak(stretches[stage], {key: nbytes(value) for key, value in found.items()}))
    return max(peaks)


def _peak(stretch: Stretch, sizes_of: dict[str, int]) -> int:
    """Return the most bytes alive at once; a view is counted as a copy, so it is never too little."""
    nodes = [node for node in stretch.graph.nodes if node.op not in ("get_attr", "output")]
    last: dict[fx.Node, int] = {}
    for at, node in enumerate(stretch.graph.nodes):
        last |= dict.fromkeys(node.all_input_nodes, at)
    order = {node: at for at, node in enumerate(stretch.graph.nodes)}
    alive: dict[fx.Node, int] = {}
    peak = 0
    for node in nodes:
        alive[node] = sizes_of.get(node.name, nbytes(node.meta.get(LIKE)))
        peak = max(peak, sum(alive.values()))
        alive = {each: size for each, size in alive.items() if last.get(each, -1) > order[node]}
    return peak


def fullest(found: Sequence[Rank]) -> Rank:
    """Return the rank that needs most memory."""
    return max(found, key=lambda rank: rank.weight_bytes + rank.activation_bytes)


def _elements(shape: Iterable[int]) -> int:
    count = 1
    for side in shape:
        count *= side
    return count
