"""One pass over a JSON text from outside, in time linear in its length and without building its values.

Rule: nothing is decoded that is not asked for: a text costs memory by its open keys, which are bounded, not by its
length. The pass finds what a decoder that skips values does not: a key twice in one object, nesting that is too deep,
too many parts. It does not replace the decoder: a text that passes may still be no JSON.
"""

import codecs
import json
import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_DEPTH = 64  # of nested objects and lists; tool schemas that were seen have about 20
MAX_PARTS = 100_000  # strings and brackets of one text: each costs a step of this pass
MAX_OPEN_KEYS = 4096  # keys of all objects that are open at one place
_UTF8_CHUNK_BYTES = 65_536
# A string with the colon that makes it a key, or a bracket. Every repeat is possessive and a string without an end
# matches up to the end of the text, so that no byte is read twice.
_PART = re.compile(rb'"((?:[^"\\]++|\\.)*+)(?:"|\\?\Z)(?:[ \t\r\n]*+(:))?+|[\[\]{}]', re.DOTALL)
_QUOTE, _OPENS_OBJECT, _OPENS_LIST = b'"{['


class JsonRefusedError(ValueError):
    """A text that is not read: one line that says why, without what was in it."""


class JsonString(NamedTuple):
    """A string value: its place in the text without its quotes, the key before it and the outermost key around it."""

    start: int
    end: int
    key: bytes
    outermost: bytes


def is_utf8(data: bytes) -> bool:
    """Whether bytes are UTF-8, without a copy of them all as text."""
    if data.isascii():
        return True
    decoder, view = codecs.getincrementaldecoder("utf-8")(), memoryview(data)
    try:
        for at in range(0, len(data), _UTF8_CHUNK_BYTES):
            decoder.decode(view[at : at + _UTF8_CHUNK_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


class _OpenParts:
    """The objects and lists that are open at one place of the text, with the keys of each object so far."""

    def __init__(self) -> None:
        self._keys: list[set[bytes] | None] = []  # None of a list
        self._held = 0

    def __len__(self) -> int:
        return len(self._keys)

    def open(self, *, is_object: bool) -> None:
        self._keys.append(set() if is_object else None)
        if len(self._keys) > MAX_DEPTH:
            raise JsonRefusedError(f"the JSON is nested more than {MAX_DEPTH} deep")

    def close(self) -> None:
        if not self._keys:
            raise JsonRefusedError("the text is no JSON: a bracket that closes nothing")
        self._held -= len(self._keys.pop() or ())

    def add_key(self, key: bytes) -> None:
        keys = self._keys[-1] if self._keys else None
        if keys is None:
            raise JsonRefusedError("the text is no JSON: a key outside an object")
        if key in keys:
            raise JsonRefusedError("a key stands twice in one object")
        keys.add(key)
        self._held += 1
        if self._held > MAX_OPEN_KEYS:
            raise JsonRefusedError(f"the JSON has more than {MAX_OPEN_KEYS} keys in one object")


def scan_json(text: bytes) -> Iterator[JsonString]:
    """Yield the string values of a JSON text, and check its nesting, its parts and its keys on the way.

    JsonRefusedError for a key twice in one object (escapes are undone before they are compared), nesting deeper than
    `MAX_DEPTH`, more than `MAX_PARTS` strings and brackets, or more than `MAX_OPEN_KEYS` keys open at once.
    """
    parts = _OpenParts()
    key = outermost = b""
    for number, part in enumerate(_PART.finditer(text)):
        if number >= MAX_PARTS:
            raise JsonRefusedError(f"the JSON has more than {MAX_PARTS} strings, objects and lists")
        first = text[part.start()]
        if first != _QUOTE:
            if first in (_OPENS_OBJECT, _OPENS_LIST):
                parts.open(is_object=first == _OPENS_OBJECT)
            else:
                parts.close()
        elif part[2] is None:
            yield JsonString(part.start() + 1, part.end(1), key, outermost)
        else:
            key = _unescape(part[1])
            parts.add_key(key)
            outermost = key if len(parts) == 1 else outermost


def _unescape(key: bytes) -> bytes:
    """Return a key as it is compared: two ways to write one key are one key."""
    if b"\\" not in key:
        return key
    try:
        return str(json.loads(b'"' + key + b'"')).encode("utf-8", "surrogatepass")
    except ValueError:
        raise JsonRefusedError("the text is no JSON: a key that cannot be read") from None
