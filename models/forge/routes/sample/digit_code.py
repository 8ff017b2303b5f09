"""Rows of whole numbers (ids of tokens, categories) as digits: exact, entropy coded by static tables.

Rule: a number's rank by how often it occurs in training samples is what is coded, in digits of at most 256 levels, the
first digit the highest: frequent numbers have a first digit of nearly always zero, which takes next to no room. Numbers
outside the range of the input are taken for its ends.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from models.bundle.manifest import InputSpec
from models.forge.data.types import Values
from models.forge.routes.sample.sample_types import TORCH_DTYPES, SampleCode, draw_rows
from models.runtime.feature_codec import ANS, build_ans_tables, find_payload_bytes, smallest_codec
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType

MAX_NUMBERS = 1 << 20  # of different whole numbers: each has a row in a table of both halves
_TABLE_BYTES = 150_000  # of probabilities: with more, digits are of fewer levels
_MOST_DIGITS = 8
_FITTED = 20_000

Digits = npt.NDArray[np.uint8]


def fit_digit_codes(x: Values, spec: InputSpec, payloads: Sequence[int], seed: int) -> list[SampleCode]:
    """Fit the exact code to samples of whole numbers `[n, ...]`: in a list, empty if no payload (bytes) holds it."""
    numbers = round(spec.high) - round(spec.low) + 1
    if not payloads or not 2 <= numbers <= MAX_NUMBERS:
        return []
    places = (x.reshape(len(x), -1).clip(spec.low, spec.high) - round(spec.low)).astype(np.int64)
    base, count = choose_digits(numbers, places.shape[1])
    order = np.argsort(-np.bincount(places.reshape(-1), minlength=numbers), kind="stable")
    digits = np.empty((numbers, count), np.uint8)
    digits[order] = split_digits(np.arange(numbers), base, count)
    codes = digits[places[draw_rows(len(x), seed, _FITTED)]].reshape(-1, places.shape[1] * count)
    codec, tables, size = _choose_codec(codes, base)
    if size > max(payloads):
        return []
    return [
        SampleCode(
            name="sample-exact",
            coder=DigitCoder(digits, round(spec.low)).eval(),
            decoder=DigitDecoder(order, base, spec).eval(),
            shape=(places.shape[1] * count,),
            levels=base,
            codec=codec,
            tables=tables,
            payload_bytes=size,
        )
    ]


def choose_digits(numbers: int, positions: int) -> tuple[int, int]:
    """Levels of a digit and digits of a number: the fewest digits whose tables are small enough."""
    count = 1
    while True:
        base = max(2, math.ceil(numbers ** (1 / count) - 1e-9))
        base += base**count < numbers
        fits = base <= 256 and 2 * positions * count * base <= _TABLE_BYTES
        if fits or (base <= 256 and count >= _MOST_DIGITS):
            return base, count
        count += 1


def split_digits(numbers: npt.NDArray[np.int64], base: int, count: int) -> Digits:
    """Digits `[n, count]` of whole numbers `[n]`, the highest first."""
    powers = base ** np.arange(count - 1, -1, -1, dtype=np.int64)
    return (numbers[:, None] // powers % base).astype(np.uint8)


def _choose_codec(codes: Digits, levels: int) -> tuple[str, bytes, int]:
    """Codec, tables and payload of the smaller of packing and entropy coding."""
    plain = smallest_codec(levels)
    spec = FieldSpec("codes", TensorDType.UINT8, codes.shape[1:], 0, levels - 1, SensitivityLevel.P4, "codes")
    tables = build_ans_tables(codes, levels)
    sizes = {plain: find_payload_bytes(plain, spec), ANS: find_payload_bytes(ANS, spec, tables)}
    best = min(sizes, key=sizes.__getitem__)
    return best, tables if best == ANS else b"", sizes[best]


class DigitCoder(nn.Module):
    """Coder: whole numbers -> the digits of their ranks, looked up. `digits`: of each number from `low` up."""

    def __init__(self, digits: Digits, low: int) -> None:
        super().__init__()
        self.low, self.high = low, low + len(digits) - 1
        self.digits = nn.Parameter(torch.from_numpy(digits.astype(np.float32)), requires_grad=False)

    def forward(self, sample: Tensor) -> Tensor:
        places = sample.clamp(self.low, self.high).long() - self.low
        return embedding(places.flatten(1), self.digits).flatten(1).round()  # a stored table may be off by little


class DigitDecoder(nn.Module):
    """Decoder: digits -> whole numbers in the input's shape and type. `order`: the numbers by rank, from `low` up."""

    def __init__(self, order: npt.NDArray[np.int64], base: int, spec: InputSpec) -> None:
        super().__init__()
        self.base, self.shape, self.dtype = base, spec.shape, TORCH_DTYPES[spec.dtype]
        self.register_buffer("numbers", torch.from_numpy(order + round(spec.low)))

    def forward(self, codes: Tensor) -> Tensor:
        numbers = self.get_buffer("numbers")
        digits = codes.long().reshape(codes.shape[0], math.prod(self.shape), -1)
        rank = digits[:, :, 0]
        for place in range(1, digits.shape[2]):
            rank = rank * self.base + digits[:, :, place]
        found = numbers.index_select(0, rank.clamp(0, len(numbers) - 1).flatten())
        return found.reshape(-1, *self.shape).to(self.dtype)
