"""JSON format of the hub's graphs: its data types, encoder and decoder.

Rule: an unknown key, another format, or more graphs, nodes or bytes than allowed is a `BundleError` of one line.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from models.bundle.manifest import MAX_ELEMENTS, BundleError

FORMAT = 1
MAX_GRAPH_BYTES = 64 << 20
MAX_GRAPHS = 8
MAX_NODES = 100_000
MAX_SOURCE_CHARACTERS = 256
MAX_GRAPH_INPUTS = 64  # inputs or outputs of one graph
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


class TensorSignature(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Element type and shape of a graph input or of a weight.

    An input's shape has no batch axis, which comes first and is free; a weight's shape is whole. `source`: name of a
    weight in the files, "" if it is the weight's own; so files can be used as others wrote them. An input has none.
    """

    dtype: str
    shape: tuple[int, ...]
    source: str = ""


class GraphNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One operation of a graph; arguments in the grammar of `models.graph.arguments`.

    `op`: `aten.` and an overload (`aten.linear.default`), or an operator on sizes.
    """

    op: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class GraphDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One graph: nodes in the order they run; a node refers to inputs, weights and earlier nodes."""

    inputs: list[TensorSignature]
    nodes: list[GraphNode]
    outputs: list[Any]


class HubModelDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole document. `weights`: what the files with the weights must hold, no less and no more, by name."""

    format: int
    weights: dict[str, TensorSignature]
    graphs: dict[str, GraphDocument]


def source_names(weights: Mapping[str, TensorSignature]) -> dict[str, str]:
    """Return the weight of every tensor that the files must hold, by the tensor's name in the files."""
    return {port.source or name: name for name, port in weights.items()}


_decoder = msgspec.json.Decoder(HubModelDocument)


def encode_hub_model(form: HubModelDocument) -> bytes:
    """Encode a document as JSON with one node a line: readable, and the same document gives the same bytes."""
    parts = []
    for name in sorted(form.graphs):
        graph = form.graphs[name]
        nodes = b",\n".join(msgspec.json.encode(node, order="deterministic") for node in graph.nodes)
        ends = [msgspec.json.encode(end, order="deterministic") for end in (graph.inputs, graph.outputs)]
        parts.append(b'"%b":{"inputs":%b,"nodes":[\n%b\n],"outputs":%b}' % (name.encode(), ends[0], nodes, ends[1]))
    weights = b",\n".join(b'"%b":%b' % (name.encode(), msgspec.json.encode(w)) for name, w in form.weights.items())
    return b'{"format":%d,"weights":{\n%b\n},"graphs":{\n%b\n}}\n' % (form.format, weights, b",\n".join(parts))


def decode_hub_model(data: bytes) -> HubModelDocument:
    """Decode and check a document of at most `MAX_GRAPH_BYTES`. BundleError for anything else.

    Operations and arguments are checked later, when the graph is built.
    """
    if len(data) > MAX_GRAPH_BYTES:
        raise BundleError(f"graphs: bigger than the {MAX_GRAPH_BYTES} bytes allowed")
    try:
        form = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"graphs: {' '.join(str(error).split())}") from None
    if form.format != FORMAT:
        raise BundleError(f"graphs: format {form.format}, this version reads {FORMAT}: update this installation")
    if not 0 < len(form.graphs) <= MAX_GRAPHS or not all(map(_NAME.fullmatch, form.graphs)):
        raise BundleError(f"graphs: 1 to {MAX_GRAPHS} with plain names")
    _check_sources(form.weights)
    for name, graph in form.graphs.items():
        _check_graph_form(name, graph)
    return form


def _check_sources(weights: Mapping[str, TensorSignature]) -> None:
    """Check that no tensor of the files stands for two weights, and that names are short enough to be shown."""
    if len(source_names(weights)) != len(weights):
        raise BundleError("weights: one tensor of the files is named for two weights")
    if any(len(port.source) > MAX_SOURCE_CHARACTERS for port in weights.values()):
        raise BundleError(f"weights: a source of more than {MAX_SOURCE_CHARACTERS} characters")


def _check_graph_form(name: str, graph: GraphDocument) -> None:
    """Check the limits of one graph: nodes, inputs, outputs and shapes."""
    if len(graph.nodes) > MAX_NODES:
        raise BundleError(f"graph {name}: {len(graph.nodes)} nodes, allowed are {MAX_NODES}")
    if not 0 < len(graph.inputs) <= MAX_GRAPH_INPUTS or not 0 < len(graph.outputs) <= MAX_GRAPH_INPUTS:
        raise BundleError(f"graph {name}: 1 to {MAX_GRAPH_INPUTS} inputs and outputs")
    for port in graph.inputs:
        if port.source or len(port.shape) > 8 or not all(0 < side <= MAX_ELEMENTS for side in port.shape):
            raise BundleError(f"graph {name}: an input of shape {port.shape} is impossible")
