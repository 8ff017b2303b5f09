"""Hostile inputs of a size: a part again and again between two ends, for texts, JSON and bytes."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

Maker = Callable[[int], bytes]


class Frame(NamedTuple):
    """What stands before and behind the repeated part: it brings a reader to the place that is tried."""

    head: bytes = b""
    tail: bytes = b""


class Shape(NamedTuple):
    """A maker of inputs, and what it repeats in words."""

    name: str
    make: Maker


BARE = (Frame(),)
JSON_FRAMES = (Frame(), Frame(b"[", b"0]"), Frame(b'{"a":"', b'"}'), Frame(b'{"a":[', b"0]}"), Frame(b"{", b'"z":0}'))
# Of every text: signs that open, close and separate in some language, alone and in pairs, and what is long or strange.
TEXT_UNITS = (
    b'"', b"'", b"\\", b'\\"', b"[", b"]", b"{", b"(", b"<", b"<a>", b"9", b"0.", b"1.5", b"-", b",", b";", b":", b"=",
    b"\n", b"\r\n", b" ", b"\t", b" \n", b"a", b"a ", b"a,", b"a=1\n", b"a.", b".", b"/", b"a/", b"%41", b"%", b"+",
    b"&a=1", b"@", b"a@", b"#", b"*", b"|", b"\xc3\xa9", b"\xf0\x9f\x98\x80", b"\0", b"\xff", b"\x1b[", b"A9+/", b"==",
    b"-----BEGIN CERTIFICATE-----\n", b"-----END CERTIFICATE-----\n", b"1e9", b"\\u0061", b"1:", b"::", b"\xef\xbb\xbf",
)  # fmt: skip
JSON_UNITS = (
    b"[],", b"{},", b"[[],", b"[1],", b'{"a":', b'{"a":1},', b'"a",', b'"abcdefgh",', b'"\\u00e9",', b"1,", b"1.5,",
    b"-1,", b"12345678,", b"1e5,", b"true,", b"null,", b'"a":1,', b'"a":[],', b'["a"],', b'{"":0},', b'"a":"a",',
)  # fmt: skip
BINARY_UNITS = (
    b"\0", b"\x01", b"\x7f", b"\x80", b"\x90", b"\x91", b"\xa0", b"\xa1a", b"\xc0", b"\xc4\x00", b"\xc4\x01a",
    b"\xd9\x01a", b"\xff", b"\xde\xff\xff", b"\xdc\xff\xff", b"\xdd\xff\xff\xff\xff", b"\x81\xa1a", b"\x0a\x00",
    b"\x0a\x02\x0a\x00",
    b"\x08\x01", b"\x12\x01a", b"\x3a\x00", b"\x26\x00\x01a\x00\x01a", b"\x1f\x00\x00", b"\x82\x01a", b"\x82\x00",
    b"\x89\x00", b"LIST\0\0\0\0", b"\xce\0\0\0\0", b"\xcb\0\0\0\0\0\0\0\0",
)  # fmt: skip


def repeat(unit: bytes, frame: Frame = Frame()) -> Maker:  # noqa: B008 - a value that nothing changes
    """Return a maker of inputs of about a size, with `unit` again and again within `frame`."""
    return lambda size: frame.head + unit * max(1, (size - len(frame.head) - len(frame.tail)) // len(unit)) + frame.tail


def number(form: bytes, frame: Frame = Frame()) -> Maker:  # noqa: B008
    """Return a maker of inputs whose parts all differ: `form` with the number of the part in it."""
    width = len(form % 0)
    return lambda size: frame.head + b"".join(form % at for at in range(max(1, size // width))) + frame.tail


def list_shapes(
    frames: tuple[Frame, ...], *, text: bool = True, json: bool = False, binary: bool = False
) -> Iterator[Shape]:
    """Yield every shape of these kinds within each frame, whole and cut off before the frame's end."""
    units = (TEXT_UNITS if text else ()) + (JSON_UNITS if json else ()) + (BINARY_UNITS if binary else ())
    forms = ((b'"%08d":1,', b'"%08d",', b'{"%08d":1},') if json else ()) + ((b"a%08d = 1\n", b"%08d,") if text else ())
    for frame in frames:
        where = f" after {frame.head[-24:]!r}" if frame.head else ""
        for unit in units:
            yield Shape(f"{unit[:16]!r}{where}", repeat(unit, frame))
        for form in forms:
            yield Shape(f"{form!r}{where}", number(form, frame))
        if frame.tail:
            for unit in units[::5]:
                yield Shape(f"{unit[:16]!r}{where}, cut off", repeat(unit, Frame(frame.head)))
