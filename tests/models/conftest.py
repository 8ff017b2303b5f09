"""Test bundles: fixture `made` is a hand-written graph without training, fixture `forged` a real but tiny forge run."""

import fcntl
import os
import shutil
import tempfile
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models import zoo
from models.bundle.bundle import Bundle, open_bundle
from models.bundle.manifest import EDGE_FILE, GOLDEN_FILE, HUB_FILE, HUB_GRAPH_FILE, Manifest
from models.runtime.golden import pack_golden
from models.runtime.runner import EchoRunner, echo_manifest
from tests.models.bundles import write_bundle

if TYPE_CHECKING:
    from torch import nn

    from models.forge.data.types import Data
    from models.forge.spec import ForgeSpec

LABELS = 10
KEPT = Path(tempfile.gettempdir()) / f"skerry-tests-{os.getuid()}"  # finished stages of forge runs; outlives the tests


def echo_graph(scale: float = 1.0, outputs: tuple[str, str] = ("logits", "features"), labels: int = LABELS) -> bytes:
    """logits = scale * scores, features = round(15 * scores): what `EchoRunner` does, as an ONNX graph."""
    constants = {"scale": np.float32(scale), "levels": np.float32(15)}
    nodes = [
        helper.make_node("Mul", ["scores", "scale"], [outputs[0]]),
        helper.make_node("Mul", ["scores", "levels"], ["wide"]),
        helper.make_node("Round", ["wide"], ["whole"]),
        helper.make_node("Cast", ["whole"], [outputs[1]], to=TensorProto.UINT8),
    ]
    return model(nodes, [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()], outputs, labels)


def model(nodes, initializers, outputs=("logits", "features"), labels=LABELS) -> bytes:
    """Checked ONNX bytes of a graph from `scores` `[batch, labels]` to two outputs."""
    shape: list[str | int | None] = ["batch", labels]
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


def contents(edge: bytes | None = None, scale: float = 1.0, labels: int = LABELS) -> dict[str, bytes]:
    """Files of the echo bundle; `scale`: of the graph whose answers the golden set holds."""
    samples = np.random.default_rng(3).random((8, labels), np.float32)
    weights = np.exp(samples * np.float32(scale))
    codes = np.stack([i.features["features"] for i in EchoRunner(labels).infer(samples)])
    golden = pack_golden(samples, weights / weights.sum(1, keepdims=True), {"features": codes})
    return {
        EDGE_FILE: edge or echo_graph(labels=labels),
        HUB_FILE: b"weights",
        HUB_GRAPH_FILE: b"{}",
        GOLDEN_FILE: golden,
    }


def make(
    path: Path, edge: bytes | None = None, scale: float = 1.0, labels_count: int = LABELS, **changes: object
) -> Bundle:
    """Write the echo bundle at `path`, with `changes` of its manifest.

    `scale`: of the graph whose answers the golden set holds. `labels_count`: its classes, as many as its input has
    values.
    """
    manifest: Manifest = msgspec.structs.replace(echo_manifest(labels_count), **changes)
    return write_bundle(path, manifest, contents(edge, scale, labels_count))


@pytest.fixture
def made(tmp_path) -> Bundle:
    return make(tmp_path / "echo-1")


@pytest.fixture(scope="session")
def forged(tmp_path_factory) -> Bundle:
    """A bundle of a few training steps on 300 digits, for reading only. Its report lies beside it.

    It is kept under a digest of the forge's recipe and of this file, and forged again only when these change. One
    worker of pytest forges it, the others wait.
    """
    from models.forge.spec import recipe_digest  # noqa: PLC0415

    key = sha256(recipe_digest().encode() + Path(__file__).read_bytes() + digits_source()).hexdigest()[:16]
    KEPT.mkdir(mode=0o700, exist_ok=True)
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = KEPT / f"bundle-{key}"
        if not kept.exists():
            made = tmp_path_factory.mktemp("made")
            forge(made / "tiny-3", kept=True)
            shutil.copytree(made, kept.with_suffix(".part"), dirs_exist_ok=True)
            kept.with_suffix(".part").rename(kept)
    shutil.copytree(kept, folder := tmp_path_factory.mktemp("forged"), dirs_exist_ok=True)
    return open_bundle(folder / "tiny-3")


def digits_source() -> bytes:
    return files(zoo).joinpath("digits.py").read_bytes()


def forge(out: Path, *, kept: bool = False, **wishes: Any) -> Bundle:
    """The tiny bundle; `kept`: finished stages are taken from and left in a folder that outlives the tests.

    Its attackers train for a moment: what an untrained net leaks says nothing.
    """
    from models.forge.leakage import effort, measure  # noqa: PLC0415
    from models.forge.pipeline.forge import run_forge as forged_bundle  # noqa: PLC0415
    from models.forge.spec import ForgeInputs  # noqa: PLC0415 - torch and scikit-learn only for tests that forge

    aids = ForgeInputs(cache=KEPT if kept else None)
    brief = effort.QUICK._replace(pairs=300, tests=100, steps=40, least_steps=20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(effort.EFFORTS, "quick", brief)
        patch.setattr(measure, "_BRIEF", brief)
        return forged_bundle(tiny_net(), tiny_data(), tiny_spec(**wishes), out, aids=aids)


def tiny_spec(**wishes: Any) -> "ForgeSpec":
    """Specification of the tiny bundle, with `wishes` changed."""
    from models.forge.spec import Effort, ForgeSpec  # noqa: PLC0415

    plain: dict[str, Any] = {"name": "tiny", "version": 3, "cut": "early.3.relu", "max_bytes": 16, "path": "learned-16"}
    plain |= {"precision": "int8-weights", "effort": Effort.QUICK}
    return ForgeSpec(**plain | wishes)


def tiny_net() -> "nn.Module":
    """The demo's network with weights of a fixed seed, untrained."""
    import torch  # noqa: PLC0415

    from models.zoo.digits import DigitsNet  # noqa: PLC0415

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return DigitsNet().eval()


def tiny_data() -> "Data":
    """300, 100 and 100 digits, undamaged."""
    from models.forge.data import digits  # noqa: PLC0415
    from models.forge.data.types import Data, DataPart  # noqa: PLC0415

    training, calibration, heldout = (
        DataPart((x[:count],), y[:count])
        for (x, y), count in (
            (digits.load_training(), 300),
            (digits.load_calibration(), 100),
            (digits.load_heldout(), 100),
        )
    )
    return Data(training, calibration, heldout, tuple(str(digit) for digit in range(10)))


def deadly_graph(percent: int = 77) -> bytes:
    """As `echo_graph`, but a sample whose first score is `percent` hundredths ends the process.

    It divides the least whole number by -1, which the processor answers with a signal.
    """
    constants = {
        "scale": np.float32(1), "levels": np.float32(15), "hundred": np.float32(100), "none": np.float32(0),
        "first": np.array([0], np.int64), "bad": np.int32(percent + 1), "least": np.int32(-(2**31)),
    }  # fmt: skip
    nodes = [
        helper.make_node("Gather", ["scores", "first"], ["head"], axis=1),
        helper.make_node("Mul", ["head", "hundred"], ["hundredths"]),
        helper.make_node("Round", ["hundredths"], ["rounded"]),
        helper.make_node("Cast", ["rounded"], ["number"], to=TensorProto.INT32),
        helper.make_node("Sub", ["number", "bad"], ["apart"]),
        helper.make_node("Div", ["least", "apart"], ["share"]),
        helper.make_node("Cast", ["share"], ["small"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["small", "none"], ["nothing"]),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "nothing"], ["logits"]),
        helper.make_node("Mul", ["scores", "levels"], ["wide"]),
        helper.make_node("Round", ["wide"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["features"], to=TensorProto.UINT8),
    ]
    return model(nodes, [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()])
