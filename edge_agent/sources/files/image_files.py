"""Reader of sample files.

They are `.npy` in the model's shape and type, or `.png` scaled into the model's range of values.

The PNG decoder takes 8-bit grey or RGB, not interlaced, and refuses anything else by name. Source: Portable Network
Graphics, third edition (W3C), sections 5, 7.3, 9.2. It is our own because a sample needs these few forms only, and an
image library would cost a device more memory than the model.

Rule: the header is checked before the data is read, so that a file cannot make the agent allocate more than one sample;
every checksum is checked.
"""

import math
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.bundle.manifest import InputSpec
from models.runtime.feature_codec import NUMPY_DTYPES
from models.runtime.runner import SampleError
from wire.protocol.messages import TensorDType

ImageArray = npt.NDArray[np.uint8]
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3}
_COLOURS = {3: "a palette", 4: "transparency", 6: "transparency"}
_HEADER_BYTES = 13


class PngError(ValueError):
    """The file is not a PNG, is damaged, or of a form that is not read here; one line says which."""


def decode_png(data: bytes, shape: tuple[int, int, int]) -> ImageArray:
    """Decode a PNG into an array `[height, width, channels]` of uint8.

    Raises PngError if the file is not exactly of `shape`, or is damaged.
    """
    chunks = _read_chunks(data)
    kind, header = next(chunks, (b"", b""))
    if kind != b"IHDR" or len(header) != _HEADER_BYTES:
        raise PngError("the PNG header is missing")
    _check_header(header, shape)
    parts, ended = [], False
    for kind, body in chunks:
        parts += [body] if kind == b"IDAT" else []
        ended = ended or kind == b"IEND"
        if kind not in (b"IDAT", b"IEND", b"PLTE") and not kind[0] & 0x20:
            raise PngError("the PNG uses a critical extension that is not read here")
    if not ended:
        raise PngError("the PNG ends too early")
    return _unfilter_rows(_inflate_rows(b"".join(parts), shape), shape)


def _read_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Type and body of each chunk (section 5), after its CRC-32 was checked. PngError if one is cut or damaged."""
    if not data.startswith(_SIGNATURE):
        raise PngError("this is no PNG file")
    at = len(_SIGNATURE)
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        check = data[at + 8 + size : at + 12 + size]
        if len(check) != 4 or zlib.crc32(kind + body) != int.from_bytes(check, "big"):
            raise PngError("the PNG is damaged or cut short (checksum)")
        yield kind, body
        at += 12 + size


def _check_header(header: bytes, shape: tuple[int, int, int]) -> None:
    """Check the IHDR chunk: size, bit depth, colour type, and no interlacing. PngError says what is not supported.

    `header`: its 13 bytes; `shape`: the height, width and channels that the model takes.
    """
    width, height = int.from_bytes(header[:4], "big"), int.from_bytes(header[4:8], "big")
    depth, colour, compression, filtering, interlace = header[8:]
    if colour not in _CHANNELS:
        raise PngError(f"PNG with {_COLOURS.get(colour, 'unknown colours')}: save it as 8-bit grey or RGB")
    if depth != 8:
        raise PngError(f"PNG with {depth} bits a channel: save it with 8")
    if compression or filtering or interlace:
        raise PngError("interlaced PNG: save it without interlacing")
    found = (height, width, _CHANNELS[colour])
    if found != shape:
        raise PngError(f"PNG of {_format_size(found)}, the model takes {_format_size(shape)}")


def _inflate_rows(packed: bytes, shape: tuple[int, int, int]) -> ImageArray:
    """Decompress to rows, each behind its filter byte.

    At most one byte more than the shape needs is ever decompressed.
    """
    height, width, channels = shape
    wanted = height * (1 + width * channels)
    try:
        raw = zlib.decompressobj().decompress(packed, wanted + 1)
    except zlib.error:
        raise PngError("the PNG's image data is damaged") from None
    if len(raw) != wanted:
        raise PngError("the PNG's image data is not of the size its header names")
    return np.frombuffer(raw, np.uint8).reshape(height, 1 + width * channels)


def _unfilter_rows(rows: ImageArray, shape: tuple[int, int, int]) -> ImageArray:
    """Undo each row's filter (section 9.2); arithmetic is modulo 256."""
    height, width, channels = shape
    out = np.zeros((height, width * channels), np.uint8)
    above = np.zeros(width * channels, np.uint8)
    for y in range(height):
        above = out[y] = _unfilter_row(int(rows[y, 0]), rows[y, 1:], above, channels)
    return out.reshape(shape)


def _unfilter_row(kind: int, row: ImageArray, above: ImageArray, channels: int) -> ImageArray:
    """Undo one row's filter.

    `kind`: the filter type 0 to 4; `above`: the decoded row before; all uint8.
    """
    if kind == 0:
        return row
    if kind == 1:
        pixels = row.reshape(-1, channels)
        return np.add.accumulate(pixels, axis=0, dtype=np.uint8).reshape(-1)
    if kind == 2:
        return row + above
    if kind in (3, 4):
        return _undo_prediction(row, above, channels, paeth=kind == 4)
    raise PngError("the PNG uses an unknown row filter")


def _undo_prediction(row: ImageArray, above: ImageArray, channels: int, *, paeth: bool) -> ImageArray:
    """Undo the filters Average and Paeth, which need the pixel just decoded: a plain loop."""
    line, up = bytearray(row.tobytes()), above.tobytes()
    for x in range(len(line)):
        left = line[x - channels] if x >= channels else 0
        corner = up[x - channels] if x >= channels else 0
        line[x] = (line[x] + (_predict_paeth(left, up[x], corner) if paeth else (left + up[x]) // 2)) & 0xFF
    return np.frombuffer(bytes(line), np.uint8)


def _predict_paeth(left: int, up: int, corner: int) -> int:
    """The Paeth predictor: whichever neighbour is nearest to left + up - corner; ties in this order."""
    guess = left + up - corner
    return min((left, up, corner), key=lambda value: abs(guess - value))


def _format_size(shape: tuple[int, int, int]) -> str:
    return f"{shape[1]} x {shape[0]} {'grey' if shape[2] == 1 else 'RGB'} pixels"


SampleArray = npt.NDArray[Any]
HEADER_ROOM_BYTES = 65536
SAMPLE_SUFFIXES = (".npy", ".png")


def parse_sample_file(name: str, data: bytes, spec: InputSpec) -> SampleArray:
    """One sample of the model's shape and type, from the bytes of a `.npy` or `.png` file.

    Raises SampleError, which says what is wrong; the runner checks the range of the values.
    """
    if name.lower().endswith(".npy"):
        return _parse_npy(data, spec)
    if name.lower().endswith(".png"):
        return _parse_png(data, spec)
    raise SampleError(f"only {' and '.join(SAMPLE_SUFFIXES)} files are read")


def limit_file_bytes(spec: InputSpec) -> int:
    """An upper bound for the size of a sound sample file: its values at 8 bytes, twice, and room for headers."""
    return math.prod(spec.shape) * 16 + HEADER_ROOM_BYTES


_NPY_MAGIC = b"\x93NUMPY"
_MAX_NPY_HEADER_BYTES = 10_000
_NPY_KEYS = {"descr", "fortran_order", "shape"}
_NPY_ENTRY = re.compile(
    rb"[ \n]*+'([a-z_]{1,16})'[ \n]*+:[ \n]*+(?:'([^'\\]{1,32})'|(True|False)"
    rb"|\(((?:[ \n]*+[0-9]{1,18}[ \n]*+,)*+[ \n]*+(?:[0-9]{1,18})?+)[ \n]*+\))[ \n]*+(?:,|$)"
)
_NPY_TYPE = re.compile(r"[<>|=]?(?:[biufc][0-9]{1,2}|[SUV][0-9]{1,6}|[OmM])")


class _NpyHeader(NamedTuple):
    """What a `.npy` header says of the data behind it, which begins at byte `start` of the file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    start: int


def _parse_npy(data: bytes, spec: InputSpec) -> SampleArray:
    """Parse a NumPy file: its header is compared with the specification before the data is read.

    Fortran order is converted to C order. SampleError for any other type, shape or size.
    """
    dtype = NUMPY_DTYPES[spec.dtype]
    header = _parse_npy_header(data)
    if header.dtype != dtype or header.shape != spec.shape:
        raise SampleError(f"{header.dtype} {list(header.shape)}, the model takes {dtype} {list(spec.shape)}")
    body = data[header.start :]
    if len(body) != math.prod(spec.shape) * dtype.itemsize:
        raise SampleError("the .npy file is cut short, or something follows its data")
    return np.ascontiguousarray(np.frombuffer(body, dtype).reshape(spec.shape, order="F" if header.fortran else "C"))


def _parse_npy_header(data: bytes) -> _NpyHeader:
    """Parse the header of a NumPy file (numpy.lib.format, versions 1 to 3). SampleError if it is no plain array's.

    It is a Python literal. NumPy's own reader evaluates it, and what a damaged one then raises is nowhere stated
    (`tokenize.TokenError` among others); here the three entries are matched, and nothing is evaluated.
    """
    version, width = data[6:8], 2 if data[6:7] == b"\x01" else 4
    start = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    text = data[8 + width : start].strip(b" \n")
    sound = data[:6] == _NPY_MAGIC and version in (b"\1\0", b"\2\0", b"\3\0") and start <= len(data)
    if not sound or len(text) > _MAX_NPY_HEADER_BYTES or text[:1] != b"{" or text[-1:] != b"}":
        raise SampleError("this is no sound .npy file")
    entries, at, inside = {}, 0, text[1:-1]
    while match := _NPY_ENTRY.match(inside, at):
        entries[match[1].decode()] = match
        at = match.end()
    if inside[at:].strip(b" \n") or entries.keys() != _NPY_KEYS:
        raise SampleError("this is no sound .npy file of one plain array")
    descr, order, shape = entries["descr"][2], entries["fortran_order"][3], entries["shape"][4]
    if descr is None or order is None or shape is None:
        raise SampleError("this is no sound .npy file of one plain array")
    sizes = tuple(int(size) for size in shape.split(b",") if size.strip())
    return _NpyHeader(_parse_npy_type(descr), sizes, order == b"True", start)


def _parse_npy_type(descr: bytes) -> np.dtype[Any]:
    """The element type that a `.npy` header names, such as "<f4". SampleError if it is none."""
    text = descr.decode("latin-1")
    if _NPY_TYPE.fullmatch(text):
        with suppress(TypeError):
            return np.dtype(text)
    raise SampleError(f"elements of type {text!a} in the .npy file")


def _parse_png(data: bytes, spec: InputSpec) -> SampleArray:
    """Scale 0..255 to the range low..high of the model's input; UINT8 inputs take it as it is."""
    height, width, channels, first = _find_layout(spec.shape)
    try:
        image = decode_png(data, (height, width, channels))
    except PngError as error:
        raise SampleError(str(error)) from None
    pixels: SampleArray = image.transpose(2, 0, 1) if first else image
    pixels = np.ascontiguousarray(pixels).reshape(spec.shape)
    if spec.dtype is TensorDType.UINT8:
        return pixels
    if spec.dtype is not TensorDType.FP32:
        raise SampleError(f"a PNG cannot become {spec.dtype}: send .npy")
    scaled = spec.low + pixels.astype(np.float32) * np.float32((spec.high - spec.low) / 255)
    clipped: SampleArray = np.clip(scaled, spec.low, spec.high, dtype=np.float32)
    return clipped


def _find_layout(shape: tuple[int, ...]) -> tuple[int, int, int, bool]:
    """Height, width and channels of an image model's input, and whether channels come first."""
    if len(shape) == 2:
        return shape[0], shape[1], 1, False
    if len(shape) == 3 and shape[0] in (1, 3):
        return shape[1], shape[2], shape[0], True
    if len(shape) == 3 and shape[2] in (1, 3):
        return shape[0], shape[1], shape[2], False
    raise SampleError(f"the model takes {list(shape)}, which is no grey or RGB image: send .npy")
