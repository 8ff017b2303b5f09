"""Choice of the edge graph's precision: each candidate is converted, scored and timed, and the smallest fit one ships.

Rule: every reason to drop a candidate is measured. Never slower than float32, never more than the allowed loss of
accuracy nor codes that tell the hub less, then the smallest; whatever is not shipped is reported with its reason.
Timings go to the report, not to the manifest: they differ from run to run.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy.typing as npt
import onnx

from models.forge.data.types import ForgeError
from models.forge.export.benchmark import compare_graphs, measure_p50_us, measure_resident_bytes, run_graph
from models.forge.export.onnx import serialise_model
from models.forge.export.precisions import PrecisionError, convert_float16, dynamic_int8, int8_weights, static_int8
from models.forge.export.targets import Precision, TargetProfile, is_measurable, pick_providers
from models.runtime.onnx_runner import ORT_ERRORS
from models.verification.lint import LintError, lint_graph

__all__ = [
    "DroppedCandidate",
    "PrecisionCandidate",
    "PrecisionChoice",
    "ScoreFunction",
    "build_candidates",
    "choose_precision",
    "measure_p50_us",
    "run_graph",
]

Values = npt.NDArray[Any]
ScoreFunction = Callable[[bytes], float]
MAX_LOSS = 0.005  # half a point
MAX_CODE_LOSS = 0.05  # of what lossless features gain: the hub's half learns to read what is a little worse
NOISE = 0.03  # of a median ratio: two equal graphs, timed in turns on a busy machine, stay within this
_ALIKE_SHARE, _ALIKE_BYTES = 1.15, 16 << 10  # sizes within this count as equal: the quicker one ships
_QUICKER = 0.9
_ROUNDING = 1e-9  # 0.483 - 0.478 is a little more than 0.005
# ONNX Runtime documents no exceptions of its converters: one that fails is reported, the others stay candidates
_CONVERTER_ERRORS = (
    *ORT_ERRORS,
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
)
_FLOATING = frozenset({Precision.FLOAT32, Precision.INT8_WEIGHTS, Precision.FLOAT16})


class PrecisionCandidate(NamedTuple):
    """The edge graph in one precision. What was not measured is NaN or 0; `fault` says why it cannot ship, if so.

    `p50_us`: microseconds per sample at batch 1, one thread, on this machine. `ratio`: of that to float32, taking
    turns.
    `rss_bytes`: peak memory that loading and one run add to a fresh process. `busy`: others had the processor while it
    was timed.
    """

    precision: str
    graph: bytes
    p50_us: float
    size_bytes: int
    rss_bytes: int
    accuracy: float = math.nan
    ratio: float = math.nan
    fault: str = ""
    busy: bool = False


class DroppedCandidate(NamedTuple):
    """A precision that does not ship, and why."""

    precision: str
    reason: str


class PrecisionChoice(NamedTuple):
    """The candidate that ships; `candidates` are all, with their accuracy; `dropped` are those that do not ship."""

    shipped: PrecisionCandidate
    dropped: tuple[DroppedCandidate, ...]
    candidates: tuple[PrecisionCandidate, ...]


def build_candidates(
    model: onnx.ModelProto, samples: Values, profile: TargetProfile, kept: ScoreFunction | None = None
) -> tuple[PrecisionCandidate, ...]:
    """Convert and time the graph in every precision of the profile, float32 first.

    `samples` `[n, *shape]` show the range of every activation. `kept(graph)`: share of the gain that the hub keeps by
    the graph's codes; a candidate that keeps `MAX_CODE_LOSS` less than float32 is made again with all that feeds the
    codes in float32, and cannot ship if that does not help. Speed and memory are measured if the profile's provider is
    on this machine. Raises ForgeError if float32 does not run.
    """
    made = [_build_candidate(precision, model, samples, profile) for precision in profile.precisions]
    if made[0].fault:
        raise ForgeError(f"the edge graph cannot ship: {made[0].fault}")
    if kept is not None:
        check = _CodeCheck(kept, kept(made[0].graph))
        remake = partial(_build_candidate, model=model, samples=samples, profile=profile, whole_codes=True)
        made = [made[0], *(_check_codes(candidate, check, remake) for candidate in made[1:])]
    if not is_measurable(profile):
        return tuple(made)
    sound = [candidate for candidate in made if not candidate.fault]
    speeds = compare_graphs(
        [candidate.graph for candidate in sound], samples[:1], pick_providers(profile.providers).providers
    )
    measured = {
        candidate.precision: candidate._replace(
            p50_us=speed.p50_us,
            ratio=speed.ratio,
            rss_bytes=measure_resident_bytes(candidate.graph, samples[:1]),
            busy=speed.busy,
        )
        for candidate, speed in zip(sound, speeds, strict=True)
    }
    return tuple(measured.get(candidate.precision, candidate) for candidate in made)


def choose_precision(
    found: Sequence[PrecisionCandidate], score: ScoreFunction, max_loss: float = MAX_LOSS
) -> PrecisionChoice:
    """The smallest candidate that is not slower than float32 and within `max_loss` of its score.

    Of equals, the quicker one.

    `score(graph)`: accuracy as a share, or anything else of which more is better, in the unit of `max_loss`. `found`
    begins with float32. Where nothing was timed only float arithmetic may ship.
    """
    scored = [_score_candidate(candidate, score) for candidate in found]
    exact = scored[0]
    reasons = {candidate.precision: _reason_against(candidate, exact, max_loss) for candidate in scored}
    fit = [candidate for candidate in scored if not reasons[candidate.precision]]
    shipped = _pick_smallest(fit)
    dropped = [
        DroppedCandidate(candidate.precision, reasons[candidate.precision] or _explain_lesser(candidate, shipped))
        for candidate in scored
        if candidate is not shipped
    ]
    return PrecisionChoice(shipped, tuple(dropped), tuple(scored))


class _CodeCheck(NamedTuple):
    """How much of the gain the hub keeps by a graph's codes, and by those of float32."""

    kept: ScoreFunction
    exact: float

    def find_fault(self, candidate: PrecisionCandidate) -> str:
        """Why its codes may not ship; empty if they may."""
        found = self.kept(candidate.graph)
        if found >= self.exact - MAX_CODE_LOSS:
            return ""
        return f"its codes keep {found:.0%} of the gain, those of float32 {self.exact:.0%}"


def _check_codes(
    candidate: PrecisionCandidate, check: _CodeCheck, remake: Callable[[Precision], PrecisionCandidate]
) -> PrecisionCandidate:
    """The candidate, or the one with float32 up to the codes; with its fault where the codes of both are too poor."""
    if candidate.fault or not check.find_fault(candidate):
        return candidate
    again = remake(Precision(candidate.precision))
    return again if again.fault else again._replace(fault=check.find_fault(again))


def _build_candidate(
    precision: Precision, model: onnx.ModelProto, samples: Values, profile: TargetProfile, *, whole_codes: bool = False
) -> PrecisionCandidate:
    try:
        graph = serialise_model(_convert_graph(precision, model, samples, profile, whole_codes=whole_codes))
        lint_graph(graph)
        run_graph(graph, samples[:2])
    except (PrecisionError, LintError) as error:
        return _faulty_candidate(precision, str(error))
    except _CONVERTER_ERRORS as error:
        return _faulty_candidate(
            precision, f"it cannot be converted: {(str(error).splitlines() or [type(error).__name__])[0]}"
        )
    return PrecisionCandidate(str(precision), graph, math.nan, len(graph), 0)


def _convert_graph(
    precision: Precision, model: onnx.ModelProto, samples: Values, profile: TargetProfile, *, whole_codes: bool
) -> onnx.ModelProto:
    if precision is Precision.INT8:
        return static_int8(model, samples, profile.activation, whole_codes=whole_codes)
    if precision is Precision.INT8_DYNAMIC:
        return dynamic_int8(model, whole_codes=whole_codes)
    if precision is Precision.INT8_WEIGHTS:
        return int8_weights(model, whole_codes=whole_codes)
    return convert_float16(model, whole_codes=whole_codes) if precision is Precision.FLOAT16 else model


def _faulty_candidate(precision: Precision, fault: str) -> PrecisionCandidate:
    return PrecisionCandidate(str(precision), b"", math.nan, 0, 0, fault=fault)


def _score_candidate(candidate: PrecisionCandidate, score: ScoreFunction) -> PrecisionCandidate:
    if candidate.fault:
        return candidate
    try:
        return candidate._replace(accuracy=float(score(candidate.graph)))
    except ORT_ERRORS as error:
        return candidate._replace(fault=f"it does not run: {str(error).splitlines()[0]}")


def _reason_against(candidate: PrecisionCandidate, exact: PrecisionCandidate, max_loss: float) -> str:
    """Why it may not ship; empty if it may. float32 always may."""
    loss = exact.accuracy - candidate.accuracy
    if candidate is exact:
        return ""
    if candidate.fault:
        return candidate.fault
    if not loss <= max_loss + _ROUNDING:
        return f"loses {loss * 100:.2f} points, at most {max_loss * 100:g} are allowed"
    if math.isnan(candidate.ratio):
        known = candidate.precision in _FLOATING
        return "" if known else "its speed on the target is unknown: forge on the target to measure it"
    if candidate.ratio > 1 + NOISE:
        return f"{candidate.ratio:.2f} x the time of float32 ({candidate.p50_us:.0f} against {exact.p50_us:.0f} us)"
    return ""


def _pick_smallest(fit: Sequence[PrecisionCandidate]) -> PrecisionCandidate:
    ordered = sorted(fit, key=lambda candidate: candidate.size_bytes)
    best = ordered[0]
    alike = max(best.size_bytes * _ALIKE_SHARE, best.size_bytes + _ALIKE_BYTES)
    for candidate in ordered[1:]:
        if candidate.size_bytes <= alike and candidate.ratio < best.ratio * _QUICKER:
            best = candidate
    return best


def _explain_lesser(candidate: PrecisionCandidate, shipped: PrecisionCandidate) -> str:
    if candidate.size_bytes > shipped.size_bytes:
        return f"{candidate.size_bytes:,} bytes, {shipped.precision} has {shipped.size_bytes:,}"
    return f"no larger, but slower: {candidate.p50_us:.0f} us, {shipped.precision} takes {shipped.p50_us:.0f}"
