"""Bundle writer of the forge: both parts of one candidate, with graphs, weights, codec tables and golden set.

Rule: nothing that differs from run to run is content; seconds and microseconds go into `forge.json`.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import fx

from models.bundle.bundle import Bundle
from models.bundle.hub_part import HubManifest
from models.bundle.manifest import (
    CODEC_FILE,
    EDGE_FILE,
    GOLDEN_FILE,
    HUB_FILE,
    HUB_GRAPH_FILE,
    Manifest,
    ModelKind,
    ParallelPlan,
    Precision,
    Provenance,
    TargetPlatform,
)
from models.bundle.preparation import decode_preparation
from models.bundle.version import write_version
from models.forge.evaluation.shipped import run_edge_graph
from models.forge.export.manifest import find_stages
from models.forge.export.onnx import OPSET
from models.forge.partition.cuts import PreparedModel
from models.forge.report.result import ForgedBundle
from models.forge.spec import EDITION, ForgeSpec
from models.forge.training import calibration
from models.graph.hub_model import TAIL, WHOLE, encode_graphs, export_graph, split_weights
from models.runtime.golden import pack_golden

GOLDEN_SAMPLES = 32


class ForgeRequest(NamedTuple):
    """The specification, and how the model was named ("" if it was not)."""

    wish: ForgeSpec
    source: str


def write_forged_bundle(
    out: Path, found: PreparedModel, made: ForgedBundle, asked: ForgeRequest, clock: Callable[[], dict[str, Any]]
) -> Bundle:
    """Write the version at `out`, edge and hub part, and return its edge part.

    - `found`: the prepared model and data; `made`: the candidate that meets the limits.
    - `asked`: the specification and the model's name, for manifest and provenance.
    - `clock()`: seconds per stage so far, for `forge.json`.

    Raises BundleError or OSError as `write_version` does; then nothing is left at `out`.
    """
    way = made.leaving.chosen
    contents = {EDGE_FILE: made.edge.graph, GOLDEN_FILE: _pack_golden(found, made)}
    contents |= {CODEC_FILE: way.tables} if way.tables else {}
    manifest = Manifest(
        name=asked.wish.name,
        version=asked.wish.version,
        kind=ModelKind.CLASSIFIER if found.data.labels else ModelKind.REGRESSOR,
        labels=found.data.labels,
        outputs=len(found.data.labels) or found.traced.outputs,
        input=found.spec,
        preparation=decode_preparation(asked.wish.preparation) if asked.wish.preparation else None,
        features=(made.feature,),
        cut=made.cut.name,
        codec=way.name,
        codec_file=CODEC_FILE if way.tables else "",
        fixed_bytes=way.question_bytes,
        temperature=made.judged.temperature,
        hub_temperature=made.judged.hub_temperature,
        gate=made.judged.gate,
        calibration=made.judged.calibration,
        guarantee=made.judged.guarantee,
        leakage=made.leaked.rows,
        target=_describe_target(made),
        provenance=_describe_provenance(found, asked),
    )
    hub, files = _export_hub(found, made, manifest)
    facts = {**clock(), **collect_timings(found, made), "hub_bytes": sum(len(files[name]) for name in hub.weights)}
    report = msgspec.json.format(msgspec.json.encode(facts), indent=1)
    return write_version(out, manifest, contents, hub, files, report=report)


def collect_timings(found: PreparedModel, made: ForgedBundle) -> dict[str, Any]:
    """Measurements of this run on this machine, for `forge.json` beside the bundle.

    Sizes in bytes, latencies in microseconds, accuracies and losses as shares; by precision or by codec where there are
    several.
    """
    candidates = made.edge.candidates
    return {
        "payload_bytes": made.leaving.chosen.payload_bytes,
        "raw_bytes": int(math.prod(found.spec.shape)) * found.data.training.x[0].dtype.itemsize,
        "edge_bytes": {c.precision: c.size_bytes for c in candidates if c.size_bytes},
        "p50_us": {c.precision: c.p50_us for c in candidates if c.p50_us is not None},
        "busy": [c.precision for c in candidates if c.busy],
        "calibration_accuracy": {c.precision: c.accuracy for c in candidates if c.accuracy is not None},
        "not_shipped": {c.precision: c.why for c in candidates if c.why},
        "encode_us": {way.name: round(way.encode_us, 1) for way in made.leaving.ways},
        "codec": made.leaving.why,
        "lost": round(made.judged.lost, 5),
        "head_share": round(made.cut.share, 5),  # of the layers before the cut alone
        "device_share": made.edge.work.share,
        "given_us": made.edge.work.given_us,
        "time_ratio": made.edge.work.time_ratio,
        "path": _describe_path(made),
    }


def _describe_path(made: ForgedBundle) -> dict[str, Any]:
    """The path that ships: name, route, label, and the share it keeps of what lossless features gain.

    The share is of the calibration part, None where lossless features gain nothing; {} where no path was chosen.
    """
    for point in made.points:
        if point.chosen:
            kept = None if math.isnan(point.recovered) else round(point.recovered, 4)
            return {"name": point.name, "route": str(point.route), "label": point.label, "recovered": kept}
    return {}


def _export_hub(found: PreparedModel, made: ForgedBundle, manifest: Manifest) -> tuple[HubManifest, dict[str, bytes]]:
    """Description of the hub part, with the stages the tail may be divided into, and the contents of its files.

    Tail and whole model share one file of weights, cut into shards where it is large.
    """
    tail = export_graph(made.tail, (torch.zeros(2, *made.feature.shape),))
    plain = fx.GraphModule(found.traced.gm, found.traced.gm.graph)  # an exported program's own module refuses eval()
    whole = export_graph(plain, (found.traced.example,))
    graph, weights = encode_graphs({TAIL: tail, WHOLE: whole})
    parts = split_weights(weights)
    names = (HUB_FILE,) if len(parts) == 1 else tuple(f"hub-{i:05d}.safetensors" for i in range(1, len(parts) + 1))
    hub = HubManifest(
        name=manifest.name,
        version=manifest.version,
        graph=HUB_GRAPH_FILE,
        weights=names,
        parallel=ParallelPlan(find_stages(tail)),
        provenance=manifest.provenance,
    )
    return hub, {HUB_GRAPH_FILE: graph, **dict(zip(names, parts, strict=True))}


def _pack_golden(found: PreparedModel, made: ForgedBundle) -> bytes:
    """Golden set: the first held-out samples with the scores and codes of the shipped edge graph.

    The codes are those of the graph itself: a codec of a fixed length may coarsen them on their way.
    """
    answered = made.measured_on
    edge = answered.edge
    samples: npt.NDArray[Any] = np.ascontiguousarray(answered.part.x[0][:GOLDEN_SAMPLES])
    logits = edge.logits[:GOLDEN_SAMPLES]
    scores = calibration.softmax_probabilities(logits, made.judged.temperature) if found.data.labels else logits[:, :1]
    return pack_golden(samples, scores, {made.feature.name: run_edge_graph(made.edge.graph, samples).codes})


def _describe_target(made: ForgedBundle) -> TargetPlatform:
    """What the bundle was made for: runtime, opset, precision, machine and providers."""
    profile = made.profile
    return TargetPlatform("onnxruntime", OPSET, Precision(made.edge.precision), profile.machine, profile.providers)


def _describe_provenance(found: PreparedModel, asked: ForgeRequest) -> Provenance:
    """Where the bundle comes from: model's name, digests of data and weights, seed, torch version, recipe edition."""
    return Provenance(
        asked.source,
        found.data_digest,
        found.weights_digest,
        asked.wish.seed,
        torch.__version__.partition("+")[0],
        EDITION,
    )
