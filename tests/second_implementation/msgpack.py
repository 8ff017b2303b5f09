"""The part of msgpack that the formats use: nil, booleans, integers, 64-bit floats, texts, bytes, arrays and maps.

Integers, texts, bytes, arrays and maps are written in their shortest form, floats always in 64 bits.
"""

import struct
from typing import Any

_BY_SIZE = {
    "str": ((31, 0xA0), (0xFF, 0xD9), (0xFFFF, 0xDA), (0xFFFFFFFF, 0xDB)),
    "bin": ((-1, 0), (0xFF, 0xC4), (0xFFFF, 0xC5), (0xFFFFFFFF, 0xC6)),
    "array": ((15, 0x90), (-1, 0), (0xFFFF, 0xDC), (0xFFFFFFFF, 0xDD)),
    "map": ((15, 0x80), (-1, 0), (0xFFFF, 0xDE), (0xFFFFFFFF, 0xDF)),
}


def encode(value: Any) -> bytes:
    """The msgpack bytes of a value."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return _encode_integer(value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode()
        return encode_size("str", len(data)) + data
    if isinstance(value, bytes):
        return encode_size("bin", len(value)) + value
    if isinstance(value, list | tuple):
        return encode_size("array", len(value)) + b"".join(map(encode, value))
    if isinstance(value, dict):
        pairs = (encode(key) + encode(each) for key, each in value.items())
        return encode_size("map", len(value)) + b"".join(pairs)
    raise TypeError(f"no msgpack for {type(value).__name__}")


def _encode_integer(value: int) -> bytes:
    if value >= 0:
        if value < 0x80:
            return bytes((value,))
        for code, form, limit in ((0xCC, ">B", 8), (0xCD, ">H", 16), (0xCE, ">I", 32), (0xCF, ">Q", 64)):
            if value < 1 << limit:
                return bytes((code,)) + struct.pack(form, value)
    if value >= -32:
        return struct.pack(">b", value)
    for code, form, limit in ((0xD0, ">b", 7), (0xD1, ">h", 15), (0xD2, ">i", 31), (0xD3, ">q", 63)):
        if value >= -(1 << limit):
            return bytes((code,)) + struct.pack(form, value)
    raise ValueError("an integer of more than 64 bits")


def encode_size(kind: str, size: int) -> bytes:
    """What stands before the content of a str, bin, array or map."""
    short, eight, sixteen, thirty_two = _BY_SIZE[kind]
    if size <= short[0]:
        return bytes((short[1] | size,))
    for (limit, code), form in zip((eight, sixteen, thirty_two), (">B", ">H", ">I"), strict=True):
        if size <= limit:
            return bytes((code,)) + struct.pack(form, size)
    raise ValueError(f"{kind} of {size}")


def decode(data: bytes) -> Any:
    """The one value that these bytes are; ValueError for anything else."""
    try:
        value, end = _decode_at(data, 0)
    except (IndexError, struct.error, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no msgpack: {error}") from None
    if end != len(data):
        raise ValueError("bytes behind the value")
    return value


_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i",
    0xD3: ">q",
}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_SIZED = {
    0xC4: ("bin", ">B"), 0xC5: ("bin", ">H"), 0xC6: ("bin", ">I"), 0xD9: ("str", ">B"), 0xDA: ("str", ">H"),
    0xDB: ("str", ">I"), 0xDC: ("array", ">H"), 0xDD: ("array", ">I"), 0xDE: ("map", ">H"), 0xDF: ("map", ">I"),
}  # fmt: skip


def _decode_at(data: bytes, at: int) -> tuple[Any, int]:
    code = data[at]
    at += 1
    if code < 0x80:
        return code, at
    if code >= 0xE0:
        return code - 0x100, at
    if code < 0x90:
        return _decode_items(data, at, "map", code & 0x0F)
    if code < 0xA0:
        return _decode_items(data, at, "array", code & 0x0F)
    if code < 0xC0:
        return _decode_items(data, at, "str", code & 0x1F)
    if code in _CONSTANTS:
        return _CONSTANTS[code], at
    if code in _NUMBERS:
        size = struct.calcsize(_NUMBERS[code])
        return struct.unpack(_NUMBERS[code], data[at : at + size])[0], at + size
    if code not in _SIZED:
        raise ValueError(f"msgpack code {code:#04x} is not used")
    kind, form = _SIZED[code]
    size = struct.calcsize(form)
    return _decode_items(data, at + size, kind, struct.unpack(form, data[at : at + size])[0])


def _decode_items(data: bytes, at: int, kind: str, size: int) -> tuple[Any, int]:
    if kind in ("str", "bin"):
        piece = data[at : at + size]
        if len(piece) != size:
            raise ValueError("cut short")
        return (piece.decode() if kind == "str" else piece), at + size
    items = []
    for _ in range(size * (2 if kind == "map" else 1)):
        item, at = _decode_at(data, at)
        items.append(item)
    return (dict(zip(items[::2], items[1::2], strict=True)) if kind == "map" else items), at
