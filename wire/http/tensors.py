"""Tensors of the Open Inference Protocol v2: conversion between JSON or binary data and numpy arrays.

Rule: an array parsed here has exactly the type, shape and size its head names; otherwise OipError(400) says why.
Source: KServe Open Inference Protocol v2; Triton binary tensor data extension.
"""

import math
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

Array = np.ndarray[Any, "np.dtype[Any]"]


class OipError(Exception):
    """Error of a request: one line for the caller, and the HTTP status that carries it.

    The body of the response is `{"error": line}`.
    """

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status

    def json_body(self) -> bytes:
        """JSON body of the response."""
        return msgspec.json.encode({"error": str(self)})


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
    if not head.shape or len(head.shape) > MAX_DIMENSIONS or not all(0 <= n < 2**31 for n in head.shape):
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

    Raises OipError(400) for another number of values, values of another type, or an integer out of range.
    """
    values = _parse_json_values(head)
    if values.size != count or (values.ndim != 1 and values.shape != tuple(head.shape)):
        raise input_error(
            head,
            f"shape {format_shape(head.shape)} wants {count} values, the data has shape {format_shape(values.shape)}",
        )
    if head.datatype == BYTES_DATATYPE:
        return _make_object_array(_encode_texts(head, values.ravel().tolist()), head.shape)
    return _cast_values(head, values).reshape(head.shape)


def _parse_json_values(head: TensorHead) -> Array:
    """Values of the JSON data as an array of any type."""
    if not bytes(head.data):
        raise input_error(head, "has no data")
    try:
        data = msgspec.json.decode(head.data)
        dtype = object if head.datatype == BYTES_DATATYPE else None  # a numpy text array would drop trailing zeros
        values: Array = np.asarray(data if isinstance(data, list) else [data], dtype)
        if head.datatype == "UINT64" and values.dtype.kind == "f":
            values = _read_large_integers(data, values)
    except RecursionError:
        raise input_error(head, "the data is nested too deeply") from None
    except (msgspec.DecodeError, ValueError, OverflowError):
        raise input_error(head, "the data is not a regular list of values") from None
    return values


def _read_large_integers(data: object, values: Array) -> Array:
    """Unsigned integers that numpy read as floats, which it does where one is above 2**63 - 1 and another is not.

    `values` as they are if a number is no integer, or none of 64 bits.
    """
    exact = np.asarray(data, object)
    if all(type(value) is int and 0 <= value < 1 << 64 for value in exact.flat):
        return exact.astype(np.uint64)
    return values


def _cast_values(head: TensorHead, values: Array) -> Array:
    """Cast JSON numbers to the datatype.

    Integers for integer types, any number for floating ones, true and false for BOOL.
    """
    dtype = NUMPY_DTYPES[head.datatype]
    accepted = {"b": "b", "f": "iuf"}.get(dtype.kind, "iu")
    if values.size and values.dtype.kind not in accepted:
        raise input_error(head, f"the data is not {head.datatype}")
    if dtype.kind in "iu" and values.size:
        limits = np.iinfo(dtype)
        if int(values.min()) < limits.min or int(values.max()) > limits.max:
            raise input_error(head, f"a value does not fit {head.datatype}")
    with np.errstate(over="ignore"):  # becomes infinite, which `validate_inputs` refuses by name
        return values.astype(dtype)


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
