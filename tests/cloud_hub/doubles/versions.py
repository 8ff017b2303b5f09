"""Versions of the echo model, with a hub part of their own or of the older format, for publishing and fetching."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
from safetensors.numpy import save

from models.bundle.bundle import Bundle
from models.bundle.hub_part import HubManifest
from models.bundle.manifest import (
    EDGE_FILE,
    FORMAT,
    GOLDEN_FILE,
    HUB_FILE,
    HUB_GRAPH_FILE,
    JOINT_FORMAT,
    NO_HUB,
    HubModel,
)
from models.bundle.version import write_version
from models.graph.format import FORMAT as GRAPH_FORMAT
from models.graph.format import GraphDocument, GraphNode, HubModelDocument, TensorSignature, encode_hub_model
from models.runtime.runner import echo_manifest
from tests.models.bundles import write_bundle
from tests.models.conftest import contents

LABELS = 10
_LINEAR = "aten.linear.default"


def build_hub_files(*widths: int, labels: int = LABELS) -> dict[str, bytes]:
    """Build a hub part's graphs, and a shard for each width: linear layers from the labels to it and back.

    A shard is the same bytes wherever it has the same place and width.
    """
    files: dict[str, bytes] = {}
    signatures: dict[str, TensorSignature] = {}
    nodes: list[GraphNode] = []
    for at, width in enumerate(widths):
        chance = np.random.default_rng(at)
        shapes = {f"w{2 * at}": (width, labels), f"w{2 * at + 1}": (labels, width)}
        files[f"hub-{at + 1}.safetensors"] = save(
            {name: (chance.random(shape, np.float32) - 0.5) / width for name, shape in shapes.items()}
        )
        for name, shape in shapes.items():
            signatures[name] = TensorSignature("float32", shape)
            nodes.append(GraphNode(_LINEAR, [{"node": len(nodes) - 1} if nodes else {"input": 0}, {"weight": name}]))
    graph = GraphDocument([TensorSignature("float32", (labels,))], nodes, [{"node": len(nodes) - 1}])
    graphs = encode_hub_model(HubModelDocument(GRAPH_FORMAT, signatures, {"tail": graph, "whole": graph}))
    return {"hub.json": graphs, **files}


SHARDS = ("hub-1.safetensors", "hub-2.safetensors")
HUB_FILES = build_hub_files(256, 256)
HUB_BYTES = sum(map(len, HUB_FILES.values()))


def make_version(path: Path, hub_files: Mapping[str, bytes | Path] | None = None, **changes: object) -> Bundle:
    """Write both parts of a version of the echo model at `path`; `changes` are of its manifest."""
    files = hub_files or HUB_FILES
    weights = tuple(name for name in files if name != "hub.json")
    manifest = msgspec.structs.replace(echo_manifest(), **{"format": FORMAT, "hub": NO_HUB, **changes})
    edge = {name: data for name, data in contents().items() if name in (EDGE_FILE, GOLDEN_FILE)}
    hub = HubManifest(name=manifest.name, version=manifest.version, graph="hub.json", weights=weights)
    return write_version(path, manifest, edge, hub, files)


def make_joint(path: Path, edge: bytes | None = None, **changes: object) -> Bundle:
    """Write a bundle of the older format, its hub files inside; `changes` are of its manifest."""
    manifest = msgspec.structs.replace(
        echo_manifest(), **{"format": JOINT_FORMAT, "hub": HubModel(), "hub_part": "", **changes}
    )
    files = {name: data for name, data in contents(edge).items() if name in (EDGE_FILE, GOLDEN_FILE)}
    return write_bundle(path, manifest, {**files, HUB_FILE: b"weights", HUB_GRAPH_FILE: b"{}"})
