"""Privacy transforms of what leaves the device, and discrete Gaussian noise from the operating system's secure source.

Rule: exactly the planned fields come out, each in its specification's type, shape and range; else nothing does.
Rule: no float takes part in a noise draw. The distribution drawn from is within 2^-100 (total variation) of the
discrete Gaussian of C. Canonne, G. Kamath and T. Steinke (NeurIPS 2020), so what that adds to a delta is negligible.
Method: inversion of the distribution function (L. Devroye, "Non-Uniform Random Variate Generation", 1986, III.2), the
function held as a table of 128-bit fractions.
"""

import secrets
from bisect import bisect_right
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.runtime.feature_codec import NUMPY_DTYPES, FeatureCodec
from models.runtime.runner import Inference
from models.runtime.transforms import TransformStepError, TransformTools, apply_transforms
from policies.decisions.egress import (
    CONFIDENCE_FIELD,
    LOCAL_ANSWER_FIELD,
    LOCAL_VALUE_FIELD,
    EgressPlan,
    FieldPlan,
    redact_text,
)
from policies.model.policy import TransformKind, TransformSpec
from wire.protocol.messages import Tensor

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


TEXT = "text"  # the category of a field that holds text: UTF-8 bytes, zeros after its end
FieldValues = npt.NDArray[Any]
_REDACT = TransformSpec(TransformKind.REDACT)


class TransformError(ValueError):
    """A field cannot be made what the policy says it must be: nothing leaves."""


def make_transform_tools(key: bytes) -> TransformTools:
    """The transform tools of a device: noise from the secure source, and its own `key` for keyed hashes."""
    return TransformTools(draw_noise, key, redact_text)


def apply_egress_plan(
    egress: EgressPlan, inference: Inference, codec: FeatureCodec, tools: TransformTools
) -> dict[str, Tensor]:
    """The tensors that leave, by field name. The model's features pass through its codec; all else travels plain.

    Raises TransformError if a field is missing, has another type, shape or range, or a transform fails.
    """
    tensors: dict[str, Tensor] = {}
    derived = _derive_fields(inference)
    for plan in egress.fields:
        name = plan.spec.name
        source = inference.features if name in inference.features else derived
        values = _transform_field(plan, source, tools)
        tensors[name] = codec.encode(name, values) if source is inference.features else _plain_tensor(plan, values)
    return tensors


def _derive_fields(inference: Inference) -> dict[str, FieldValues]:
    prediction = inference.prediction
    confidence = {CONFIDENCE_FIELD: np.array([prediction.confidence], np.float32)}
    if prediction.label < 0:  # a regressor's
        return confidence | {LOCAL_VALUE_FIELD: np.array(prediction.scores[:1], np.float32)}
    return confidence | {LOCAL_ANSWER_FIELD: np.array([prediction.label], np.int32)}


def _transform_field(plan: FieldPlan, source: Mapping[str, FieldValues], tools: TransformTools) -> FieldValues:
    spec = plan.spec
    values = source.get(spec.name)
    if values is None:
        raise TransformError(f"the model gave no field {spec.name!r}")
    dtype = NUMPY_DTYPES[spec.dtype]
    if values.shape != spec.shape or values.dtype != dtype:
        raise TransformError(f"field {spec.name!r} is {values.dtype} {list(values.shape)}, not as the schema says")
    steps = (*plan.transforms, _REDACT) if spec.category == TEXT else plan.transforms
    try:
        values = apply_transforms(values[None], steps, spec, tools)[0] if steps else values
    except (TransformStepError, KeyError) as error:
        raise TransformError(f"field {spec.name!r}: {error}") from None
    if values.size and not (spec.low <= values.min() and values.max() <= spec.high):  # false for NaN too
        raise TransformError(f"field {spec.name!r} is outside {spec.low:g}..{spec.high:g}")
    return values


def _plain_tensor(plan: FieldPlan, values: FieldValues) -> Tensor:
    return Tensor(plan.spec.dtype, plan.spec.shape, np.ascontiguousarray(values).tobytes())
