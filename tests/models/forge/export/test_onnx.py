"""ONNX export of the device's half: passes the lint, answers as torch does, equal weights give equal bytes."""

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import nn

from models.bundle.manifest import InputSpec
from models.forge.export.onnx import export_edge_graph, serialise_model
from models.forge.training.gate import GateSamples, fit_value_gate
from models.forge.training.modules import TrainedModules, build_edge_module, edge_output_names
from models.verification.lint import lint_graph
from tests.models.forge.training.test_modules import pieces_of, with_gate
from wire.protocol.messages import TensorDType

SPEC = InputSpec(name="numbers", dtype=TensorDType.FP32, shape=(4,), low=-1.0, high=1.0)


@pytest.fixture(scope="module")
def pieces() -> TrainedModules:
    return with_gate(pieces_of())


@pytest.fixture(scope="module")
def graph(pieces) -> bytes:
    return serialise_model(export_edge_graph(build_edge_module(pieces), SPEC, edge_output_names(pieces)))


def test_a_device_may_load_the_graph_with_gate_and_novelty(graph):
    facts = lint_graph(graph)
    assert facts.opset == 20


def test_the_graph_answers_as_torch_does_at_any_batch(pieces, graph):
    session = ort.InferenceSession(graph, providers=["CPUExecutionProvider"])
    assert tuple(node.name for node in session.get_outputs()) == edge_output_names(pieces)
    for count in (1, 7):
        x = np.random.default_rng(count).normal(size=(count, 4)).astype(np.float32)
        found = session.run(None, {"numbers": x})
        with torch.no_grad():
            wanted = build_edge_module(pieces)(torch.from_numpy(x))
        assert np.array_equal(found[1], wanted[1].numpy())  # codes: exactly
        for one, other in zip(found, wanted, strict=True):
            assert one.shape == tuple(other.shape)
            assert np.allclose(one, other.numpy(), atol=1e-4)


@pytest.mark.further
def test_equal_weights_give_equal_bytes_that_tell_nothing_of_the_machine(graph):
    again = with_gate(pieces_of())
    assert serialise_model(export_edge_graph(build_edge_module(again), SPEC, edge_output_names(again))) == graph
    assert b"/models/" not in graph
    assert b".py" not in graph


class _ValueHalf(nn.Module):
    """A regressor's half in small: value and log scale, codes, and the confidence of a gate by gain."""

    def __init__(self, gate: nn.Module) -> None:
        super().__init__()
        self.gate = gate

    def forward(self, sample: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits, summary = sample[:, :2], sample[:, 2:]
        return logits, sample.round().to(torch.uint8), self.gate(logits, summary)


@pytest.mark.further
def test_the_gate_of_a_regressor_runs_on_the_device_as_it_was_fitted():
    chance = torch.Generator().manual_seed(0)
    logits, summary = torch.randn(400, 2, generator=chance), torch.randn(400, 2, generator=chance)
    hub = logits[:, :1] + 3 * summary[:, :1].abs()
    gate = fit_value_gate(GateSamples(logits, summary, hub, hub[:, 0]), seed=0)
    assert gate is not None
    half = _ValueHalf(gate).eval()
    made = serialise_model(export_edge_graph(half, SPEC, ("logits", "features", "confidence")))
    lint_graph(made)
    x = torch.rand(9, 4, generator=chance).numpy()
    found = ort.InferenceSession(made, providers=["CPUExecutionProvider"]).run(["confidence"], {"numbers": x})[0]
    with torch.no_grad():
        assert np.allclose(found, half(torch.from_numpy(x))[2].numpy(), atol=1e-5)
