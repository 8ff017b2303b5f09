"""Lint of an ONNX edge graph before any runtime loads it: allowed operators, sizes, names and structure.

Rule: bytes in, facts out, or a `LintError` of one line; nothing else is raised, whatever the bytes are. What passes has
no subgraph, no code, no file outside itself; every tensor is there in full; and the size of every intermediate result
follows from the shape of the sample alone, so a first load has seen the memory of every later one.

Bounded by construction: one pass, `MAX_FIELDS` steps, no tensor copied. SECURITY cases 22 and 23.
"""

import math
from typing import NamedTuple

from models.bundle.manifest import EDGE_FILE, BundleError
from models.verification.onnx_reader import Attribute, Graph, Model, Node, Tensor, Value, read_model
from models.verification.operators import (
    ALLOWED,
    ATTRIBUTES,
    BITS,
    BLIND,
    CARRIER,
    DOMAINS,
    IR_VERSIONS,
    ONNX,
    OPSETS,
    SIZED_BY,
)
from models.verification.protobuf import WalkError

MAX_MODEL_BYTES = 96 << 20  # a first load of it stays within 512 MiB
MAX_ELEMENTS = 1 << 27  # of one declared input, output or result
MAX_RANK = 8
MAX_DIMENSION = 2**31 - 1
MAX_WEIGHT_BYTES = MAX_MODEL_BYTES  # checked apart: a varint writes a number of eight bytes in one
MAX_ENDS = 16  # inputs, or outputs, of the graph
RUNTIME_FORMAT = b"ORTM"  # at bytes 4..8: ONNX Runtime then reads a format of its own and not what we have read
_SHOWN_CHARS = 60
FORBIDDEN_PROPERTIES = frozenset({"ort_config"})  # ONNX Runtime may take session options from the model


class LintError(BundleError):
    """A graph that may not be loaded; the message is one line and names the node, tensor or number at fault."""


class Facts(NamedTuple):
    """Summary of a graph that passed: versions, counts, operator names.

    `weight_bytes`: bytes of its tensors, declared and really there.
    """

    ir_version: int
    opset: int
    nodes: int
    tensors: int
    weight_bytes: int
    operators: tuple[str, ...]


def lint(data: bytes) -> Facts:
    """Check the bytes of an ONNX model that a device may load and return its summary.

    LintError, and nothing else, for all other bytes. Time and memory are bounded by the limits above.
    """
    try:
        return _lint(data)
    except (WalkError, LintError) as error:
        raise LintError(f"{EDGE_FILE}: {error}") from None


def _lint(data: bytes) -> Facts:
    """Check size, header, tensors and graph of a model, in this order."""
    _require(0 < len(data) <= MAX_MODEL_BYTES, f"{len(data)} bytes, at most {MAX_MODEL_BYTES}")
    _require(data[4:8] != RUNTIME_FORMAT, "bears the mark of another format")
    model = read_model(data)
    opset = _header(model)
    if model.graph is None:
        raise LintError("no graph in it")
    nodes, tensors = model.graph.nodes, _all_tensors(model.graph)
    weight_bytes = 0
    for tensor in tensors:
        weight_bytes += _tensor_bytes(tensor)
        _require(weight_bytes <= MAX_WEIGHT_BYTES, f"weights of more than {MAX_WEIGHT_BYTES} bytes")
    _graph(model.graph)
    operators = tuple(sorted({node.operator for node in nodes}))
    return Facts(model.ir_version, opset, len(nodes), len(tensors), weight_bytes, operators)


def _header(model: Model) -> int:
    """Check format version, properties and operator sets; return the version of the standard operator set.

    Refused are properties that would change ONNX Runtime's options, unknown domains, and versions beyond `OPSETS`.
    """
    _require(model.ir_version in IR_VERSIONS, f"IR version {model.ir_version}, allowed {_range(IR_VERSIONS)}")
    for note in model.properties:
        _require(note.key not in FORBIDDEN_PROPERTIES, f"property {note.key} would change how it is run")
    versions: dict[str, int] = {}
    for each in model.operator_sets:
        domain = DOMAINS.get(each.domain)
        if domain is None:
            raise LintError(f"operators of domain {_shown(each.domain)} are not allowed")
        _require(domain not in versions, f"operators of domain {_shown(each.domain)} are imported twice")
        allowed = OPSETS[domain]
        _require(each.version in allowed, f"opset {each.version} of {_shown(domain)}, allowed {_range(allowed)}")
        versions[domain] = each.version
    if ONNX not in versions:
        raise LintError("does not say the version of its operators")
    for node in model.graph.nodes if model.graph else ():
        _require(DOMAINS.get(node.domain) in versions, f"{_where(node)}: its domain is not imported")
    return versions[ONNX]


def _all_tensors(graph: Graph) -> list[Tensor]:
    """Collect every tensor of the graph: initializers and those in attributes."""
    attributes = (attribute for node in graph.nodes for attribute in node.attributes)
    return [*graph.initializers, *(attribute.t for attribute in attributes if attribute.t)]


def _tensor_bytes(tensor: Tensor) -> int:
    """Check one tensor and return its bytes: what it declares must be what it has."""
    where = f"tensor {_shown(tensor.name)}"
    _require(len(tensor.dims) <= MAX_RANK, f"{where}: {len(tensor.dims)} dimensions, at most {MAX_RANK}")
    for size in tensor.dims:
        _require(1 <= size <= MAX_DIMENSION, f"{where}: a dimension of {size}")
    bits = BITS.get(tensor.element)
    if bits is None:
        raise LintError(f"{where}: elements of type {tensor.element} are not allowed")
    elements = math.prod(tensor.dims)
    size = -(-elements * bits // 8)
    found = {name: amount for name, amount in tensor.carried.items() if amount}
    fits = found in ({"raw_data": size}, {CARRIER.get(tensor.element): elements})
    _require(fits, f"{where}: declares {elements} elements, {size} bytes; that is not what it has")
    return size


def _graph(graph: Graph) -> None:
    """Check inputs, tensors, nodes and outputs of the graph.

    Every name is made once and before it is read, so there is no cycle. `known` maps each name to whether its values
    follow from those of a sample: such values may not decide how much memory a node takes.
    """
    known: dict[str, bool] = {}
    _require(0 < len(graph.inputs) <= MAX_ENDS, f"{len(graph.inputs)} inputs, allowed 1..{MAX_ENDS}")
    for value in graph.inputs:
        _value(value)
        _define(known, value.name, "an input", sampled=True)
    for tensor in graph.initializers:
        _define(known, tensor.name, "a tensor", sampled=False)
    for node in graph.nodes:
        _node(node, known)
    for value in graph.values:
        _value(value)
    _outputs(graph.outputs, known)


def _outputs(outputs: list[Value], known: dict[str, bool]) -> None:
    """Check the graph's outputs: made by some node, each once, of an allowed type."""
    _require(0 < len(outputs) <= MAX_ENDS, f"{len(outputs)} outputs, allowed 1..{MAX_ENDS}")
    _require(len({value.name for value in outputs}) == len(outputs), "an output is there twice")
    for value in outputs:
        _value(value)
        _require(value.name in known, f"output {_shown(value.name)} is made by nothing")


def _value(value: Value) -> None:
    """Check declared type and shape of a graph input, output or intermediate result.

    At most `MAX_RANK` dimensions and `MAX_ELEMENTS` elements; a free axis has a name and no size.
    """
    where = f"value {_shown(value.name)}"
    tensor = value.type.tensor if value.type else None
    if tensor is None or tensor.element not in BITS:
        raise LintError(f"{where}: it is no tensor of an allowed type")
    dims = tensor.shape.dims if tensor.shape else []
    _require(len(dims) <= MAX_RANK, f"{where}: {len(dims)} dimensions, at most {MAX_RANK}")
    for each in dims:
        fits = each.value is None or (each.parameter is None and 1 <= each.value <= MAX_DIMENSION)
        _require(fits, f"{where}: a dimension of {each.value}")
    elements = math.prod(each.value for each in dims if each.value is not None)
    _require(elements <= MAX_ELEMENTS, f"{where}: {elements} elements, at most {MAX_ELEMENTS}")


def _define(known: dict[str, bool], name: str, what: str, *, sampled: bool) -> None:
    """Add a name to `known`. LintError if it is empty or defined twice."""
    _require(name != "", f"{what} has no name")
    _require(name not in known, f"{what} {_shown(name)} is defined twice")
    known[name] = sampled


def _node(node: Node, known: dict[str, bool]) -> None:
    """Check one node and define its outputs in `known`.

    Its operator must be allowed, its inputs made before it, and no value of a sample may decide the memory it takes.
    """
    allowed = ALLOWED[DOMAINS[node.domain]]
    _require(node.operator in allowed, f"{_where(node)}: this operator is not allowed")
    _attributes(node)
    for name in node.inputs:
        _require(name in known or not name, f"{_where(node)}: nothing before it makes {_shown(name)}")
    for i in SIZED_BY.get(node.operator, ()):
        decided = len(node.inputs) > i and known.get(node.inputs[i], False)
        _require(not decided, f"{_where(node)}: the values of a sample decide how much memory it takes")
    sampled = node.operator not in BLIND and any(known.get(name, False) for name in node.inputs)
    _require(any(node.outputs), f"{_where(node)}: it has no output")
    for name in filter(None, node.outputs):
        _define(known, name, f"{_where(node)}: output", sampled=sampled)


def _attributes(node: Node) -> None:
    """Check a node's attributes: each once, of an allowed type, and carrying exactly that type's value."""
    names = {attribute.name for attribute in node.attributes}
    _require(len(names) == len(node.attributes), f"{_where(node)}: an attribute is there twice")
    for attribute in node.attributes:
        where = f"{_where(node)}, attribute {_shown(attribute.name)}"
        carrier = ATTRIBUTES.get(attribute.kind)
        fits = carrier and attribute.carried.keys() <= {carrier} and (carrier == "t") == (attribute.t is not None)
        _require(bool(fits), f"{where}: it is not what its type says, or its type is not allowed")
        _require(not _makes_text(node, attribute), f"{where}: tensors of texts are not allowed")


def _makes_text(node: Node, attribute: Attribute) -> bool:
    """Tell whether an attribute makes a node return tensors of text."""
    if node.operator == "Constant":
        return attribute.name.startswith("value_string")
    return node.operator == "Cast" and attribute.name == "to" and attribute.i not in BITS


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise LintError(otherwise)


def _where(node: Node) -> str:
    return f"node {_shown(node.name)} ({_shown(node.operator)})"


def _shown(name: str) -> str:
    """Quote a name out of the file, harmless in a line for people and logs."""
    return ascii(name[:_SHOWN_CHARS])


def _range(allowed: range) -> str:
    return f"{allowed.start}..{allowed.stop - 1}"
