"""Discrete Gaussian noise from the operating system's secure source of random numbers.

Rule: no float takes part in a noise draw. The distribution drawn from is within 2^-100 (total variation) of the
discrete Gaussian of C. Canonne, G. Kamath and T. Steinke (NeurIPS 2020), so what that adds to a delta is negligible.
Method: inversion of the distribution function (L. Devroye, "Non-Uniform Random Variate Generation", 1986, III.2), the
function held as a table of 128-bit fractions.
"""

import secrets
from bisect import bisect_right
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import ceil
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_WORD_BITS = 64
_TABLE_BITS = 2 * _WORD_BITS
_WORK_BITS = 320  # in which the weights are computed: each of some thousand products loses less than one unit
_TAIL_SIGMAS = 13  # beyond lies less than 2^-120
_TERMS = 64
_WORD = np.dtype("<u8")


class NoiseTable(NamedTuple):
    """A cumulative distribution: P(X <= x) for x from `-top` on, in units of 2^-128.

    `high`: the upper 64 bits of each.
    """

    top: int
    whole: list[int]
    high: npt.NDArray[np.uint64]


def draw_noise(sigma: float, count: int) -> npt.NDArray[np.float64]:
    """Discrete Gaussian noise: `count` independent whole numbers x, each with probability ~ exp(-x^2 / (2 sigma^2)).

    `sigma` > 0. Returned as float64, which holds them exactly.
    """
    words = np.frombuffer(secrets.token_bytes(count * 8), _WORD)
    return look_up_noise(build_noise_table(sigma), words, lambda: secrets.randbits(_WORD_BITS))


def look_up_noise(
    table: NoiseTable, words: npt.NDArray[np.uint64], lower: Callable[[], int]
) -> npt.NDArray[np.float64]:
    """Invert the distribution function for draws of 128 random bits.

    `words`: the upper 64 bits of each draw; `lower()` gives the lower 64 bits where they decide.
    """
    found = np.searchsorted(table.high, words, side="right")
    # only where the upper word meets that of an entry the lower one decides: about once in 2^50 draws
    for at in np.flatnonzero(table.high[np.maximum(found - 1, 0)] == words):
        found[at] = bisect_right(table.whole, (int(words[at]) << _WORD_BITS) | lower())
    return found.astype(np.float64) - table.top


@lru_cache(maxsize=16)
def build_noise_table(sigma: float) -> NoiseTable:
    """The table of one sigma, cut at 13 sigmas: beyond lies less than 2^-120."""
    top = ceil(_TAIL_SIGMAS * Fraction(sigma))
    half = _gaussian_weights(Fraction(sigma), top)
    sums = list(accumulate([*reversed(half[1:]), *half]))
    whole = [(each << _TABLE_BITS) // sums[-1] for each in sums[:-1]]  # the last is 1: no draw reaches it
    high = np.array([each >> _WORD_BITS for each in whole], np.uint64)
    return NoiseTable(top, whole, high)


def _gaussian_weights(sigma: Fraction, top: int) -> list[int]:
    """exp(-x^2 / (2 sigma^2)) for x = 0..top as whole multiples of 2^-320: from one x to the next by a product."""
    one = 1 << _WORK_BITS
    factor = _exponentiate(-1 / (2 * sigma * sigma))
    square = factor * factor >> _WORK_BITS
    weights = [one]
    for _ in range(top):
        weights.append(weights[-1] * factor >> _WORK_BITS)
        factor = factor * square >> _WORK_BITS
    return weights


def _exponentiate(exponent: Fraction) -> int:
    """The exponential of a fraction between -2 and 0 as a whole multiple of 2^-320, by its series."""
    term = Fraction(1 << _WORK_BITS)
    total = Fraction(0)
    for index in range(1, _TERMS):
        total += term
        term = Fraction(int(term * exponent / index))
    return int(total)
