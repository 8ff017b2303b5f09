"""Typed values of JSON replies: a dataclass is filled from an object by its annotations. No I/O.

Rule: a field without a default must be there and be of its type, or the reply is refused by name
(`APIResponseValidationError`); what this client does not know is left out, so that a newer server may say more.
"""

import dataclasses
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from skerry_client.errors import APIResponseValidationError, make_printable

T = TypeVar("T")
_NAMES: Mapping[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "an object",
}


def read_value(kind: type[T], found: object, where: str) -> T:
    """Return `found` as a dataclass. APIResponseValidationError names the field, behind `where`, that does not fit."""
    value: T = _read(kind, found, where)
    return value


def read_list(kind: type[T], found: Mapping[str, object], key: str, where: str) -> tuple[T, ...]:
    """Return the dataclasses of the list under `key`. APIResponseValidationError as in `read_value`."""
    values = found.get(key)
    if not isinstance(values, list):
        raise _refuse(f"{where}.{key}", list, values)
    return tuple(_read(kind, each, f"{where}.{key}[{number}]") for number, each in enumerate(values))


def _read(kind: Any, found: Any, where: str) -> Any:
    origin = get_origin(kind)
    if origin in _READERS:
        return _READERS[origin](get_args(kind), found, where)
    if kind is Any:
        return found
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, found, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _read_enum(kind, found, where)
    return _read_plain(kind, found, where)


def _read_tuple(kinds: tuple[Any, ...], found: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(found, list):
        raise _refuse(where, list, found)
    return tuple(_read(kinds[0], each, f"{where}[{number}]") for number, each in enumerate(found))


def _read_dict(kinds: tuple[Any, ...], found: Any, where: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise _refuse(where, dict, found)
    return {key: _read(kinds[1], each, f"{where}.{make_printable(key)}") for key, each in found.items()}


def _read_union(kinds: tuple[Any, ...], found: Any, where: str) -> Any:
    """Unions here are of one kind and None."""
    if found is None and type(None) in kinds:
        return None
    return _read(next(kind for kind in kinds if kind is not type(None)), found, where)


_READERS: Mapping[Any, Callable[[tuple[Any, ...], Any, str], Any]] = {
    Union: _read_union,
    types.UnionType: _read_union,
    tuple: _read_tuple,
    dict: _read_dict,
}


def _read_plain(kind: type, found: Any, where: str) -> Any:
    if kind is float and isinstance(found, int) and not isinstance(found, bool):
        return float(found)
    if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        raise _refuse(where, kind, found)
    return found


def _read_enum(kind: type[Enum], found: Any, where: str) -> Enum:
    try:
        return kind(found)
    except ValueError:
        known = ", ".join(str(each.value) for each in kind)
        raise APIResponseValidationError(f"{where}: {_show(found)} is none of {known}; is the server newer?") from None


def _read_dataclass(kind: Any, found: Any, where: str) -> Any:
    if not isinstance(found, dict):
        raise _refuse(where, dict, found)
    values = {}
    for name, (hint, needed) in _fields_of(kind).items():
        if name in found:
            values[name] = _read(hint, found[name], f"{where}.{name}")
        elif needed:
            raise APIResponseValidationError(f"{where}: {name!r} is missing; is the server of another version?")
    return kind(**values)


@cache
def _fields_of(kind: Any) -> Mapping[str, tuple[Any, bool]]:
    """Type of each field, and whether it must be there."""
    hints = get_type_hints(kind)
    return {
        field.name: (
            hints[field.name],
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
        if field.init
    }


def _refuse(where: str, kind: Any, found: object) -> APIResponseValidationError:
    wanted = _NAMES.get(kind, "a list")
    return APIResponseValidationError(f"{where}: {_show(found)} is not {wanted}; is the server of another version?")


def _show(found: object) -> str:
    """The kind of a value for an error line, and a short one itself."""
    text = make_printable(repr(found))
    return text if len(text) <= 40 else f"{type(found).__name__} of {len(text)} characters"
