"""ONNX model reader without the onnx or protobuf library: structure only, no tensor is loaded into memory.

Rule: a closed table says what a message may hold. An unknown field, a single field given twice, a subgraph, a function,
training information, a tensor that is sparse or lies elsewhere, a type that is no tensor: `WalkError`. The table has no
cycle, so nothing nests; weights are measured where they lie.

Field numbers: onnx.proto of ONNX 1.21.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from models.verification.protobuf import Field, Walk, WalkError, Wire, fixed_bytes, signed

MAX_FIELDS = 400_000  # of a whole model; it bounds the time
MAX_NAME_BYTES = 512
MAX_NODES = 8_000
MAX_TENSORS = 20_000
MAX_VALUES = 20_000  # types of intermediate results
MAX_MANY = 1_000  # of anything else in one place


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


def read_model(data: bytes, max_fields: int = MAX_FIELDS) -> Model:
    """Parse an ONNX model into its structure. WalkError for anything else; the time is bounded by `max_fields`."""
    model: Model = _message(Walk(data, max_fields), Model, 0, len(data))
    return model


class _Rule(NamedTuple):
    """Rule for one field of a message.

    `take` puts it into the value under `name` and returns how many elements it was.
    """

    name: str
    take: Callable[[Walk, Any, "_Rule", Field], int]
    once: bool = True
    carries: bool = False  # counted in `carried`
    of: Any = None  # the message, or the width of a number
    most: int = 1


def _message(walk: Walk, kind: type[Any], start: int, end: int) -> Any:
    """Read one message by the rules of its kind. WalkError for an unknown field or a single one given twice."""
    rules, found, seen = _TABLE[kind], kind(), set()
    for each in walk.fields(start, end):
        rule = rules.get(each.number)
        if rule is None:
            raise WalkError(f"{kind.__name__}: field {each.number} is not known")
        if rule.once and each.number in seen:
            raise WalkError(f"{kind.__name__}: {rule.name} is there twice")
        seen.add(each.number)
        amount = rule.take(walk, found, rule, each)
        if rule.carries:
            found.carried[rule.name] = found.carried.get(rule.name, 0) + amount
    return found


def _number(walk: Walk, into: Any, rule: _Rule, found: Field) -> int:
    del walk
    _expect(found, rule, Wire.VARINT)
    setattr(into, rule.name, signed(found.value))
    return 1


def _numbers(walk: Walk, into: Any, rule: _Rule, found: Field) -> int:
    """Read a repeated field of whole numbers, packed or not: every reader takes both."""
    _expect(found, rule, Wire.VARINT, Wire.BYTES)
    getattr(into, rule.name).extend(walk.numbers(found))
    return 0


def _text(walk: Walk, into: Any, rule: _Rule, found: Field) -> int:
    _expect(found, rule, Wire.BYTES)
    return _put(into, rule, walk.text(found, MAX_NAME_BYTES))


def _inner(walk: Walk, into: Any, rule: _Rule, found: Field) -> int:
    _expect(found, rule, Wire.BYTES)
    return _put(into, rule, _message(walk, rule.of, found.start, found.end))


def _put(into: Any, rule: _Rule, value: Any) -> int:
    if rule.once:
        setattr(into, rule.name, value)
    else:
        several = getattr(into, rule.name)
        if len(several) == rule.most:
            raise WalkError(f"more than {rule.most} {rule.name}")
        several.append(value)
    return 1


def _notes(walk: Walk, into: Any, rule: _Rule, found: Field) -> int:
    """Read a submessage like every other, and drop it."""
    del into
    _expect(found, rule, Wire.BYTES)
    _message(walk, rule.of, found.start, found.end)
    return 0


def _size(walk: Walk, into: Any, rule: _Rule, found: Field) -> int:
    del walk, into
    _expect(found, rule, Wire.BYTES)
    return found.end - found.start


def _floats(walk: Walk, into: Any, rule: _Rule, found: Field) -> int:
    """Count numbers of fixed width; the repeated ones packed or not."""
    del walk, into
    _expect(found, rule, *((rule.of,) if rule.once else (rule.of, Wire.BYTES)))
    count, rest = divmod(found.end - found.start, fixed_bytes(rule.of))
    if rest:
        raise WalkError(f"{rule.name} ends within a number")
    return count


def _count(walk: Walk, into: Any, rule: _Rule, found: Field) -> int:
    del into
    _expect(found, rule, Wire.VARINT, Wire.BYTES)
    return walk.count(found)


def _absent(walk: Walk, into: Any, rule: _Rule, found: Field) -> int:
    """Accept a field only with its default value: zero or an empty text."""
    del walk, into
    _expect(found, rule, rule.of)
    if found.value or (rule.of is Wire.BYTES and found.end > found.start):
        raise WalkError(f"{rule.name} not allowed")
    return 0


def _never(walk: Walk, into: Any, rule: _Rule, found: Field) -> int:
    del walk, into, found
    raise WalkError(f"{rule.name} not allowed")


def _expect(found: Field, rule: _Rule, *wires: Wire) -> None:
    if found.wire not in wires:
        raise WalkError(f"{rule.name} is not of its type")


def _many(name: str, of: type[Any], most: int = MAX_MANY) -> _Rule:
    return _Rule(name, _inner, once=False, of=of, most=most)


def _names(name: str) -> _Rule:
    return _Rule(name, _text, once=False, most=MAX_MANY)


def _words() -> _Rule:
    """Return the rule of a text for people and tools: passed over, since the runtime does nothing by it."""
    return _Rule("a note", _size, once=False)


_PROPERTIES = _Rule("properties", _notes, once=False, of=Property)
_TABLE: dict[type[Any], dict[int, _Rule]] = {
    Model: {
        1: _Rule("ir_version", _number),
        2: _words(),  # producer_name
        3: _words(),  # producer_version
        4: _words(),  # domain
        5: _Rule("version", _number),
        6: _words(),
        7: _Rule("graph", _inner, of=Graph),
        8: _many("operator_sets", OperatorSet),
        14: _many("properties", Property),
        20: _Rule("training information is", _never),
        25: _Rule("functions are", _never),
        26: _Rule("device configurations are", _never),
    },
    OperatorSet: {1: _Rule("domain", _text), 2: _Rule("version", _number)},
    Property: {1: _Rule("key", _text), 2: _words()},
    Graph: {
        1: _many("nodes", Node, MAX_NODES),
        2: _Rule("name", _text),
        5: _many("initializers", Tensor, MAX_TENSORS),
        10: _words(),
        11: _many("inputs", Value),
        12: _many("outputs", Value),
        13: _many("values", Value, MAX_VALUES),
        14: _Rule("annotations", _notes, once=False, of=Annotation),
        15: _Rule("sparse tensors are", _never),
        16: _PROPERTIES,
    },
    Annotation: {1: _Rule("tensor", _text), 2: _PROPERTIES},
    Node: {
        1: _names("inputs"),
        2: _names("outputs"),
        3: _Rule("name", _text),
        4: _Rule("operator", _text),
        5: _many("attributes", Attribute),
        6: _words(),
        7: _Rule("domain", _text),
        8: _Rule("an overload is", _absent, of=Wire.BYTES),
        9: _PROPERTIES,
        10: _Rule("device configurations are", _never),
    },
    Attribute: {
        1: _Rule("name", _text),
        2: _Rule("f", _floats, carries=True, of=Wire.FIXED32),
        3: _Rule("i", _number, carries=True),
        4: _Rule("s", _size, carries=True),
        5: _Rule("t", _inner, carries=True, of=Tensor),
        6: _Rule("subgraphs are", _never),
        7: _Rule("floats", _floats, once=False, carries=True, of=Wire.FIXED32),
        8: _Rule("ints", _count, once=False, carries=True),
        9: _Rule("strings", _size, once=False, carries=True),
        10: _Rule("lists of tensors are", _never),
        11: _Rule("subgraphs are", _never),
        13: _words(),
        14: _Rule("type attributes are", _never),
        15: _Rule("type attributes are", _never),
        20: _Rule("kind", _number),
        21: _Rule("a reference to a function is", _absent, of=Wire.BYTES),
        22: _Rule("sparse tensors are", _never),
        23: _Rule("sparse tensors are", _never),
    },
    Tensor: {
        1: _Rule("dims", _numbers, once=False),
        2: _Rule("element", _number),
        3: _Rule("segments are", _never),
        4: _Rule("float_data", _floats, once=False, carries=True, of=Wire.FIXED32),
        5: _Rule("int32_data", _count, once=False, carries=True),
        6: _Rule("texts in tensors are", _never),
        7: _Rule("int64_data", _count, once=False, carries=True),
        8: _Rule("name", _text),
        9: _Rule("raw_data", _size, carries=True),
        10: _Rule("double_data", _floats, once=False, carries=True, of=Wire.FIXED64),
        11: _Rule("uint64_data", _count, once=False, carries=True),
        12: _words(),
        13: _Rule("external data is", _never),
        14: _Rule("external data is", _absent, of=Wire.VARINT),
        16: _PROPERTIES,
    },
    Value: {1: _Rule("name", _text), 2: _Rule("type", _inner, of=Type), 3: _words(), 4: _PROPERTIES},
    Type: {
        1: _Rule("tensor", _inner, of=TensorType),
        4: _Rule("sequences are", _never),
        5: _Rule("maps are", _never),
        6: _words(),
        7: _Rule("opaque types are", _never),
        8: _Rule("sparse tensors are", _never),
        9: _Rule("optional values are", _never),
    },
    TensorType: {1: _Rule("element", _number), 2: _Rule("shape", _inner, of=Shape)},
    Shape: {1: _many("dims", Dimension)},
    Dimension: {1: _Rule("value", _number), 2: _Rule("parameter", _text), 3: _words()},
}
