"""Privacy transforms of feature values before they leave the device: clipping, rounding, noise, hashing and others.

The device applies them when it sends, and the forge's privacy attacks measure through the same code.
Rule: total and closed. Shape and type stay, every value ends inside the field's range; what cannot be so is a
`StepError`, and then nothing leaves. Whole types are rounded toward zero after every step.
"""

import hmac
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.runtime.chain import Range, Transform

Values = npt.NDArray[Any]
Wide = npt.NDArray[np.float64]

GRIDS_A_SIGMA = 64  # grid points to a sigma where the policy names no grid
LEAST_GRIDS, MOST_GRIDS = 0.5, 4096.0  # grid points to a sigma
_MOST_BASIS = 1 << 22  # most numbers in a projection basis
_MOST_BITS = 53
_INSIDE = 1 - 1e-12  # margin that covers the rounding of a norm


class StepError(ValueError):
    """A transform step that cannot be done to its field: nothing of it may leave."""


class Tools(NamedTuple):
    """What transforms need beside the values: randomness, a key and a text redactor.

    `draw(ratio, count)`: whole numbers of a discrete Gaussian whose standard deviation is `ratio`. `key`: of keyed
    hashes. `redact`: from text as bytes and names of patterns to text of the same length; None: redaction is a
    `StepError`.
    """

    draw: Callable[[float, int], Wide]
    key: bytes
    redact: Callable[[bytes, Sequence[str]], bytes] | None = None


class _Work(NamedTuple):
    """Input of one step. `wide`: the values so far, `[n, ...]`; `whole`: the field's type holds whole numbers only."""

    wide: Wide
    step: Transform
    field: Range
    whole: bool
    tools: Tools


def changed(values: Values, steps: Sequence[Transform], field: Range, tools: Tools) -> Values:
    """Apply transform steps to samples `[n, ...]`; the result has the same type and shape.

    `field`: name and range of the values. StepError if any step is not known or cannot be done.
    """
    if not steps:
        return values
    dtype, whole = values.dtype, values.dtype.kind in "iu"
    if not whole and dtype.kind != "f":
        raise StepError(f"{field.name}: {dtype} cannot be changed")
    low, high = _ends(dtype, field)
    wide: Wide = values.astype(np.float64)
    for step in steps:
        does = STEPS.get(str(step.kind))
        if does is None:
            raise StepError(f"{field.name}: {str(step.kind)[:32]!r} is not a known transform")
        out = does(_Work(wide, step, field, whole, tools))
        if not np.isfinite(out).all():
            raise StepError(f"{field.name}: {step.kind} gave NaN or infinity")
        wide = np.clip(np.trunc(out) if whole else out, low, high)
    return wide.astype(dtype)


def _ends(dtype: np.dtype[Any], field: Range) -> tuple[float, float]:
    """Return the part of the field's range that its type can hold: a whole number beyond it would wrap round."""
    if dtype.kind == "f":
        return field.low, field.high
    return max(field.low, float(np.iinfo(dtype).min)), min(field.high, float(np.iinfo(dtype).max))


def _clip(w: _Work) -> Wide:
    if not w.step.low <= w.step.high:
        raise StepError(f"{w.field.name}: clip from {w.step.low:g} to {w.step.high:g} leaves nothing")
    return np.clip(w.wide, w.step.low, w.step.high)


def _clip_norm(w: _Work) -> Wide:
    """Scale every sample into a ball around zero: at most `high` from it by the Euclidean norm."""
    limit = _above_zero(w, w.step.high)
    if not w.field.low <= 0 <= w.field.high:
        raise StepError(f"{w.field.name}: zero is outside its range, so no norm can be promised")
    flat = w.wide.reshape(len(w.wide), -1)
    norms = np.sqrt(np.square(flat).sum(axis=1, keepdims=True))
    scale = np.where(norms > limit, limit / np.maximum(norms, limit) * _INSIDE, 1.0)
    return (flat * scale).reshape(w.wide.shape)


def _quantise(w: _Work) -> Wide:
    size = _above_zero(w, w.step.step)
    out: Wide = np.rint(w.wide / size) * size
    return out


def _coarsen(w: _Work) -> Wide:
    """Round down to a multiple of `step`, counted from the low end of the range."""
    size = _above_zero(w, w.step.step)
    out: Wide = np.floor((w.wide - w.field.low) / size) * size + w.field.low
    return out


def _bucketize(w: _Work) -> Wide:
    """Replace each value by the lower edge of its bucket; below the first edge, by the low end of the range."""
    edges = np.array(w.step.values, np.float64)
    if not edges.size or not np.isfinite(edges).all() or (np.diff(edges) <= 0).any():
        raise StepError(f"{w.field.name}: edges are numbers that rise")
    starts = np.concatenate(([w.field.low], edges))
    out: Wide = starts[np.searchsorted(edges, w.wide, side="right")]
    return out


def _top_k(w: _Work) -> Wide:
    """Keep the largest values of a sample; all others become the least of these."""
    flat = w.wide.reshape(len(w.wide), -1)
    count = min(_whole(w, w.step.step), flat.shape[1])
    bar = -np.partition(-flat, count - 1, axis=1)[:, count - 1 : count]
    out: Wide = np.maximum(flat, bar).reshape(w.wide.shape)
    return out


def _pool(w: _Work) -> Wide:
    """Replace each window by its mean: squares over the last two axes of three or more, else runs along the last."""
    size, wide = _whole(w, w.step.step), w.wide
    for axis in (-2, -1) if wide.ndim > 3 else (-1,):  # the first axis counts samples
        count = wide.shape[axis]
        starts = np.arange(0, count, min(size, count))
        lengths = np.diff(np.append(starts, count))
        sums = np.add.reduceat(wide, starts, axis=axis)
        along = [1] * wide.ndim
        along[axis] = -1
        wide = np.repeat(sums / lengths.reshape(along), lengths, axis=axis)
    return wide


def _project(w: _Work) -> Wide:
    """Project onto a subspace of few dimensions, drawn by the seed: what is perpendicular to it is gone."""
    flat = w.wide.reshape(len(w.wide), -1)
    dims, seed = _whole(w, w.step.step), w.step.low
    if seed != int(seed) or seed < 0:
        raise StepError(f"{w.field.name}: a seed is a whole number from 0 on")
    if dims > flat.shape[1] or dims * flat.shape[1] > _MOST_BASIS:
        raise StepError(f"{w.field.name}: {dims} dimensions of {flat.shape[1]} values")
    basis = _basis(int(seed), flat.shape[1], dims)
    return (flat @ basis @ basis.T).reshape(w.wide.shape)


@lru_cache(maxsize=8)
def _basis(seed: int, size: int, dims: int) -> Wide:
    return np.asarray(np.linalg.qr(np.random.default_rng(seed).standard_normal((size, dims)))[0], np.float64)


def _noise(w: _Work) -> Wide:
    """Round toward zero onto a grid and add discrete Gaussian noise on it; what leaves lies on the grid alone.

    C. Canonne, G. Kamath and T. Steinke, "The Discrete Gaussian for Differential Privacy" (NeurIPS 2020): on a grid
    nothing is left to the rounding of floats (I. Mironov, CCS 2012).
    """
    sigma = _above_zero(w, w.step.step)
    grid = w.step.high or grid_of(sigma, whole=w.whole)
    if not grid > 0 or (w.whole and grid != int(grid)):
        raise StepError(f"{w.field.name}: no value lies on a grid of {grid:g}")
    if not LEAST_GRIDS <= sigma / grid <= MOST_GRIDS:
        raise StepError(f"{w.field.name}: {sigma / grid:g} grid points to a sigma; {LEAST_GRIDS:g} to {MOST_GRIDS:g}")
    drawn = w.tools.draw(sigma / grid, w.wide.size).reshape(w.wide.shape)
    points = np.trunc(w.wide / grid) + drawn
    out: Wide = np.clip(points, math.ceil(w.field.low / grid), math.floor(w.field.high / grid)) * grid
    if not w.whole and (out.astype(np.float32) != out).any():
        raise StepError(f"{w.field.name}: a grid of {grid:g} is too fine for its type")
    return out


def grid_of(sigma: float, *, whole: bool) -> float:
    """Choose the grid of noise where a policy names none; `sigma` is the standard deviation in units of the values.

    1 for whole types, else a power of two, so that floats lie on it exactly.
    """
    return 1.0 if whole else 2.0 ** math.floor(math.log2(sigma / GRIDS_A_SIGMA))


def _keyed_hash(w: _Work) -> Wide:
    """Replace each whole number by its HMAC-SHA-256 under the device's own key, cut to so many bits (RFC 2104)."""
    bits = _whole(w, w.step.step)
    if not w.whole or bits > _MOST_BITS or not w.field.low <= 0 <= 2**bits - 1 <= w.field.high:
        raise StepError(f"{w.field.name}: a hash of {bits} bits is not of its type and range")
    numbers, where = np.unique(w.wide, return_inverse=True)
    hashes = [_hashed(w.tools.key, f"{w.field.name}\0{int(number)}", bits) for number in numbers]
    out: Wide = np.array(hashes, np.float64)[where].reshape(w.wide.shape)
    return out


def _hashed(key: bytes, text: str, bits: int) -> int:
    return int.from_bytes(hmac.digest(key, text.encode(), sha256)[:8], "big") >> (64 - bits)


def _redact(w: _Work) -> Wide:
    """Redact patterns in text given as bytes; a sample is one text, and its length stays."""
    if w.tools.redact is None or not w.whole or (w.field.low, w.field.high) != (0, 255):
        raise StepError(f"{w.field.name}: no text can be redacted here")
    flat = w.wide.reshape(len(w.wide), -1).astype(np.uint8)
    rows = [np.frombuffer(w.tools.redact(row.tobytes(), w.step.words), np.uint8) for row in flat]
    if any(len(row) != flat.shape[1] for row in rows):
        raise StepError(f"{w.field.name}: the text changed its length")
    return np.stack(rows).astype(np.float64).reshape(w.wide.shape)


def _above_zero(w: _Work, value: float) -> float:
    if not 0 < value < math.inf:
        raise StepError(f"{w.field.name}: {w.step.kind} by {value:g}")
    return value


def _whole(w: _Work, value: float) -> int:
    if not 1 <= value < math.inf or value != int(value):
        raise StepError(f"{w.field.name}: {w.step.kind} by {value:g}")
    return int(value)


STEPS: Mapping[str, Callable[[_Work], Wide]] = {
    "clip": _clip,
    "clip_norm": _clip_norm,
    "quantise": _quantise,
    "coarsen": _coarsen,
    "bucketize": _bucketize,
    "top_k": _top_k,
    "pool": _pool,
    "project": _project,
    "noise": _noise,
    "keyed_hash": _keyed_hash,
    "redact": _redact,
}
