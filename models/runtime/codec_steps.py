"""Entropy coding of transform coefficients with a step chosen for each sample (codec `ans-steps`).

Rule: every payload of a feature has one length, and what varies is how finely a sample is rounded: the device's graph
gives whole numbers on a fine grid, and the encoder rounds them to the finest multiple of it with which they fit.
The decoder gives whole numbers on the fine grid again, so the hub's graph need not know the step.

Positions (coefficients) of like variance form a class and share one table of counts on the fine grid; the tables of
the coarser steps are sums of these counts. All tables are whole numbers, and the coder is the one of
`models/runtime/codec_ans.py`, so two machines agree to the bit.

A code `c` stands for the coefficient `c - centre`. A step rounds with a dead zone: the magnitudes below 0.6 of the step
become zero (Sullivan 1996, "Efficient scalar quantization of exponential and Laplacian random variables"). The last
step sends nothing: all coefficients are zero. A class may have a `factor`: the grid of its coefficients is that many
times coarser than the others', because 256 codes would not span them, and its multiples are so much smaller.

Each payload has one meaning and each decoded sample one payload: of all steps that give exactly these codes and fit,
the finest is the one that is sent, and all other bytes are a `CodecError`.
"""

import math
import struct
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.bundle.bit_packing import ANS_LEVELS, CodecError, Codes
from models.runtime.codec_ans import (
    COUNT_SUM,
    DECODER_ERRORS,
    MAX_POSITIONS,
    build_model,
    finish_payload,
    load_decoder,
    new_encoder,
    scale_counts,
)

_PARTS = 16  # of a count, so that pseudo-counts below one count
_LEAST_SCALE = 0.25  # mean magnitude of codes: less is a class that is nearly always zero
# of the fine grid; the step after them sends nothing, so the last ones are coarse enough for every sample there is
MULTIPLES = (1, 2, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 26, 36, 52, 76, 110, 160)
STEPS = len(MULTIPLES) + 1
MAX_CLASSES = 256
MAX_FACTOR = 255
_MAGIC = b"skerry-steps-1"
_HEADER = struct.Struct("<14sIHHIH")  # magic, positions, levels, centre, payload_bytes, classes
_CLASS = struct.Struct("<IB")  # positions, factor; then the counts of all classes, uint16, row by row
_SLACK_BITS = 64  # a payload is never this much shorter than the sum of its codes' information
_SLACK_SHARE = 0.02


class StepClass(NamedTuple):
    """A class of positions: `size` of them in a row; `factor`: how much coarser their grid is than that of others."""

    size: int
    factor: int = 1


class StepSettings(NamedTuple):
    """What a table of steps is built for.

    `levels`: number of different codes (2..256); `centre`: the code of coefficient zero; `payload_bytes`: length of
    every payload; `classes`: of positions, in the order of the codes.
    """

    levels: int
    centre: int
    payload_bytes: int
    classes: tuple[StepClass, ...]


def build_step_tables(codes: npt.NDArray[Any], settings: StepSettings) -> bytes:
    """Build the table file of one feature from training codes uint8 `[n, *shape]` on the fine grid.

    Counts are smoothed, so no code is impossible and few training samples make no odd tables. CodecError if codes or
    settings are unfit.
    """
    flat = np.asarray(codes).reshape(len(codes), math.prod(np.shape(codes)[1:]))
    if not flat.size or flat.dtype != np.uint8 or int(flat.max()) >= settings.levels:
        raise CodecError(f"no table can be made of {flat.dtype} codes {list(np.shape(codes))}")
    ends = np.cumsum([each.size for each in settings.classes])
    parts = np.split(flat, ends[:-1], axis=1)
    counts = scale_counts(np.stack([_count_smoothly(part, settings) for part in parts]))
    table = _checked_table(settings, counts.astype(np.int64), flat.shape[1])
    header = _HEADER.pack(
        _MAGIC, table.positions, settings.levels, settings.centre, settings.payload_bytes, len(settings.classes)
    )
    return header + b"".join(_CLASS.pack(*each) for each in settings.classes) + counts.astype("<u2").tobytes()


def _count_smoothly(codes: npt.NDArray[np.uint8], settings: StepSettings) -> npt.NDArray[np.int64]:
    """Counts of a class's codes, in sixteenths, with as many pseudo-counts as levels and one more for every code.

    The pseudo-counts are spread as a Laplace distribution of the class's own mean magnitude: a class of one position
    and a few hundred samples has seen few of its levels, and what it has not seen would cost sixteen bits.
    """
    counts = np.bincount(codes.reshape(-1), minlength=settings.levels)
    distances = np.abs(np.arange(settings.levels) - settings.centre)
    scale = max(float((counts * distances).sum() / max(1, counts.sum())), _LEAST_SCALE)
    prior = np.exp(-distances / scale)
    return np.asarray(_PARTS * counts + np.rint(_PARTS * settings.levels * prior / prior.sum()) + 1, np.int64)


def most_payload_bytes(positions: int) -> int:
    """The longest payload that a table of so many positions may have: more than any codes could need."""
    return 4 * positions + 8


def read_step_tables(data: bytes) -> tuple["StepTable", ...]:
    """Read the tables of a file, in the order of its features. CodecError for anything that is not such a file."""
    tables: list[StepTable] = []
    offset = 0
    while offset < len(data):
        table, offset = _read_table(data, offset)
        tables.append(table)
    return tuple(tables)


def encode_steps(codes: Codes, table: "StepTable") -> bytes:
    """Encode flat codes as exactly `payload_bytes` bytes, as finely as fits. CodecError if they are not the table's."""
    settings = table.settings
    if codes.size != table.positions or (codes.size and int(codes.max()) >= settings.levels):
        raise CodecError(f"these are not {table.positions} codes of {settings.levels} levels")
    payload = _encode_exactly(codes, table)
    if payload is None:
        index = table.class_rows + codes
        step = _finest_step(index, table)
        rounded = table.lookups.rounded[step][index] if step < STEPS - 1 else np.full_like(codes, settings.centre)
        payload = _encode_exactly(rounded, table)
    if payload is None:  # the step just found fits: this cannot be
        raise CodecError("the tables leave too little room")
    return payload.ljust(settings.payload_bytes, b"\0")


def decode_steps(data: bytes, table: "StepTable") -> Codes:
    """Decode a payload to flat codes on the fine grid. CodecError if `encode_steps` would not have made these bytes."""
    try:
        decoder = load_decoder(data)
        step = int(decoder.decode(table.step_model, 1)[0])
        codes = np.full(table.positions, table.settings.centre, np.uint8)
        if step < STEPS - 1:
            codes = _decode_at(step, decoder, table)
    except DECODER_ERRORS as error:  # how the library reports bytes that it cannot have made
        raise CodecError(f"not a payload of these tables: {str(error).splitlines()[0][:80]}") from None
    payload = _encode_exactly(codes, table)
    if payload is None or payload.ljust(table.settings.payload_bytes, b"\0") != data:
        raise CodecError("not the payload that these codes have")
    return codes


def estimate_bits(codes: Codes, table: "StepTable", step: int) -> npt.NDArray[np.float64]:
    """Estimate the bits `[n]` that samples of flat codes `[n, positions]` take at a step (its place in `MULTIPLES`)."""
    found: npt.NDArray[np.float64] = table.step_lookup(step).bits[table.class_rows + codes].sum(1, dtype=np.float64)
    return found


class StepLookup(NamedTuple):
    """What a step makes of each code of each class, flat `[..., classes * levels]`.

    `symbols`: what is coded; `rounded`: the code that it is decoded to; `bits`: the symbol's information.
    """

    symbols: npt.NDArray[np.int32]
    rounded: Codes
    bits: npt.NDArray[np.float32]


class StepTable:
    """Table of one feature, opened: what each step costs and codes. Immutable but for what it keeps once computed."""

    def __init__(self, settings: StepSettings, counts: npt.NDArray[np.int64]) -> None:
        self.settings = settings
        self.positions = sum(each.size for each in settings.classes)
        sizes = [each.size for each in settings.classes]
        self.ends = np.cumsum(sizes).tolist()
        self.of_position = np.repeat(np.arange(len(sizes)), sizes)
        self.class_rows = self.of_position * settings.levels
        factors = np.array([each.factor for each in settings.classes], np.int32)
        multiples = np.array(MULTIPLES, np.int32)[:, None]
        self.multiples = np.maximum(1, (multiples + factors // 2) // factors)  # [steps - 1, classes]
        self.lows = settings.centre // self.multiples  # the largest magnitudes below zero
        self.highs = (settings.levels - 1 - settings.centre) // self.multiples  # and above
        self._counts = counts
        self._models: dict[int, list[Any]] = {}

    @cached_property
    def step_model(self) -> Any:
        """Model of the step's number: all are alike."""
        return build_model(np.full(STEPS, COUNT_SUM // STEPS))

    @cached_property
    def lookups(self) -> StepLookup:
        """Lookups of all steps but the last, `[steps - 1, classes * levels]`."""
        return StepLookup(*map(np.stack, zip(*map(self.step_lookup, range(STEPS - 1)), strict=True)))

    def models(self, step: int) -> list[Any]:
        """Models of the classes at a step, made when it is first used; None where only zero is left."""
        found = self._models.get(step)
        if found is None:
            counts = [self.step_counts(step, index) for index in range(len(self.settings.classes))]
            found = self._models[step] = [build_model(each) if each.size > 1 else None for each in counts]
        return found

    def step_lookup(self, step: int) -> StepLookup:
        """Lookup of one step, computed at each call."""
        parts = []
        for index in range(len(self.settings.classes)):
            symbols = self._round_codes(step, index)
            counts = self.step_counts(step, index)
            wide = (symbols - self.lows[step, index]) * self.multiples[step, index]
            bits = -np.log2(counts / COUNT_SUM).astype(np.float32) if counts.size > 1 else np.zeros(1, np.float32)
            parts.append((symbols, (wide + self.settings.centre).astype(np.uint8), bits[symbols]))
        return StepLookup(*map(np.concatenate, zip(*parts, strict=True)))

    def step_counts(self, step: int, index: int) -> npt.NDArray[np.int64]:
        """Counts of a class at a step: those of the fine grid, summed, from the least coefficient to the greatest."""
        width = int(self.lows[step, index] + self.highs[step, index]) + 1
        summed = np.zeros(width, np.int64)
        np.add.at(summed, self._round_codes(step, index), self._counts[index])
        return np.asarray(scale_counts(summed[None])[0], np.int64) if width > 1 else summed

    def _round_codes(self, step: int, index: int) -> npt.NDArray[np.int32]:
        """The symbol of each code of a class at a step: its coefficient over the multiple, counted from the least."""
        multiple, low = self.multiples[step, index], self.lows[step, index]
        wide = np.arange(self.settings.levels, dtype=np.int32) - np.int32(self.settings.centre)
        rounded = np.sign(wide) * ((np.abs(wide) + _find_offset(multiple)) // multiple)
        found: npt.NDArray[np.int32] = rounded.clip(-low, self.highs[step, index]) + low
        return found


def _find_offset(multiple: Any) -> Any:
    """What is added to a magnitude on the fine grid before it is divided: about 2/5 of the multiple.

    The fine grid has rounded already, to the nearest: that is half of one.
    """
    return (2 * multiple - 1) // 5


def _find_room(table: StepTable) -> float:
    """The bits beyond which no payload can fit: rounding of costs included, so every machine tries the same steps."""
    return (8 * table.settings.payload_bytes + _SLACK_BITS) * (1 + _SLACK_SHARE)


def _finest_step(index: npt.NDArray[np.int64], table: StepTable) -> int:
    """The finest step at which codes fit (`index`: into the lookups); the last, which sends nothing, always does."""
    bits = table.lookups.bits.take(index, axis=1).sum(1)
    for step in np.flatnonzero(bits <= _find_room(table)).tolist():
        if len(_encode_at(step, index, table)) <= table.settings.payload_bytes:
            return int(step)
    return STEPS - 1


def _encode_exactly(codes: Codes, table: StepTable) -> bytes | None:
    """Encode at the finest step that gives exactly these codes and fits; None if no step does."""
    index = table.class_rows + codes
    for step in np.flatnonzero((table.lookups.rounded.take(index, axis=1) == codes).all(1)).tolist():
        if float(table.lookups.bits[step][index].sum(dtype=np.float64)) <= _find_room(table):
            payload = _encode_at(step, index, table)
            if len(payload) <= table.settings.payload_bytes:
                return payload
    return None if (codes != table.settings.centre).any() else _encode_at(STEPS - 1, index, table)


def _encode_at(step: int, index: npt.NDArray[np.int64], table: StepTable) -> bytes:
    """Encode a step's number and the symbols of codes to the fewest bytes that decode to them when zeros follow."""
    encoder = new_encoder()
    encoder.encode(np.array([step], np.int32), table.step_model)
    if step < STEPS - 1:
        symbols = table.lookups.symbols[step][index]
        start = 0
        for model, end in zip(table.models(step), table.ends, strict=True):
            if model is not None:
                encoder.encode(symbols[start:end], model)
            start = end
    return finish_payload(encoder)


def _decode_at(step: int, decoder: Any, table: StepTable) -> Codes:
    """Decode the symbols of a step to codes on the fine grid."""
    parts = [
        np.zeros(each.size, np.int32) if model is None else decoder.decode(model, each.size)
        for model, each in zip(table.models(step), table.settings.classes, strict=True)
    ]
    low, multiple = (column[step][table.of_position] for column in (table.lows, table.multiples))
    wide = (np.concatenate(parts) - low) * multiple + table.settings.centre
    return np.asarray(wide, np.uint8)


def _read_table(data: bytes, offset: int) -> tuple[StepTable, int]:
    if len(data) - offset < _HEADER.size:
        raise CodecError("the tables end too early")
    magic, positions, levels, centre, payload_bytes, classes = _HEADER.unpack_from(data, offset)
    start = offset + _HEADER.size
    first = start + classes * _CLASS.size
    end = first + 2 * classes * levels
    if magic != _MAGIC or not 0 < classes <= MAX_CLASSES or not 2 <= levels <= ANS_LEVELS:
        raise CodecError("not a file of tables of steps, or of another edition")
    if end > len(data):
        raise CodecError("the tables end too early")
    shapes = tuple(StepClass(*each) for each in _CLASS.iter_unpack(data[start:first]))
    counts = np.frombuffer(data, "<u2", classes * levels, first).reshape(classes, levels).astype(np.int64)
    return _checked_table(StepSettings(levels, centre, payload_bytes, shapes), counts, positions), end


def _checked_table(settings: StepSettings, counts: npt.NDArray[np.int64], positions: int) -> StepTable:
    """Open a table. CodecError if its parts do not fit each other."""
    levels, centre, payload_bytes, classes = settings
    sane = 2 <= levels <= ANS_LEVELS and 0 <= centre < levels and 0 < len(classes) <= MAX_CLASSES
    if not sane or not 0 < positions <= MAX_POSITIONS or not 0 < payload_bytes <= most_payload_bytes(positions):
        raise CodecError("not a file of tables of steps, or of another edition")
    if sum(each.size for each in classes) != positions or not _classes_fit(classes):
        raise CodecError("the classes of positions are not possible")
    if not counts.all() or (counts.sum(1) != COUNT_SUM).any():
        raise CodecError("the counts of a class are not complete")
    return StepTable(settings, counts)


def _classes_fit(classes: Sequence[StepClass]) -> bool:
    return all(each.size > 0 and 0 < each.factor <= MAX_FACTOR for each in classes)
