"""Argument grammar of graph nodes in JSON, checked against the schema of each operation.

Rule: every value is checked against the argument it is for; nothing is converted that the schema does not ask for, and
no whole number is beyond what a size can sensibly be. What does not fit is a `BundleError` of one line.

Grammar: null, true, false, whole numbers, floats, strings, lists, and objects of one key: `{"node": 3}`,
`{"input": 0}`, `{"weight": "w0"}`, `{"dtype": "float32"}`, `{"device": "cpu"}`, `{"layout": "strided"}`,
`{"memory_format": "contiguous_format"}`, `{"float": "inf"}`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import fx

from models.bundle.manifest import BundleError
from models.graph.aten_operations import (
    DTYPES,
    LAYOUTS,
    MEMORY_FORMATS,
    NO_PINNED_MEMORY,
    REQUIRED_VALUES,
    AllowedOperation,
    ArgumentKind,
    OperationArgument,
    ResultKind,
    string_allowed,
)

MAX_INT = 2**31 - 1
SLICE_END = 2**63 - 1  # how a slice without an end is written
MAX_LIST = 4096
SPECIAL_FLOATS = {"inf": math.inf, "-inf": -math.inf}
_NAME_TABLES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "ScalarType": ("dtype", DTYPES),
    "Layout": ("layout", LAYOUTS),
    "MemoryFormat": ("memory_format", MEMORY_FORMATS),
}


class GraphOperand(NamedTuple):
    """Value that a node may refer to. `pieces`: how many tensors, 0 = unknown before shapes are."""

    node: fx.Node
    gives: ResultKind
    pieces: int = 1


class ReferenceScope(NamedTuple):
    """Values that can be referred to here: `operands[("node", 3)]`. `device` stands for "where the inputs are"."""

    operands: Mapping[tuple[str, int | str], GraphOperand]
    device: fx.Node


def bind_arguments(
    operation: AllowedOperation, args: Sequence[Any], kwargs: Mapping[str, Any], scope: ReferenceScope
) -> dict[str, Any]:
    """Check and bind all arguments of a node, by name and in the order of the schema."""
    given = _name_arguments(operation, args, kwargs)
    bound: dict[str, Any] = {}
    for argument in operation.arguments:
        if argument.name in given:
            bound[argument.name] = _bind_argument(operation, argument, given[argument.name], scope)
        elif argument.required:
            raise BundleError(f"{operation.name}: argument {argument.name!r} is missing")
    _check_fixed_values(operation, bound)
    if not any(argument.kind.base == "Tensor" for argument in operation.arguments):
        _place_device(operation, bound, scope)
    return bound


def resolve_operand(value: Any, scope: ReferenceScope) -> GraphOperand | None:
    """Resolve a reference to its value, None if `value` is no reference. BundleError if there is no such thing."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    (key, what), *_ = value.items()
    if key not in ("node", "input", "weight"):
        return None
    if not isinstance(what, str if key == "weight" else int) or isinstance(what, bool):
        raise BundleError(f"a reference to {key} {str(what)[:40]!r}")
    found = scope.operands.get((key, what))
    if found is None:
        raise BundleError(f"there is no {key} {str(what)[:40]!r} at that point")
    return found


def resolve_size(value: Any, scope: ReferenceScope) -> Any:
    """Check a whole number, or a reference to a node that gives one."""
    return _check_value(ArgumentKind("int"), value, "operator", scope)


def _name_arguments(operation: AllowedOperation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    places = [a.name for a in operation.arguments if not a.keyword]
    if len(args) > len(places):
        raise BundleError(f"{operation.name}: {len(args)} arguments, it takes {len(places)}")
    given = dict(zip(places, args, strict=False))
    unknown = kwargs.keys() - {a.name for a in operation.arguments}
    if unknown or given.keys() & kwargs.keys():
        raise BundleError(f"{operation.name}: an argument is unknown or given twice")
    return given | dict(kwargs)


def _place_device(operation: AllowedOperation, bound: dict[str, Any], scope: ReferenceScope) -> None:
    """Set the device of a constant to that of the inputs, given or not: a rehearsal must never allocate."""
    for argument in operation.arguments:
        if argument.kind.base == "Device":
            bound[argument.name] = scope.device


def _check_fixed_values(operation: AllowedOperation, bound: Mapping[str, Any]) -> None:
    """Check arguments that must have a certain value, so that nothing is random and no memory is pinned."""
    defaults = {a.name: a.default for a in operation.arguments}
    held = {**defaults, **bound}
    alternatives = REQUIRED_VALUES.get(operation.name, ({},))
    if not any(all(held[name] is v or held[name] == v for name, v in wish.items()) for wish in alternatives):
        wishes = " or ".join(str(dict(wish)) for wish in alternatives)
        raise BundleError(f"{operation.name}: only with {wishes}")
    if any(held.get(name) not in (None, value) for name, value in NO_PINNED_MEMORY.items()):
        raise BundleError(f"{operation.name}: pinned memory is not allowed")


def _bind_argument(operation: AllowedOperation, argument: OperationArgument, value: Any, scope: ReferenceScope) -> Any:
    if isinstance(value, int) and value == SLICE_END and argument.name == "end":
        return value
    try:
        return _check_value(argument.kind, value, operation.name, scope)
    except BundleError as error:
        raise BundleError(f"{operation.name}: argument {argument.name!r}: {error}") from None


def _check_value(kind: ArgumentKind, value: Any, operation: str, scope: ReferenceScope) -> Any:
    if value is None:
        return _require_fit(None, fits=kind.optional)
    if not kind.listed:
        return _check_scalar(kind.base, value, operation, scope)
    if not isinstance(value, list):  # torch takes one number for a list of equal ones
        return _require_fit(_check_scalar(kind.base, value, operation, scope), fits=kind.base in ("int", "float"))
    _require_fit(value, fits=len(value) <= MAX_LIST)
    return [_check_value(ArgumentKind(kind.base, kind.holes), item, operation, scope) for item in value]


def _check_scalar(base: str, value: Any, operation: str, scope: ReferenceScope) -> Any:
    found = resolve_operand(value, scope)
    if found is not None:
        return _check_reference(base, found)
    if base in _NAME_TABLES:
        return _look_up_name(value, *_NAME_TABLES[base])
    if base == "Device":
        return _require_fit(scope.device, fits=value == {"device": "cpu"})
    if isinstance(value, dict):
        return _parse_special_float(base, value)
    if base == "str":
        return _require_fit(value, fits=isinstance(value, str) and string_allowed(operation, value))
    return _require_fit(value, fits=type(value) in _PYTHON_TYPES.get(base, ()) and _is_bounded(base, value))


_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "Tensor": (bool, int, float),  # a number where a tensor is wanted is a tensor of one element
    "number": (bool, int, float),
    "float": (int, float),
    "int": (int,),
    "bool": (bool,),
}
_REFERENCE_RESULTS: Mapping[str, tuple[ResultKind, ...]] = {
    "Tensor": (ResultKind.TENSOR, ResultKind.SIZE),
    "number": (ResultKind.SIZE,),
    "float": (ResultKind.SIZE,),
    "int": (ResultKind.SIZE,),
}


def _check_reference(base: str, found: GraphOperand) -> fx.Node:
    _require_fit(found, fits=found.gives in _REFERENCE_RESULTS.get(base, ()))
    return found.node


def _is_bounded(base: str, value: float) -> bool:
    most = MAX_INT if base == "int" else SLICE_END  # an element may be any number, a size may not
    return abs(value) <= most if isinstance(value, int) else math.isfinite(value)


def _look_up_name(value: Any, key: str, table: Mapping[str, Any]) -> Any:
    name = value.get(key) if isinstance(value, dict) and len(value) == 1 else None
    return _require_fit(
        table.get(name) if isinstance(name, str) else None, fits=isinstance(name, str) and name in table
    )


def _parse_special_float(base: str, value: Mapping[str, Any]) -> float:
    name = value.get("float") if len(value) == 1 else None
    fits = base in ("float", "number", "Tensor") and isinstance(name, str) and name in SPECIAL_FLOATS
    return SPECIAL_FLOATS[str(_require_fit(name, fits=fits))]


def _require_fit(value: Any, *, fits: bool) -> Any:
    if not fits:
        raise BundleError("a value of the wrong kind")
    return value
