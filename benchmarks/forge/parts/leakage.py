"""Benchmark: what forged bundles give away under the full attacks, and untaught codes of a net's cuts beside them.

`python -m benchmarks.forge.parts.leakage [SET ...] [--wish features] [--seed 11] [--bundle FOLDER] [--cuts]
[--quick]`; needs SKERRY_DATA, and the bundles that `make bench-forge` has forged. Each bundle is attacked as it ships:
reconstruction from 100, 1,000 and all pairs, every sensitive column (patients, persons, speakers), membership against
outsiders of one distribution.
The budget of every attack is counted in multiply-accumulates (`models/forge/leakage/effort.py`) and printed with its
cost; progress goes to standard error; a killed run goes on where it was.

`--cuts` (sets of pictures): SSIM with a 95 % bootstrap interval of what a network rebuilds of 1,000 published test
pictures, from the label alone, from the earliest cut, which the attack must invert (0.8), and from cuts at four levels
without any teaching. Loss in points against the hub's net on all test pictures, every picture being sent.
"""

import argparse
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.forge.datasets import CASES, bundles_folder
from models.bundle.bundle import open_bundle
from models.forge.data.types import Data
from models.forge.leakage import inversion
from models.forge.leakage.effort import EFFORTS, FULL, AttackEffort
from models.forge.leakage.inversion import AttackSamples
from models.forge.leakage.metrics import BootstrapInterval
from models.forge.leakage.remeasure import remeasure_bundle
from models.forge.leakage.summary import describe_leakage
from models.forge.partition.code_levels import fit_range, measure_coded_size
from models.forge.partition.cuts import Cut, find_cuts
from models.forge.partition.split import run_head, split_shared
from models.forge.partition.trace import TracedModel, trace_model
from models.forge.training.teacher import predict_batches
from wire.process.main import run_to_exit

Values = npt.NDArray[Any]
SETS = ("cifar10", "fashion-mnist", "mitbih", "simulated-motion", "synthetic-speech")
_SEED, _WISH = 11, "features"
_LEVELS, _CUTS, _BATCH = 4, 4, 250
_CALIBRATED = 1000
_EARLY = 1500


class LeakageRow(NamedTuple):
    what: str
    payload_bytes: float
    loss_points: float
    ssim: BootstrapInterval
    attack: str


class LeakageBench:
    """One data set: its test pictures, the net of the hub, and the attacker's split."""

    def __init__(self, data: Data, traced: TracedModel, effort: AttackEffort) -> None:
        self.data, self.traced, self._effort = data, traced, effort
        self.x, self.y = data.heldout.x[0], data.heldout.y
        self.truth: AttackSamples = inversion.prepare_samples(self.x, effort)
        self._right = self.accuracy_of(predict_batches(traced.gm, self.x).numpy())

    def accuracy_of(self, outputs: Values) -> float:
        return float((outputs.argmax(1) == self.y).mean())

    def measure_row(self, what: str, payload: float, right: float, codes: tuple[Values, ...]) -> LeakageRow:
        found = inversion.invert_codes(self.truth, codes, self._effort)
        return LeakageRow(what, payload, 100 * (self._right - right), found.score, found.attack)

    def label_row(self) -> LeakageRow:
        return LeakageRow(
            "label alone", 0.5, float("nan"), inversion.score_label_baseline(self.truth, self.y), "class mean"
        )

    def earliest_row(self, cut: Cut) -> LeakageRow:
        """Uncoded, and from 1,500 pictures only: its features are large."""
        few = inversion.prepare_samples(self.x[:_EARLY], self._effort)
        head = split_shared(self.traced, cut).head
        found = inversion.invert_codes(
            few, (np.concatenate(list(_compute_features(head, self.x[:_EARLY]))),), self._effort
        )
        return LeakageRow(f"earliest cut, {cut.name}", cut.values * 4, 0.0, found.score, found.attack)

    def plain_row(self, cut: Cut) -> LeakageRow:
        """Four levels between clipped ends, no training."""
        half = split_shared(self.traced, cut)
        shown = torch.from_numpy(
            np.concatenate(list(_compute_features(half.head, self.data.calibration.x[0][:_CALIBRATED])))
        )
        scale = fit_range(shown, _LEVELS)
        codes = np.concatenate(
            [scale.quantise(torch.from_numpy(f)).numpy() for f in _compute_features(half.head, self.x)]
        )
        with torch.inference_mode():
            parts = [half.tail(scale.dequantise(torch.from_numpy(each))) for each in _split_batches(codes)]
        seen = torch.from_numpy(codes)
        payload = measure_coded_size([scale.quantise(shown)], [seen], [_LEVELS]).least
        return self.measure_row(
            f"{cut.name} {list(cut.shapes[0])}, 4 levels", payload, self.accuracy_of(torch.cat(parts).numpy()), (codes,)
        )


def _compute_features(head: torch.nn.Module, x: Values) -> Iterator[Values]:
    with torch.inference_mode():
        for each in _split_batches(x):
            yield run_head(head, torch.from_numpy(each))[0].numpy()


def _split_batches(x: Values) -> Iterator[Values]:
    for at in range(0, len(x), _BATCH):
        yield x[at : at + _BATCH]


def measure_cuts(name: str) -> Iterator[LeakageRow]:
    """Rows of a set of pictures: label alone, earliest cut, and a few later cuts without any teaching."""
    zoo = import_module(CASES[name].module)
    data = zoo.samples()
    traced = trace_model(zoo.build_model(), torch.from_numpy(data.training.x[0][:2]))
    bench = LeakageBench(data, traced, FULL)
    cuts = [cut for cut in find_cuts(traced) if len(cut.nodes) == 1]
    yield bench.label_row()
    yield bench.earliest_row(cuts[0])
    deep = cuts[1:]
    for at in np.linspace(0, len(deep) - 1, min(_CUTS, len(deep))).round().astype(int)[::-1]:
        yield bench.plain_row(deep[at])


def attack_bundle(name: str, folder: Path, effort: str) -> list[str]:
    """Lines on one bundle, attacked as it ships with the samples of its set."""
    data = import_module(CASES[name].module).samples()
    work = bundles_folder() / ".stages" / f"attacks-{folder.name}"
    case = remeasure_bundle(open_bundle(folder), data, {}, effort, _StageLog(name), folder=work)
    limits = EFFORTS[effort]
    budget = f"budget: {limits.pairs:,} pairs, {limits.tests:,} tests, {limits.macs:.0e} multiply-accumulates a network"
    return [f"{name}, {folder.name}: {line}" for line in (budget, *describe_leakage(case.found))]


class _StageLog:
    """A line on standard error as each stage of a measurement begins, and at each fifth of the whole."""

    def __init__(self, name: str) -> None:
        self._name, self._stage, self._fifths = name, "", 0

    def __call__(self, stage: str, share: float) -> None:
        if stage != self._stage or int(5 * share) > self._fifths:
            print(f"{self._name}: {stage}, {share:.0%}", file=sys.stderr, flush=True)
        self._stage, self._fifths = stage, int(5 * share)


def print_cuts(name: str) -> None:
    """Print the table of a set's cuts, a row as it is measured."""
    print(f"| {name}: codes | bytes | loss, points | SSIM (95 %) | best attack |\n|---|---|---|---|---|")
    for r in measure_cuts(name):
        loss = "" if np.isnan(r.loss_points) else f"{r.loss_points:.2f}"
        ends = f"{r.ssim.value:.3f} ({r.ssim.low:.3f} to {r.ssim.high:.3f})"
        print(f"| {r.what} | {r.payload_bytes:g} | {loss} | {ends} | {r.attack} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="*", default=SETS, help=f"of {', '.join(CASES)}")
    parser.add_argument("--wish", default=_WISH, help="under which the bundle was forged")
    parser.add_argument("--seed", type=int, default=_SEED, help="of the bundle")
    parser.add_argument("--bundle", type=Path, help="this bundle of the one set named, instead")
    parser.add_argument("--cuts", action="store_true", help="untaught codes of a set of pictures, too")
    parser.add_argument("--quick", action="store_true", help="weaker attacks, in seconds")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    for name in wanted.sets:
        folder = wanted.bundle or bundles_folder() / f"{name}-{wanted.wish}-{wanted.seed}"
        if not folder.exists():
            print(f"{name}: {folder} is not forged yet: make bench-forge ARGS='--sets {name}'", flush=True)
            continue
        print(*attack_bundle(name, folder, "quick" if wanted.quick else "full"), sep="\n", flush=True)
        if wanted.cuts:
            print_cuts(name)
    return 0


if __name__ == "__main__":
    sys.exit(run_to_exit("python -m benchmarks.forge.parts.leakage", main))
