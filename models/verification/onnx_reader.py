"""ONNX model reader without the onnx or protobuf library: structure only, no tensor is loaded into memory.

Rule: a closed table says what a message may hold. An unknown field, a single field given twice, a subgraph, a function,
training information, a tensor that is sparse or lies elsewhere, a type that is no tensor: `ProtobufError`. The table
has no cycle, so nothing nests; weights are measured where they lie.

Field numbers: onnx.proto of ONNX 1.21.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from models.verification.protobuf import Field, ProtobufError, ProtobufReader, WireType, fixed_size, to_signed

MAX_FIELDS = 400_000  # of a whole model; it bounds the time
MAX_NAME_BYTES = 512
MAX_NODES = 8_000
MAX_TENSORS = 20_000
MAX_VALUES = 20_000  # types of intermediate results
MAX_ENTRIES = 1_000  # of anything else in one place


@dataclass(slots=True)
class Tensor:
    """TensorProto: declared type and shape, and what is really there: data field -> elements (`raw_data`: bytes)."""

    name: str = ""
    dims: list[int] = field(default_factory=list)
    element: int = 0
    carried: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Attribute:
    """AttributeProto of a node. `carried`: the value fields that are filled -> elements (`s`: bytes)."""

    name: str = ""
    kind: int = 0
    i: int = 0
    t: Tensor | None = None
    carried: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Node:
    """NodeProto: one operator with its inputs, outputs and attributes."""

    operator: str = ""
    domain: str = ""
    name: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    attributes: list[Attribute] = field(default_factory=list)


@dataclass(slots=True)
class Dimension:
    """Dimension of a shape: a size, or the name of a free axis, or neither."""

    value: int | None = None
    parameter: str | None = None


@dataclass(slots=True)
class Shape:
    """TensorShapeProto: dimensions in order."""

    dims: list[Dimension] = field(default_factory=list)


@dataclass(slots=True)
class TensorType:
    """TypeProto.Tensor: element type and shape."""

    element: int = 0
    shape: Shape | None = None


@dataclass(slots=True)
class Type:
    """TypeProto; tensors are the only kind that is read."""

    tensor: TensorType | None = None


@dataclass(slots=True)
class Value:
    """ValueInfoProto: a named input, output or intermediate result of the graph, and its type."""

    name: str = ""
    type: Type | None = None


@dataclass(slots=True)
class Graph:
    """GraphProto: nodes, weights (`initializers`), inputs, outputs and declared intermediate results (`values`)."""

    name: str = ""
    nodes: list[Node] = field(default_factory=list)
    initializers: list[Tensor] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)


@dataclass(slots=True)
class OperatorSet:
    """OperatorSetIdProto: an imported operator set and its version."""

    domain: str = ""
    version: int = 0


@dataclass(slots=True)
class Property:
    """StringStringEntryProto: a metadata entry; its value is not read."""

    key: str = ""


@dataclass(slots=True)
class Annotation:
    """TensorAnnotation: quantisation notes about a tensor; read and dropped."""

    tensor: str = ""


@dataclass(slots=True)
class Model:
    """ModelProto: format version, operator sets, properties and the graph."""

    ir_version: int = 0
    version: int = 0
    operator_sets: list[OperatorSet] = field(default_factory=list)
    properties: list[Property] = field(default_factory=list)
    graph: Graph | None = None


def read_onnx_model(data: bytes, max_fields: int = MAX_FIELDS) -> Model:
    """Parse an ONNX model into its structure. ProtobufError for anything else; the time is bounded by `max_fields`."""
    model: Model = _read_message(ProtobufReader(data, max_fields), Model, 0, len(data))
    return model


class _FieldRule(NamedTuple):
    """Rule for one field of a message.

    `take` puts it into the value under `name` and returns how many elements it was.
    """

    name: str
    take: Callable[[ProtobufReader, Any, "_FieldRule", Field], int]
    once: bool = True
    carries: bool = False  # counted in `carried`
    of: Any = None  # the message, or the width of a number
    most: int = 1


def _read_message(walk: ProtobufReader, kind: type[Any], start: int, end: int) -> Any:
    """Read one message by the rules of its kind. ProtobufError for an unknown field or a single one given twice."""
    rules, found, seen = _MESSAGE_RULES[kind], kind(), set()
    for each in walk.iter_fields(start, end):
        rule = rules.get(each.number)
        if rule is None:
            raise ProtobufError(f"{kind.__name__}: field {each.number} is not known")
        if rule.once and each.number in seen:
            raise ProtobufError(f"{kind.__name__}: {rule.name} is there twice")
        seen.add(each.number)
        amount = rule.take(walk, found, rule, each)
        if rule.carries:
            found.carried[rule.name] = found.carried.get(rule.name, 0) + amount
    return found


def _read_number(walk: ProtobufReader, into: Any, rule: _FieldRule, found: Field) -> int:
    del walk
    _check_wire_type(found, rule, WireType.VARINT)
    setattr(into, rule.name, to_signed(found.value))
    return 1


def _read_numbers(walk: ProtobufReader, into: Any, rule: _FieldRule, found: Field) -> int:
    """Read a repeated field of whole numbers, packed or not: every reader takes both."""
    _check_wire_type(found, rule, WireType.VARINT, WireType.BYTES)
    getattr(into, rule.name).extend(walk.iter_numbers(found))
    return 0


def _read_text(walk: ProtobufReader, into: Any, rule: _FieldRule, found: Field) -> int:
    _check_wire_type(found, rule, WireType.BYTES)
    return _store_value(into, rule, walk.read_text(found, MAX_NAME_BYTES))


def _read_submessage(walk: ProtobufReader, into: Any, rule: _FieldRule, found: Field) -> int:
    _check_wire_type(found, rule, WireType.BYTES)
    return _store_value(into, rule, _read_message(walk, rule.of, found.start, found.end))


def _store_value(into: Any, rule: _FieldRule, value: Any) -> int:
    if rule.once:
        setattr(into, rule.name, value)
    else:
        several = getattr(into, rule.name)
        if len(several) == rule.most:
            raise ProtobufError(f"more than {rule.most} {rule.name}")
        several.append(value)
    return 1


def _skip_message(walk: ProtobufReader, into: Any, rule: _FieldRule, found: Field) -> int:
    """Read a submessage like every other, and drop it."""
    del into
    _check_wire_type(found, rule, WireType.BYTES)
    _read_message(walk, rule.of, found.start, found.end)
    return 0


def _measure_bytes(walk: ProtobufReader, into: Any, rule: _FieldRule, found: Field) -> int:
    del walk, into
    _check_wire_type(found, rule, WireType.BYTES)
    return found.end - found.start


def _count_floats(walk: ProtobufReader, into: Any, rule: _FieldRule, found: Field) -> int:
    """Count numbers of fixed width; the repeated ones packed or not."""
    del walk, into
    _check_wire_type(found, rule, *((rule.of,) if rule.once else (rule.of, WireType.BYTES)))
    count, rest = divmod(found.end - found.start, fixed_size(rule.of))
    if rest:
        raise ProtobufError(f"{rule.name} ends within a number")
    return count


def _count_numbers(walk: ProtobufReader, into: Any, rule: _FieldRule, found: Field) -> int:
    del into
    _check_wire_type(found, rule, WireType.VARINT, WireType.BYTES)
    return walk.count_numbers(found)


def _require_default(walk: ProtobufReader, into: Any, rule: _FieldRule, found: Field) -> int:
    """Accept a field only with its default value: zero or an empty text."""
    del walk, into
    _check_wire_type(found, rule, rule.of)
    if found.value or (rule.of is WireType.BYTES and found.end > found.start):
        raise ProtobufError(f"{rule.name} not allowed")
    return 0


def _refuse_field(walk: ProtobufReader, into: Any, rule: _FieldRule, found: Field) -> int:
    del walk, into, found
    raise ProtobufError(f"{rule.name} not allowed")


def _check_wire_type(found: Field, rule: _FieldRule, *wires: WireType) -> None:
    if found.wire not in wires:
        raise ProtobufError(f"{rule.name} is not of its type")


def _message_list(name: str, of: type[Any], most: int = MAX_ENTRIES) -> _FieldRule:
    return _FieldRule(name, _read_submessage, once=False, of=of, most=most)


def _text_list(name: str) -> _FieldRule:
    return _FieldRule(name, _read_text, once=False, most=MAX_ENTRIES)


def _ignored_text() -> _FieldRule:
    """Return the rule of a text for people and tools: passed over, since the runtime does nothing by it."""
    return _FieldRule("a note", _measure_bytes, once=False)


_PROPERTIES = _FieldRule("properties", _skip_message, once=False, of=Property)
_MESSAGE_RULES: dict[type[Any], dict[int, _FieldRule]] = {
    Model: {
        1: _FieldRule("ir_version", _read_number),
        2: _ignored_text(),  # producer_name
        3: _ignored_text(),  # producer_version
        4: _ignored_text(),  # domain
        5: _FieldRule("version", _read_number),
        6: _ignored_text(),
        7: _FieldRule("graph", _read_submessage, of=Graph),
        8: _message_list("operator_sets", OperatorSet),
        14: _message_list("properties", Property),
        20: _FieldRule("training information is", _refuse_field),
        25: _FieldRule("functions are", _refuse_field),
        26: _FieldRule("device configurations are", _refuse_field),
    },
    OperatorSet: {1: _FieldRule("domain", _read_text), 2: _FieldRule("version", _read_number)},
    Property: {1: _FieldRule("key", _read_text), 2: _ignored_text()},
    Graph: {
        1: _message_list("nodes", Node, MAX_NODES),
        2: _FieldRule("name", _read_text),
        5: _message_list("initializers", Tensor, MAX_TENSORS),
        10: _ignored_text(),
        11: _message_list("inputs", Value),
        12: _message_list("outputs", Value),
        13: _message_list("values", Value, MAX_VALUES),
        14: _FieldRule("annotations", _skip_message, once=False, of=Annotation),
        15: _FieldRule("sparse tensors are", _refuse_field),
        16: _PROPERTIES,
    },
    Annotation: {1: _FieldRule("tensor", _read_text), 2: _PROPERTIES},
    Node: {
        1: _text_list("inputs"),
        2: _text_list("outputs"),
        3: _FieldRule("name", _read_text),
        4: _FieldRule("operator", _read_text),
        5: _message_list("attributes", Attribute),
        6: _ignored_text(),
        7: _FieldRule("domain", _read_text),
        8: _FieldRule("an overload is", _require_default, of=WireType.BYTES),
        9: _PROPERTIES,
        10: _FieldRule("device configurations are", _refuse_field),
    },
    Attribute: {
        1: _FieldRule("name", _read_text),
        2: _FieldRule("f", _count_floats, carries=True, of=WireType.FIXED32),
        3: _FieldRule("i", _read_number, carries=True),
        4: _FieldRule("s", _measure_bytes, carries=True),
        5: _FieldRule("t", _read_submessage, carries=True, of=Tensor),
        6: _FieldRule("subgraphs are", _refuse_field),
        7: _FieldRule("floats", _count_floats, once=False, carries=True, of=WireType.FIXED32),
        8: _FieldRule("ints", _count_numbers, once=False, carries=True),
        9: _FieldRule("strings", _measure_bytes, once=False, carries=True),
        10: _FieldRule("lists of tensors are", _refuse_field),
        11: _FieldRule("subgraphs are", _refuse_field),
        13: _ignored_text(),
        14: _FieldRule("type attributes are", _refuse_field),
        15: _FieldRule("type attributes are", _refuse_field),
        20: _FieldRule("kind", _read_number),
        21: _FieldRule("a reference to a function is", _require_default, of=WireType.BYTES),
        22: _FieldRule("sparse tensors are", _refuse_field),
        23: _FieldRule("sparse tensors are", _refuse_field),
    },
    Tensor: {
        1: _FieldRule("dims", _read_numbers, once=False),
        2: _FieldRule("element", _read_number),
        3: _FieldRule("segments are", _refuse_field),
        4: _FieldRule("float_data", _count_floats, once=False, carries=True, of=WireType.FIXED32),
        5: _FieldRule("int32_data", _count_numbers, once=False, carries=True),
        6: _FieldRule("texts in tensors are", _refuse_field),
        7: _FieldRule("int64_data", _count_numbers, once=False, carries=True),
        8: _FieldRule("name", _read_text),
        9: _FieldRule("raw_data", _measure_bytes, carries=True),
        10: _FieldRule("double_data", _count_floats, once=False, carries=True, of=WireType.FIXED64),
        11: _FieldRule("uint64_data", _count_numbers, once=False, carries=True),
        12: _ignored_text(),
        13: _FieldRule("external data is", _refuse_field),
        14: _FieldRule("external data is", _require_default, of=WireType.VARINT),
        16: _PROPERTIES,
    },
    Value: {
        1: _FieldRule("name", _read_text),
        2: _FieldRule("type", _read_submessage, of=Type),
        3: _ignored_text(),
        4: _PROPERTIES,
    },
    Type: {
        1: _FieldRule("tensor", _read_submessage, of=TensorType),
        4: _FieldRule("sequences are", _refuse_field),
        5: _FieldRule("maps are", _refuse_field),
        6: _ignored_text(),
        7: _FieldRule("opaque types are", _refuse_field),
        8: _FieldRule("sparse tensors are", _refuse_field),
        9: _FieldRule("optional values are", _refuse_field),
    },
    TensorType: {1: _FieldRule("element", _read_number), 2: _FieldRule("shape", _read_submessage, of=Shape)},
    Shape: {1: _message_list("dims", Dimension)},
    Dimension: {1: _FieldRule("value", _read_number), 2: _FieldRule("parameter", _read_text), 3: _ignored_text()},
}
