"""Messages of the product to records of the second implementation and back, by the names of their fields alone."""

from enum import Enum
from typing import Any

import msgspec

from tests.second_implementation.records import Record
from wire.protocol import messages, rollout

TYPES: dict[str, type[msgspec.Struct]] = {
    name: found
    for module in (messages, rollout)
    for name, found in vars(module).items()
    if isinstance(found, type) and issubclass(found, msgspec.Struct) and found.__module__ == module.__name__
}


def to_record(value: Any) -> Any:
    """The record of a struct, with all its fields; other values as they are, tuples as lists, words as texts."""
    if isinstance(value, msgspec.Struct):
        fields = {name: to_record(getattr(value, name)) for name in value.__struct_fields__}
        return Record(type(value).__name__, fields)
    if isinstance(value, tuple | list):
        return [to_record(each) for each in value]
    if isinstance(value, dict):
        return {key: to_record(each) for key, each in value.items()}
    return value.value if isinstance(value, Enum) else value


def to_struct(record: Record) -> Any:
    """The product's struct of a record, converted and checked as `msgspec` does."""
    return msgspec.convert(_to_array(record), TYPES[record.kind], builtin_types=(bytes,))


def _to_array(value: Any) -> Any:
    if isinstance(value, Record):
        kind = TYPES[value.kind]
        tag, fields = kind.__struct_config__.tag, msgspec.structs.fields(kind)
        unknown = value.fields.keys() - {field.name for field in fields}
        if unknown:
            raise TypeError(f"{value.kind} has no {unknown}")
        filled = [
            _to_array(value.fields[field.name]) if field.name in value.fields else _default_of(field)
            for field in fields
        ]
        return [*filter(None, (tag,)), *filled]
    if isinstance(value, list):
        return [_to_array(each) for each in value]
    return {key: _to_array(each) for key, each in value.items()} if isinstance(value, dict) else value


def _default_of(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is msgspec.NODEFAULT:
        raise TypeError(f"{field.name} is missing")
    return _to_array(to_record(field.default))
