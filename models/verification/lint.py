"""Lint of an ONNX edge graph before any runtime loads it: allowed operators, sizes, names and structure.

Rule: bytes in, facts out, or a `LintError` of one line; nothing else is raised, whatever the bytes are. What passes has
no subgraph, no code, no file outside itself; every tensor is there in full; and the size of every intermediate result
follows from the shape of the sample alone, so a first load has seen the memory of every later one.

Bounded by construction: one pass, `MAX_FIELDS` steps, no tensor copied.
"""

import math
from typing import NamedTuple

from models.bundle.manifest import EDGE_FILE, BundleError
from models.verification.onnx_operators import (
    ALLOWED_OPERATORS,
    ATTRIBUTE_FIELDS,
    DOMAINS,
    ELEMENT_BITS,
    ELEMENT_FIELDS,
    IR_VERSIONS,
    ONNX,
    OPSETS,
    SHAPE_ONLY,
    SIZE_INPUTS,
)
from models.verification.onnx_reader import Attribute, Graph, Model, Node, Tensor, Value, read_onnx_model
from models.verification.protobuf import ProtobufError

MAX_MODEL_BYTES = 96 << 20  # a first load of it stays within 512 MiB
MAX_ELEMENTS = 1 << 27  # of one declared input, output or result
MAX_RANK = 8
MAX_DIMENSION = 2**31 - 1
MAX_WEIGHT_BYTES = MAX_MODEL_BYTES  # checked apart: a varint writes a number of eight bytes in one
MAX_INPUTS = 16  # inputs, or outputs, of the graph
ORT_FORMAT_MARK = b"ORTM"  # at bytes 4..8: ONNX Runtime then reads a format of its own and not what we have read
_SHOWN_CHARS = 60
FORBIDDEN_PROPERTIES = frozenset({"ort_config"})  # ONNX Runtime may take session options from the model


class LintError(BundleError):
    """A graph that may not be loaded; the message is one line and names the node, tensor or number at fault."""


class LintReport(NamedTuple):
    """Summary of a graph that passed: versions, counts, operator names.

    `weight_bytes`: bytes of its tensors, declared and really there.
    """

    ir_version: int
    opset: int
    nodes: int
    tensors: int
    weight_bytes: int
    operators: tuple[str, ...]


def lint_graph(data: bytes) -> LintReport:
    """Check the bytes of an ONNX model that a device may load and return its summary.

    LintError, and nothing else, for all other bytes. Time and memory are bounded by the limits above.
    """
    try:
        return _lint_model(data)
    except (ProtobufError, LintError) as error:
        raise LintError(f"{EDGE_FILE}: {error}") from None


def _lint_model(data: bytes) -> LintReport:
    """Check size, header, tensors and graph of a model, in this order."""
    _require_that(0 < len(data) <= MAX_MODEL_BYTES, f"{len(data)} bytes, at most {MAX_MODEL_BYTES}")
    _require_that(data[4:8] != ORT_FORMAT_MARK, "bears the mark of another format")
    model = read_onnx_model(data)
    opset = _check_header(model)
    if model.graph is None:
        raise LintError("no graph in it")
    nodes, tensors = model.graph.nodes, _collect_tensors(model.graph)
    weight_bytes = 0
    for tensor in tensors:
        weight_bytes += _check_tensor(tensor)
        _require_that(weight_bytes <= MAX_WEIGHT_BYTES, f"weights of more than {MAX_WEIGHT_BYTES} bytes")
    _check_graph(model.graph)
    operators = tuple(sorted({node.operator for node in nodes}))
    return LintReport(model.ir_version, opset, len(nodes), len(tensors), weight_bytes, operators)


def _check_header(model: Model) -> int:
    """Check format version, properties and operator sets; return the version of the standard operator set.

    Refused are properties that would change ONNX Runtime's options, unknown domains, and versions beyond `OPSETS`.
    """
    _require_that(
        model.ir_version in IR_VERSIONS, f"IR version {model.ir_version}, allowed {_format_range(IR_VERSIONS)}"
    )
    for note in model.properties:
        _require_that(note.key not in FORBIDDEN_PROPERTIES, f"property {note.key} would change how it is run")
    versions: dict[str, int] = {}
    for each in model.operator_sets:
        domain = DOMAINS.get(each.domain)
        if domain is None:
            raise LintError(f"operators of domain {_quote_name(each.domain)} are not allowed")
        _require_that(domain not in versions, f"operators of domain {_quote_name(each.domain)} are imported twice")
        allowed = OPSETS[domain]
        _require_that(
            each.version in allowed, f"opset {each.version} of {_quote_name(domain)}, allowed {_format_range(allowed)}"
        )
        versions[domain] = each.version
    if ONNX not in versions:
        raise LintError("does not say the version of its operators")
    for node in model.graph.nodes if model.graph else ():
        _require_that(DOMAINS.get(node.domain) in versions, f"{_describe_node(node)}: its domain is not imported")
    return versions[ONNX]


def _collect_tensors(graph: Graph) -> list[Tensor]:
    """Collect every tensor of the graph: initializers and those in attributes."""
    attributes = (attribute for node in graph.nodes for attribute in node.attributes)
    return [*graph.initializers, *(attribute.t for attribute in attributes if attribute.t)]


def _check_tensor(tensor: Tensor) -> int:
    """Check one tensor and return its bytes: what it declares must be what it has."""
    where = f"tensor {_quote_name(tensor.name)}"
    _require_that(len(tensor.dims) <= MAX_RANK, f"{where}: {len(tensor.dims)} dimensions, at most {MAX_RANK}")
    for size in tensor.dims:
        _require_that(1 <= size <= MAX_DIMENSION, f"{where}: a dimension of {size}")
    bits = ELEMENT_BITS.get(tensor.element)
    if bits is None:
        raise LintError(f"{where}: elements of type {tensor.element} are not allowed")
    elements = math.prod(tensor.dims)
    size = -(-elements * bits // 8)
    found = {name: amount for name, amount in tensor.carried.items() if amount}
    fits = found in ({"raw_data": size}, {ELEMENT_FIELDS.get(tensor.element): elements})
    _require_that(fits, f"{where}: declares {elements} elements, {size} bytes; that is not what it has")
    return size


def _check_graph(graph: Graph) -> None:
    """Check inputs, tensors, nodes and outputs of the graph.

    Every name is made once and before it is read, so there is no cycle. `known` maps each name to whether its values
    follow from those of a sample: such values may not decide how much memory a node takes.
    """
    known: dict[str, bool] = {}
    _require_that(0 < len(graph.inputs) <= MAX_INPUTS, f"{len(graph.inputs)} inputs, allowed 1..{MAX_INPUTS}")
    for value in graph.inputs:
        _check_value(value)
        _define_name(known, value.name, "an input", sampled=True)
    for tensor in graph.initializers:
        _define_name(known, tensor.name, "a tensor", sampled=False)
    for node in graph.nodes:
        _check_node(node, known)
    for value in graph.values:
        _check_value(value)
    _check_outputs(graph.outputs, known)


def _check_outputs(outputs: list[Value], known: dict[str, bool]) -> None:
    """Check the graph's outputs: made by some node, each once, of an allowed type."""
    _require_that(0 < len(outputs) <= MAX_INPUTS, f"{len(outputs)} outputs, allowed 1..{MAX_INPUTS}")
    _require_that(len({value.name for value in outputs}) == len(outputs), "an output is there twice")
    for value in outputs:
        _check_value(value)
        _require_that(value.name in known, f"output {_quote_name(value.name)} is made by nothing")


def _check_value(value: Value) -> None:
    """Check declared type and shape of a graph input, output or intermediate result.

    At most `MAX_RANK` dimensions and `MAX_ELEMENTS` elements; a free axis has a name and no size.
    """
    where = f"value {_quote_name(value.name)}"
    tensor = value.type.tensor if value.type else None
    if tensor is None or tensor.element not in ELEMENT_BITS:
        raise LintError(f"{where}: it is no tensor of an allowed type")
    dims = tensor.shape.dims if tensor.shape else []
    _require_that(len(dims) <= MAX_RANK, f"{where}: {len(dims)} dimensions, at most {MAX_RANK}")
    for each in dims:
        fits = each.value is None or (each.parameter is None and 1 <= each.value <= MAX_DIMENSION)
        _require_that(fits, f"{where}: a dimension of {each.value}")
    elements = math.prod(each.value for each in dims if each.value is not None)
    _require_that(elements <= MAX_ELEMENTS, f"{where}: {elements} elements, at most {MAX_ELEMENTS}")


def _define_name(known: dict[str, bool], name: str, what: str, *, sampled: bool) -> None:
    """Add a name to `known`. LintError if it is empty or defined twice."""
    _require_that(name != "", f"{what} has no name")
    _require_that(name not in known, f"{what} {_quote_name(name)} is defined twice")
    known[name] = sampled


def _check_node(node: Node, known: dict[str, bool]) -> None:
    """Check one node and define its outputs in `known`.

    Its operator must be allowed, its inputs made before it, and no value of a sample may decide the memory it takes.
    """
    allowed = ALLOWED_OPERATORS[DOMAINS[node.domain]]
    _require_that(node.operator in allowed, f"{_describe_node(node)}: this operator is not allowed")
    _check_attributes(node)
    for name in node.inputs:
        _require_that(name in known or not name, f"{_describe_node(node)}: nothing before it makes {_quote_name(name)}")
    for i in SIZE_INPUTS.get(node.operator, ()):
        decided = len(node.inputs) > i and known.get(node.inputs[i], False)
        _require_that(not decided, f"{_describe_node(node)}: the values of a sample decide how much memory it takes")
    sampled = node.operator not in SHAPE_ONLY and any(known.get(name, False) for name in node.inputs)
    _require_that(any(node.outputs), f"{_describe_node(node)}: it has no output")
    for name in filter(None, node.outputs):
        _define_name(known, name, f"{_describe_node(node)}: output", sampled=sampled)


def _check_attributes(node: Node) -> None:
    """Check a node's attributes: each once, of an allowed type, and carrying exactly that type's value."""
    names = {attribute.name for attribute in node.attributes}
    _require_that(len(names) == len(node.attributes), f"{_describe_node(node)}: an attribute is there twice")
    for attribute in node.attributes:
        where = f"{_describe_node(node)}, attribute {_quote_name(attribute.name)}"
        carrier = ATTRIBUTE_FIELDS.get(attribute.kind)
        fits = carrier and attribute.carried.keys() <= {carrier} and (carrier == "t") == (attribute.t is not None)
        _require_that(bool(fits), f"{where}: it is not what its type says, or its type is not allowed")
        _require_that(not _makes_text(node, attribute), f"{where}: tensors of texts are not allowed")


def _makes_text(node: Node, attribute: Attribute) -> bool:
    """Tell whether an attribute makes a node return tensors of text."""
    if node.operator == "Constant":
        return attribute.name.startswith("value_string")
    return node.operator == "Cast" and attribute.name == "to" and attribute.i not in ELEMENT_BITS


def _require_that(holds: bool, otherwise: str) -> None:
    if not holds:
        raise LintError(otherwise)


def _describe_node(node: Node) -> str:
    return f"node {_quote_name(node.name)} ({_quote_name(node.operator)})"


def _quote_name(name: str) -> str:
    """Quote a name out of the file, harmless in a line for people and logs."""
    return ascii(name[:_SHOWN_CHARS])


def _format_range(allowed: range) -> str:
    return f"{allowed.start}..{allowed.stop - 1}"
