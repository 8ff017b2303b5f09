"""Codec choice: the feature codec whose padded payload is smallest, if the device can afford to encode with it.

Rule: what is compared is the padded message, for that is what travels; of equal ones the codec without tables wins.
Entropy coding ships only if encoding one sample takes at most a tenth of what the head takes, measured here.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.bundle.bit_packing import PACKINGS
from models.forge.export.manifest import measure_question_bytes
from models.runtime.feature_codec import ANS, CodecError, FeatureCodec, build_ans_tables, build_codec, smallest_codec
from wire.protocol.messages import FieldSpec, ModelRef

ENCODE_SHARE = 0.10
_TIMED = 200
_MOST_TABLE_SAMPLES = 20_000
Codes = npt.NDArray[np.uint8]


class CodecOption(NamedTuple):
    """One codec for these features.

    `question_bytes`: plaintext bytes of an escalation after padding; `encode_us`: median microseconds to encode one
    sample
    on this machine.
    """

    name: str
    tables: bytes
    codec: FeatureCodec
    question_bytes: int
    encode_us: float

    @property
    def payload_bytes(self) -> int:
        """Bytes of the codes of one sample."""
        return self.codec.total_bytes


class CodecChoice(NamedTuple):
    """The codec that ships, `ways`: all options that were compared, and why this one was chosen."""

    chosen: CodecOption
    ways: tuple[CodecOption, ...]
    why: str


def choose_codec(features: Sequence[FieldSpec], codes: Codes, ref: ModelRef, head_us: float) -> CodecChoice:
    """Compare plain packing with entropy coding for the one feature there is.

    `codes` `[n, *shape]`: output of the shipped graph for training samples; `head_us`: latency of the edge graph.
    """
    (spec,) = features
    plain = measure_option(smallest_codec(round(spec.high) + 1), b"", spec, codes, ref)
    dense = _entropy_option(spec, codes, ref)
    if dense is None:
        return CodecChoice(plain, (plain,), "no tables of an entropy coder can be made of these codes")
    ways = (plain, dense)
    if dense.question_bytes >= plain.question_bytes:
        return CodecChoice(
            plain, ways, f"{ANS} saves {plain.payload_bytes - dense.payload_bytes} B, which padding fills up again"
        )
    if dense.encode_us > ENCODE_SHARE * head_us:
        return CodecChoice(
            plain, ways, f"{ANS} takes {dense.encode_us:.0f} us, more than a tenth of the head's {head_us:.0f} us"
        )
    return CodecChoice(dense, ways, f"saves {plain.question_bytes - dense.question_bytes} B a question after padding")


def smallest_option(spec: FieldSpec, codes: Codes, ref: ModelRef) -> CodecOption:
    """The codec of the smallest padded question for codes `[n, *shape]`, whatever encoding takes."""
    plain = measure_option(smallest_codec(round(spec.high) + 1), b"", spec, codes, ref)
    dense = _entropy_option(spec, codes, ref)
    return plain if dense is None or dense.question_bytes >= plain.question_bytes else dense


def keep_option(way: CodecOption, why: str) -> CodecChoice:
    """A choice without alternatives, and why there are none."""
    return CodecChoice(way, (way,), why)


def round_trip_codes(way: CodecOption, spec: FieldSpec, codes: Codes) -> Codes:
    """The codes as they arrive at the hub: the same, but where an entropy coder had to make a sample fit."""
    if way.name in PACKINGS:
        return codes
    return np.stack([way.codec.decode(spec.name, way.codec.encode(spec.name, one)) for one in codes])


def _entropy_option(spec: FieldSpec, codes: Codes, ref: ModelRef) -> CodecOption | None:
    try:
        return measure_option(
            ANS, build_ans_tables(codes[:_MOST_TABLE_SAMPLES], round(spec.high) + 1), spec, codes, ref
        )
    except CodecError:
        return None


def measure_option(name: str, tables: bytes, spec: FieldSpec, codes: Codes, ref: ModelRef) -> CodecOption:
    """One codec with its tables: bytes of a question, and the time that encoding one of `codes` takes here."""
    codec = build_codec(name, (spec,), tables)
    named = ModelRef(ref.name, ref.version, ref.cut, name)
    size = measure_question_bytes(named, {spec.name: codec.total_bytes})
    return CodecOption(name, tables, codec, size, _measure_encode_us(codec, spec.name, codes))


def _measure_encode_us(codec: FeatureCodec, feature: str, codes: npt.NDArray[Any]) -> float:
    seconds = []
    for one in codes[:_TIMED]:
        start = time.perf_counter()
        codec.encode(feature, one)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds) * 1e6)
