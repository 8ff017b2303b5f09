"""Resampling of pictures: bilinear with a triangle filter as wide as the scale, exact to the bit on every machine.

Method: separable resampling with an anti-aliasing triangle filter, as in Pillow's `Image.resize(BILINEAR)`. Weights are
whole numbers that add up to 2**16 and pixels are whole numbers of 0..255, so that every sum is a whole number below
2**24: float32 holds it exactly in whatever order a machine adds. No result depends on a library of linear algebra.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
_ONE = 1 << 16  # weights of one output pixel together; 255 * _ONE + _ONE / 2 is below 2**24


class _Taps(NamedTuple):
    """Source pixels `[start, start + len(weights))` of one output pixel; float32 whole numbers, together 2**16."""

    start: int
    weights: npt.NDArray[np.float32]


def resize_pixels(pixels: Pixels, height: int, width: int) -> Pixels:
    """Resize `[h, w, channels]` to `[height, width, channels]`; no side may be 0.

    The rows first, then the columns, each rounded to whole pixel values. A side that fits already stays as it is.
    """
    if pixels.shape[0] != height:
        pixels = _resize_rows(pixels, height)
    if pixels.shape[1] != width:
        turned = np.ascontiguousarray(pixels.transpose(1, 0, 2))
        pixels = np.ascontiguousarray(_resize_rows(turned, width).transpose(1, 0, 2))
    return pixels


def _resize_rows(pixels: Pixels, rows: int) -> Pixels:
    source, width, channels = pixels.shape
    flat = pixels.reshape(source, width * channels)
    out = np.empty((rows, width * channels), np.uint8)
    for row, taps in enumerate(_find_taps(source, rows)):
        band = flat[taps.start : taps.start + len(taps.weights)]
        if len(taps.weights) == 1:
            out[row] = band[0]
            continue
        total = taps.weights @ band.astype(np.float32)
        out[row] = np.floor((total + _ONE // 2) / _ONE)
    return out.reshape(rows, width, channels)


@lru_cache(maxsize=16)
def _find_taps(source: int, size: int) -> tuple[_Taps, ...]:
    """Source pixels and weights of each of `size` output pixels of a line of `source` pixels."""
    scale = source / size
    reach = max(scale, 1.0)
    return tuple(_make_taps((place + 0.5) * scale, reach, source) for place in range(size))


def _make_taps(centre: float, reach: float, source: int) -> _Taps:
    first = max(0, int(centre - reach + 0.5))
    last = min(source, int(centre + reach + 0.5))
    places = np.arange(first, max(last, first + 1)) + 0.5
    heights = np.maximum(0.0, 1.0 - np.abs(places - centre) / reach)
    if not heights.any():
        heights[:] = 1.0
    return _Taps(first, _round_weights(heights / heights.sum()))


def _round_weights(shares: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Shares as whole numbers that add up to 2**16: what rounding lacks or has too much goes to the largest."""
    whole = np.rint(shares * _ONE)
    whole[int(np.argmax(whole))] += _ONE - whole.sum()
    weights: npt.NDArray[np.float32] = whole.astype(np.float32)
    return weights
