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

MULTIPLES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 26, 36)  # of the fine grid; the step after them sends nothing
STEPS = len(MULTIPLES) + 1
MAX_CLASSES = 256
MAX_FACTOR = 255
_MAGIC = b"skerry-steps-1"
_HEADER = struct.Struct("<14sIHHIH")  # magic, positions, levels, centre, payload_bytes, classes
_CLASS = struct.Struct("<IB")  # positions, factor; then the counts of all classes, uint16, row by row
_SLACK_BITS = 64  # a payload is never this much shorter than the sum of its codes' information
_SLACK_SHARE = 0.02

WholeNumbers = npt.NDArray[np.int32]


def _find_offsets(multiples: WholeNumbers) -> WholeNumbers:
    """What is added to a magnitude on the fine grid before it is divided: about 2/5 of the multiple.

    The fine grid has rounded already, to the nearest: that is half of one.
    """
    found: WholeNumbers = (2 * multiples - 1) // 5
    return found


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

    Each count gets one more (Laplace smoothing), so no code is impossible. CodecError if codes or settings are unfit.
    """
    flat = np.asarray(codes).reshape(len(codes), math.prod(np.shape(codes)[1:]))
    if not flat.size or flat.dtype != np.uint8 or int(flat.max()) >= settings.levels:
        raise CodecError(f"no table can be made of {flat.dtype} codes {list(np.shape(codes))}")
    ends = np.cumsum([each.size for each in settings.classes])
    parts = np.split(flat, ends[:-1], axis=1)
    counts = scale_counts(np.stack([np.bincount(part.reshape(-1), minlength=settings.levels) + 1 for part in parts]))
    table = _checked_table(settings, counts.astype(np.int64), flat.shape[1])
    header = _HEADER.pack(
        _MAGIC, table.positions, settings.levels, settings.centre, settings.payload_bytes, len(settings.classes)
    )
    return header + b"".join(_CLASS.pack(*each) for each in settings.classes) + counts.astype("<u2").tobytes()


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
    wanted = codes.astype(np.int32) - np.int32(settings.centre)
    rounded = _round_to_steps(wanted, table)
    payload = _encode_exactly(wanted, rounded, table)
    if payload is None:
        step = _finest_step(rounded, table)
        wanted = rounded[step] * table.multiples[step] if step < STEPS - 1 else np.zeros_like(wanted)
        payload = _encode_exactly(wanted, _round_to_steps(wanted, table), table)
    if payload is None:  # the step just found fits: this cannot be
        raise CodecError("the tables leave too little room")
    return payload.ljust(settings.payload_bytes, b"\0")


def decode_steps(data: bytes, table: "StepTable") -> Codes:
    """Decode a payload to flat codes on the fine grid. CodecError if `encode_steps` would not have made these bytes."""
    try:
        decoder = load_decoder(data)
        step = int(decoder.decode(table.step_model, 1)[0])
        wide = np.zeros(table.positions, np.int32)
        if step < STEPS - 1:
            models, lows = table.models(step), table.lows[step]
            found = [
                np.zeros(each.size, np.int32) if model is None else decoder.decode(model, each.size) - np.int32(low)
                for model, each, low in zip(models, table.settings.classes, lows, strict=True)
            ]
            wide = np.concatenate(found) * table.multiples[step]
    except DECODER_ERRORS as error:  # how the library reports bytes that it cannot have made
        raise CodecError(f"not a payload of these tables: {str(error).splitlines()[0][:80]}") from None
    payload = _encode_exactly(wide, _round_to_steps(wide, table), table)
    if payload is None or payload.ljust(table.settings.payload_bytes, b"\0") != data:
        raise CodecError("not the payload that these codes have")
    codes: Codes = (wide + np.int32(table.settings.centre)).astype(np.uint8)
    return codes


def estimate_bits(codes: Codes, table: "StepTable", step: int) -> npt.NDArray[np.float64]:
    """Estimate the bits `[n]` that samples of flat codes `[n, positions]` take at a step (its place in `MULTIPLES`)."""
    multiples, offsets = table.multiples[step], table.offsets[step]
    wide = codes.astype(np.int32) - np.int32(table.settings.centre)
    rounded = _round_magnitudes(wide, multiples, offsets).clip(table.least[step], table.most[step])
    found: npt.NDArray[np.float64] = table.costs[table.cost_offsets[step] + rounded].sum(1, dtype=np.float64)
    return found


class StepTable:
    """Table of one feature, opened: what each step costs and codes. Immutable but for what it keeps once computed."""

    def __init__(self, settings: StepSettings, counts: npt.NDArray[np.int64]) -> None:
        self.settings = settings
        self.positions = sum(each.size for each in settings.classes)
        self.of_position = np.repeat(np.arange(len(settings.classes)), [each.size for each in settings.classes])
        factors = np.array([each.factor for each in settings.classes], np.int32)
        multiples = np.array(MULTIPLES, np.int32)[:, None]
        self._by_class = np.maximum(1, (multiples + factors // 2) // factors)  # [steps - 1, classes]
        self.multiples = self._by_class[:, self.of_position]  # [steps - 1, positions]
        self.offsets = _find_offsets(self.multiples)
        below, above = settings.centre, settings.levels - 1 - settings.centre
        self.lows = (below // self._by_class).tolist()  # the largest magnitudes below and above zero, by step and class
        self.least = -(below // self.multiples)
        self.most = above // self.multiples
        self._counts = counts
        self._models: dict[int, list[Any]] = {}

    @cached_property
    def step_model(self) -> Any:
        """Model of the step's number: all are alike."""
        return build_model(np.full(STEPS, COUNT_SUM // STEPS))

    def models(self, step: int) -> list[Any]:
        """Models of the classes at a step, made when it is first used; None where only zero is left."""
        found = self._models.get(step)
        if found is None:
            counts = [self._step_counts(step, index) for index in range(len(self.settings.classes))]
            found = self._models[step] = [build_model(each) if each.size > 1 else None for each in counts]
        return found

    @cached_property
    def costs(self) -> npt.NDArray[np.float32]:
        """Information of each rounded coefficient in bits, flat `[steps - 1, classes, levels]`; 0 of a certain one."""
        width = self.settings.levels
        found = np.zeros((STEPS - 1, len(self.settings.classes), width), np.float32)
        for step in range(STEPS - 1):
            for index in range(len(self.settings.classes)):
                counts = self._step_counts(step, index)
                found[step, index, : counts.size] = -np.log2(counts / COUNT_SUM)
        return found.reshape(-1)

    @cached_property
    def cost_offsets(self) -> npt.NDArray[np.int64]:
        """Where the cost of coefficient zero stands in `costs`, `[steps - 1, positions]`."""
        classes, width = len(self.settings.classes), self.settings.levels
        rows = np.arange(STEPS - 1)[:, None] * classes + self.of_position
        return rows * width - self.least

    def _step_counts(self, step: int, index: int) -> npt.NDArray[np.int64]:
        """Counts of a class at a step: those of the fine grid, summed, from the least coefficient to the greatest."""
        multiple, centre = self._by_class[step, index], self.settings.centre
        fine = np.arange(self.settings.levels, dtype=np.int32) - np.int32(centre)
        low, high = -(centre // multiple), (self.settings.levels - 1 - centre) // multiple
        rounded = _round_magnitudes(fine, multiple, _find_offsets(multiple)).clip(low, high) - low
        summed = np.zeros(high - low + 1, np.int64)
        np.add.at(summed, rounded, self._counts[index])
        return np.asarray(scale_counts(summed[None])[0], np.int64) if summed.size > 1 else summed


def _round_magnitudes(wide: WholeNumbers, multiple: Any, offset: Any) -> WholeNumbers:
    found: WholeNumbers = np.sign(wide) * ((np.abs(wide) + offset) // multiple)
    return found


def _round_to_steps(wide: WholeNumbers, table: StepTable) -> WholeNumbers:
    """Round coefficients `[positions]` to every step but the last, `[steps - 1, positions]`, in units of the step."""
    rounded = _round_magnitudes(wide, table.multiples, table.offsets)
    return np.minimum(np.maximum(rounded, table.least, out=rounded), table.most, out=rounded)


def _sum_costs(rounded: WholeNumbers, table: StepTable) -> npt.NDArray[np.float64]:
    """Bits of the coefficients at every step, nearly."""
    found: npt.NDArray[np.float64] = table.costs[table.cost_offsets + rounded].sum(1, dtype=np.float64)
    return found


def _find_room(table: StepTable) -> float:
    """The bits beyond which no payload can fit: rounding of costs included, so every machine tries the same steps."""
    return (8 * table.settings.payload_bytes + _SLACK_BITS) * (1 + _SLACK_SHARE)


def _finest_step(rounded: WholeNumbers, table: StepTable) -> int:
    """The finest step at which the coefficients fit; the last one, which sends nothing, always does."""
    for step in np.flatnonzero(_sum_costs(rounded, table) <= _find_room(table)):
        if len(_encode_at(int(step), rounded[step], table)) <= table.settings.payload_bytes:
            return int(step)
    return STEPS - 1


def _encode_exactly(wide: WholeNumbers, rounded: WholeNumbers, table: StepTable) -> bytes | None:
    """Encode at the finest step that gives exactly these coefficients and fits; None if no step does."""
    exact = (rounded * table.multiples == wide).all(1)
    possible = exact & (_sum_costs(rounded, table) <= _find_room(table))
    for step in np.flatnonzero(possible):
        payload = _encode_at(int(step), rounded[step], table)
        if len(payload) <= table.settings.payload_bytes:
            return payload
    return None if wide.any() else _encode_at(STEPS - 1, wide, table)


def _encode_at(step: int, rounded: WholeNumbers, table: StepTable) -> bytes:
    """Encode a step's number and its coefficients to the fewest bytes that decode to them when zeros follow."""
    encoder = new_encoder()
    encoder.encode(np.array([step], np.int32), table.step_model)
    if step < STEPS - 1:
        start = 0
        for model, each, low in zip(table.models(step), table.settings.classes, table.lows[step], strict=True):
            if model is not None:
                encoder.encode(rounded[start : start + each.size] + np.int32(low), model)
            start += each.size
    return finish_payload(encoder)


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
