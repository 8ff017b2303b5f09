"""The recipe for small pictures: train both halves, export, quantise, tune the tail, measure, bundle.

Law: the stages have a fixed order; equal data, seed and machine give an equal bundle. What differs from run to run
(seconds, microseconds) goes into `forge.json`, which is not part of the bundle's content.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import onnx

from models.bundle import Bundle, write_bundle
from models.codec import payload_bytes
from models.forge import calibrate, quantise, schema
from models.forge.corrupt import Pictures, corrupt
from models.forge.export import export_head
from models.forge.leakage import chain_digest, linear_inversion
from models.forge.task import ForgeError, Labelled, Split, Task, check_task, split
from models.forge.train import Course, predict, repeatable, train_halves, tune_tail
from models.golden import pack_golden
from models.manifest import EDGE_FILE, GOLDEN_FILE, HUB_FILE, Calibration, Leakage
from models.zoo import Halves, pack_weights
from models.zoo.digits import DigitsHead, DigitsTail, Whole

Progress = Callable[[str, float], None]
INT8_MAY_COST = 0.005  # accuracy, as a share: half a point
ASK_SHARE = 0.25  # of calibration pictures
TUNING_COPIES = 4
GOLDEN_SAMPLES = 32
_SHOWN = 512  # pictures that show the quantiser the range of every activation
_STRAY_CODES = 1e-3  # share of codes that float rounding at a boundary may flip between torch and ONNX Runtime
_TRAINED, _EXPORTED, _QUANTISED, _TUNED, _MEASURED = 0.65, 0.80, 0.87, 0.96, 0.99


class Outputs(NamedTuple):
    logits: npt.NDArray[np.float32]
    codes: npt.NDArray[np.uint8]


class Edge(NamedTuple):
    """Both candidates with their accuracy (share) on the calibration set; `shipped` is one of them."""

    shipped: quantise.Candidate
    candidates: tuple[quantise.Candidate, ...]
    accuracies: tuple[float, ...]


class Figures(NamedTuple):
    """Everything the manifest says that was measured."""

    temperature: float
    calibration: Calibration
    leakage: Leakage


class Report(msgspec.Struct, frozen=True):
    """`forge.json`: what this run on this machine was like. Times in seconds and microseconds, accuracies as shares."""

    forge_s: float
    stage_s: dict[str, float]
    payload_bytes: int
    raw_bytes: int
    edge_bytes: dict[str, int]
    hub_bytes: int
    p50_us: dict[str, float]
    calibration_accuracy: dict[str, float]
    codes_equal: dict[str, float]  # share of held-out codes equal to the torch head's


def forge_images(
    task: Task, out_dir: Path | str, progress: Progress | None = None, course: Course | None = None
) -> Bundle:
    """Make a bundle at `out_dir`, replacing one that is there. `progress(stage, share of the whole)` hears of each.

    ForgeError if the data cannot make a model; nothing is written then.
    """
    check_task(task)
    with repeatable(task.seed):
        return _Run(task, course or Course(), progress or _silent).forge(Path(out_dir))


class _Run:
    """One run of the recipe. Owns its generator, its clock and who is told."""

    def __init__(self, task: Task, course: Course, tell: Progress) -> None:
        self._task = task
        self._course = course
        self._tell = tell
        self._rng = np.random.default_rng(task.seed)
        self._start = self._lap = time.perf_counter()
        self._stage_s: dict[str, float] = {}

    def forge(self, out_dir: Path) -> Bundle:
        data = split(self._task, self._rng)
        halves = self._train(data.training)
        graph = export_head(halves.head, schema.input_spec(self._task), schema.FEATURE)
        self._done("exporting", _EXPORTED)
        edge = _choose(graph, data.calibration, self._damaged(data.training, 1).x[:_SHOWN])
        self._done("quantising", _QUANTISED)
        self._tune(halves, edge, data.training)
        self._done("tuning", _TUNED)
        figures = _figures(halves, edge, data, self._task.corrupted)
        equal = _codes_equal(halves, edge, data.heldout)
        self._done("measuring", _MEASURED)
        bundle = self._write(out_dir, halves, edge, figures, data.heldout.x[:GOLDEN_SAMPLES], equal)
        self._tell("done", 1.0)
        return bundle

    def _train(self, training: Labelled) -> Halves:
        sizes = schema.sizes(self._task)
        halves = Halves(DigitsHead(sizes), DigitsTail(sizes))
        self._tell("training", 0.0)
        train_halves(halves, training, self._course, self._rng, lambda share: self._tell("training", share * _TRAINED))
        self._done("training", _TRAINED)
        return halves

    def _tune(self, halves: Halves, edge: Edge, training: Labelled) -> None:
        """On the codes of the graph that ships: int8 arithmetic moves some by a level, and the tail learns that."""
        x, y = self._damaged(training, TUNING_COPIES)
        tune_tail(halves.tail, run_edge(edge.shipped.graph, x).codes, y, self._course, self._rng)

    def _damaged(self, pictures: Labelled, copies: int) -> Labelled:
        damaged = [corrupt(pictures.x, self._rng, self._course.corrupted) for _ in range(copies)]
        return Labelled(np.concatenate(damaged), np.tile(pictures.y, copies))

    def _write(  # noqa: PLR0917
        self, out_dir: Path, halves: Halves, edge: Edge, figures: Figures, golden: Pictures, equal: dict[str, float]
    ) -> Bundle:
        found = run_edge(edge.shipped.graph, golden)
        scores = calibrate.probabilities(found.logits, figures.temperature)
        contents = {
            EDGE_FILE: edge.shipped.graph,
            HUB_FILE: pack_weights(halves),
            GOLDEN_FILE: pack_golden(golden, scores, {schema.FEATURE: found.codes}),
        }
        manifest = schema.manifest(self._task, edge.shipped.precision, *figures)
        report = Report(
            forge_s=round(time.perf_counter() - self._start, 2),
            stage_s=self._stage_s,
            payload_bytes=payload_bytes(manifest.codec, found.codes.shape[1:]),
            raw_bytes=golden[0].nbytes,
            edge_bytes={c.precision: len(c.graph) for c in edge.candidates},
            hub_bytes=len(contents[HUB_FILE]),
            p50_us={c.precision: round(c.p50_us, 2) for c in edge.candidates},
            calibration_accuracy=dict(zip((c.precision for c in edge.candidates), edge.accuracies, strict=True)),
            codes_equal=equal,
        )
        return write_bundle(out_dir, manifest, contents, msgspec.json.format(msgspec.json.encode(report), indent=1))

    def _done(self, stage: str, share: float) -> None:
        now = time.perf_counter()
        self._stage_s[stage] = round(now - self._lap, 2)
        self._lap = now
        self._tell(stage, share)


def run_edge(graph: bytes, x: Pictures) -> Outputs:
    logits, codes = quantise.run(graph, x)
    return Outputs(logits, codes)


def _choose(graph: onnx.ModelProto, calibration: Labelled, shown: Pictures) -> Edge:
    """int8 ships unless it costs more than half a point; its gain or loss of time is reported, not decided on."""
    exact, small = quantise.candidates(graph, shown)
    exact_right, small_right = (_edge_accuracy(c.graph, calibration) for c in (exact, small))
    shipped = small if exact_right - small_right <= INT8_MAY_COST else exact
    return Edge(shipped, (exact, small), (exact_right, small_right))


def _edge_accuracy(graph: bytes, pictures: Labelled) -> float:
    return calibrate.accuracy(run_edge(graph, pictures.x).logits.argmax(1), pictures.y)


def _figures(halves: Halves, edge: Edge, data: Split, corrupted: float) -> Figures:
    chosen_on, tested_on = (run_edge(edge.shipped.graph, part.x) for part in (data.calibration, data.heldout))
    temperature = calibrate.temperature(chosen_on.logits, data.calibration.y)
    below = calibrate.threshold(calibrate.probabilities(chosen_on.logits, temperature), ASK_SHARE)
    scores, y = calibrate.probabilities(tested_on.logits, temperature), data.heldout.y
    tail_labels = predict(halves.tail, tested_on.codes)[0].argmax(1)
    gated = calibrate.gate(scores, tail_labels, y, below)
    whole = predict(Whole(*halves), data.heldout.x)[0].argmax(1)
    calibration = Calibration(
        samples=len(y),
        corrupted=corrupted,
        ece_before=round(calibrate.calibration_error(calibrate.probabilities(tested_on.logits, 1.0), y), 4),
        ece_after=round(calibrate.calibration_error(scores, y), 4),
        edge_accuracy=round(gated.edge, 4),
        pair_accuracy=round(gated.pair, 4),
        hub_accuracy=round(calibrate.accuracy(whole, y), 4),
        threshold=below,
        asked=round(gated.asked, 4),
    )
    leakage = linear_inversion(tested_on.codes, *data.heldout, chain_digest(schema.CUT, schema.CODEC))
    return Figures(temperature, calibration, leakage)


def _codes_equal(halves: Halves, edge: Edge, heldout: Labelled) -> dict[str, float]:
    """Share of codes equal to the torch head's, per candidate. ForgeError if even the float graph computes others."""
    expected = predict(halves.head, heldout.x)[1]
    equal = {
        c.precision: round(float((run_edge(c.graph, heldout.x).codes == expected).mean()), 5) for c in edge.candidates
    }
    if equal["float32"] < 1 - _STRAY_CODES:
        raise ForgeError(f"the exported head computes other codes than the trained one (equal: {equal['float32']:.2%})")
    return equal


def _silent(_stage: str, _share: float) -> None:
    """Nobody is told."""
