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

from models.bundle.bit_packing import (
    ANS,
    ANS_STEPS,
    CODECS,
    NUMPY_DTYPES,
    TABLED_CODECS,
    CodecError,
    Codes,
    codec_levels,
    find_packing,
    smallest_codec,
)
from models.runtime import codec_ans, codec_steps
from models.runtime.codec_ans import build_ans_tables
from wire.protocol.messages import FieldSpec, Tensor, TensorDType

if TYPE_CHECKING:
    from models.bundle.manifest import Manifest

__all__ = [
    "ANS",
    "ANS_STEPS",
    "CODECS",
    "NUMPY_DTYPES",
    "TABLED_CODECS",
    "CodecError",
    "Codes",
    "FeatureCodec",
    "build_ans_tables",
    "build_codec",
    "codec_levels",
    "open_codec",
    "read_codec_tables",
    "smallest_codec",
]


_MAX_CODE = 255  # the largest code


class _FeatureCoder(NamedTuple):
    """Encoder and decoder of one feature, for its number of codes."""

    spec: FieldSpec
    levels: int
    size: int  # bytes of the payload
    pack: Callable[[Codes], bytes]
    unpack: Callable[[bytes], Codes]


class FeatureCodec:
    """A codec with its tables, opened for the features of one model. Immutable; threads may share it."""

    def __init__(self, name: str, coders: Mapping[str, _FeatureCoder]) -> None:
        self.name = name
        self._coders = dict(coders)

    def encode(self, feature: str, codes: npt.NDArray[Any]) -> Tensor:
        """Encode codes (uint8, the feature's shape) as a flat UINT8 tensor of `payload_bytes` bytes.

        CodecError if type or shape is another, a code is above the codec's largest, or there is no such feature.
        """
        coder = self._coder_for(feature)
        if codes.dtype != np.uint8 or codes.shape != coder.spec.shape:
            raise CodecError(f"{feature}: {codes.dtype} {list(codes.shape)}; it is uint8 {list(coder.spec.shape)}")
        flat = np.ascontiguousarray(codes).reshape(-1)
        if int(flat.max()) >= coder.levels:
            raise CodecError(
                f"{feature}: code {int(flat.max())} is above {coder.levels - 1}, the largest of {self.name}"
            )
        data = coder.pack(flat)
        return Tensor(TensorDType.UINT8, (len(data),), data)

    def decode(self, feature: str, tensor: Tensor) -> Codes:
        """Decode a tensor to codes in the feature's shape, each inside its `low..high`.

        CodecError for anything else.
        """
        coder = self._coder_for(feature)
        spec, size = coder.spec, coder.size
        if tensor.dtype is not TensorDType.UINT8 or tensor.shape != (size,) or len(tensor.data) != size:
            got = f"{tensor.dtype} {list(tensor.shape)} of {len(tensor.data)} bytes"
            raise CodecError(f"{feature}: {got}; {self.name} of {list(spec.shape)} is UINT8 [{size}]")
        codes = coder.unpack(tensor.data)
        whole = spec.low <= 0 and spec.high >= _MAX_CODE  # then no code can be outside
        if not whole and not spec.low <= int(codes.min()) <= int(codes.max()) <= spec.high:
            raise CodecError(f"{feature}: codes {codes.min()}..{codes.max()} outside {spec.low:g}..{spec.high:g}")
        return codes.reshape(spec.shape)

    def payload_bytes(self, feature: str) -> int:
        """Return the bytes on the link of one sample's codes of this feature, before envelope and padding."""
        return self._coder_for(feature).size

    @property
    def total_bytes(self) -> int:
        """Bytes on the link of all features of one sample together, before envelope and padding."""
        return sum(coder.size for coder in self._coders.values())

    def _coder_for(self, feature: str) -> _FeatureCoder:
        try:
            return self._coders[feature]
        except KeyError:
            raise CodecError(f"the model has no feature {feature[:64]!r}") from None


def open_codec(manifest: "Manifest", read: Callable[[str], bytes]) -> FeatureCodec:
    """Open the codec that a manifest names, for all its features.

    `read` gives the verified bytes of a file that the manifest names. CodecError if the tables do not fit.
    """
    return build_codec(manifest.codec, manifest.features, read_codec_tables(manifest, read))


def read_codec_tables(manifest: "Manifest", read: Callable[[str], bytes]) -> bytes:
    """Read the bytes of the codec's tables, b"" if it has none."""
    return read(manifest.codec_file) if manifest.codec_file else b""


def build_codec(name: str, features: Sequence[FieldSpec], tables: bytes = b"") -> FeatureCodec:
    """Build a codec from its parts: name, features in order, and for one of `TABLED_CODECS` their tables, in order.

    CodecError if the name is not known or the tables do not fit the features.
    """
    if name in TABLED_CODECS:
        coders = (_ans_coders if name == ANS else _step_coders)(features, tables)
    else:
        coders = [_packed_coder(name, spec) for spec in features]
    return FeatureCodec(name, {coder.spec.name: coder for coder in coders})


def _packed_coder(name: str, spec: FieldSpec) -> _FeatureCoder:
    pack = find_packing(name)
    count = math.prod(spec.shape)
    return _FeatureCoder(spec, pack.levels, pack.size(count), pack.pack, lambda data: pack.unpack(data, count))


def _ans_coders(features: Sequence[FieldSpec], data: bytes) -> list[_FeatureCoder]:
    tables = codec_ans.read_ans_tables(data)
    if len(tables) != len(features):
        raise CodecError(f"{len(tables)} tables for {len(features)} features")
    return [_table_coder(spec, table) for spec, table in zip(features, tables, strict=True)]


def _table_coder(spec: FieldSpec, table: codec_ans.AnsTable) -> _FeatureCoder:
    positions, count = table.probabilities.shape
    if positions != math.prod(spec.shape) or spec.high > count - 1:
        raise CodecError(f"{spec.name}: the table is for {positions} codes of {count} levels")

    def pack(codes: Codes) -> bytes:
        return codec_ans.encode_ans(codes, table)

    def unpack(payload: bytes) -> Codes:
        return codec_ans.decode_ans(payload, table)

    return _FeatureCoder(spec, count, table.capped_bytes, pack, unpack)


def _step_coders(features: Sequence[FieldSpec], data: bytes) -> list[_FeatureCoder]:
    tables = codec_steps.read_step_tables(data)
    if len(tables) != len(features):
        raise CodecError(f"{len(tables)} tables for {len(features)} features")
    return [_step_coder(spec, table) for spec, table in zip(features, tables, strict=True)]


def _step_coder(spec: FieldSpec, table: codec_steps.StepTable) -> _FeatureCoder:
    settings = table.settings
    if table.positions != math.prod(spec.shape) or spec.high > settings.levels - 1:
        raise CodecError(f"{spec.name}: the table is for {table.positions} codes of {settings.levels} levels")

    def pack(codes: Codes) -> bytes:
        return codec_steps.encode_steps(codes, table)

    def unpack(payload: bytes) -> Codes:
        return codec_steps.decode_steps(payload, table)

    return _FeatureCoder(spec, settings.levels, settings.payload_bytes, pack, unpack)
