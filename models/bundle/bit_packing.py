"""Bit packings of small whole numbers: whole bits per code (`pack1` to `pack8`) or a radix (`base3` to `base15`).

Rule: numpy alone; each sequence of codes has exactly one packed form, and all other bytes are a `CodecError`.

`PACKINGS` maps each codec name to its packing. `ans` and `ans-steps` have no entry: they need tables
(`models/runtime/codec_ans.py`, `models/runtime/codec_steps.py`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wire.protocol.messages import TensorDType

Codes = npt.NDArray[np.uint8]

ANS = "ans"  # needs tables of its own: models/runtime/codec_ans.py
ANS_STEPS = "ans-steps"  # tables, and a step chosen for each sample: models/runtime/codec_steps.py
TABLED_CODECS = frozenset({ANS, ANS_STEPS})  # these need a file of tables
ANS_LEVELS = 256
_WORD_BYTES = 8
_COMPARED_CODES = 10_000
_WORD_DTYPE = np.dtype("<u8")

NUMPY_DTYPES: dict[TensorDType, np.dtype[Any]] = {
    TensorDType.FP32: np.dtype("<f4"),
    TensorDType.FP16: np.dtype("<f2"),
    TensorDType.INT64: np.dtype("<i8"),
    TensorDType.INT32: np.dtype("<i4"),
    TensorDType.INT8: np.dtype("i1"),
    TensorDType.UINT8: np.dtype("u1"),
    TensorDType.BOOL: np.dtype("?"),
}


class CodecError(ValueError):
    """Codes, a tensor or tables that do not fit the codec and the field's specification."""


class PackingScheme(NamedTuple):
    """One bit packing: how `levels` different codes become bytes and come back.

    `size` maps a number of codes to payload bytes; `pack` takes flat codes below `levels`; `unpack_rows` takes payloads
    of exactly that size, one in each row, and gives the codes of each and whether it is canonical.
    """

    levels: int
    size: Callable[[int], int]  # number of codes -> payload bytes
    pack: Callable[[Codes], bytes]  # flat codes below `levels` -> payload
    unpack_rows: Callable[[Codes, int], "UnpackedRows"]  # payloads `[n, bytes]`, number of codes -> codes
    fault: str  # why a payload is not canonical

    def unpack(self, data: bytes, count: int) -> Codes:
        """Flat codes of one payload of the right size. CodecError if it is not canonical."""
        found = self.unpack_rows(np.frombuffer(data, np.uint8).reshape(1, -1), count)
        if found.faulty[0]:
            raise CodecError(self.fault)
        codes: Codes = found.codes[0]
        return codes


class UnpackedRows(NamedTuple):
    """Codes `[n, count]` of n payloads, an array of its own; `faulty` `[n]`: a payload that no codes have."""

    codes: Codes
    faulty: npt.NDArray[np.bool_]


def _bit_packing(bits: int) -> PackingScheme:
    """Packing with `bits` bits per code: the first code in the highest bits of the first byte, spare bits zero."""

    def pack(codes: Codes) -> bytes:
        return np.packbits(np.unpackbits(codes[:, None], axis=1)[:, 8 - bits :]).tobytes()

    def unpack_rows(rows: Codes, count: int) -> UnpackedRows:
        found = np.unpackbits(rows, axis=1)
        used = count * bits
        wide = np.zeros((len(rows) * count, 8), np.uint8)
        wide[:, 8 - bits :] = found[:, :used].reshape(-1, bits)
        # each payload has one encoding: filled spare bits would be a hidden channel
        return UnpackedRows(np.packbits(wide).reshape(len(rows), count), np.asarray(found[:, used:].any(1), np.bool_))

    return PackingScheme(
        1 << bits,
        lambda count: -(-count * bits // 8),
        pack,
        unpack_rows,
        "the spare bits of the last byte are not zero",
    )


def _pack_nibbles(codes: Codes) -> bytes:
    padded = np.zeros(codes.size + codes.size % 2, np.uint8)
    padded[: codes.size] = codes
    return ((padded[0::2] << 4) | padded[1::2]).tobytes()


def _pack_bytes(codes: Codes) -> bytes:
    return codes.tobytes()


def _unpack_bytes(rows: Codes, _count: int) -> UnpackedRows:
    return UnpackedRows(rows.copy(), np.zeros(len(rows), np.bool_))


def _radix_packing(levels: int) -> PackingScheme:
    """Packing by radix: as many codes as fit into one 64-bit word, the first lowest.

    The codes that are left over go into the fewest bytes that hold them.
    """
    per_word = _count_digits(levels)
    powers = np.array([levels**place for place in range(per_word)], _WORD_DTYPE)
    largest, base = levels**per_word - 1, _WORD_DTYPE.type(levels)

    def size(count: int) -> int:
        words, rest = divmod(count, per_word)
        return words * _WORD_BYTES + _count_bytes(levels, rest)

    def pack(codes: Codes) -> bytes:
        words = -(-codes.size // per_word)
        digits = np.zeros((words, per_word), _WORD_DTYPE)
        digits.reshape(-1)[: codes.size] = codes
        return (digits @ powers).astype(_WORD_DTYPE, copy=False).tobytes()[: size(codes.size)]

    def unpack_rows(rows: Codes, count: int) -> UnpackedRows:
        whole, rest = divmod(count, per_word)
        padded = np.zeros((len(rows), (whole + (rest > 0)) * _WORD_BYTES), np.uint8)
        padded[:, : rows.shape[1]] = rows
        numbers = padded.view(_WORD_DTYPE)
        faulty = (numbers[:, :whole] > largest).any(1)
        if rest:
            faulty |= numbers[:, -1] >= levels**rest
        digits = (numbers[:, :, None] // powers % base).reshape(len(rows), -1)
        return UnpackedRows(digits[:, :count].astype(np.uint8), faulty)

    return PackingScheme(levels, size, pack, unpack_rows, f"a number is too big to be {levels}-level codes")


def _count_digits(levels: int) -> int:
    """Count how many digits of base `levels` fit into one 64-bit word."""
    digits = 1
    while levels ** (digits + 1) <= 1 << (8 * _WORD_BYTES):
        digits += 1
    return digits


def _count_bytes(levels: int, digits: int) -> int:
    """Count the fewest bytes that hold every number of so many digits."""
    return -(-int(levels**digits - 1).bit_length() // 8)


RADICES = (3, 5, 6, 7, *range(9, 16))
PACKINGS: dict[str, PackingScheme] = {
    **{f"pack{bits}": _bit_packing(bits) for bits in range(1, 9)},
    **{f"base{levels}": _radix_packing(levels) for levels in RADICES},
}
PACKINGS["pack4"] = PACKINGS["pack4"]._replace(pack=_pack_nibbles)  # the same bytes, faster
PACKINGS["pack8"] = PACKINGS["pack8"]._replace(pack=_pack_bytes, unpack_rows=_unpack_bytes)
CODECS = (*PACKINGS, ANS, ANS_STEPS)


def codec_levels(codec: str) -> int:
    """Return how many different codes a codec carries at most (codes are 0..levels-1).

    CodecError if it is not known.
    """
    return ANS_LEVELS if codec in TABLED_CODECS else find_packing(codec).levels


def find_packing(codec: str) -> PackingScheme:
    """Look up the bit packing of a codec name.

    CodecError if there is none, which includes "ans" and "ans-steps": they have tables instead.
    """
    try:
        return PACKINGS[codec]
    except (KeyError, TypeError):
        raise CodecError(f"codec {codec!r} is not known here; known: {', '.join(CODECS)}") from None


def smallest_codec(levels: int) -> str:
    """Choose the codec without tables that needs the fewest bits for so many levels (2..256).

    Whole bits per code win where they tie: they are faster.
    """
    enough = [name for name, pack in PACKINGS.items() if pack.levels >= levels]
    return min(enough, key=lambda name: PACKINGS[name].size(_COMPARED_CODES))
