"""Entropy coding of feature codes (codec `ans`): one static probability table per position, payloads of a fixed length.

Rule: tables are counts, whole numbers; they are checked once, strictly, and the same codes give the same bytes on
every machine. A decoded payload is encoded again and must come out as it came in: all other bytes are a `CodecError`.

Range coding (Martin 1979) by the library `constriction` (Bamler 2022, "Understanding entropy coding with asymmetric
numeral systems"), or where it is not installed by `range_coder`, which makes the same bytes. The library takes
probabilities as floats, and yet the two sides agree: counts sum to 2**16, so each probability is a whole multiple of
2**-16 and exact in single precision, and the library turns it into a whole number by additions and one multiplication,
which IEEE 754 rounds alike everywhere (no logarithm, no exponential, no order of summation that could matter: every
partial sum is exact). From there on the coder is integer arithmetic.

A payload's length would reveal something about the sample. So every payload is padded with zeros to the length in
which nearly all training samples fit. The codes of a longer one are replaced, from the last backwards, by the most
probable code of their position until it fits: nothing fails, and the length reveals nothing.
"""

import math
import struct
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.bundle.bit_packing import ANS_LEVELS, CodecError, Codes
from models.runtime.range_coder import CategoricalModel, RangeDecoder, RangeEncoder

COUNT_SUM = 1 << 16  # of the counts of one position
MAX_POSITIONS = 1 << 16
MAX_TABLE_ITEMS = 1 << 22
_MAGIC = b"skerry-ans-1"
_TABLE_HEADER = struct.Struct("<12sIHI")  # magic, positions, levels, capped_bytes; then the counts, uint16, row by row
_STATE_BITS = 64
_SPARE_WORDS = 4  # zero words behind the payload: the decoder reads ahead
DECODER_ERRORS = (AssertionError, ValueError, OverflowError)  # the library's, for bytes that it cannot have made

Counts = npt.NDArray[np.uint16]
Probabilities = npt.NDArray[np.float32]


class AnsTable(NamedTuple):
    """Probability table of one feature.

    `probabilities` `[positions, levels]`: multiples of 1/65536; `likely`: the most probable code of each position;
    `capped_bytes`: length of every payload.
    """

    probabilities: Probabilities
    likely: npt.NDArray[np.int32]
    capped_bytes: int


def build_ans_tables(codes: npt.NDArray[Any], levels: int, spare: float = 0.999) -> bytes:
    """Build the table file of one feature from training codes `[n, *shape]`; of several features, join theirs in order.

    `levels`: number of different codes (2..256). Each count gets one more (Laplace smoothing), so no code is
    impossible. `spare`: share of the samples (0..1) whose payload fits without loss. CodecError if the codes are unfit.
    """
    flat = _flatten_codes(codes, levels)
    counts = _count_levels(flat, levels)
    free = _build_table(counts, MAX_POSITIONS * 4)
    sizes = sorted(len(_shortest_payload(row, free.probabilities)) for row in flat.astype(np.int32))
    capped = max(
        sizes[min(len(sizes) - 1, int(spare * len(sizes)))], len(_shortest_payload(free.likely, free.probabilities))
    )
    return _TABLE_HEADER.pack(_MAGIC, flat.shape[1], levels, max(1, capped)) + counts.astype("<u2").tobytes()


def read_ans_tables(data: bytes) -> tuple[AnsTable, ...]:
    """Read the tables of a file, in the order of its features.

    CodecError for anything that is not exactly such a file.
    """
    tables: list[AnsTable] = []
    offset = 0
    while offset < len(data):
        table, offset = _read_table(data, offset)
        tables.append(table)
    return tuple(tables)


def encode_ans(codes: Codes, table: AnsTable) -> bytes:
    """Encode flat codes as exactly `capped_bytes` bytes. CodecError if they are not the table's."""
    positions, levels = table.probabilities.shape
    if codes.size != positions or (codes.size and int(codes.max()) >= levels):
        raise CodecError(f"these are not {positions} codes of {levels} levels")
    wide = codes.astype(np.int32)
    payload = _shortest_payload(wide, table.probabilities)
    if len(payload) > table.capped_bytes:
        payload = _truncate_to_fit(wide, table)
    return payload.ljust(table.capped_bytes, b"\0")


def decode_ans(data: bytes, table: AnsTable) -> Codes:
    """Decode a payload to flat codes. CodecError if `encode` would not have made exactly these bytes."""
    try:
        found = load_decoder(data).decode(_ans_library().family, table.probabilities)
    except DECODER_ERRORS as error:
        raise CodecError(f"not a payload of these tables: {str(error).splitlines()[0][:80]}") from None
    codes: Codes = found.astype(np.uint8)
    if encode_ans(codes, table) != data:
        raise CodecError("not the payload that these codes have")
    return codes


def new_encoder() -> Any:
    """Start an empty range coder."""
    return _ans_library().encoder()


def load_decoder(data: bytes) -> Any:
    """Start decoding a payload, zeros behind it."""
    return _ans_library().decoder(np.frombuffer(_pad_words(data), ">u4").astype(np.uint32))


def build_model(counts: npt.NDArray[Any]) -> Any:
    """Model of symbols 0..len-1 with these counts, which sum to `COUNT_SUM`: quicker than rows where many share one."""
    return _ans_library().categorical(_to_probabilities(counts), lazy=True, perfect=False)


class _AnsLibrary(NamedTuple):
    """The entry points that are used, of the `constriction` library or of our own coder."""

    encoder: Any
    decoder: Any
    categorical: Any
    family: Any


def load_library() -> None:
    """Load the library now: later this process may be unable to open files."""
    _ans_library()


@cache
def _ans_library() -> _AnsLibrary:
    """Import `constriction` on first use: only models with this codec need it. Our own coder if it is not installed."""
    try:
        import constriction  # noqa: PLC0415
    except ImportError:
        return _AnsLibrary(RangeEncoder, RangeDecoder, CategoricalModel, CategoricalModel())
    stream = constriction.stream
    categorical = stream.model.Categorical
    return _AnsLibrary(stream.queue.RangeEncoder, stream.queue.RangeDecoder, categorical, categorical(perfect=False))


def _shortest_payload(codes: npt.NDArray[np.int32], probabilities: Probabilities) -> bytes:
    """Encode to the fewest bytes that decode to the codes when zeros follow."""
    encoder = new_encoder()
    encoder.encode(codes, _ans_library().family, probabilities)
    return finish_payload(encoder)


def finish_payload(encoder: Any) -> bytes:
    """Return the fewest bytes that decode to what was encoded when zeros follow.

    The library ends on a whole word; any number of its last interval would do, so the roundest is taken.
    """
    done, (lower, width) = encoder.pos()
    words: npt.NDArray[np.uint32] = encoder.get_compressed()
    if lower + width > 1 << _STATE_BITS:  # a carry may still run into the words before: leave it to the library
        return words.astype(">u4").tobytes().rstrip(b"\0")
    point = _roundest_number(lower, lower + width)
    return (words[:done].astype(">u4").tobytes() + point.to_bytes(_STATE_BITS // 8, "big")).rstrip(b"\0")


def _roundest_number(low: int, end: int) -> int:
    """Return the number of `low..end - 1` with the most zero bytes at its end."""
    for bits in range(_STATE_BITS - 8, 0, -8):
        found = -(-low >> bits) << bits
        if found < end:
            return found
    return low


def _truncate_to_fit(codes: npt.NDArray[np.int32], table: AnsTable) -> bytes:
    """Encode as many of the first codes as fit (found by bisection), the rest replaced by the most probable ones.

    With none of them it fits: the table was checked for that when it was read.
    """
    kept, spilled = 0, codes.size
    best = _shortest_payload(table.likely, table.probabilities)
    while spilled - kept > 1:
        middle = (kept + spilled) // 2
        payload = _shortest_payload(np.concatenate([codes[:middle], table.likely[middle:]]), table.probabilities)
        if len(payload) <= table.capped_bytes:
            kept, best = middle, payload
        else:
            spilled = middle
    return best


def _pad_words(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4 + 4 * _SPARE_WORDS)


def _flatten_codes(codes: npt.NDArray[Any], levels: int) -> Codes:
    """Reshape codes to `[n, positions]` and check them. CodecError if no table can be made of them."""
    flat = np.asarray(codes).reshape(len(codes), math.prod(np.shape(codes)[1:]))
    if not flat.size or flat.shape[1] > MAX_POSITIONS or not 2 <= levels <= ANS_LEVELS:
        raise CodecError(f"no table can be made of {list(np.shape(codes))} codes of {levels} levels")
    if flat.dtype != np.uint8 or int(flat.max()) >= levels:
        raise CodecError(
            f"codes are {flat.dtype} up to {flat.max()}, a table of {levels} levels takes uint8 below that"
        )
    return flat


def _count_levels(flat: Codes, levels: int) -> Counts:
    """Count levels per position, smoothed: `[positions, levels]`, each row sums to `COUNT_SUM`, none below 1."""
    return scale_counts(np.stack([(flat == level).sum(0) for level in range(levels)], axis=1) + 1)


def scale_counts(seen: npt.NDArray[Any]) -> Counts:
    """Scale counts `[rows, levels]` (no row all zero) so that each row sums to `COUNT_SUM` and none is below 1."""
    levels = seen.shape[1]
    scaled = 1 + seen * (COUNT_SUM - levels) // seen.sum(1, keepdims=True)
    scaled[np.arange(len(scaled)), seen.argmax(1)] += COUNT_SUM - scaled.sum(1)
    return np.asarray(scaled, np.uint16)


def _build_table(counts: npt.NDArray[Any], capped_bytes: int) -> AnsTable:
    return AnsTable(_to_probabilities(counts), counts.argmax(1).astype(np.int32), capped_bytes)


def _to_probabilities(counts: npt.NDArray[Any]) -> Probabilities:
    return np.ascontiguousarray(counts.astype(np.float32) / np.float32(COUNT_SUM))


def _read_table(data: bytes, offset: int) -> tuple[AnsTable, int]:
    if len(data) - offset < _TABLE_HEADER.size:
        raise CodecError("the tables end too early")
    magic, positions, levels, capped = _TABLE_HEADER.unpack_from(data, offset)
    sane = 0 < positions <= MAX_POSITIONS and 2 <= levels <= ANS_LEVELS and positions * levels <= MAX_TABLE_ITEMS
    if magic != _MAGIC or not sane or not 0 < capped <= 4 * positions + 8:
        raise CodecError("not a file of tables, or of another edition")
    end = offset + _TABLE_HEADER.size + 2 * positions * levels
    if end > len(data):
        raise CodecError("the tables end too early")
    counts = np.frombuffer(data, "<u2", positions * levels, offset + _TABLE_HEADER.size).reshape(positions, levels)
    if not counts.all() or (counts.sum(1, dtype=np.int64) != COUNT_SUM).any():
        raise CodecError("the counts of a position are not complete")
    table = _build_table(counts, capped)
    if len(_shortest_payload(table.likely, table.probabilities)) > capped:
        raise CodecError("the tables leave too little room")
    return table, end
