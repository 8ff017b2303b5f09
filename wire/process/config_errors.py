"""What is wrong with a value of the configuration: msgspec's errors in plain words, with what the key takes. Pure."""

import re
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

_STEP = re.compile(r"\.([^.\[]+)|\[([0-9]+|\.\.\.)\]")
_FIELD = re.compile(r"Object (?:contains unknown|missing required) field `(.*)`", re.DOTALL)
_GOT = re.compile(r", got `(\w+)`$")
_KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", NoneType: "nothing"}
_GIVEN = {
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "array": "a list",
    "object": "a table", "null": "nothing",
}  # fmt: skip


class ErrorPlace(NamedTuple):
    """Where an error is. `parts`: keys and places in lists down to it; `named`: the key that is unknown or missing."""

    parts: tuple[str | int, ...]
    named: tuple[str, ...] = ()
    missing: bool = False


def split_error(text: str) -> tuple[str, ErrorPlace]:
    """Split a message of msgspec into its words and its place."""
    words, at, path = text.partition(" - at `$")
    words, path = (words, path.removesuffix("`")) if at and path.endswith("`") else (text, "")
    parts = tuple(name or (int(place) if place.isdigit() else place) for name, place in _STEP.findall(path))
    field = _FIELD.fullmatch(words)
    return words, ErrorPlace(parts, (field[1],) if field else (), words.startswith("Object missing"))


def list_names(section: type[msgspec.Struct]) -> list[str]:
    """Keys of a table as they stand in the file."""
    return list(section.__struct_encode_fields__)


def find_type(section: type[msgspec.Struct], parts: tuple[str | int, ...]) -> Any:
    """Annotation of the value at this place below a table."""
    kind: Any = section
    for part in parts:
        if isinstance(part, int):
            kind = next(get_args(each)[0] for each in _split_union(kind) if get_origin(each) is tuple)
        elif get_origin(kind) is dict:
            kind = get_args(kind)[1]
        else:
            names = dict(zip(list_names(kind), kind.__struct_fields__, strict=True))
            kind = get_type_hints(kind, include_extras=True)[names[part]]
    return kind


def _split_union(kind: Any) -> tuple[Any, ...]:
    """Kinds of a union, each without its bounds."""
    bare = get_args(kind)[0] if hasattr(kind, "__metadata__") else kind
    return get_args(bare) if get_origin(bare) in {Union, UnionType} else (bare,)


def describe_misfit(words: str, kind: Any) -> str:
    """What a value must be, for one that msgspec refuses by these words; the words of a check of ours stay."""
    if not words.startswith(("Expected `", "Invalid enum value", "Integer value out of range")):
        return words
    got = _GOT.search(words)
    return f"must be {describe_kind(kind)}{f', not {_GIVEN.get(got[1], got[1])}' if got else ''}"


def describe_kind(kind: Any) -> str:
    """Describe what a key takes: its kind and bounds, or each of its words."""
    metas = getattr(kind, "__metadata__", ())
    bare = get_args(kind)[0] if metas else kind
    if get_origin(bare) in {Union, UnionType}:
        return " or ".join(describe_kind(each) for each in get_args(bare) if each is not NoneType)
    bounds = [bound for meta in metas for bound in _list_bounds(meta)]
    return f"{_describe_bare(bare)}{' ' if bounds else ''}{' and '.join(bounds)}"


def _describe_bare(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return _join_words([repr(word) for word in get_args(kind)])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _join_words([repr(str(member.value)) for member in kind])
    if get_origin(kind) is tuple:
        return "a list"
    return _KINDS.get(kind, "a table")


def _join_words(words: list[str]) -> str:
    """List words as 'a', 'b' or 'c'."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _list_bounds(meta: msgspec.Meta) -> list[str]:
    told = {
        "of at least {}": meta.ge, "above {}": meta.gt, "of at most {}": meta.le, "below {}": meta.lt,
        "of length {} or more": meta.min_length, "of length {} at most": meta.max_length, "like {}": meta.pattern,
    }  # fmt: skip
    return [
        text.format(f"{bound:,g}" if isinstance(bound, float) else bound)
        for text, bound in told.items()
        if bound is not None
    ]
