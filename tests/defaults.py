"""What the fields of a module's records are when they are left out."""

import dataclasses
import inspect
from collections.abc import Iterator
from types import ModuleType

import msgspec

_EMPTY = (None, 0, "", b"", ())  # and with 0 also False and 0.0


def list_filled_defaults(module: ModuleType) -> dict[str, object]:
    """The defaults, by record and field, that are neither empty nor records of such defaults alone."""
    return {
        f"{name}.{field}": value
        for name, record in vars(module).items()
        if inspect.isclass(record) and record.__module__ == module.__name__
        for field, value in _list_defaults(record)
        if value not in _EMPTY and not _is_empty_record(value)
    }


def _is_empty_record(value: object) -> bool:
    fields = msgspec.structs.astuple(value) if isinstance(value, msgspec.Struct) else value
    return isinstance(fields, tuple) and all(each in _EMPTY for each in fields)


def _list_defaults(record: type) -> Iterator[tuple[str, object]]:
    if issubclass(record, msgspec.Struct):
        for field in msgspec.structs.fields(record):
            if field.default is not msgspec.NODEFAULT:
                yield field.name, field.default
    elif dataclasses.is_dataclass(record):
        for each in dataclasses.fields(record):
            if each.default is not dataclasses.MISSING:
                yield each.name, each.default
    else:
        yield from getattr(record, "_field_defaults", {}).items()
