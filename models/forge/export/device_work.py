"""Work of a device's half beside that of the given model: multiply-accumulates, and time in the same runtime.

Rule: the whole graph counts (head, answer, codes, gate, novelty), not the layers before the cut alone. The given model
is timed in plain float32, without any of the forge's work, since that is what a device could run instead.
"""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import fx, nn

from models.bundle.manifest import InputSpec
from models.forge.export.arithmetic import count_graph_macs
from models.forge.export.benchmark import compare_graphs
from models.forge.export.onnx import export_edge_graph, serialise_model
from models.forge.partition.macs import count_node_macs
from models.forge.partition.trace import TracedModel

_MOST_BYTES = 512 << 20  # of weights of a given model that is exported to be timed


class DeviceWork(msgspec.Struct, frozen=True):
    """Work of the graph that ships, against the given model.

    `share`: of its multiply-accumulates, 1.0: as many. `given_us`: median microseconds of the given model, float32,
    batch 1, one thread; `time_ratio`: the device's half against it in alternating rounds, above 1 if it takes longer.
    Both are None where the given model could not be timed.
    """

    share: float
    given_us: float | None = None
    time_ratio: float | None = None

    @property
    def slower(self) -> bool:
        """Whether the given model is quicker here than the device's half."""
        return self.time_ratio is not None and self.time_ratio > 1.0


def measure_device_work(graph: bytes, traced: TracedModel, spec: InputSpec, sample: npt.NDArray[Any]) -> DeviceWork:
    """Work of the edge graph `graph` against the traced model. `sample`: one, `[1, *shape]`."""
    share = round(count_graph_macs(graph) / max(traced.macs, 1), 5)
    given = _export_given(traced, spec)
    if given is None:
        return DeviceWork(share)
    whole, edge = compare_graphs([given, graph], np.ascontiguousarray(sample))
    return DeviceWork(share, round(whole.p50_us, 2), round(edge.ratio, 3))


def count_module_macs(module: nn.Module, example: torch.Tensor) -> int:
    """Multiply-accumulates of a module for one sample. `example`: a batch of samples."""
    program = torch.export.export(module, (example,))
    return sum(count_node_macs(node) for node in program.graph.nodes) // len(example)


def _export_given(traced: TracedModel, spec: InputSpec) -> bytes | None:
    """The given model as a float32 graph; None if it is too large for that, or has what the exporter does not take."""
    weights = (*traced.gm.parameters(), *traced.gm.buffers())
    if sum(each.numel() * each.element_size() for each in weights) > _MOST_BYTES:
        return None
    plain = fx.GraphModule(traced.gm, traced.gm.graph)  # an exported program's own module refuses eval()
    try:
        return serialise_model(export_edge_graph(plain, spec, ("outputs",)))
    except (torch.onnx.OnnxExporterError, RuntimeError, ValueError, TypeError):
        return None
