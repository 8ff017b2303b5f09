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
    UnpackedRows,
    codec_levels,
    find_packing,
    smallest_codec,
)
from models.runtime import codec_ans
from models.runtime.codec_ans import build_ans_tables
from wire.protocol.messages import FieldSpec, Tensor, TensorDType

if TYPE_CHECKING:
    from models.bundle.manifest import Manifest
    from models.runtime.codec_steps import StepTable

__all__ = [
    "ANS",
    "ANS_STEPS",
    "CODECS",
    "NUMPY_DTYPES",
    "TABLED_CODECS",
    "CodecError",
    "Codes",
    "DecodedBatch",
    "FeatureCodec",
    "build_ans_tables",
    "build_codec",
    "codec_levels",
    "find_payload_bytes",
    "open_codec",
    "read_codec_tables",
    "smallest_codec",
]


_MAX_CODE = 255  # the largest code


class DecodedBatch(NamedTuple):
    """Codes `[n, *shape]` of n tensors; `faults`: what is wrong with a tensor, by its place: its codes say nothing."""

    codes: Codes
    faults: Mapping[int, CodecError]


class _FeatureCoder(NamedTuple):
    """Encoder and decoder of one feature, for its number of codes.

    `unpack_rows`: decoder of several payloads at once, where there is one.
    """

    spec: FieldSpec
    levels: int
    size: int  # bytes of the payload
    pack: Callable[[Codes], bytes]
    unpack: Callable[[bytes], Codes]
    unpack_rows: Callable[[Codes], UnpackedRows] | None = None
    fault: str = ""


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
        self._check_tensor(coder, tensor)
        codes = coder.unpack(tensor.data)
        spec = coder.spec
        if not _is_whole(spec) and not spec.low <= int(codes.min()) <= int(codes.max()) <= spec.high:
            raise _range_fault(spec, codes)
        return codes.reshape(spec.shape)

    def decode_batch(self, feature: str, tensors: Sequence[Tensor]) -> DecodedBatch:
        """Decode several tensors of one feature: quicker than one by one, and exactly as strict with each.

        CodecError if there is no such feature; what is wrong with a tensor is found in `faults`.
        """
        coder = self._coder_for(feature)
        codes = np.zeros((len(tensors), *coder.spec.shape), np.uint8)
        faults: dict[int, CodecError] = {}
        together = coder.unpack_rows is not None and len(tensors) > 1
        for place, tensor in enumerate(tensors):
            try:
                if together:
                    self._check_tensor(coder, tensor)
                else:
                    codes[place] = self.decode(feature, tensor)
            except CodecError as error:
                faults[place] = error
        if together:
            sound = [place for place in range(len(tensors)) if place not in faults]
            _unpack_sound(coder, [tensors[place].data for place in sound], sound, codes, faults)
        return DecodedBatch(codes, faults)

    def _check_tensor(self, coder: _FeatureCoder, tensor: Tensor) -> None:
        """CodecError unless type, shape and length are those of the feature's payload."""
        size = coder.size
        if tensor.dtype is not TensorDType.UINT8 or tensor.shape != (size,) or len(tensor.data) != size:
            got = f"{tensor.dtype} {list(tensor.shape)} of {len(tensor.data)} bytes"
            raise CodecError(f"{coder.spec.name}: {got}; {self.name} of {list(coder.spec.shape)} is UINT8 [{size}]")

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


def _unpack_sound(
    coder: _FeatureCoder, payloads: Sequence[bytes], places: Sequence[int], codes: Codes, faults: dict[int, CodecError]
) -> None:
    """Unpack payloads of the right length into their `places` of `codes`; a bad one goes into `faults`."""
    if not payloads or coder.unpack_rows is None:
        return
    spec = coder.spec
    found = coder.unpack_rows(np.frombuffer(b"".join(payloads), np.uint8).reshape(len(payloads), coder.size))
    codes[list(places)] = found.codes.reshape(len(payloads), *spec.shape)
    outside = np.zeros(len(payloads), np.bool_)
    if not _is_whole(spec):
        outside = (found.codes.min(1) < spec.low) | (found.codes.max(1) > spec.high)
    for row in np.flatnonzero(found.faulty | outside).tolist():
        fault = CodecError(coder.fault) if found.faulty[row] else _range_fault(spec, found.codes[row])
        codes[places[row]], faults[places[row]] = 0, fault


def _is_whole(spec: FieldSpec) -> bool:
    """Whether the feature's range takes every code there is."""
    return spec.low <= 0 and spec.high >= _MAX_CODE


def _range_fault(spec: FieldSpec, codes: Codes) -> CodecError:
    return CodecError(f"{spec.name}: codes {codes.min()}..{codes.max()} outside {spec.low:g}..{spec.high:g}")


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


def find_payload_bytes(name: str, spec: FieldSpec, tables: bytes = b"") -> int:
    """Bytes on the link of one sample's codes of a feature with this codec. CodecError if the tables do not fit."""
    return build_codec(name, (spec,), tables).total_bytes


def _packed_coder(name: str, spec: FieldSpec) -> _FeatureCoder:
    pack = find_packing(name)
    count = math.prod(spec.shape)
    return _FeatureCoder(
        spec=spec,
        levels=pack.levels,
        size=pack.size(count),
        pack=pack.pack,
        unpack=lambda data: pack.unpack(data, count),
        unpack_rows=lambda rows: pack.unpack_rows(rows, count),
        fault=pack.fault,
    )


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
    from models.runtime.codec_steps import read_step_tables  # noqa: PLC0415 - few bundles have this codec

    tables = read_step_tables(data)
    if len(tables) != len(features):
        raise CodecError(f"{len(tables)} tables for {len(features)} features")
    return [_step_coder(spec, table) for spec, table in zip(features, tables, strict=True)]


def _step_coder(spec: FieldSpec, table: "StepTable") -> _FeatureCoder:
    from models.runtime.codec_steps import decode_steps, encode_steps  # noqa: PLC0415

    settings = table.settings
    if table.positions != math.prod(spec.shape) or spec.high > settings.levels - 1:
        raise CodecError(f"{spec.name}: the table is for {table.positions} codes of {settings.levels} levels")

    def pack(codes: Codes) -> bytes:
        return encode_steps(codes, table)

    def unpack(payload: bytes) -> Codes:
        return decode_steps(payload, table)

    return _FeatureCoder(spec, settings.levels, settings.payload_bytes, pack, unpack)
