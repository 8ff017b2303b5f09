"""Samples as a model takes them: numpy arrays, torch tensors, pictures, lists of numbers, bytes and texts. No I/O.

Rule: nothing is resized, cut or rounded in silence; what does not fit is refused (`SampleError`) before it is sent.
Neither numpy nor Pillow is imported: an array brings its own methods, a picture too.
"""

import io
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from skerry_client.errors import SampleError

BYTES = "BYTES"
CODES = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b", "INT16": "h", "INT32": "i",
    "INT64": "q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
_NUMPY = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
_PICTURES = (b"\x89PNG\r\n", b"\xff\xd8\xff", b"RIFF", b"GIF8", b"BM")
_CHANNELS = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class ModelInput:
    """What a model takes: name and datatype of its tensor, shape of one sample, and the range of its values.

    `low`, `high`: None where the server does not say them.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    low: float | None = None
    high: float | None = None

    @property
    def size(self) -> int:
        """Bytes of one sample; of a text 1."""
        if self.datatype == BYTES:
            return 1
        return math.prod(self.shape) * struct.calcsize("<" + CODES[self.datatype])

    def describe(self) -> str:
        """The input in a few words."""
        return "a text" if self.datatype == BYTES else f"{self.datatype} {list(self.shape)}"

    @property
    def is_float(self) -> bool:
        """Whether its values are floating-point numbers, which may be no numbers at all."""
        return self.datatype in ("FP16", "FP32", "FP64")


def encode_sample(sample: object, spec: ModelInput) -> bytes:
    """Return the bytes of one sample, little-endian in C order (a text: behind its length). SampleError if unfit."""
    if spec.datatype == BYTES:
        return _encode_text(sample, spec)
    if spec.datatype not in CODES:
        raise SampleError(f"{spec.name}: this client does not know the datatype {spec.datatype}; update it")
    if isinstance(sample, str):
        raise SampleError(f"{spec.name}: a text came, the model takes {spec.describe()}")
    if isinstance(sample, bytes | bytearray | memoryview):
        return _encode_bytes(bytes(sample), spec)
    if hasattr(sample, "getbands"):
        return _encode_picture(sample, spec)
    if hasattr(sample, "numpy"):  # a tensor of torch
        sample = sample.detach().cpu().numpy() if hasattr(sample, "detach") else sample.numpy()
    if hasattr(sample, "astype"):
        return _encode_array(sample, spec)
    if isinstance(sample, Sequence):
        return _encode_numbers(sample, spec)
    raise SampleError(f"{spec.name}: {type(sample).__name__} is no sample; the model takes {spec.describe()}")


def _encode_text(sample: object, spec: ModelInput) -> bytes:
    if not isinstance(sample, str | bytes):
        raise SampleError(f"{spec.name}: {type(sample).__name__} came, the model takes a text")
    text = sample.encode() if isinstance(sample, str) else sample
    return len(text).to_bytes(4, "little") + text


def _encode_bytes(data: bytes, spec: ModelInput) -> bytes:
    """Raw values, or a picture's file, which Pillow decodes."""
    if len(data) == spec.size:
        if spec.is_float or spec.low is not None:
            _check_values([value for (value,) in struct.iter_unpack("<" + CODES[spec.datatype], data)], spec)
        return data
    if not data.startswith(_PICTURES):
        raise SampleError(f"{spec.name}: {len(data)} bytes came, {spec.describe()} takes {spec.size}")
    try:
        from PIL import Image, UnidentifiedImageError  # noqa: PLC0415 - only who sends picture files needs it
    except ImportError:
        raise SampleError("a picture's file takes Pillow to decode: pip install pillow, or send an array") from None
    try:
        with Image.open(io.BytesIO(data)) as picture:
            return _encode_picture(picture, spec)
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise SampleError(f"{spec.name}: the picture cannot be decoded: {error}") from None


def _encode_picture(picture: Any, spec: ModelInput) -> bytes:
    """A picture of Pillow: grey or RGB as the model takes it, 0..255 scaled into the range of its values."""
    height, width, channels, first = _find_layout(spec)
    if picture.size != (width, height):
        raise SampleError(
            f"{spec.name}: a picture of {picture.size[0]} x {picture.size[1]} came, the model takes {width} x {height}:"
            f" picture.resize(({width}, {height}))"
        )
    pixels: bytes = picture.convert(_CHANNELS[channels]).tobytes()
    if first and channels > 1:
        pixels = b"".join(pixels[channel::channels] for channel in range(channels))
    if spec.datatype == "UINT8":
        return pixels
    if spec.low is None or spec.high is None:
        raise SampleError(f"{spec.name}: the server does not say the range of its values: send a scaled array")
    steps = [min(spec.high, spec.low + level * (spec.high - spec.low) / 255) for level in range(256)]
    return _pack([steps[level] for level in pixels], spec)


def _find_layout(spec: ModelInput) -> tuple[int, int, int, bool]:
    """Height, width and channels of a picture model's input, and whether channels come first."""
    shape = spec.shape
    if len(shape) == 2:
        return shape[0], shape[1], 1, False
    if len(shape) == 3 and shape[0] in _CHANNELS:
        return shape[1], shape[2], shape[0], True
    if len(shape) == 3 and shape[2] in _CHANNELS:
        return shape[0], shape[1], shape[2], False
    raise SampleError(
        f"{spec.name}: a picture came, the model takes {spec.describe()}, which is no grey or RGB picture"
    )


def _encode_array(array: Any, spec: ModelInput) -> bytes:
    _check_shape(tuple(array.shape), spec)
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and not spec.is_float):
        raise SampleError(f"{spec.name}: an array of {array.dtype} came, the model takes {spec.describe()}")
    cast = array.astype(_NUMPY[spec.datatype], copy=False)
    if array.dtype.kind in "iu" and not (cast == array).all():
        raise SampleError(f"{spec.name}: a value of the array does not fit {spec.datatype}")
    if array.size:
        _check_range(float(cast.min()), float(cast.max()), spec)  # numpy's are NaN where a value is
    data: bytes = cast.tobytes()
    return data


def _encode_numbers(values: Sequence[object], spec: ModelInput) -> bytes:
    shape = _measure(values)
    _check_shape(shape, spec)
    flat = list(_flatten(values, len(shape)))
    if len(flat) != math.prod(shape):
        raise SampleError(f"{spec.name}: the lists are of different lengths")
    return _pack(flat, spec)


def _pack(values: Sequence[object], spec: ModelInput) -> bytes:
    try:
        data = struct.pack(f"<{len(values)}{CODES[spec.datatype]}", *values)
    except (struct.error, OverflowError) as error:
        raise SampleError(f"{spec.name}: a value is not {spec.datatype}: {error}") from None
    _check_values(values, spec)
    return data


def _check_values(values: Sequence[Any], spec: ModelInput) -> None:
    if not values:
        return
    if spec.is_float and not all(map(math.isfinite, values)):
        raise _no_number(spec)
    _check_range(float(min(values)), float(max(values)), spec)


def _check_range(least: float, greatest: float, spec: ModelInput) -> None:
    """SampleError if the values, from `least` to `greatest`, are no numbers or not all within the model's range."""
    if not (math.isfinite(least) and math.isfinite(greatest)):
        raise _no_number(spec)
    if (spec.low is not None and least < spec.low) or (spec.high is not None and greatest > spec.high):
        low, high = (f"{bound:g}" if bound is not None else "any" for bound in (spec.low, spec.high))
        raise SampleError(f"{spec.name}: values of {least:g} to {greatest:g} came, the model takes {low} to {high}")


def _no_number(spec: ModelInput) -> SampleError:
    return SampleError(f"{spec.name}: a value is NaN or infinite")


def _check_shape(shape: tuple[int, ...], spec: ModelInput) -> None:
    if shape not in (spec.shape, (1, *spec.shape)):
        raise SampleError(f"{spec.name}: one sample has shape {list(spec.shape)}, {list(shape)} came")


def _measure(values: object) -> tuple[int, ...]:
    """Shape of nested lists, by the first of each."""
    shape: list[int] = []
    while isinstance(values, Sequence) and not isinstance(values, str | bytes):
        shape.append(len(values))
        values = values[0] if values else None
    return tuple(shape)


def _flatten(values: Any, depth: int) -> Iterator[object]:
    if depth == 0 or not isinstance(values, Sequence) or isinstance(values, str | bytes):
        yield values
        return
    for each in values:
        yield from _flatten(each, depth - 1)
