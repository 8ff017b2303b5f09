"""Mixtures of experts on a device: their graphs become ONNX that the lint takes, and answer as the module does."""

import numpy as np
import onnxruntime as ort
import pytest
import torch

from models.forge.export.onnx import export_module, replace_ranges, serialise_model, strip_metadata
from models.forge.export.precisions import dynamic_int8
from models.forge.partition.rewrite import rewrite_graph
from models.graph.hub_model import export_graph
from models.verification.lint import lint_graph
from tests.examples import mark_further
from tests.models.doubles.mixtures import MIXTURES, build_mixture

SELECTING = ("scattered", "masked", "one-hot", "selected", "mixtral", "nonzero", "added", "by mask", "one")


@pytest.mark.parametrize("kind", mark_further([kind for kind in MIXTURES if kind in SELECTING], ("scattered",)))
def test_a_mixture_runs_on_a_device_in_float_and_int8(kind):
    module, example = build_mixture(kind), torch.randn(2, 8)
    graph = rewrite_graph(export_graph(module, (example,)))
    model = strip_metadata(replace_ranges(export_module(graph, example, ("numbers", "answer"))))
    x = torch.randn(9, 8)
    with torch.no_grad():
        wanted = module(x).numpy()
    for written, tolerance in ((serialise_model(model), 1e-5), (serialise_model(dynamic_int8(model)), 0.1)):
        lint_graph(written)
        session = ort.InferenceSession(written, providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {"numbers": x.numpy()})
        assert np.abs(found - wanted).max() < tolerance
