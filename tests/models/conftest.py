"""Bundles for the tests: `made` needs no training (a graph written by hand), `forged` is a real but tiny forge run."""

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.bundle import Bundle, write_bundle
from models.golden import pack_golden
from models.manifest import EDGE_FILE, GOLDEN_FILE, HUB_FILE, Manifest
from models.runner import EchoRunner, echo_manifest

LABELS = 10


def echo_graph(scale: float = 1.0, outputs: tuple[str, str] = ("logits", "features")) -> bytes:
    """logits = scale * scores, features = round(15 * scores): what `EchoRunner` does, as an ONNX graph."""
    constants = {"scale": np.float32(scale), "levels": np.float32(15)}
    nodes = [
        helper.make_node("Mul", ["scores", "scale"], [outputs[0]]),
        helper.make_node("Mul", ["scores", "levels"], ["wide"]),
        helper.make_node("Round", ["wide"], ["whole"]),
        helper.make_node("Cast", ["whole"], [outputs[1]], to=TensorProto.UINT8),
    ]
    return model(nodes, [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()], outputs)


def model(nodes, initializers, outputs=("logits", "features")) -> bytes:
    shape: list[str | int | None] = ["batch", LABELS]
    graph = helper.make_graph(
        nodes,
        "edge",
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, shape)],
        [
            helper.make_tensor_value_info(outputs[0], TensorProto.FLOAT, shape),
            helper.make_tensor_value_info(outputs[1], TensorProto.UINT8, shape),
        ],
        initializers,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(made)
    serialised: bytes = made.SerializeToString()
    return serialised


def contents(edge: bytes | None = None) -> dict[str, bytes]:
    samples = np.random.default_rng(3).random((8, LABELS), np.float32)
    weights = np.exp(samples)
    codes = np.stack([i.features["features"] for i in EchoRunner(LABELS).infer(samples)])
    golden = pack_golden(samples, weights / weights.sum(1, keepdims=True), {"features": codes})
    return {EDGE_FILE: edge or echo_graph(), HUB_FILE: b"weights", GOLDEN_FILE: golden}


def make(path: Path, edge: bytes | None = None, **changes: object) -> Bundle:
    manifest: Manifest = msgspec.structs.replace(echo_manifest(LABELS), **changes)
    return write_bundle(path, manifest, contents(edge))


@pytest.fixture
def made(tmp_path) -> Bundle:
    return make(tmp_path / "echo-1")


@pytest.fixture(scope="session")
def forged(tmp_path_factory) -> Bundle:
    """Two epochs on 300 digits: good for nothing but for being looked at."""
    return forge(tmp_path_factory.mktemp("forged") / "tiny-3")


def forge(path: Path) -> Bundle:
    from models.forge import digits  # noqa: PLC0415 - torch and scikit-learn only for tests that forge
    from models.forge.images import forge_images  # noqa: PLC0415
    from models.forge.task import Labelled, Task  # noqa: PLC0415
    from models.forge.train import Course  # noqa: PLC0415

    (x, y), (heldout_x, heldout_y) = digits.training(), digits.heldout()
    names = tuple(str(digit) for digit in range(10))
    task = Task("tiny", 3, names, Labelled(x[:300], y[:300]), Labelled(heldout_x[:100], heldout_y[:100]))
    return forge_images(task, path, course=Course(epochs=3, copies=1, batch=64, tail_epochs=1))
