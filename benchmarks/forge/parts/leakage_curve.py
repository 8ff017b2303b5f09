"""Benchmark: leakage-aware teaching as a curve: what each weight of the penalty costs in points, and what it hides.

`python -m benchmarks.forge.parts.leakage_curve fashion-mnist [--weights 0 1 4] [--bytes 64]`; needs SKERRY_DATA. For
each weight the codes of one cut are taught with the edge (`models.forge.training.distillation`), and the calibration
part is answered through them, every sample being asked; then a fresh attack learns from nine tenths of those codes and
is scored on the rest. The held-out part is not touched. A killed run goes on at its last epoch and its last attack.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.forge.datasets import CASES, bundles_folder
from models.forge.cache import digest_parts
from models.forge.data.types import Data, DataPart
from models.forge.leakage import inversion
from models.forge.leakage.effort import FULL, AttackEffort, AttackWork
from models.forge.leakage.metrics import BootstrapInterval
from models.forge.partition.cuts import TracedModel, find_cuts, trace_model
from models.forge.spec import recipe_digest
from models.forge.training.distillation import DistillationConfig, train_modules
from models.forge.training.modules import build_edge_module, build_tail_module
from models.forge.training.teacher import predict_batches
from wire.process.main import run_to_exit

_BATCH = 250
_SHARE = 0.10  # of the given model's arithmetic before the cut, at most
ABOVE_LABEL, MORE_LOST_POINTS = 0.15, 1.0


class CurvePoint(NamedTuple):
    """One weight: points lost if every sample is asked, and the attack's score beside what the label alone gives."""

    weight: float
    lost_points: float
    score: BootstrapInterval
    floor: float
    attack: str


class CurveBench:
    """One set, the given model's answers to its calibration part, and the attacker's split of that part."""

    def __init__(self, data: Data, traced: TracedModel, teaching: DistillationConfig, effort: AttackEffort) -> None:
        self._data, self._traced, self._teaching, self._effort = data, traced, teaching, effort
        part = data.calibration
        self._right = self._score(predict_batches(traced.gm, part.x[0]).numpy())
        self._truth = inversion.prepare_samples(part.x[0], effort)
        self._floor = inversion.score_label_baseline(self._truth, part.y).value
        light = [cut for cut in find_cuts(traced) if cut.share <= _SHARE]
        self._cut = light[-1]

    def measure(self, weight: float) -> CurvePoint:
        """Teach and attack with one weight of the penalty."""
        folder = _work_folder(self._teaching._replace(folder=None), self._cut.name, weight)
        teaching = self._teaching._replace(leakage_weight=weight, folder=folder)
        pieces = train_modules(self._traced, self._data, self._cut, teaching, lambda _, __: None)
        edge, tail, x = build_edge_module(pieces), build_tail_module(pieces), self._data.calibration.x[0]
        with torch.inference_mode():
            codes = torch.cat([edge(torch.from_numpy(x[at : at + _BATCH]))[1] for at in range(0, len(x), _BATCH)])
        lost = self._right - self._score(predict_batches(tail, codes.float().numpy()).numpy())
        found = inversion.invert_codes(self._truth, (codes.numpy(),), self._effort, work=AttackWork(folder))
        return CurvePoint(weight, 100 * lost, found.score, self._floor, found.attack)

    def _score(self, outputs: Any) -> float:
        return float((outputs.argmax(1) == self._data.calibration.y).mean())


def _work_folder(teaching: DistillationConfig, cut: str, weight: float) -> Path:
    plain = {name: value for name, value in teaching._asdict().items() if name not in {"augment", "folder"}}
    return bundles_folder() / ".stages" / f"curve-{digest_parts(recipe_digest(), plain, cut, weight)[:24]}"


def describe_curve(found: Sequence[CurvePoint]) -> list[str]:
    """Which weights hold the aim, against the point without a penalty."""
    free = found[0].lost_points
    good = [
        point
        for point in found
        if point.score.value - point.floor <= ABOVE_LABEL and point.lost_points - free <= MORE_LOST_POINTS
    ]
    aim = f"{ABOVE_LABEL} above the label alone at {MORE_LOST_POINTS:g} point more lost"
    if not good:
        return [f"no weight holds {aim}"]
    return [f"weight {point.weight:g} holds {aim}" for point in good]


def thin_data(data: Data, training: int, judged: int) -> Data:
    """The same data with so many training and calibration samples, drawn once."""
    return replace(data, training=_draw(data.training, training), calibration=_draw(data.calibration, judged))


def _draw(part: DataPart, count: int) -> DataPart:
    rows = np.sort(np.random.default_rng(0).permutation(len(part))[:count])
    return DataPart((part.x[0][rows],), part.y[rows])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("set", choices=("fashion-mnist", "cifar10"))
    parser.add_argument("--weights", type=float, nargs="+", default=[0.0, 1.0, 4.0], help="of the penalty, 0 first")
    parser.add_argument("--bytes", type=int, default=64, help="of codes")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=10_000, help="training samples")
    parser.add_argument("--judged", type=int, default=10_000, help="calibration samples")
    parser.add_argument("--macs", type=float, default=FULL.macs, help="work of one training of the attacker")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    recipe = import_module(CASES[wanted.set].module)
    data = thin_data(recipe.samples(), wanted.samples, wanted.judged)
    traced = trace_model(recipe.build_model(), torch.from_numpy(data.training.x[0][:2]))
    teaching = DistillationConfig(max_bytes=wanted.bytes, epochs=wanted.epochs, copies=1, batch=128, spatial=False)
    bench, found = CurveBench(data, traced, teaching, FULL._replace(macs=wanted.macs)), []
    print("| weight | lost, points | SSIM (95 %) | label alone | above it | attack | CPU s |\n" + "|---" * 7 + "|")
    for weight in wanted.weights:
        began = time.process_time()
        point = bench.measure(weight)
        found.append(point)
        ends = f"{point.score.value:.3f} ({point.score.low:.3f} to {point.score.high:.3f})"
        above = f"{point.floor:.3f} | {point.score.value - point.floor:.3f} | {point.attack}"
        cost = f"{time.process_time() - began:.0f}"
        print(f"| {weight:g} | {point.lost_points:.2f} | {ends} | {above} | {cost} |", flush=True)
    print(*describe_curve(found), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(run_to_exit("python -m benchmarks.forge.parts.leakage_curve", main))
