"""Work of a device's half: counted over its whole graph by the scale of the given model, and timed against it."""

import numpy as np
import pytest
import torch
from torch import nn

from models.bundle.manifest import InputSpec
from models.forge.export.arithmetic import count_graph_macs
from models.forge.export.device_work import count_module_macs, measure_device_work
from models.forge.export.onnx import export_edge_graph, serialise_model
from models.forge.partition.cuts import trace_model
from models.forge.training.modules import build_edge_module, edge_output_names
from tests.models.forge.training.test_modules import pieces_of, with_gate
from wire.protocol.messages import TensorDType

NETS = {
    "convolution": (nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 5)), (3, 8, 8)),
    "grouped": (nn.Sequential(nn.Conv1d(4, 8, 3, groups=2), nn.Flatten(), nn.Linear(48, 2)), (4, 8)),
    "transposed": (nn.Sequential(nn.ConvTranspose2d(3, 4, 2, stride=2), nn.Flatten(), nn.Linear(256, 2)), (3, 4, 4)),
    "products": (nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Flatten()), (6, 8)),
}


def spec_of(*shape: int) -> InputSpec:
    return InputSpec(name="numbers", dtype=TensorDType.FP32, shape=shape, low=-1.0, high=1.0)


@pytest.mark.further
@pytest.mark.parametrize("name", NETS)
def test_a_graph_and_the_model_it_was_exported_from_count_alike(name):
    net, shape = NETS[name]
    graph = serialise_model(export_edge_graph(net.eval(), spec_of(*shape), ("outputs",)))
    assert count_graph_macs(graph) == count_module_macs(net, torch.zeros(2, *shape)) > 0


def test_answer_codes_and_novelty_count_beside_the_layers_before_the_cut():
    pieces = with_gate(pieces_of())
    graph = serialise_model(export_edge_graph(build_edge_module(pieces), spec_of(4), edge_output_names(pieces)))
    head = count_module_macs(nn.Sequential(pieces.head), torch.zeros(2, 4))
    assert count_graph_macs(graph) >= count_module_macs(build_edge_module(pieces), torch.zeros(2, 4)) > head


@pytest.mark.further
def test_a_half_that_is_dearer_than_the_model_is_found_by_count_and_by_time():
    whole = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    dear = nn.Sequential(nn.Linear(16, 2000), nn.ReLU(), nn.Linear(2000, 2000), nn.ReLU(), nn.Linear(2000, 3))
    traced = trace_model(whole, torch.zeros(2, 16))
    graph = serialise_model(export_edge_graph(dear.eval(), spec_of(16), ("outputs",)))
    work = measure_device_work(graph, traced, spec_of(16), np.zeros((1, 16), np.float32))
    assert work.share == pytest.approx((16 * 2000 + 2000 * 2000 + 2000 * 3) / (16 * 16 + 16 * 3), rel=1e-3)
    assert work.slower
    assert work.time_ratio is not None
    assert work.time_ratio > 2
