"""Benchmark: accuracy loss against leakage: how well a network rebuilds the picture from the codes as sent.

`python -m benchmarks.forge.leakage fashion_mnist [--bundle FOLDER ...] [--macs 2e12]`; needs SKERRY_DATA. Scored on
1,000 published test pictures by SSIM (Wang et al. 2004, windows wholly inside) with a 95 % bootstrap interval; the
attacker learns from the other 9,000. Rows: what the label alone gives; the earliest cut of the hub's net, which the
attack must invert (0.8); cuts of that net at four levels without any training of a bottleneck; each bundle given, as
shipped and under noise. Loss in points against the hub's net on all 10,000 test pictures, every picture being sent.
"""

import argparse
import importlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.harness.figures import Figure, line
from models.bundle.bundle import open_bundle
from models.forge.data.types import Data
from models.forge.leakage import inversion
from models.forge.leakage.inversion import FULL, Effort, Truth
from models.forge.leakage.measure import POWER
from models.forge.leakage.metrics import Interval
from models.forge.leakage.remeasure import NOISE, changed
from models.forge.partition.code_levels import fitted, size
from models.forge.partition.cuts import Cut, find_cuts
from models.forge.partition.split import features_of, halves
from models.forge.partition.trace import Traced, trace
from models.forge.training.teacher import ask
from models.graph.hub_model import open_hub
from models.runtime.chain import Step
from models.runtime.onnx_runner import OnnxRunner

Values = npt.NDArray[Any]
ABOVE_LABEL, MAX_LOSS_POINTS = 0.15, 1.0
_LEVELS, _CUTS, _BATCH = 4, 4, 250
_CALIBRATED = 1000
_EARLY = 1500


class Row(NamedTuple):
    what: str
    payload_bytes: float
    loss_points: float
    ssim: Interval
    attack: str


class Bench:
    """One data set: its test pictures, the net of the hub, and the attacker's split."""

    def __init__(self, data: Data, traced: Traced, effort: Effort) -> None:
        self.data, self.traced, self._effort = data, traced, effort
        self.x, self.y = data.heldout.x[0], data.heldout.y
        self.truth: Truth = inversion.truth_of(self.x, effort)
        self._right = self.right(ask(traced.gm, self.x).numpy())

    def right(self, outputs: Values) -> float:
        return float((outputs.argmax(1) == self.y).mean())

    def row(self, what: str, payload: float, right: float, codes: tuple[Values, ...]) -> Row:
        found = inversion.invert(self.truth, codes, self._effort)
        return Row(what, payload, 100 * (self._right - right), found.score, found.attack)

    def label(self) -> Row:
        return Row("label alone", 0.5, float("nan"), inversion.label_only(self.truth, self.y), "class mean")

    def earliest(self, cut: Cut) -> Row:
        """Uncoded, and from 1,500 pictures only: its features are large."""
        few = inversion.truth_of(self.x[:_EARLY], self._effort)
        head = halves(self.traced, cut).head
        found = inversion.invert(few, (np.concatenate(list(_features(head, self.x[:_EARLY]))),), self._effort)
        return Row(f"earliest cut, {cut.name}", cut.values * 4, 0.0, found.score, found.attack)

    def plain(self, cut: Cut) -> Row:
        """Four levels between clipped ends, no training."""
        half = halves(self.traced, cut)
        shown = torch.from_numpy(np.concatenate(list(_features(half.head, self.data.calibration.x[0][:_CALIBRATED]))))
        scale = fitted(shown, _LEVELS)
        codes = np.concatenate([scale.codes(torch.from_numpy(f)).numpy() for f in _features(half.head, self.x)])
        with torch.inference_mode():
            parts = [half.tail(scale.restored(torch.from_numpy(each))) for each in _batches(codes)]
        seen = torch.from_numpy(codes)
        payload = size([scale.codes(shown)], [seen], [_LEVELS]).least
        return self.row(
            f"{cut.name} {list(cut.shapes[0])}, 4 levels", payload, self.right(torch.cat(parts).numpy()), (codes,)
        )

    def bundle(self, path: str) -> Iterator[Row]:
        bundle = open_bundle(path)
        runner, tail = OnnxRunner(bundle, cpu_only=True), open_hub(bundle).tail
        spec = bundle.manifest.features[0]
        found = [runner.infer(each) for each in _batches(self.x)]
        codes = np.stack([one.features[spec.name] for part in found for one in part])
        for what, steps in (("", ()), (", noise of a quarter", (Step(NOISE, step=spec.high / 4),))):
            out = changed(codes, steps, spec)
            with torch.inference_mode():
                parts = [tail(torch.from_numpy(each.astype(np.float32))) for each in _batches(out)]
            right = self.right(torch.cat(parts).numpy())
            yield self.row(f"{bundle.manifest.model} {list(spec.shape)}{what}", runner.codec.total_bytes, right, (out,))


def _features(head: torch.nn.Module, x: Values) -> Iterator[Values]:
    with torch.inference_mode():
        for each in _batches(x):
            yield features_of(head, torch.from_numpy(each))[0].numpy()


def _batches(x: Values) -> Iterator[Values]:
    for at in range(0, len(x), _BATCH):
        yield x[at : at + _BATCH]


def rows(bench: Bench, bundles: list[str]) -> Iterator[Row]:
    cuts = [cut for cut in find_cuts(bench.traced) if len(cut.nodes) == 1]
    yield bench.label()
    yield bench.earliest(cuts[0])
    for path in bundles:
        yield from bench.bundle(path)
    deep = cuts[1:]
    for at in np.linspace(0, len(deep) - 1, min(_CUTS, len(deep))).round().astype(int)[::-1]:
        yield bench.plain(deep[at])


def figures(name: str, found: list[Row]) -> list[Figure]:
    floor = found[0].ssim.value
    shipped = [r for r in found if "@" in r.what and "noise" not in r.what]
    power = Figure(f"{name}: SSIM from the earliest cut", found[1].ssim.value, "", POWER, more_is_better=True)
    return [power] + [
        figure
        for r in shipped
        for figure in (
            Figure(f"{name}: SSIM above the label alone", r.ssim.high - floor, "", ABOVE_LABEL, terms=(r.what,)),
            Figure(f"{name}: loss if all is sent", r.loss_points, "points", MAX_LOSS_POINTS, terms=(r.what,)),
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("set", choices=("fashion_mnist", "cifar10"))
    parser.add_argument("--bundle", action="append", default=[], help="folder of a bundle forged for this set")
    parser.add_argument("--macs", type=float, default=FULL.macs, help="work of one training of the attacker")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    recipe = importlib.import_module(f"models.zoo.{wanted.set}")
    data = recipe.samples()
    traced = trace(recipe.build_model(), torch.from_numpy(data.training.x[0][:2]))
    found = []
    print("| codes | bytes | loss, points | SSIM (95 %) | best attack |\n|---|---|---|---|---|")
    for r in rows(Bench(data, traced, FULL._replace(macs=wanted.macs)), wanted.bundle):
        found.append(r)
        loss = "" if np.isnan(r.loss_points) else f"{r.loss_points:.2f}"
        ends = f"{r.ssim.value:.3f} ({r.ssim.low:.3f} to {r.ssim.high:.3f})"
        print(f"| {r.what} | {r.payload_bytes:g} | {loss} | {ends} | {r.attack} |", flush=True)
    for figure in figures(wanted.set, found):
        print(line(figure))


if __name__ == "__main__":
    main()
