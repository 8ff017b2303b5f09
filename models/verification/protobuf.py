"""Protobuf wire-format reader in the standard library: one pass, no copies, a bounded number of steps.

Rule: what two readers could take for two things is a `ProtobufError`: a group, a number longer than it need be, a
length beyond the end. No length is believed before it was compared with what is there.

Format: protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

MAX_VARINT_BYTES = 10
COUNT_CHUNK_BYTES = 1 << 20
TEXT_BYTES_A_STEP = 32  # names are all that is copied: this bounds what they take together
_CONTINUATION_BYTES = bytes(range(0x80, 0x100))  # bytes of a varint that are not its last


class ProtobufError(ValueError):
    """Bytes that are not the message they should be, or hold what is never allowed; the text is one line."""


class WireType(IntEnum):
    """Wire type of a field: the low three bits of its tag."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


class Field(NamedTuple):
    """One field as it lies in the file: the `value` of a varint, or the bytes `start..end`."""

    number: int
    wire: int
    value: int
    start: int
    end: int


class ProtobufReader:
    """Reader of one file. `left`: how many steps are left for fields, packed numbers and names."""

    __slots__ = ("data", "left")

    def __init__(self, data: bytes, max_fields: int) -> None:
        self.data = data
        self.left = max_fields

    def iter_fields(self, at: int, end: int) -> Iterator[Field]:
        """Iterate over the fields of the message that fills `at..end` exactly."""
        while at < end:
            self._spend_steps()
            tag, start = self._read_varint(at, end)
            value, wire = 0, tag & 7
            if wire == WireType.BYTES:
                size, start = self._read_varint(start, end)
                at = start + size
            elif wire == WireType.VARINT:
                value, at = self._read_varint(start, end)
            else:
                at = start + fixed_size(wire)
            if at > end:
                raise ProtobufError("a length goes beyond the end")
            yield Field(tag >> 3, wire, value, start, at)

    def iter_numbers(self, field: Field) -> Iterator[int]:
        """Iterate over the numbers of a repeated field that came packed, or the one that came alone."""
        if field.wire == WireType.VARINT:
            yield to_signed(field.value)
            return
        at = field.start
        while at < field.end:
            self._spend_steps()
            value, at = self._read_varint(at, field.end)
            yield to_signed(value)

    def count_numbers(self, field: Field) -> int:
        """Count the numbers of a repeated field by the bytes that end one: quick for millions of them."""
        if field.wire == WireType.VARINT:
            return 1
        if field.start < field.end and self.data[field.end - 1] >= 0x80:
            raise ProtobufError("a number does not end")
        pieces = range(field.start, field.end, COUNT_CHUNK_BYTES)
        return sum(
            len(self.data[at : min(field.end, at + COUNT_CHUNK_BYTES)].translate(None, _CONTINUATION_BYTES))
            for at in pieces
        )

    def read_text(self, field: Field, max_bytes: int) -> str:
        """Read a UTF-8 text of at most `max_bytes` bytes."""
        size = field.end - field.start
        if size > max_bytes:
            raise ProtobufError(f"a name of {size} bytes, at most {max_bytes}")
        self._spend_steps(size // TEXT_BYTES_A_STEP)
        try:
            return self.data[field.start : field.end].decode()
        except UnicodeDecodeError:
            raise ProtobufError("a name is not UTF-8") from None

    def _read_varint(self, at: int, end: int) -> tuple[int, int]:
        """Read a varint: (value in 0..2**64-1, where it ends)."""
        if at < end and self.data[at] < 0x80:  # nearly all are one byte long
            return self.data[at], at + 1
        value = 0
        for i, byte in enumerate(self.data[at : min(end, at + MAX_VARINT_BYTES)]):
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                if byte == 0 or value >> 64:
                    raise ProtobufError("a number is longer than it need be or beyond 64 bits")
                return value, at + i + 1
        raise ProtobufError("a number does not end")

    def _spend_steps(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise ProtobufError("more fields than a model may have")


def fixed_size(wire: int) -> int:
    """Return the bytes of a field of fixed size.

    ProtobufError for groups, which ended with proto2, and for unknown types.
    """
    if wire == WireType.FIXED32:
        return 4
    if wire == WireType.FIXED64:
        return 8
    raise ProtobufError("this is no protobuf message")


def to_signed(value: int) -> int:
    """Convert a varint to the int64 it was written as: two's complement in 64 bits."""
    return value - (1 << 64) if value >> 63 else value
