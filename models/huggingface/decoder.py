"""Decoder of sample codes, found in a hub's graphs: the part of `tail` that turns codes into what `whole` takes.

Where the codes of a version are the sample itself (`models.forge.routes.sample.sample_code`), its tail is a decoder
followed by the whole model. Both are compared from their outputs backwards: where `whole` takes its input, `tail`
has the decoded sample. So another model can stand behind the same decoder.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from models.bundle.manifest import BundleError
from models.graph.format import GraphDocument, GraphNode, HubModelDocument, TensorSignature

_BATCH_SIZE = "aten.sym_size.int"


class SampleDecoder(NamedTuple):
    """Decoder: `inputs` are the codes; `sample` refers to the node that gives samples `[n, *shape]`."""

    inputs: list[TensorSignature]
    nodes: list[GraphNode]
    sample: Any


def find_decoder(form: HubModelDocument, tail: str, whole: str) -> SampleDecoder:
    """Find the decoder of a document's tail. BundleError if the tail takes features, not the sample itself."""
    found = _GraphMatch(form, form.graphs[tail], form.graphs[whole]).find_sample()
    if found is None:
        raise BundleError(
            "its codes are features of its own hub model, which no other model can read: "
            "forge the edge with --sample-level and a path sample-…, or forge the new model (skerry models forge hf:…)"
        )
    graph = form.graphs[tail]
    kept = sorted(_needed_nodes(graph, found))
    places = {old: new for new, old in enumerate(kept)}
    nodes = [map_references(graph.nodes[at], lambda ref: _renumber(ref, places)) for at in kept]
    return SampleDecoder(graph.inputs, nodes, _renumber(found, places))


def list_references(value: Any) -> Iterator[dict[str, Any]]:
    """List every reference to a node, an input or a weight in a value of the argument grammar."""
    if isinstance(value, list):
        for item in value:
            yield from list_references(item)
    elif isinstance(value, dict) and value.keys() & {"node", "input", "weight"}:
        yield value


def map_references(node: GraphNode, change: Any) -> GraphNode:
    """Copy a node with `change(reference)` in the place of each reference of its arguments."""

    def renewed(value: Any) -> Any:
        if isinstance(value, list):
            return [renewed(item) for item in value]
        return change(value) if next(list_references(value), None) is value else value

    return GraphNode(node.op, renewed(node.args), {key: renewed(value) for key, value in node.kwargs.items()})


def _needed_nodes(graph: GraphDocument, ref: Any) -> set[int]:
    found: set[int] = set()
    waiting = [ref]
    while waiting:
        at = waiting.pop().get("node")
        if at is None or at in found:
            continue
        found.add(at)
        node = graph.nodes[at]
        waiting += list_references([node.args, list(node.kwargs.values())])
    return found


def _renumber(ref: dict[str, Any], places: Mapping[int, int]) -> dict[str, Any]:
    return {"node": places[ref["node"]]} if "node" in ref else ref


class _GraphMatch:
    """Comparison of a tail with a whole model: node by node, from the outputs backwards."""

    def __init__(self, form: HubModelDocument, tail: GraphDocument, whole: GraphDocument) -> None:
        self._weights = form.weights
        self._tail, self._whole = tail, whole
        self._pairs: dict[int, Any] = {}  # nodes of `whole` by their number: what the tail has there
        self._samples: list[Any] = []

    def find_sample(self) -> Any:
        """Return the tail's reference to the sample, None if the graphs do not match or the sample is a plain input."""
        waiting = [(self._tail.outputs, self._whole.outputs)]
        while waiting:
            pair = waiting.pop()
            more = self._compare(*pair)
            if more is None:
                return None
            waiting += more
        first = self._samples[0] if self._samples else None
        alike = all(each == first for each in self._samples)
        return first if alike and isinstance(first, dict) and "node" in first else None

    def _compare(self, ours: Any, theirs: Any) -> list[tuple[Any, Any]] | None:
        """Compare two values: pairs that are still to be compared, None if they differ."""
        if theirs == {"input": 0}:
            self._samples.append(ours)
            return []
        if isinstance(theirs, list):
            alike = isinstance(ours, list) and len(ours) == len(theirs)
            return list(zip(ours, theirs, strict=True)) if alike else None
        if isinstance(theirs, dict) and isinstance(ours, dict) and theirs.keys() == ours.keys() == {"node"}:
            return self._compare_nodes(ours["node"], theirs["node"])
        if isinstance(theirs, dict) and isinstance(ours, dict) and theirs.keys() == ours.keys() == {"weight"}:
            held = [self._weights[each["weight"]] for each in (ours, theirs)]
            return [] if (held[0].dtype, held[0].shape) == (held[1].dtype, held[1].shape) else None
        return [] if ours == theirs else None

    def _compare_nodes(self, ours: int, theirs: int) -> list[tuple[Any, Any]] | None:
        if theirs in self._pairs:
            return [] if self._pairs[theirs] == ours else None
        self._pairs[theirs] = ours
        mine, other = self._tail.nodes[ours], self._whole.nodes[theirs]
        if mine.op != other.op or mine.kwargs.keys() != other.kwargs.keys():
            return None
        if mine.op == _BATCH_SIZE and mine.args[1:] == other.args[1:] == [0]:
            return []  # the batch's size is the same, whatever tensor is asked
        pairs = [(mine.kwargs[key], other.kwargs[key]) for key in other.kwargs]
        return [(mine.args, other.args), *pairs]
