"""Range coder in plain Python, for machines that the library `constriction` has no package for (Linux on ARM).

The same algorithm, word for word (32-bit words, 64-bit state, probabilities of 24 bits): a payload has the same bytes
whichever of the two made it. Source: `constriction` 0.5, `stream::queue` and the quickly built categorical model
(Bamler 2022, "Understanding entropy coding with asymmetric numeral systems"). A device on any processor needs this one.

The library stays beside it for its speed alone: a question of 256 codes of 16 levels takes it 4 us to encode and 7 us
to decode, this coder 69 and 163 us. A device encodes few questions. A hub decodes each one that it answers and encodes
it again as a check, so this coder would cost it 0.2 ms more an answer; the forge encodes whole data sets.
"""

from bisect import bisect_right
from typing import Any

import numpy as np
import numpy.typing as npt

_PRECISION = 24
_TOTAL = 1 << _PRECISION
_WORD_BITS = 32
_WORD = (1 << _WORD_BITS) - 1
_STATE = (1 << 64) - 1

Cumulative = npt.NDArray[np.int64]


def accumulate_probabilities(probabilities: npt.NDArray[np.float32]) -> Cumulative:
    """Left ends `[rows, levels + 1]` of each symbol's part of 2**24, from probabilities `[rows, levels]`.

    They are multiples of 2**-16, so that every partial sum is exact; a row need not sum to 1. Each symbol gets one part
    at least, whatever its probability.
    """
    rows, levels = probabilities.shape
    ends = np.full((rows, levels + 1), _TOTAL, np.int64)
    left = np.zeros((rows, levels), np.float32)
    np.cumsum(probabilities[:, :-1], axis=1, dtype=np.float32, out=left[:, 1:])
    scale = np.float32(_TOTAL - levels) / probabilities.sum(1, dtype=np.float32, keepdims=True)
    ends[:, :-1] = (left * scale).astype(np.int64) + np.arange(levels)
    return ends


class CategoricalModel:
    """Model of symbols 0..n-1. Without `probabilities` a family: each symbol's are given when it is coded."""

    def __init__(
        self, probabilities: npt.NDArray[np.float32] | None = None, *, lazy: bool = True, perfect: bool = False
    ) -> None:
        """`lazy` and `perfect` are the library's; only its quickly built models are made here."""
        if perfect or not lazy:
            raise ValueError("only lazy models that are not perfect are known here")
        self._ends = None if probabilities is None else accumulate_probabilities(probabilities[None])

    def select_ends(self, probabilities: npt.NDArray[np.float32] | None) -> Cumulative:
        """Left ends `[1, n + 1]` of the model, or `[rows, n + 1]` of a family's `probabilities`."""
        if probabilities is not None:
            return accumulate_probabilities(probabilities)
        if self._ends is None:
            raise ValueError("a family of models needs probabilities")
        return self._ends


class RangeEncoder:
    """Encoder of symbols into words; the interval of what was encoded is `lower` and the `width` above it."""

    def __init__(self) -> None:
        self._words: list[int] = []
        self._lower = 0
        self._width = _STATE

    def encode(
        self, symbols: npt.NDArray[Any], model: CategoricalModel, probabilities: npt.NDArray[np.float32] | None = None
    ) -> None:
        """Encode symbols, by one model or by a family with a row of probabilities each."""
        ends = model.select_ends(probabilities)
        rows = np.arange(len(symbols)) if probabilities is not None else 0
        lefts = ends[rows, symbols]
        parts = ends[rows, symbols + 1] - lefts
        lower, width = self._lower, self._width
        for left, part in zip(lefts.tolist(), parts.tolist(), strict=True):
            scale = width >> _PRECISION
            width = scale * part
            lower += scale * left
            if lower > _STATE:
                _carry_into(self._words)
                lower &= _STATE
            if width <= _WORD:
                self._words.append(lower >> _WORD_BITS)
                lower, width = (lower << _WORD_BITS) & _STATE, width << _WORD_BITS
        self._lower, self._width = lower, width

    def pos(self) -> tuple[int, tuple[int, int]]:
        """Number of words before the state, and the state: lower end and width of the interval."""
        return len(self._words), (self._lower, self._width)

    def get_compressed(self) -> npt.NDArray[np.uint32]:
        """Words that decode to what was encoded, whatever follows them."""
        words = list(self._words)
        if not words and self._width == _STATE:
            return np.zeros(0, np.uint32)
        point = self._lower + _WORD
        if point > _STATE:
            _carry_into(words)
            point &= _STATE
        upper = ((self._lower + self._width) & _STATE) >> _WORD_BITS
        ending = point >> _WORD_BITS
        return np.array([*words, ending, *([0] if upper == ending else [])], np.uint32)


def _carry_into(words: list[int]) -> None:
    """Add one to the number that these words are."""
    at = len(words) - 1
    while words[at] == _WORD:
        words[at] = 0
        at -= 1
    words[at] += 1


class RangeDecoder:
    """Decoder of words; zeros follow them."""

    def __init__(self, words: npt.NDArray[np.uint32]) -> None:
        self._words = iter(words.tolist())
        self._lower = 0
        self._width = _STATE
        self._point = next(self._words, 0) << _WORD_BITS | next(self._words, 0)

    def decode(self, model: CategoricalModel, amount: "int | npt.NDArray[np.float32]") -> npt.NDArray[np.int32]:
        """Decode `amount` symbols of one model, or one of each row of a family's probabilities.

        ValueError for words that no encoder makes.
        """
        if isinstance(amount, int):
            rows = [model.select_ends(None)[0].tolist()] * amount
        else:
            rows = model.select_ends(amount).tolist()
        return np.array([self._decode_one(ends) for ends in rows], np.int32)

    def _decode_one(self, ends: list[int]) -> int:
        scale = self._width >> _PRECISION
        quantile = ((self._point - self._lower) & _STATE) // scale
        if quantile >= _TOTAL:
            raise ValueError("these words belong to no symbols of this model")
        symbol = bisect_right(ends, quantile) - 1
        self._lower = (self._lower + scale * ends[symbol]) & _STATE
        self._width = scale * (ends[symbol + 1] - ends[symbol])
        if self._width <= _WORD:
            self._lower = (self._lower << _WORD_BITS) & _STATE
            self._width <<= _WORD_BITS
            self._point = (self._point << _WORD_BITS) & _STATE | next(self._words, 0)
        return symbol
