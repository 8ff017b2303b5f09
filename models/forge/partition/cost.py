"""Cost of every cut on this machine: latency of head and tail, coded bytes and remaining accuracy, before any training.

Rule: measured, never estimated; on training samples for what is fitted and calibration samples for what is reported.
The held-out part is not used.

Rule: work is bounded by multiply-accumulates, so that the same cuts have the same rows on a slow machine. It goes to
hopeful cuts: early enough, and without another cut that is as early and much smaller. All others get few samples, and
none if the seconds are over: no choice depends on them.

Rule: rows are stored as JSON under the name of their cut; a row whose cut no longer exists is dropped.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import torch
from onnx.utils import Extractor
from torch import Tensor, fx, nn

from models.forge.data.types import Data, DataPart, ForgeError
from models.forge.partition.code_levels import LEVELS, CodedSize, QuantisationRange, fit_range, measure_coded_size
from models.forge.partition.cuts import Cut, TracedModel
from models.forge.partition.split import SplitModel, extract_head, run_head, split_shared
from models.forge.partition.trace import outputs_match, resize_batch, silence_exporters, wrap_user_errors
from models.forge.spec import Effort
from models.forge.timing import LoadMeter

_INPUT, _OUTPUT = "sample", "cut_"  # no node of a traced graph has these names
_OPSET = 20
_MAX_BATCH = 4096
_WARM_UP, _FEWEST, _MOST = 3, 5, 600  # runs
_FITTED = 512  # training samples: ranges and tables
_VALUES = 40_000_000  # of one cut's features held at once: 160 MB
_BATCH = 100
_HOPELESS = 0.1  # loss beyond the bound on the first quarter that ends a measurement early
_START = 2  # index of LEVELS tried first
_TRIALS = 3  # numbers of levels that a search tries, about
_LEAST = 200  # samples of a hopeful cut
_MUCH_SMALLER = 2  # times
_HURRIED = 3  # times less is spent on the latency of a cut without hope


class MeasurementBounds(NamedTuple):
    """Bounds of the measurement.

    `max_loss`: of accuracy (a share of RMSE, for a regressor) that codes may cost; `samples`: calibration samples used,
    at most; `latency_s`: seconds per timed graph; `threads`: of torch and ONNX Runtime.
    `head_share`: share of the work on the device from which a cut is without hope; `macs`: multiply-accumulates for
    trying codes, of all hopeful cuts together; `seconds`: after which no further cut without hope is measured.
    """

    max_loss: float = 0.01
    samples: int = 1000
    latency_s: float = 0.15
    threads: int = 1
    head_share: float = 0.25
    macs: float = 2e11
    seconds: float = 60.0


_DEFAULT_BOUNDS = MeasurementBounds()
_EFFORTS = {  # a thread does 5 to 20 billion multiply-accumulates a second
    Effort.QUICK: MeasurementBounds(samples=600, latency_s=0.05, macs=5e10, seconds=20.0),
    Effort.NORMAL: MeasurementBounds(),
    Effort.THOROUGH: MeasurementBounds(latency_s=0.3, macs=1e12, seconds=240.0),
}


def select_bounds(effort: Effort, head_share: float) -> MeasurementBounds:
    """Bounds of the measurement for an effort, with cuts beyond `head_share` of the work as those without hope."""
    return _EFFORTS[effort]._replace(head_share=head_share)


def find_hopeful_cuts(cuts: Sequence[Cut], head_share: float) -> tuple[Cut, ...]:
    """The cuts that may be chosen: early enough, without another that is as early and less than half as large.

    The earliest if none is early enough. By arithmetic and sizes alone.
    """
    early = [cut for cut in cuts if cut.share <= head_share] or [min(cuts, key=lambda cut: cut.share)]
    return tuple(cut for cut in early if not any(_is_beaten(cut, other) for other in early))


def count_samples(bounds: MeasurementBounds, macs: int, hopeful: int) -> int:
    """Samples for each of so many hopeful cuts of a model of `macs` multiply-accumulates a sample."""
    return min(bounds.samples, max(_LEAST, int(bounds.macs / (max(1, macs) * _TRIALS * hopeful))))


def _is_beaten(cut: Cut, other: Cut) -> bool:
    return other.share <= cut.share and _MUCH_SMALLER * other.values < cut.values


class CutCost(NamedTuple):
    """Cost of one cut. Microseconds: median, batch 1. Bytes: of one sample. `accuracy`: RMSE for a regressor.

    `levels`: fewest whose `lost` (against `whole`, the model on the same samples) is within bounds, or 16 if none is; 4
    for a cut without hope, which has few `samples`.
    `coded_bytes`: the smaller of `packed_bytes` and an entropy code padded to one length; `mean_bytes`: unpadded.
    `leakage`: upper bound of a quick inversion attack's score; None until it was attacked. `busy`: others had the
    processor while it was timed.
    """

    cut: Cut
    head_us: float
    tail_us: float
    raw_bytes: int
    packed_bytes: int
    coded_bytes: int
    mean_bytes: float
    levels: int
    accuracy: float
    whole: float
    lost: float
    samples: int
    leakage: float | None = None
    busy: bool = False


ProgressCallback = Callable[[float], None]


def measure_frontier(
    traced: TracedModel,
    cuts: Sequence[Cut],
    data: Data,
    bounds: MeasurementBounds = _DEFAULT_BOUNDS,
    tell: ProgressCallback | None = None,
) -> list[CutCost]:
    """Measure the cuts, the hopeful ones first; rows by depth. `tell(share)` of the work that is done.

    One ONNX export serves all heads. A cut whose ONNX head answers otherwise than torch's is left out, and one without
    hope if the time is over. Raises ForgeError if that leaves none, or if the model cannot become ONNX.
    """
    began = time.perf_counter()
    hopeful = find_hopeful_cuts(cuts, bounds.head_share)
    ordered = [*hopeful, *(cut for cut in cuts if cut not in hopeful)]
    with _limit_threads(bounds.threads), torch.no_grad():
        heads = _open_heads(traced, cuts)
        meter = _CutMeter(traced, data, bounds, hopeful)
        rows = []
        for i, cut in enumerate(ordered):
            if cut in hopeful or time.perf_counter() - began < bounds.seconds:
                row = meter.measure_cut(cut, heads(cut))
                rows += [row] if row else []
            if tell:
                tell((i + 1) / len(cuts))
    if not rows:
        raise ForgeError("model: ONNX Runtime answers otherwise than torch at every cut; replace its rarer operators")
    return sorted(rows, key=lambda row: row.cut.share)


def export_heads(traced: TracedModel, cuts: Sequence[Cut]) -> onnx.ModelProto:
    """ONNX model from input `sample` to one output for each of the cuts' tensors, called "cut_" and its node's name."""
    nodes = _cut_nodes(traced, cuts)
    module: nn.Module = extract_head(traced.gm, nodes)
    batch = torch.export.Dim("batch", min=1, max=_MAX_BATCH)
    remedy = "replace that operator by others, or write it with plain ones"
    with wrap_user_errors("model: it cannot become ONNX", remedy, innermost=True), silence_exporters():
        program: Any = torch.onnx.export(
            module,
            (traced.example,),
            dynamo=True,
            optimize=True,
            verbose=False,
            external_data=False,
            opset_version=_OPSET,
            input_names=[_INPUT],
            output_names=[_OUTPUT + node.name for node in nodes],
            dynamic_shapes=({0: batch},),
        )
    found: onnx.ModelProto = program.model_proto
    return found


def find_agreeing_cuts(traced: TracedModel, cuts: Sequence[Cut]) -> tuple[Cut, ...]:
    """The cuts whose ONNX head answers as torch's. Raises ForgeError if the model cannot become ONNX."""
    with torch.no_grad():
        heads = _open_heads(traced, cuts)
        x = resize_batch(traced.example)
        return tuple(cut for cut in cuts if _outputs_agree(heads(cut), split_shared(traced, cut).head, x))


def check_head(traced: TracedModel, cut: Cut) -> None:
    """Raise ForgeError if the head up to a cut cannot become ONNX, or answers otherwise there than in torch."""
    if not find_agreeing_cuts(traced, [cut]):
        raise ForgeError(f"cut {cut.name}: its head answers otherwise in ONNX Runtime than in torch; choose another")


def _cut_nodes(traced: TracedModel, cuts: Sequence[Cut]) -> list[fx.Node]:
    names = {name for cut in cuts for name in cut.nodes}
    return [node for node in traced.gm.graph.nodes if node.name in names]


def _open_heads(traced: TracedModel, cuts: Sequence[Cut]) -> Callable[[Cut], ort.InferenceSession]:
    extractor = Extractor(export_heads(traced, cuts))
    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3

    def session(cut: Cut) -> ort.InferenceSession:
        graph = extractor.extract_model([_INPUT], [_OUTPUT + name for name in cut.nodes]).SerializeToString()
        return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    return session


class _CutMeter:
    """The samples that every cut is measured on, and the whole model's answers to them."""

    def __init__(self, traced: TracedModel, data: Data, bounds: MeasurementBounds, hopeful: Sequence[Cut]) -> None:
        self._traced, self._bounds, self._classes = traced, bounds, bool(data.labels)
        self._hopeful = frozenset(cut.name for cut in hopeful)
        samples = count_samples(bounds, traced.macs, len(hopeful))
        self._seen, _ = _sample_evenly(data.training, min(_FITTED, samples), in_scope=False)
        self._x, self._y = _sample_evenly(data.calibration, samples, in_scope=self._classes)
        self._whole = torch.cat([traced.gm(x) for x in torch.split(self._x, _BATCH)])

    def measure_cut(self, cut: Cut, session: ort.InferenceSession) -> CutCost | None:
        """Cost of one cut, or None if its ONNX head answers otherwise than torch's."""
        parts = split_shared(self._traced, cut)
        if not _outputs_agree(session, parts.head, resize_batch(self._traced.example)):
            return None
        hopeful = cut.name in self._hopeful
        latency_s = self._bounds.latency_s / (1 if hopeful else _HURRIED)
        one = self._x[:1]
        feed, sent = {_INPUT: one.numpy()}, run_head(parts.head, one)
        with LoadMeter() as load:
            head_us = _measure_p50_us(lambda: session.run(None, feed), latency_s)
            tail_us = _measure_p50_us(lambda: parts.tail(*sent), latency_s)
        count = max(_BATCH, min(len(self._x), _VALUES // cut.values)) if hopeful else _BATCH
        coded = self._measure_coding(parts, cut, min(count, len(self._x)), search=hopeful)
        return CutCost(cut, head_us, tail_us, 4 * cut.values, *coded)._replace(busy=load.busy)

    def _measure_coding(self, parts: SplitModel, cut: Cut, count: int, *, search: bool) -> tuple[Any, ...]:
        x, y, whole = self._x[:count], self._y[:count], self._score(self._whole[:count], self._y[:count])
        seen, found = _compute_features(parts.head, self._seen[:count]), _compute_features(parts.head, x)
        masks = list_masks(self._traced, cut)
        trial = _CodingTrial(parts.tail, seen, found, masks)
        levels = LEVELS[_START]
        levels, score = (
            self._find_fewest_levels(trial, y, whole)
            if search
            else (levels, self._score(trial.run_tail(levels, 0, len(y)), y))
        )
        bytes_ = trial.measure_size(levels)
        lost = self._measure_loss(score, whole)
        return bytes_.packed, bytes_.least, bytes_.mean, levels, score, whole, lost, len(x)

    def _find_fewest_levels(self, trial: "_CodingTrial", y: Tensor, whole: float) -> tuple[int, float]:
        """Search from the middle of LEVELS: down while the loss stays within bounds, else up until it is."""
        scores: dict[int, float] = {}
        index, step = _START, 0
        while 0 <= index < len(LEVELS):
            scores[index] = self._try_levels(trial, LEVELS[index], y, whole)
            good = self._measure_loss(scores[index], whole) <= self._bounds.max_loss
            wanted = -1 if good else 1
            if step and wanted != step:
                break
            step = wanted
            index += step
        good_ones = [i for i, score in scores.items() if self._measure_loss(score, whole) <= self._bounds.max_loss]
        best = min(good_ones) if good_ones else max(scores)
        return LEVELS[best], scores[best]

    def _try_levels(self, trial: "_CodingTrial", levels: int, y: Tensor, whole: float) -> float:
        quarter = max(_BATCH, len(y) // 4)
        first = trial.run_tail(levels, 0, quarter)
        early = self._score(first, y[:quarter])
        if quarter >= len(y) or self._measure_loss(early, whole) > self._bounds.max_loss + _HOPELESS:
            return early
        return self._score(torch.cat([first, trial.run_tail(levels, quarter, len(y))]), y)

    def _score(self, answers: Tensor, y: Tensor) -> float:
        if self._classes:
            return float((answers.argmax(1) == y).float().mean())
        return float((answers[:, 0] - y).square().mean().sqrt())

    def _measure_loss(self, score: float, whole: float) -> float:
        return whole - score if self._classes else score / max(whole, 1e-9) - 1


class _CodingTrial:
    """One cut's features, coded with a number of levels and run through the tail."""

    def __init__(self, tail: nn.Module, seen: list[Tensor], found: list[Tensor], masks: Sequence[bool]) -> None:
        self._tail, self._seen, self._found, self._masks = tail, seen, found, masks

    def run_tail(self, levels: int, start: int, end: int) -> Tensor:
        ranges, answers = self._fit_ranges(levels), []
        for at in range(start, end, _BATCH):
            parts = [one[at : min(end, at + _BATCH)] for one in self._found]
            sent = [limits.dequantise(limits.quantise(part)) for limits, part in zip(ranges, parts, strict=True)]
            answers.append(self._tail(*sent))
        return torch.cat(answers)

    def measure_size(self, levels: int) -> CodedSize:
        ranges = self._fit_ranges(levels)
        seen, coded = (
            [limits.quantise(one) for limits, one in zip(ranges, group, strict=True)]
            for group in (self._seen, self._found)
        )
        return measure_coded_size(seen, coded, [limits.levels for limits in ranges])

    def _fit_ranges(self, levels: int) -> list[QuantisationRange]:
        return [fit_range(one, levels, whole=mask) for one, mask in zip(self._seen, self._masks, strict=True)]


def list_masks(traced: TracedModel, cut: Cut) -> list[bool]:
    """Of each of a cut's tensors: whether it holds whole numbers."""
    known = {node.name: node for node in traced.gm.graph.nodes}
    return [not known[name].meta["val"].is_floating_point() for name in cut.nodes]


def _compute_features(head: nn.Module, x: Tensor) -> list[Tensor]:
    pieces = [run_head(head, chunk) for chunk in torch.split(x, _BATCH)]
    return [torch.cat(column) for column in zip(*pieces, strict=True)]


def _sample_evenly(part: DataPart, most: int, *, in_scope: bool) -> tuple[Tensor, Tensor]:
    """At most `most` samples, spread evenly over the part."""
    kept: npt.NDArray[np.int64] = np.flatnonzero(part.y >= 0) if in_scope else np.arange(len(part))
    rows = kept[np.linspace(0, len(kept) - 1, min(most, len(kept))).astype(np.int64)]
    return torch.from_numpy(np.ascontiguousarray(part.x[0][rows])), torch.from_numpy(part.y[rows])


def _outputs_agree(session: ort.InferenceSession, head: nn.Module, x: Tensor) -> bool:
    found = session.run(None, {_INPUT: x.numpy()})
    return all(outputs_match(one, torch.from_numpy(other)) for one, other in zip(run_head(head, x), found, strict=True))


def _measure_p50_us(run: Callable[[], object], most_s: float) -> float:
    """Median microseconds; as many runs as fit `most_s` seconds."""
    for _ in range(_WARM_UP):
        run()
    seconds: list[float] = []
    end = time.perf_counter() + most_s
    while len(seconds) < _FEWEST or (len(seconds) < _MOST and time.perf_counter() < end):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e6


@contextmanager
def _limit_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def encode_costs(rows: Sequence[CutCost]) -> bytes:
    """Costs as JSON, for the cache."""
    return json.dumps([cost_fields(row) for row in rows], indent=1).encode()


def decode_costs(data: bytes, cuts: Sequence[Cut]) -> list[CutCost]:
    """Costs from JSON, those of known cuts."""
    named = {cut.name: cut for cut in cuts}
    found = [dict(row) for row in json.loads(data)]
    return [CutCost(cut=named[row.pop("cut")], **_known_fields(row)) for row in found if row["cut"] in named]


def cost_fields(row: CutCost) -> dict[str, Any]:
    """A cost as plain values, for JSON: the fields of `CutCost` with the cut's name, share and shapes."""
    return {**row._asdict(), "cut": row.cut.name, "share": row.cut.share, "shapes": row.cut.shapes}


def _known_fields(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name in CutCost._fields}
