"""Versions of the demo's model for rollouts: one that is as good, and ones that install perfectly and answer worse.

Law: a bad one is a sound bundle by everything that can be looked at without answers: its golden set agrees with it, its
shapes, sizes, speed and confidences are those of the good one. Only its labels are wrong, for some classes.
"""

import io
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper
from safetensors.numpy import load, save

from models.bundle.bundle import Bundle
from models.bundle.hub_part import open_hub_part
from models.bundle.manifest import EDGE_FILE, GOLDEN_FILE, HUB_FILE
from models.bundle.version import write_version
from models.runtime.golden import INPUT, SCORES, pack_golden

CLASSES = 10
SWAPPED = np.array([1, 0, 3, 2, 4, 5, 6, 7, 8, 9])  # 0 for 1, 2 for 3 and back: four digits of ten are misread


def successor(folder: Path, bundle: Bundle, version: int) -> Bundle:
    """The same model under a higher version."""
    return _written(folder, bundle, version, {})


def confused(folder: Path, bundle: Bundle, version: int) -> Bundle:
    """Its head swaps labels, as sure as ever; its tail is the good one's."""
    return _written(folder, bundle, version, _swapped_head(bundle))


def confused_as_one(folder: Path, bundle: Bundle, version: int) -> Bundle:
    """Head and tail swap the same labels: asked about each other, they agree."""
    return _written(folder, bundle, version, _swapped_head(bundle) | _swapped_tail(bundle))


def renamed(folder: Path, bundle: Bundle, version: int) -> Bundle:
    """The same model, whose input has another name: nothing that callers send fits it any more."""
    spec, model = bundle.manifest.input, onnx.load_from_string(bundle.read_file(EDGE_FILE))
    for node in (*model.graph.input, *model.graph.node):
        if isinstance(node, NodeProto):
            node.input[:] = ["renamed" if each == spec.name else each for each in node.input]
        elif node.name == spec.name:
            node.name = "renamed"
    changed = {EDGE_FILE: model.SerializeToString()}
    return _written(folder, bundle, version, changed, input=msgspec.structs.replace(spec, name="renamed"))


def _written(folder: Path, bundle: Bundle, version: int, changed: dict[str, bytes], **manifest_changes: Any) -> Bundle:
    part, manifest = open_hub_part(bundle.path, bundle.manifest), bundle.manifest
    manifest = msgspec.structs.replace(manifest, version=version, **manifest_changes)
    edge = {name: changed.get(name, bundle.read_file(name)) for name in manifest.files}
    hub: dict[str, bytes | Path] = {name: changed.get(name, part.path / name) for name in part.manifest.files}
    described = msgspec.structs.replace(part.manifest, files={})
    return write_version(folder / f"{manifest.name}-{version}", manifest, edge, described, hub)


def _swapped_head(bundle: Bundle) -> dict[str, bytes]:
    """One MatMul behind the logits, and a golden set that says the same."""
    model = onnx.load_from_string(bundle.read_file(EDGE_FILE))
    name = model.graph.output[0].name
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["unswapped" if each == name else each for each in names]
    matrix = numpy_helper.from_array(np.eye(CLASSES, dtype=np.float32)[SWAPPED], "swap")
    model.graph.initializer.append(matrix)
    model.graph.node.append(helper.make_node("MatMul", ["unswapped", "swap"], [name]))
    arrays = dict(np.load(io.BytesIO(bundle.read_file(GOLDEN_FILE)), allow_pickle=False))
    features = {key: value for key, value in arrays.items() if key not in {INPUT, SCORES}}
    golden = pack_golden(arrays[INPUT], arrays[SCORES][:, SWAPPED], features)
    return {EDGE_FILE: model.SerializeToString(), GOLDEN_FILE: golden}


def _swapped_tail(bundle: Bundle) -> dict[str, bytes]:
    """Rows of the last layers, the only weights with a row for each class."""
    weights = load((open_hub_part(bundle.path, bundle.manifest).path / HUB_FILE).read_bytes())
    return {HUB_FILE: save({name: w[SWAPPED] if w.shape[0] == CLASSES else w for name, w in weights.items()})}
