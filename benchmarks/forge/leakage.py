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

from benchmarks.harness.figures import Figure, format_line
from models.bundle.bundle import open_bundle
from models.forge.data.types import Data
from models.forge.leakage import inversion
from models.forge.leakage.effort import FULL, AttackEffort
from models.forge.leakage.inversion import AttackSamples
from models.forge.leakage.measure import POWER
from models.forge.leakage.metrics import BootstrapInterval
from models.forge.leakage.remeasure import NOISE, transform_codes
from models.forge.partition.code_levels import fit_range, measure_coded_size
from models.forge.partition.cuts import Cut, find_cuts
from models.forge.partition.split import run_head, split_shared
from models.forge.partition.trace import TracedModel, trace_model
from models.forge.training.teacher import predict_batches
from models.graph.hub_model import open_hub_graphs
from models.runtime.chain import TransformStep
from models.runtime.onnx_runner import OnnxRunner

Values = npt.NDArray[Any]
ABOVE_LABEL, MAX_LOSS_POINTS = 0.15, 1.0
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

    def bundle_rows(self, path: str) -> Iterator[LeakageRow]:
        bundle = open_bundle(path)
        runner, tail = OnnxRunner(bundle, cpu_only=True), open_hub_graphs(bundle).tail
        spec = bundle.manifest.features[0]
        found = [runner.infer(each) for each in _split_batches(self.x)]
        codes = np.stack([one.features[spec.name] for part in found for one in part])
        for what, steps in (("", ()), (", noise of a quarter", (TransformStep(NOISE, step=spec.high / 4),))):
            out = transform_codes(codes, steps, spec)
            with torch.inference_mode():
                parts = [tail(torch.from_numpy(each.astype(np.float32))) for each in _split_batches(out)]
            right = self.accuracy_of(torch.cat(parts).numpy())
            yield self.measure_row(
                f"{bundle.manifest.model} {list(spec.shape)}{what}", runner.codec.total_bytes, right, (out,)
            )


def _compute_features(head: torch.nn.Module, x: Values) -> Iterator[Values]:
    with torch.inference_mode():
        for each in _split_batches(x):
            yield run_head(head, torch.from_numpy(each))[0].numpy()


def _split_batches(x: Values) -> Iterator[Values]:
    for at in range(0, len(x), _BATCH):
        yield x[at : at + _BATCH]


def measure_rows(bench: LeakageBench, bundles: list[str]) -> Iterator[LeakageRow]:
    cuts = [cut for cut in find_cuts(bench.traced) if len(cut.nodes) == 1]
    yield bench.label_row()
    yield bench.earliest_row(cuts[0])
    for path in bundles:
        yield from bench.bundle_rows(path)
    deep = cuts[1:]
    for at in np.linspace(0, len(deep) - 1, min(_CUTS, len(deep))).round().astype(int)[::-1]:
        yield bench.plain_row(deep[at])


def build_figures(name: str, found: list[LeakageRow]) -> list[Figure]:
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
    traced = trace_model(recipe.build_model(), torch.from_numpy(data.training.x[0][:2]))
    found = []
    print("| codes | bytes | loss, points | SSIM (95 %) | best attack |\n|---|---|---|---|---|")
    for r in measure_rows(LeakageBench(data, traced, FULL._replace(macs=wanted.macs)), wanted.bundle):
        found.append(r)
        loss = "" if np.isnan(r.loss_points) else f"{r.loss_points:.2f}"
        ends = f"{r.ssim.value:.3f} ({r.ssim.low:.3f} to {r.ssim.high:.3f})"
        print(f"| {r.what} | {r.payload_bytes:g} | {loss} | {ends} | {r.attack} |", flush=True)
    for figure in build_figures(wanted.set, found):
        print(format_line(figure))


if __name__ == "__main__":
    main()
