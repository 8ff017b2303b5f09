"""Every kind of network of `tests/models/doubles/nets.py` goes through the whole forge, without a special case."""

from pathlib import Path

import numpy as np
import pytest
import torch

from models.bundle.bundle import Bundle
from models.forge.data.types import Data, DataPart
from models.forge.pipeline.forge import run_forge
from models.forge.spec import Effort, ForgeSpec
from models.graph.hub_model import open_hub_graphs
from models.runtime.onnx_runner import OnnxRunner
from models.verification.sandbox import run_first_load
from tests.models.doubles.nets import ARCHITECTURES, built

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]
COUNTS = (320, 120, 120)


def drawn(name: str, model: torch.nn.Module) -> Data:
    """Random samples; their labels are what the model answers, so that there is something to learn."""
    torch.manual_seed(1)
    parts = []
    for count in COUNTS:
        x = ARCHITECTURES[name].draw(count)
        with torch.no_grad():
            logits = model(*x)
        parts.append(DataPart(tuple(one.numpy() for one in x), (logits - logits.mean(0)).argmax(1).numpy()))
    labels = logits.shape[1]
    for part in parts:
        part.y[:labels] = np.arange(labels)
    training, calibration, heldout = parts
    return Data(training, calibration, heldout, tuple(f"label-{number}" for number in range(labels)))


def made(name: str, folder: Path) -> Bundle:
    model = built(name)
    wish = ForgeSpec(name=name.replace("_", "-"), effort=Effort.QUICK, max_bytes=32)
    return run_forge(model, drawn(name, model), wish, folder / name)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_any_network_becomes_a_bundle_that_a_device_and_a_hub_run(name, tmp_path):
    bundle = made(name, tmp_path)
    found = run_first_load(bundle)
    assert found.passed, found
    runner, hub = OnnxRunner(bundle), open_hub_graphs(bundle)
    assert runner.codec.total_bytes <= 32
    m = bundle.manifest
    sample = np.full((2, *m.input.shape), m.input.low, np.float32 if m.input.dtype == "FP32" else np.int64)
    codes = np.stack([one.features["features"] for one in runner.infer(sample)])
    assert hub.tail(torch.from_numpy(codes.astype(np.float32))).shape == (2, m.outputs)
    assert hub.whole(torch.from_numpy(sample)).shape == (2, m.outputs)
