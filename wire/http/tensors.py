"""Tensors of the Open Inference Protocol v2: conversion between JSON or binary data and numpy arrays.

Rule: an array parsed here has exactly the type, shape and size its head names; otherwise OipError(400) says why.
Source: KServe Open Inference Protocol v2; Triton binary tensor data extension.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from wire.protocol.messages import TensorDType

BYTES_DATATYPE = "BYTES"
NUMPY_DTYPES: Mapping[str, "np.dtype[Any]"] = {
    name: np.dtype(code)
    for name, code in {
        "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
        "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8", BYTES_DATATYPE: "O",
    }.items()
}  # fmt: skip
MAX_DIMENSIONS = 16
MAX_SHAPE_ELEMENTS = 2**31 - 1  # axes of size 0 counted as 1: numpy refuses to make an empty array of a larger shape
MAX_TEXTS = 65_536  # of one tensor: each takes about 100 bytes as an object, however short it is
MAX_COUNTED = 64  # values of another number than the shape says that are looked at, to say what is wrong
_PIECE_BYTES = 65_536  # of JSON that are decoded at once
_DECODERS: Mapping[str, msgspec.json.Decoder[Any]] = {
    "b": msgspec.json.Decoder(list[bool]),
    "i": msgspec.json.Decoder(list[int]),
    "u": msgspec.json.Decoder(list[int]),
    "f": msgspec.json.Decoder(list[float]),
}
_WIDE_DTYPES = {"b": np.bool_, "i": np.int64, "u": np.uint64, "f": np.float64}
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[],"))
_BRACKETS_TO_BLANKS = bytes.maketrans(b"[]", b"  ")
# Every repeat is possessive and a text without an end matches up to the end: no byte is read twice.
_VALUE = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[^\],\s]', re.DOTALL)

Array = np.ndarray[Any, "np.dtype[Any]"]


class OipError(Exception):
    """Error of a request: one line for the caller, and the HTTP status that carries it."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


class TensorHead(msgspec.Struct, frozen=True):
    """An input as the request's JSON describes it; `data` is still JSON, and empty where binary data follows."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] = {}
    data: msgspec.Raw = msgspec.Raw()


def input_error(head: TensorHead, line: str) -> OipError:
    """OipError(400) that names the input."""
    return OipError(400, f"input '{shorten_name(head.name)}': {line}")


def name_datatype(array: Array) -> str:
    """Protocol name of an array's element type. Raises OipError(500) for a type that has none."""
    little = array.dtype.newbyteorder("<")
    for name, dtype in NUMPY_DTYPES.items():
        if dtype == little:
            return name
    raise OipError(500, f"no Open Inference Protocol datatype for {array.dtype}")


def read_binary_size(head: TensorHead) -> int | None:
    """Number of bytes after the JSON that belong to this input; None if its data stands in the JSON.

    Raises OipError(400) for shared memory, an invalid size, or data in both places.
    """
    if any(key.startswith("shared_memory") for key in head.parameters):
        raise input_error(head, "shared memory is not offered here")
    size = head.parameters.get("binary_data_size")
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise input_error(head, "binary_data_size is not a size")
    if bytes(head.data):
        raise input_error(head, "has both data and binary_data_size")
    return size


def count_elements(head: TensorHead) -> int:
    """Number of elements that the shape names.

    Raises OipError(400) for an unknown datatype, a negative size, more than `MAX_DIMENSIONS` axes, or a shape of more
    than `MAX_SHAPE_ELEMENTS` elements, also where an axis of 0 makes it an empty one.
    """
    if head.datatype not in NUMPY_DTYPES:
        raise input_error(head, f"unknown datatype '{shorten_name(head.datatype)}'")
    if len(head.shape) > MAX_DIMENSIONS:
        raise input_error(head, f"a shape of {len(head.shape)} axes, at most {MAX_DIMENSIONS} are taken")
    if not head.shape or not all(0 <= n < 2**31 for n in head.shape):
        raise input_error(head, f"shape {format_shape(head.shape)} is not a shape")
    if math.prod(n or 1 for n in head.shape) > MAX_SHAPE_ELEMENTS:
        raise input_error(head, f"shape {format_shape(head.shape)} is too large")
    return math.prod(head.shape)


def parse_binary_tensor(head: TensorHead, data: bytes, count: int) -> Array:
    """Parse binary tensor data into an array of `count` elements.

    `data`: this input's part of the bytes after the JSON; the array is a read-only view of it, object arrays excepted.
    Raises OipError(400) if the sizes do not agree.
    """
    if head.datatype == BYTES_DATATYPE:
        return _parse_texts(head, data, count)
    dtype = NUMPY_DTYPES[head.datatype]
    if len(data) != count * dtype.itemsize or head.parameters["binary_data_size"] != len(data):
        named = head.parameters["binary_data_size"]
        raise input_error(
            head,
            f"{head.datatype}{format_shape(head.shape)} takes {count * dtype.itemsize} bytes, "
            f"binary_data_size says {named}, {len(data)} came",
        )
    if head.datatype == "BOOL" and data.strip(b"\0\1"):
        raise input_error(head, "a BOOL byte is neither 0 nor 1")
    return np.frombuffer(data, dtype).reshape(head.shape)


def _parse_texts(head: TensorHead, data: bytes, count: int) -> Array:
    """Parse `u32 length | bytes`, once per element."""
    texts: list[bytes] = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        if at + 4 + size > len(data):
            raise input_error(head, "a text ends outside the binary data")
        texts.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    if len(texts) != count or head.parameters["binary_data_size"] != len(data):
        raise input_error(head, f"shape {format_shape(head.shape)} and {len(texts)} texts")
    return _make_object_array(texts, head.shape)


def parse_json_tensor(head: TensorHead, count: int) -> Array:
    """Parse JSON data, flat or nested as the shape says, into an array of `count` elements.

    Raises OipError(400) for another number of values, values of another type, or an integer out of range. Numbers are
    decoded in pieces into the array, which takes at most 8 bytes for each: lists of Python's values take four times it.
    """
    data = bytes(head.data)
    if not data:
        raise input_error(head, "has no data")
    if head.datatype == BYTES_DATATYPE:
        return _parse_json_texts(head, data, count)
    if b'"' in data:
        raise input_error(head, f"the data is not {head.datatype}")
    found = _find_shape(head, data)
    if math.prod(found) != count or (len(found) != 1 and found != tuple(head.shape)):
        raise input_error(
            head, f"shape {format_shape(head.shape)} wants {count} values, the data has shape {format_shape(found)}"
        )
    flat = data.strip(b"[] \t\r\n") if len(found) == 1 else data.translate(_BRACKETS_TO_BLANKS)
    return _parse_json_numbers(head, flat, count).reshape(head.shape)


def _find_shape(head: TensorHead, data: bytes) -> tuple[int, ...]:
    """Find the shape of nested lists of numbers by their brackets and commas alone. OipError(400) unless regular."""
    if data.count(b"[") <= 1:  # the quick way for what nearly all send
        return (data.count(b",") + 1 if data.strip(b"[] \t\r\n") else 0,)
    signs = data.translate(None, _NOT_STRUCTURE)
    depth = len(signs) - len(signs.lstrip(b"["))
    if depth > MAX_DIMENSIONS:
        raise input_error(head, "the data is nested too deeply")
    left, sizes = signs, list[int]()
    for _ in range(depth):  # the innermost lists become values of those around them
        end = left.find(b"]")
        innermost = left[left.rfind(b"[", 0, end) : end + 1]
        sizes.insert(0, len(innermost) - 1)
        left = left.replace(innermost, b"")
    if not data.translate(None, b"[], \t\r\n"):  # lists without a value look like lists of one
        sizes[-1] = 0
    expected = b"1"
    for size in reversed(sizes):
        if (len(expected) + 1) * size > 2 * len(signs) + 2:
            break
        expected = b"[" + ((expected + b",") * size)[:-1] + b"]"
    if left or expected.translate(None, b"1") != signs:
        raise input_error(head, "the data is not a regular list of values")
    return tuple(sizes)


def _parse_json_numbers(head: TensorHead, numbers: bytes, count: int) -> Array:
    """Parse JSON numbers with commas between: integers for integer types, any for floating ones, booleans for BOOL."""
    dtype = NUMPY_DTYPES[head.datatype]
    wide = _WIDE_DTYPES[dtype.kind]
    array: Array = np.empty(count, dtype)
    at = filled = 0
    while filled < count:
        end = numbers.find(b",", at + _PIECE_BYTES)
        end = len(numbers) if end < 0 else end
        try:
            values: Array = np.array(_DECODERS[dtype.kind].decode(b"[" + numbers[at:end] + b"]"), wide)
        except msgspec.ValidationError:
            raise input_error(head, f"the data is not {head.datatype}") from None
        except msgspec.DecodeError:
            raise input_error(head, "the data is not a regular list of values") from None
        except OverflowError:
            raise input_error(head, f"a value does not fit {head.datatype}") from None
        if not 0 < len(values) <= count - filled:
            raise input_error(head, "the data is not a regular list of values")
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            if int(values.min()) < limits.min or int(values.max()) > limits.max:
                raise input_error(head, f"a value does not fit {head.datatype}")
        with np.errstate(over="ignore"):  # becomes infinite, which `validate_inputs` refuses by name
            array[filled : filled + len(values)] = values.astype(dtype)
        at, filled = end + 1, filled + len(values)
    return array


def _parse_json_texts(head: TensorHead, data: bytes, count: int) -> Array:
    """Parse JSON texts, flat or nested; they are counted before any is decoded."""
    _count_texts(head, data, count)
    try:
        found = msgspec.json.decode(data)
        values: Array = np.asarray(found if isinstance(found, list) else [found], object)
    except RecursionError:
        raise input_error(head, "the data is nested too deeply") from None
    except (msgspec.DecodeError, ValueError):
        raise input_error(head, "the data is not a regular list of values") from None
    if values.size != count or (values.ndim != 1 and values.shape != tuple(head.shape)):
        raise input_error(
            head,
            f"shape {format_shape(head.shape)} wants {count} values, the data has shape {format_shape(values.shape)}",
        )
    return _make_object_array(_encode_texts(head, values.ravel().tolist()), head.shape)


def _count_texts(head: TensorHead, data: bytes, count: int) -> None:
    """OipError(400) for more texts than the shape says or one tensor may have, and for what only lists can hold."""
    if count > MAX_TEXTS:
        raise input_error(head, f"{count} texts, at most {MAX_TEXTS} are taken in one tensor")
    texts = lists = 0
    for part in _VALUE.finditer(data):
        if part[0][0] not in b'"[{':
            raise input_error(head, "the data is not text")
        texts, lists = (texts, lists + 1) if part[0] == b"[" else (texts + 1, lists)
        if texts > max(count, MAX_COUNTED) or lists > max(count, MAX_COUNTED) * MAX_DIMENSIONS or part[0] == b"{":
            line = f"shape {format_shape(head.shape)} wants {count} texts, and nothing else"
            raise input_error(head, line)


def _encode_texts(head: TensorHead, values: list[object]) -> list[bytes]:
    """Encode texts as UTF-8. Raises OipError(400) if one is no text."""
    texts = [value.encode() for value in values if isinstance(value, str)]
    if len(texts) != len(values):
        raise input_error(head, "the data is not text")
    return texts


def serialise_array(array: Array, datatype: str) -> bytes:
    """Serialise an array for the binary extension: little-endian in C order; texts each behind their u32 length."""
    if datatype == BYTES_DATATYPE:
        return b"".join(len(text).to_bytes(4, "little") + text for text in array.ravel())
    return array.astype(NUMPY_DTYPES[datatype], copy=False).tobytes()


def _make_object_array(texts: list[bytes], shape: list[int]) -> Array:
    """Object array of texts in this shape."""
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array.reshape(shape)


def shorten_name(text: str) -> str:
    """First 60 characters of a caller's text, unprintable ones replaced, for an error line."""
    return "".join(c if c.isprintable() else "?" for c in text[:60])


def format_shape(shape: Iterable[int]) -> str:
    """Format a shape as "[1,28,28]"."""
    return "[" + ",".join(str(size) for size in shape) + "]"


def make_text_tensor(values: Iterable[str]) -> Array:
    """One-axis BYTES tensor of UTF-8 texts."""
    return np.array([value.encode() for value in values], dtype=object)


def to_numpy_dtype(dtype: TensorDType) -> "np.dtype[Any]":
    """Numpy type of a link tensor's element type."""
    return NUMPY_DTYPES[dtype.value]


def name_domain(in_domain: bool | None) -> str:
    """Whether a sample belongs to what the model knows, as a parameter says it: "true", "false", "" = cannot tell."""
    return "" if in_domain is None else str(in_domain).lower()
