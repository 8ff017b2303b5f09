"""ONNX export of the device's half: passes the lint, answers as torch does, equal weights give equal bytes."""

import numpy as np
import onnxruntime as ort
import pytest
import torch

from models.bundle.manifest import InputSpec
from models.forge.export.onnx import export_edge_graph, serialise_model
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
