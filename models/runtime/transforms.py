"""Privacy transforms of feature values before they leave the device: clipping, rounding, noise, hashing and others.

The device applies them when it sends, and the forge's privacy attacks measure through the same code.
Rule: total and closed. Shape and type stay, every value ends inside the field's range; what cannot be so is a
`TransformStepError`, and then nothing leaves. Whole types are rounded toward zero after every step.
"""

import hmac
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.runtime.chain import CodeRange, Transform

SampleArray = npt.NDArray[Any]
WideArray = npt.NDArray[np.float64]

GRID_POINTS_PER_SIGMA = 64  # grid points to a sigma where the policy names no grid
MIN_GRID_POINTS, MAX_GRID_POINTS = 0.5, 4096.0  # grid points to a sigma
_MAX_BASIS_ITEMS = 1 << 22  # most numbers in a projection basis
_MAX_HASH_BITS = 53
_NORM_MARGIN = 1 - 1e-12  # margin that covers the rounding of a norm


class TransformStepError(ValueError):
    """A transform step that cannot be done to its field: nothing of it may leave."""


class TransformTools(NamedTuple):
    """What transforms need beside the values: randomness, a key and a text redactor.

    `draw(ratio, count)`: whole numbers of a discrete Gaussian whose standard deviation is `ratio`. `key`: of keyed
    hashes. `redact`: from text as bytes and names of patterns to text of the same length; None: redaction is a
    `TransformStepError`.
    """

    draw: Callable[[float, int], WideArray]
    key: bytes
    redact: Callable[[bytes, Sequence[str]], bytes] | None = None


class _StepInput(NamedTuple):
    """Input of one step. `wide`: the values so far, `[n, ...]`; `whole`: the field's type holds whole numbers only."""

    wide: WideArray
    step: Transform
    field: CodeRange
    whole: bool
    tools: TransformTools


def apply_transforms(
    values: SampleArray, steps: Sequence[Transform], field: CodeRange, tools: TransformTools
) -> SampleArray:
    """Apply transform steps to samples `[n, ...]`; the result has the same type and shape.

    `field`: name and range of the values. TransformStepError if any step is not known or cannot be done.
    """
    if not steps:
        return values
    dtype, whole = values.dtype, values.dtype.kind in "iu"
    if not whole and dtype.kind != "f":
        raise TransformStepError(f"{field.name}: {dtype} cannot be changed")
    low, high = _value_bounds(dtype, field)
    wide: WideArray = values.astype(np.float64)
    for step in steps:
        does = STEPS.get(str(step.kind))
        if does is None:
            raise TransformStepError(f"{field.name}: {str(step.kind)[:32]!r} is not a known transform")
        with np.errstate(over="ignore", invalid="ignore"):  # a step too small to divide by: refused just below
            out = does(_StepInput(wide, step, field, whole, tools))
        if not np.isfinite(out).all():
            raise TransformStepError(f"{field.name}: {step.kind} gave NaN or infinity")
        wide = np.clip(np.trunc(out) if whole else out, low, high)
    return wide.astype(dtype)


def _value_bounds(dtype: np.dtype[Any], field: CodeRange) -> tuple[float, float]:
    """Return the part of the field's range that its type can hold: a whole number beyond it would wrap round."""
    if dtype.kind == "f":
        return field.low, field.high
    return max(field.low, float(np.iinfo(dtype).min)), min(field.high, float(np.iinfo(dtype).max))


def _clip_values(w: _StepInput) -> WideArray:
    if not w.step.low <= w.step.high:
        raise TransformStepError(f"{w.field.name}: clip from {w.step.low:g} to {w.step.high:g} leaves nothing")
    return np.clip(w.wide, w.step.low, w.step.high)


def _clip_norm(w: _StepInput) -> WideArray:
    """Scale every sample into a ball around zero: at most `high` from it by the Euclidean norm."""
    limit = _require_positive(w, w.step.high)
    if not w.field.low <= 0 <= w.field.high:
        raise TransformStepError(f"{w.field.name}: zero is outside its range, so no norm can be promised")
    flat = w.wide.reshape(len(w.wide), -1)
    norms = np.sqrt(np.square(flat).sum(axis=1, keepdims=True))
    scale = np.where(norms > limit, limit / np.maximum(norms, limit) * _NORM_MARGIN, 1.0)
    return (flat * scale).reshape(w.wide.shape)


def _quantise_values(w: _StepInput) -> WideArray:
    size = _require_positive(w, w.step.step)
    out: WideArray = np.rint(w.wide / size) * size
    return out


def _coarsen_values(w: _StepInput) -> WideArray:
    """Round down to a multiple of `step`, counted from the low end of the range."""
    size = _require_positive(w, w.step.step)
    out: WideArray = np.floor((w.wide - w.field.low) / size) * size + w.field.low
    return out


def _bucketize_values(w: _StepInput) -> WideArray:
    """Replace each value by the lower edge of its bucket; below the first edge, by the low end of the range."""
    edges = np.array(w.step.values, np.float64)
    if not edges.size or not np.isfinite(edges).all() or (np.diff(edges) <= 0).any():
        raise TransformStepError(f"{w.field.name}: edges are numbers that rise")
    starts = np.concatenate(([w.field.low], edges))
    out: WideArray = starts[np.searchsorted(edges, w.wide, side="right")]
    return out


def _keep_top_k(w: _StepInput) -> WideArray:
    """Keep the largest values of a sample; all others become the least of these.

    With a centre those farthest from it are kept, and all others become the centre: codes of coefficients tell the most
    far from their middle.
    """
    flat = w.wide.reshape(len(w.wide), -1)
    count = min(_require_whole(w, w.step.step), flat.shape[1])
    if not w.step.values:
        bar = -np.partition(-flat, count - 1, axis=1)[:, count - 1 : count]
        return np.asarray(np.maximum(flat, bar).reshape(w.wide.shape))
    centre = w.step.values[0]
    if len(w.step.values) > 1 or not w.field.low <= centre <= w.field.high:
        raise TransformStepError(f"{w.field.name}: a centre is one number within its range")
    far = np.abs(flat - centre)
    bar = -np.partition(-far, count - 1, axis=1)[:, count - 1 : count]
    return np.where(far >= bar, flat, centre).reshape(w.wide.shape)


def _pool_means(w: _StepInput) -> WideArray:
    """Replace each window by its mean: squares over the last two axes of three or more, else runs along the last."""
    size, wide = _require_whole(w, w.step.step), w.wide
    for axis in (-2, -1) if wide.ndim > 3 else (-1,):  # the first axis counts samples
        count = wide.shape[axis]
        starts = np.arange(0, count, min(size, count))
        lengths = np.diff(np.append(starts, count))
        sums = np.add.reduceat(wide, starts, axis=axis)
        along = [1] * wide.ndim
        along[axis] = -1
        wide = np.repeat(sums / lengths.reshape(along), lengths, axis=axis)
    return wide


def _project_values(w: _StepInput) -> WideArray:
    """Project onto a subspace of few dimensions, drawn by the seed: what is perpendicular to it is gone."""
    flat = w.wide.reshape(len(w.wide), -1)
    dims, seed = _require_whole(w, w.step.step), w.step.low
    if not (0 <= seed < math.inf and seed == int(seed)):
        raise TransformStepError(f"{w.field.name}: a seed is a whole number from 0 on")
    if dims > flat.shape[1] or dims * flat.shape[1] > _MAX_BASIS_ITEMS:
        raise TransformStepError(f"{w.field.name}: {dims} dimensions of {flat.shape[1]} values")
    basis = _random_basis(int(seed), flat.shape[1], dims)
    return (flat @ basis @ basis.T).reshape(w.wide.shape)


@lru_cache(maxsize=8)
def _random_basis(seed: int, size: int, dims: int) -> WideArray:
    return np.asarray(np.linalg.qr(np.random.default_rng(seed).standard_normal((size, dims)))[0], np.float64)


def _add_noise(w: _StepInput) -> WideArray:
    """Round toward zero onto a grid and add discrete Gaussian noise on it; what leaves lies on the grid alone.

    C. Canonne, G. Kamath and T. Steinke, "The Discrete Gaussian for Differential Privacy" (NeurIPS 2020): on a grid
    nothing is left to the rounding of floats (I. Mironov, CCS 2012).
    """
    sigma = _require_positive(w, w.step.step)
    grid = w.step.high or default_grid(sigma, whole=w.whole)
    if not grid > 0 or (w.whole and grid != int(grid)):
        raise TransformStepError(f"{w.field.name}: no value lies on a grid of {grid:g}")
    if not MIN_GRID_POINTS <= sigma / grid <= MAX_GRID_POINTS:
        raise TransformStepError(
            f"{w.field.name}: {sigma / grid:g} grid points to a sigma; {MIN_GRID_POINTS:g} to {MAX_GRID_POINTS:g}"
        )
    drawn = w.tools.draw(sigma / grid, w.wide.size).reshape(w.wide.shape)
    points = np.trunc(w.wide / grid) + drawn
    out: WideArray = np.clip(points, math.ceil(w.field.low / grid), math.floor(w.field.high / grid)) * grid
    if not w.whole and (out.astype(np.float32) != out).any():
        raise TransformStepError(f"{w.field.name}: a grid of {grid:g} is too fine for its type")
    return out


def default_grid(sigma: float, *, whole: bool) -> float:
    """Choose the grid of noise where a policy names none; `sigma` is the standard deviation in units of the values.

    1 for whole types, else a power of two, so that floats lie on it exactly.
    """
    return 1.0 if whole else 2.0 ** math.floor(math.log2(sigma / GRID_POINTS_PER_SIGMA))


def _hash_values(w: _StepInput) -> WideArray:
    """Replace each whole number by its HMAC-SHA-256 under the device's own key, cut to so many bits (RFC 2104)."""
    bits = _require_whole(w, w.step.step)
    if not w.whole or bits > _MAX_HASH_BITS or not w.field.low <= 0 <= 2**bits - 1 <= w.field.high:
        raise TransformStepError(f"{w.field.name}: a hash of {bits} bits is not of its type and range")
    numbers, where = np.unique(w.wide, return_inverse=True)
    hashes = [_keyed_hash_bits(w.tools.key, f"{w.field.name}\0{int(number)}", bits) for number in numbers]
    out: WideArray = np.array(hashes, np.float64)[where].reshape(w.wide.shape)
    return out


def _keyed_hash_bits(key: bytes, text: str, bits: int) -> int:
    return int.from_bytes(hmac.digest(key, text.encode(), sha256)[:8], "big") >> (64 - bits)


def _redact_text(w: _StepInput) -> WideArray:
    """Redact patterns in text given as bytes; a sample is one text, and its length stays."""
    if w.tools.redact is None or not w.whole or (w.field.low, w.field.high) != (0, 255):
        raise TransformStepError(f"{w.field.name}: no text can be redacted here")
    flat = w.wide.reshape(len(w.wide), -1).astype(np.uint8)
    rows = [np.frombuffer(w.tools.redact(row.tobytes(), w.step.words), np.uint8) for row in flat]
    if any(len(row) != flat.shape[1] for row in rows):
        raise TransformStepError(f"{w.field.name}: the text changed its length")
    return np.stack(rows).astype(np.float64).reshape(w.wide.shape)


def _require_positive(w: _StepInput, value: float) -> float:
    if not 0 < value < math.inf:
        raise TransformStepError(f"{w.field.name}: {w.step.kind} by {value:g}")
    return value


def _require_whole(w: _StepInput, value: float) -> int:
    if not 1 <= value < math.inf or value != int(value):
        raise TransformStepError(f"{w.field.name}: {w.step.kind} by {value:g}")
    return int(value)


STEPS: Mapping[str, Callable[[_StepInput], WideArray]] = {
    "clip": _clip_values,
    "clip_norm": _clip_norm,
    "quantise": _quantise_values,
    "coarsen": _coarsen_values,
    "bucketize": _bucketize_values,
    "top_k": _keep_top_k,
    "pool": _pool_means,
    "project": _project_values,
    "noise": _add_noise,
    "keyed_hash": _hash_values,
    "redact": _redact_text,
}
