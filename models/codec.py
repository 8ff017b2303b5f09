"""The feature codec both sides share: small integer codes in, a `Tensor` for the link out, and back.

Law: `decode` believes nothing it is given and raises `CodecError`, nothing else; both directions need only numpy.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wire.messages import DType, FieldSpec, Tensor

Codes = npt.NDArray[np.uint8]

NUMPY_DTYPES: dict[DType, np.dtype[Any]] = {
    DType.FP32: np.dtype("<f4"),
    DType.FP16: np.dtype("<f2"),
    DType.INT64: np.dtype("<i8"),
    DType.INT32: np.dtype("<i4"),
    DType.INT8: np.dtype("i1"),
    DType.UINT8: np.dtype("u1"),
    DType.BOOL: np.dtype("?"),
}


class CodecError(ValueError):
    """These codes, or this tensor, are not what the codec and the field's specification allow."""


class _Codec(NamedTuple):
    top: int  # largest code it can carry
    size: Callable[[int], int]  # number of codes -> payload bytes
    pack: Callable[[Codes], bytes]  # flat codes -> payload
    unpack: Callable[[bytes, int], Codes]  # payload of the right size, number of codes -> flat codes


def encode(name: str, codes: npt.NDArray[Any]) -> Tensor:
    """Codes of any shape (uint8) -> a flat UINT8 tensor of `payload_bytes` elements. CodecError if one does not fit."""
    codec = _codec(name)
    if codes.dtype != np.uint8:
        raise CodecError(f"codes are {codes.dtype}, {name} takes uint8")
    if codes.size and int(codes.max()) > codec.top:
        raise CodecError(f"code {int(codes.max())} is above {codec.top}, the largest of {name}")
    data = codec.pack(np.ascontiguousarray(codes).reshape(-1))
    return Tensor(DType.UINT8, (len(data),), data)


def decode(name: str, tensor: Tensor, spec: FieldSpec) -> Codes:
    """The codes in the specification's shape, each inside its `low..high`. CodecError for anything else."""
    codec = _codec(name)
    count = math.prod(spec.shape)
    size = codec.size(count)
    if tensor.dtype is not DType.UINT8 or tensor.shape != (size,) or len(tensor.data) != size:
        got = f"{tensor.dtype} {list(tensor.shape)} of {len(tensor.data)} bytes"
        raise CodecError(f"{spec.name}: {got}; {name} of {list(spec.shape)} is UINT8 [{size}]")
    codes = codec.unpack(tensor.data, count)
    if codes.size and not spec.low <= int(codes.min()) <= int(codes.max()) <= spec.high:
        raise CodecError(f"{spec.name}: codes {codes.min()}..{codes.max()} outside {spec.low:g}..{spec.high:g}")
    return codes.reshape(spec.shape)


def payload_bytes(name: str, shape: tuple[int, ...]) -> int:
    """Bytes on the link of one sample's codes, before envelope and padding."""
    return _codec(name).size(math.prod(shape))


def top(name: str) -> int:
    """The largest code that the codec carries."""
    return _codec(name).top


def _codec(name: str) -> _Codec:
    try:
        return CODECS[name]
    except (KeyError, TypeError):
        raise CodecError(f"codec {name!r} is not known here; known: {', '.join(CODECS)}") from None


def _pack4(codes: Codes) -> bytes:
    padded = np.zeros(codes.size + codes.size % 2, np.uint8)
    padded[: codes.size] = codes
    return ((padded[0::2] << 4) | padded[1::2]).tobytes()


def _unpack4(data: bytes, count: int) -> Codes:
    packed = np.frombuffer(data, np.uint8)
    codes = np.empty(2 * packed.size, np.uint8)
    codes[0::2] = packed >> 4
    codes[1::2] = packed & 0x0F
    if codes[count:].any():  # one question has one encoding: a filled spare nibble would be a hidden channel
        raise CodecError("the spare half of the last byte is not zero")
    return codes[:count]


def _pack8(codes: Codes) -> bytes:
    return codes.tobytes()


def _unpack8(data: bytes, count: int) -> Codes:
    return np.frombuffer(data, np.uint8, count).copy()


CODECS: dict[str, _Codec] = {
    "pack4": _Codec(15, lambda count: -(-count // 2), _pack4, _unpack4),  # two codes a byte, the first one high
    "raw8": _Codec(255, lambda count: count, _pack8, _unpack8),
}
