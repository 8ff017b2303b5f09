"""Benchmark: the zoo's data sets through the forge: accuracy of hub and pair, and bytes per sample.

Rule: a bundle is forged by the same function as `skerry models forge`, once, and kept (remove it to forge it again);
every figure is read from the bundle or from the outcomes that the forge recorded on the published test part.
`SKERRY_DATA` names the data. `python -m benchmarks.forge.datasets [SET ...]`
"""

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import torch

from benchmarks.harness.figures import Figure, format_line
from models.bundle.bundle import Bundle, open_bundle
from models.bundle.manifest import EDGE_FILE
from models.bundle.measurements import LeakKind, QualityMetric
from models.cli.progress import stage_progress
from models.forge.data.types import Data
from models.forge.evaluation.baselines import measure_baselines
from models.forge.evaluation.deferral import pair_curve
from models.forge.evaluation.outcomes import Outcomes, read_outcomes
from models.forge.partition.cuts import trace_model
from models.forge.pipeline.forge import run_forge
from models.forge.spec import ForgeInputs, ForgeSpec

BUNDLES = "SKERRY_ZOO_BUNDLES"
STAGES = ".stages"
ENVELOPE_BYTES = 196


@dataclass(frozen=True)
class ZooCase:
    """`module` of the zoo gives `build_model`, `samples`, and where it has them `edge_model`, `augment`."""

    module: str
    wish: ForgeSpec
    judge: "Callable[[ForgedSet], list[Figure]]"


@dataclass(frozen=True)
class ForgedSet:
    name: str
    bundle: Bundle
    outcomes: Outcomes
    facts: dict[str, Any]
    terms: tuple[str, ...]


def judge_sets(names: Sequence[str]) -> list[Figure]:
    """Every figure of these sets, forging those that are not kept."""
    return [figure for name in names for figure in CASES[name].judge(forge_set(name))]


def forge_set(name: str) -> ForgedSet:
    folder = bundles_folder() / name
    data = import_module(CASES[name].module).samples()
    bundle = open_bundle(folder) if folder.exists() else forge_dataset_bundle(name, data, folder)
    outcomes = read_outcomes(folder.with_name(f"{name}.report") / "outcomes-heldout.npz")
    sizes = ", ".join(f"{b.name} {b.mean_bytes:,.0f} B" for b in measure_baselines(data.heldout.x[0]))
    return ForgedSet(name, bundle, outcomes, msgspec.json.decode(bundle.report), (f"one sample compressed: {sizes}",))


def forge_dataset_bundle(name: str, data: Data, folder: Path) -> Bundle:
    """As `skerry models forge` would."""
    case = CASES[name]
    zoo = import_module(case.module)
    small, vary = (getattr(zoo, part, None) for part in ("edge_model", "augment"))
    aids = ForgeInputs(
        edge_model=small() if small else None,
        augment=vary,
        cache=bundles_folder() / STAGES,
        source=f"{case.module}:build_model",
    )
    with stage_progress() as tell:
        return run_forge(zoo.build_model(), data, replace(case.wish, name=name), folder, tell, aids=aids)


def bundles_folder() -> Path:
    """Where forged sets and their stages are kept: the folder that `SKERRY_ZOO_BUNDLES` names, or the user's cache."""
    return Path(os.environ.get(BUNDLES) or Path.home() / ".cache" / "skerry" / "zoo-bundles")


def describe_set(found: ForgedSet) -> tuple[str, ...]:
    """What every row of a set is read with."""
    manifest, calibration = found.bundle.manifest, found.bundle.manifest.calibration
    unit = "" if calibration.metric is QualityMetric.RMSE else " %"
    edge, pair, hub = (
        _to_percent(calibration.metric, v) for v in (calibration.edge, calibration.pair, calibration.hub)
    )
    sealed = manifest.fixed_bytes + ENVELOPE_BYTES
    return (
        f"edge {edge:.2f}{unit}, pair {pair:.2f}{unit} asking {calibration.asked:.1%}, hub alone {hub:.2f}{unit}; "
        f"{len(found.outcomes):,} held-out samples, seed {manifest.provenance.seed}",
        f"{found.facts['payload_bytes']} B of codes ({manifest.codec}, cut {manifest.cut}), sealed {sealed} B with "
        f"envelope and padding; edge graph {manifest.target.precision}",
        *found.terms,
    )


def recovered_gap(found: ForgedSet, share: float) -> float:
    """Of the gap between the edge and the given model, in percent, asking this share (0..1)."""
    line_ = pair_curve(found.outcomes)
    hub = found.bundle.manifest.calibration.hub
    at = float(line_[min(len(found.outcomes), int(share * len(found.outcomes)))])
    return 100 * (at - float(line_[0])) / (hub - float(line_[0])) if hub != line_[0] else math.nan


def metric_at_share(found: ForgedSet, share: float) -> float:
    """The pair's accuracy or RMSE asking this share of the least confident."""
    return float(pair_curve(found.outcomes)[int(share * len(found.outcomes))])


def judge_cifar10(found: ForgedSet) -> list[Figure]:
    """T1: what a learned bottleneck costs in bytes and in accuracy."""
    facts = found.facts
    return [
        Figure(
            "CIFAR-10 (JPEG q75): payload of the bottleneck",
            facts["payload_bytes"],
            "B",
            100,
            terms=describe_set(found),
        ),
        Figure("CIFAR-10: lost if every sample is asked", 100 * facts["lost"], "points", 1.0),
        Figure(
            "CIFAR-10: multiply-accumulates of the device's half", 100 * compute_device_share(found), "% of hub", 10.0
        ),
        *judge_inversion(found, "CIFAR-10"),
    ]


def judge_fashion_mnist(found: ForgedSet) -> list[Figure]:
    """T4: the gap, and bytes over all samples."""
    mean = found.facts["payload_bytes"] * 0.25
    beyond = f"asking 20 %: {recovered_gap(found, 0.20):.1f} % of the gap (stretch: 95)"
    share = recovered_gap(found, 0.25)
    hub = 100 * found.bundle.manifest.calibration.hub
    return [
        Figure("Fashion-MNIST: hub alone", hub, "%", 94.5, more_is_better=True, terms=describe_set(found)),
        Figure("Fashion-MNIST: gap recovered asking 25 %", share, "%", 90, more_is_better=True, terms=(beyond,)),
        Figure("Fashion-MNIST: mean bytes of features over all samples", mean, "B", 40),
        *judge_inversion(found, "Fashion-MNIST"),
    ]


def judge_mitbih(found: ForgedSet) -> list[Figure]:
    """The threshold was chosen on other patients: how much is asked of strangers is part of the row."""
    calibration = found.bundle.manifest.calibration
    short = 100 * (calibration.hub - metric_at_share(found, 0.20))
    shift = f"the threshold that asks 20 % of the calibration patients asks {calibration.asked:.1%} of these"
    terms = (*describe_set(found), shift)
    return [Figure("MIT-BIH by patient: pair behind hub asking 20 %", short, "points", 0.3, terms=terms)]


def judge_cmapss(found: ForgedSet) -> list[Figure]:
    calibration = found.bundle.manifest.calibration
    behind = 100 * (metric_at_share(found, 0.25) / calibration.hub - 1)
    precision = found.bundle.manifest.target.precision
    return [
        Figure("C-MAPSS FD001: hub alone", calibration.hub, "RMSE", 14.5, terms=describe_set(found)),
        Figure(f"C-MAPSS FD001: edge ({precision})", calibration.edge, "RMSE", 16.0),
        Figure("C-MAPSS FD001: pair behind hub asking 25 %", behind, "%", 2.0),
    ]


def compute_device_share(found: ForgedSet) -> float:
    """Multiply-accumulates of the edge graph, exit and gate included, against the given model's."""
    model = onnx.shape_inference.infer_shapes(onnx.load_from_string(found.bundle.read_file(EDGE_FILE)))
    graph = model.graph
    shapes = {each.name: tuple(each.dims) for each in graph.initializer}
    for value in (*graph.value_info, *graph.input, *graph.output):
        shapes[value.name] = tuple(d.dim_value or 1 for d in value.type.tensor_type.shape.dim)
    zoo = import_module(CASES[found.name].module)
    example = torch.from_numpy(np.ascontiguousarray(zoo.samples().heldout.x[0][:2]))
    return sum(_count_multiplies(node, shapes) for node in graph.node) / trace_model(zoo.build_model(), example).macs


def _count_multiplies(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    if node.op_type == "Conv":
        return math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[1]][1:])
    if node.op_type in {"Gemm", "MatMul"}:
        return math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[1]]) // shapes[node.output[0]][-1]
    return 0


def judge_inversion(found: ForgedSet, title: str) -> list[Figure]:
    """T2: how like the originals reconstructions are, above what the label alone gives; and the attack's power."""
    rows = [row for row in found.bundle.manifest.leakage if row.kind is LeakKind.RECONSTRUCTION]
    if not rows:
        return [Figure(f"{title}: inversion above label alone", math.nan, "SSIM", 0.15)]
    row = rows[0]
    terms = (
        f"{row.attack}, {row.pairs:,} pairs: {row.metric} {row.score:.3f} (upper 95 % {row.upper95:.3f}), label alone "
        f"{row.floor:.3f}, earliest cut {row.ceiling:.3f}",
    )
    power = Figure(f"{title}: the attack on the earliest cut", row.ceiling, row.metric, 0.8, more_is_better=True)
    return [
        Figure(f"{title}: inversion above label alone", row.score - row.floor, row.metric, 0.15, terms=terms),
        power,
    ]


def _to_percent(metric: QualityMetric, value: float) -> float:
    return value if metric is QualityMetric.RMSE else 100 * value


CASES = {
    "cifar10": ZooCase(
        "models.zoo.cifar10", ForgeSpec(cut="stem.2.relu", max_bytes=100, max_share=0.25), judge_cifar10
    ),
    "fashion-mnist": ZooCase(
        "models.zoo.fashion_mnist",
        ForgeSpec(cut="first.0.3.max_pool2d", max_bytes=160, max_share=0.25),
        judge_fashion_mnist,
    ),
    "mitbih": ZooCase("models.zoo.mitbih", ForgeSpec(max_bytes=64, max_share=0.20), judge_mitbih),
    "cmapss": ZooCase("models.zoo.cmapss", ForgeSpec(max_bytes=160, max_share=0.25), judge_cmapss),
}


def main() -> int:
    figures = judge_sets(sys.argv[1:] or list(CASES))
    for figure in figures:
        print(format_line(figure), *(f"    {term}" for term in figure.terms), sep="\n", flush=True)
    return 0 if all(figure.held for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
