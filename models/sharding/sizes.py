"""Sizes of a hub model, whole and divided among ranks: computed from its graphs, before a weight is read.

Rule: what is counted is what the ranks will hold, by the same division they use; activations are those alive at once.
"""

from collections.abc import Iterable, Sequence

import msgspec
from torch import fx

from models.graph.format import HubModelDocument
from models.graph.shapes import META_VALUE, count_value_bytes, infer_values
from models.sharding.pipeline import PipelineSegment
from models.sharding.program import ParallelShape, ShardedPrograms, build_programs
from models.sharding.weights import count_piece_bytes, count_spec_bytes


class ModelSize(msgspec.Struct, frozen=True):
    """Size of a whole model. `parameters` counts numbers, buffers among them."""

    parameters: int
    weight_bytes: int
    activation_bytes: int


class RankSize(msgspec.Struct, frozen=True):
    """Size of what each rank of one stage holds; `activation_bytes` at the batch asked for, undivided."""

    stage: int
    weight_bytes: int
    activation_bytes: int


def measure_model(form: HubModelDocument, batch: int) -> ModelSize:
    """Measure the whole model at a batch size."""
    whole = measure_ranks(form, ParallelShape(), batch)[0]
    count = sum(_count_elements(port.shape) for port in form.weights.values())
    held = sum(map(count_spec_bytes, form.weights.values()))
    return ModelSize(count, held, whole.activation_bytes)


def measure_ranks(form: HubModelDocument, shape: ParallelShape, batch: int) -> tuple[RankSize, ...]:
    """Measure one rank of each stage. BundleError if the graphs do not fit together."""
    made = build_programs(form, shape)
    found = []
    for stage in range(shape.pipeline):
        held = count_piece_bytes(form.weights, made.stage_pieces(stage), shape.tensor)
        found.append(RankSize(stage, held, _peak_activations(made, stage, batch)))
    return tuple(found)


def _peak_activations(made: ShardedPrograms, stage: int, batch: int) -> int:
    """Return the highest activation bytes of a stage over its graphs, which never run at once."""
    peaks = []
    for name, stretches in made.stretches.items():
        found = infer_values(made.blanks[name], batch)
        peaks.append(
            _peak_alive_bytes(stretches[stage], {key: count_value_bytes(value) for key, value in found.items()})
        )
    return max(peaks)


def _peak_alive_bytes(stretch: PipelineSegment, sizes_of: dict[str, int]) -> int:
    """Return the most bytes alive at once; a view is counted as a copy, so it is never too little."""
    nodes = [node for node in stretch.graph.nodes if node.op not in ("get_attr", "output")]
    last: dict[fx.Node, int] = {}
    for at, node in enumerate(stretch.graph.nodes):
        last |= dict.fromkeys(node.all_input_nodes, at)
    order = {node: at for at, node in enumerate(stretch.graph.nodes)}
    alive: dict[fx.Node, int] = {}
    peak = 0
    for node in nodes:
        alive[node] = sizes_of.get(node.name, count_value_bytes(node.meta.get(META_VALUE)))
        peak = max(peak, sum(alive.values()))
        alive = {each: size for each, size in alive.items() if last.get(each, -1) > order[node]}
    return peak


def fullest_rank(found: Sequence[RankSize]) -> RankSize:
    """Return the rank that needs most memory."""
    return max(found, key=lambda rank: rank.weight_bytes + rank.activation_bytes)


def _count_elements(shape: Iterable[int]) -> int:
    count = 1
    for side in shape:
        count *= side
    return count
