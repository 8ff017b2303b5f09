"""Pipeline cuts of a hub graph: consecutive segments that run on different ranks and hand values on.

Rule: cuts are made where few bytes are alive and every segment holds about its share of the weights; a graph that
shares weights with one that was cut before is cut so that they stay together. No cut lies between an operation of
several results (a recurrent layer, a chunk) and the uses of them: what ranks hand on are tensors and whole numbers.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from models.graph.shapes import META_VALUE, count_value_bytes, meta_value

_BALANCE_SLACK = 0.2  # of a share: how far from an even one a cut may lie, for less to hand on


class PipelineSegment(NamedTuple):
    """Segment of a pipeline. `takes` and `gives`: names of values in the uncut graph, tensors or whole numbers."""

    graph: fx.Graph
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    weights: frozenset[str]


def cut_graph(graph: fx.Graph, count: int, homes: Mapping[str, int] | None = None) -> list[PipelineSegment]:
    """Cut a graph into `count` segments. `homes`: which segment holds a weight already, from a graph cut before."""
    nodes = [node for node in graph.nodes if node.op not in ("output", "get_attr")]
    bounds = _bounds_at_homes(nodes, count, homes) if homes is not None else _balanced_bounds(nodes, count)
    outputs = _flatten_output(next(node for node in graph.nodes if node.op == "output").args[0])
    edges = [0, *bounds, len(nodes)]
    return [_extract_segment(nodes, (edges[at], edges[at + 1]), outputs, last=at == count - 1) for at in range(count)]


def weight_homes(stretches: Sequence[PipelineSegment]) -> dict[str, int]:
    """Return the segment of each weight that one segment alone uses."""
    users = Counter(name for each in stretches for name in each.weights)
    return {name: at for at, each in enumerate(stretches) for name in each.weights if users[name] == 1}


def _balanced_bounds(nodes: Sequence[fx.Node], count: int) -> list[int]:
    """Choose the places of the cuts: `nodes[bound]` is the first of the next segment."""
    done = list(_cumulative_bytes(nodes))
    total = done[-1] or 1
    first = sum(node.op == "placeholder" for node in nodes)
    found: list[int] = []
    for part in range(1, count):
        wanted = total * part / count
        room = [at for at in range(max([first, *found]), len(nodes) + 1) if _can_cut(nodes, at)]
        near = [at for at in room if abs(done[at - 1] - wanted) <= _BALANCE_SLACK * total / count] if first else []
        choice = near or room
        if near:
            found.append(min(choice, key=lambda at: (_alive_bytes(nodes, at), abs(done[at - 1] - wanted))))
        else:
            found.append(min(choice, key=lambda at: abs(done[at - 1] - wanted)))
    return found


def _bounds_at_homes(nodes: Sequence[fx.Node], count: int, homes: Mapping[str, int]) -> list[int]:
    """Choose cuts with fewest bytes alive that keep each weight in the segment of `homes`.

    A cut lies between the last weight of the segments before it and the first of those after.
    """
    first = sum(node.op == "placeholder" for node in nodes)
    living = [{homes[w] for w in _weight_names(node) if w in homes} for node in nodes]
    found: list[int] = []
    for part in range(1, count):
        stop = next((at for at, own in enumerate(living) if own and max(own) >= part), len(nodes))
        start = max([first, *found, *(at + 1 for at in range(stop) if living[at])])
        between = [at for at in range(start, max(start, stop) + 1) if _can_cut(nodes, at)]
        room = between or [at for at in range(start, len(nodes) + 1) if _can_cut(nodes, at)]
        found.append(min(room, key=lambda at: _alive_bytes(nodes, at)) if between else room[0])
    return found


def _cumulative_bytes(nodes: Sequence[fx.Node]) -> Iterator[int]:
    """Yield the bytes of weights met up to each node, each weight once."""
    seen: set[str] = set()
    total = 0
    for node in nodes:
        for source in node.all_input_nodes:
            if source.op == "get_attr" and source.target not in seen:
                seen.add(str(source.target))
                total += count_value_bytes(meta_value(source))
        yield total


def _weight_names(node: fx.Node) -> set[str]:
    return {str(source.target) for source in node.all_input_nodes if source.op == "get_attr"}


def _alive_bytes(nodes: Sequence[fx.Node], at: int) -> int:
    before = set(nodes[:at])
    alive = {source for node in nodes[at:] for source in node.all_input_nodes if source in before}
    return sum(count_value_bytes(meta_value(source)) for source in alive)


def _can_cut(nodes: Sequence[fx.Node], at: int) -> bool:
    """Whether all that lives across this place is a tensor, a whole number or a device, and no tuple of them."""
    before = set(nodes[:at])
    alive = {source for node in nodes[at:] for source in node.all_input_nodes if source in before}
    return not any(isinstance(meta_value(source), list | tuple) for source in alive)


def _extract_segment(
    nodes: Sequence[fx.Node], place: tuple[int, int], outputs: Sequence[fx.Node], *, last: bool
) -> PipelineSegment:
    inside = nodes[place[0] : place[1]]
    takes = _live_values(nodes[place[0] :], nodes[: place[0]], outputs)
    ends = list(outputs) if last else _live_values(nodes[place[1] :], nodes[: place[1]], outputs)
    made = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in takes:
        copies[node] = made.placeholder(node.name)
        copies[node].meta[META_VALUE] = node.meta[META_VALUE]
    for node in inside:
        copies[node] = made.node_copy(node, lambda source: _copy_source(made, copies, source))
        copies[node].meta[META_VALUE] = node.meta[META_VALUE]
    made.output(tuple(copies[node] for node in ends))
    weights = frozenset(name for node in inside for name in _weight_names(node))
    takes_names = tuple(str(node.target) for node in made.nodes if node.op == "placeholder")
    return PipelineSegment(made, takes_names, tuple(node.name for node in ends), weights)


def _copy_source(made: fx.Graph, copies: dict[fx.Node, fx.Node], source: fx.Node) -> fx.Node:
    if source in copies:
        return copies[source]
    if source.op == "get_attr":
        copy = made.create_node("get_attr", str(source.target))
    else:  # the device of the inputs: asked again of what this segment is given
        copy = made.call_function(getattr, (_first_tensor(copies), "device"))
    copy.meta[META_VALUE] = source.meta[META_VALUE]
    copies[source] = copy
    return copy


def _first_tensor(copies: Mapping[fx.Node, fx.Node]) -> fx.Node:
    return next(copy for copy in copies.values() if isinstance(meta_value(copy), Tensor))


def _live_values(users: Sequence[fx.Node], made: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> list[fx.Node]:
    """List what was made before and is used later, in the order it was made; a device can be asked for anywhere."""
    used = {source for node in users for source in node.all_input_nodes} | set(outputs)
    return [node for node in made if node in used and not isinstance(meta_value(node), torch.device)]


def _flatten_output(output: Any) -> list[fx.Node]:
    return list(output) if isinstance(output, list | tuple) else [output]
