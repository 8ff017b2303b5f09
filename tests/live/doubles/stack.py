"""A version of the echo model whose hub part is a stack of linear layers of 64 MiB each, as large as is asked for.

Its last layer is nothing but zeros, so that the answers are those of the edge part's codes whatever the layers hold:
sparse files take next to no room on the disk, random ones what they hold.
"""

import json
import os
import struct
from pathlib import Path

import numpy as np

from models.bundle.bundle import Bundle
from models.bundle.manifest import Precision, TargetPlatform
from models.graph.format import FORMAT, GraphDocument, GraphNode, HubModelDocument, TensorSignature, encode_hub_model
from tests.cloud_hub.doubles.versions import make_version

LABELS, WIDTH = 10, 4096
LAYER_BYTES = WIDTH * WIDTH * 4
LAYERS_A_FILE = 16  # 1 GiB
_LINEAR = "aten.linear.default"


def make_stack_version(folder: Path, layers: int, *, version: int = 1, sparse: bool = True, rounds: int = 1) -> Bundle:
    """Write a version with `layers` layers into `folder`; a sample passes them `rounds` times."""
    folder.mkdir(parents=True, exist_ok=True)
    shapes = {"w0": (WIDTH, LABELS), **{f"w{at}": (WIDTH, WIDTH) for at in range(1, layers + 1)}}
    last = f"w{layers + 1}"
    shapes[last] = (LABELS, WIDTH)
    names = list(shapes)
    order = [names[0], *names[1:-1] * rounds, last]
    files: dict[str, bytes | Path] = {"hub.json": _build_graphs(shapes, order)}
    for number, begin in enumerate(range(0, len(names), LAYERS_A_FILE), 1):
        path = folder / f"hub-{number:05d}.safetensors"
        _write_file(path, {name: shapes[name] for name in names[begin : begin + LAYERS_A_FILE]}, last, sparse=sparse)
        files[path.name] = path
    target = TargetPlatform("onnxruntime", 20, Precision.FLOAT32, "any")
    made = make_version(folder / f"echo@{version}", files, version=version, target=target)
    for file in files.values():
        if isinstance(file, Path):
            file.unlink()
    return made


def _build_graphs(shapes: dict[str, tuple[int, int]], order: list[str]) -> bytes:
    """Build both graphs: linear and relu in turns, and the input added to what comes out."""
    nodes: list[GraphNode] = []
    for name in order:
        taken = {"node": len(nodes) - 1} if nodes else {"input": 0}
        nodes += [GraphNode(_LINEAR, [taken, {"weight": name}]), GraphNode("aten.relu.default", [{"node": len(nodes)}])]
    nodes.append(GraphNode("aten.add.Tensor", [{"input": 0}, {"node": len(nodes) - 1}]))
    graph = GraphDocument([TensorSignature("float32", (LABELS,))], nodes, [{"node": len(nodes) - 1}])
    weights = {name: TensorSignature("float32", shape) for name, shape in shapes.items()}
    return encode_hub_model(HubModelDocument(FORMAT, weights, {"tail": graph, "whole": graph}))


def _write_file(path: Path, shapes: dict[str, tuple[int, int]], zeros: str, *, sparse: bool) -> None:
    """Write a safetensors file; weights are random in +-1/64 unless it is to be sparse, those of `zeros` are 0."""
    header: dict[str, object] = {}
    begins: dict[str, int] = {}
    at = 0
    for name, (rows, columns) in shapes.items():
        size = rows * columns * 4
        begins[name] = at
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    chance = np.random.default_rng(len(shapes) + len(path.name))
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + at)
        for name, (rows, columns) in shapes.items():
            if not sparse and name != zeros:
                drawn = (chance.random((rows, columns), np.float32) - 0.5) / 32
                os.pwrite(file.fileno(), drawn.tobytes(), 8 + len(head) + begins[name])
