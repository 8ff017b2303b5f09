"""Feature codec shared by edge and hub: small whole codes in, a `Tensor` for the link out, and back.

Rule: opened once, from a manifest and its verified files; `decode` believes nothing it is given and raises
`CodecError`, nothing else. The length of what is sent depends on the feature's shape and tables alone, never on the
sample.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.bundle.codec_bits import ANS, CODECS, NUMPY_DTYPES, CodecError, Codes, levels, pack_of, smallest
from models.runtime import codec_ans
from models.runtime.codec_ans import ans_tables
from wire.protocol.messages import DType, FieldSpec, Tensor

if TYPE_CHECKING:
    from models.bundle.manifest import Manifest

__all__ = [
    "ANS",
    "CODECS",
    "NUMPY_DTYPES",
    "CodecError",
    "Codes",
    "FeatureCodec",
    "ans_tables",
    "codec_of",
    "levels",
    "open_codec",
    "smallest",
    "tables_of",
]


_MOST = 255  # the largest code


class _Coder(NamedTuple):
    """Encoder and decoder of one feature, for its number of codes."""

    spec: FieldSpec
    levels: int
    size: int  # bytes of the payload
    pack: Callable[[Codes], bytes]
    unpack: Callable[[bytes], Codes]


class FeatureCodec:
    """A codec with its tables, opened for the features of one model. Immutable; threads may share it."""

    def __init__(self, name: str, coders: Mapping[str, _Coder]) -> None:
        self.name = name
        self._coders = dict(coders)

    def encode(self, feature: str, codes: npt.NDArray[Any]) -> Tensor:
        """Encode codes (uint8, the feature's shape) as a flat UINT8 tensor of `payload_bytes` bytes.

        CodecError if type or shape is another, a code is above the codec's largest, or there is no such feature.
        """
        coder = self._coder(feature)
        if codes.dtype != np.uint8 or codes.shape != coder.spec.shape:
            raise CodecError(f"{feature}: {codes.dtype} {list(codes.shape)}; it is uint8 {list(coder.spec.shape)}")
        flat = np.ascontiguousarray(codes).reshape(-1)
        if int(flat.max()) >= coder.levels:
            raise CodecError(
                f"{feature}: code {int(flat.max())} is above {coder.levels - 1}, the largest of {self.name}"
            )
        data = coder.pack(flat)
        return Tensor(DType.UINT8, (len(data),), data)

    def decode(self, feature: str, tensor: Tensor) -> Codes:
        """Decode a tensor to codes in the feature's shape, each inside its `low..high`.

        CodecError for anything else.
        """
        coder = self._coder(feature)
        spec, size = coder.spec, coder.size
        if tensor.dtype is not DType.UINT8 or tensor.shape != (size,) or len(tensor.data) != size:
            got = f"{tensor.dtype} {list(tensor.shape)} of {len(tensor.data)} bytes"
            raise CodecError(f"{feature}: {got}; {self.name} of {list(spec.shape)} is UINT8 [{size}]")
        codes = coder.unpack(tensor.data)
        whole = spec.low <= 0 and spec.high >= _MOST  # then no code can be outside
        if not whole and not spec.low <= int(codes.min()) <= int(codes.max()) <= spec.high:
            raise CodecError(f"{feature}: codes {codes.min()}..{codes.max()} outside {spec.low:g}..{spec.high:g}")
        return codes.reshape(spec.shape)

    def payload_bytes(self, feature: str) -> int:
        """Return the bytes on the link of one sample's codes of this feature, before envelope and padding."""
        return self._coder(feature).size

    @property
    def total_bytes(self) -> int:
        """Bytes on the link of all features of one sample together, before envelope and padding."""
        return sum(coder.size for coder in self._coders.values())

    def _coder(self, feature: str) -> _Coder:
        try:
            return self._coders[feature]
        except KeyError:
            raise CodecError(f"the model has no feature {feature[:64]!r}") from None


def open_codec(manifest: "Manifest", read: Callable[[str], bytes]) -> FeatureCodec:
    """Open the codec that a manifest names, for all its features.

    `read` gives the verified bytes of a file that the manifest names. CodecError if the tables do not fit.
    """
    return codec_of(manifest.codec, manifest.features, tables_of(manifest, read))


def tables_of(manifest: "Manifest", read: Callable[[str], bytes]) -> bytes:
    """Read the bytes of the codec's tables, b"" if it has none."""
    return read(manifest.codec_file) if manifest.codec_file else b""


def codec_of(name: str, features: Sequence[FieldSpec], tables: bytes = b"") -> FeatureCodec:
    """Build a codec from its parts: name, features in order, and for "ans" their tables in the same order.

    CodecError if the name is not known or the tables do not fit the features.
    """
    coders = _ans(features, tables) if name == ANS else [_packed(name, spec) for spec in features]
    return FeatureCodec(name, {coder.spec.name: coder for coder in coders})


def _packed(name: str, spec: FieldSpec) -> _Coder:
    pack = pack_of(name)
    count = math.prod(spec.shape)
    return _Coder(spec, pack.levels, pack.size(count), pack.pack, lambda data: pack.unpack(data, count))


def _ans(features: Sequence[FieldSpec], data: bytes) -> list[_Coder]:
    tables = codec_ans.read_tables(data)
    if len(tables) != len(features):
        raise CodecError(f"{len(tables)} tables for {len(features)} features")
    return [_tabled(spec, table) for spec, table in zip(features, tables, strict=True)]


def _tabled(spec: FieldSpec, table: codec_ans.Table) -> _Coder:
    positions, count = table.probabilities.shape
    if positions != math.prod(spec.shape) or spec.high > count - 1:
        raise CodecError(f"{spec.name}: the table is for {positions} codes of {count} levels")

    def pack(codes: Codes) -> bytes:
        return codec_ans.encode(codes, table)

    def unpack(payload: bytes) -> Codes:
        return codec_ans.decode(payload, table)

    return _Coder(spec, count, table.capped_bytes, pack, unpack)
