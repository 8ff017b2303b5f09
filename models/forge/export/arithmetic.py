"""Multiply-accumulates of an ONNX graph for one sample, counted from shapes without running it.

Rule: counted as `models.forge.partition.macs` counts a torch graph: convolution, matrix product, recurrence and einsum,
in float or in integers; everything else is free. So a device's whole graph (head, answer, codes, novelty) and the given
model are measured by one scale.
"""

from collections.abc import Callable
from math import prod

import onnx
from onnx import shape_inference

Shape = tuple[int, ...]


def count_graph_macs(graph: bytes) -> int:
    """Multiply-accumulates of all nodes of a graph for a batch of one, those of its branches and loops once."""
    model = onnx.load_model_from_string(graph)
    _fix_batch(model.graph)
    inferred = shape_inference.infer_shapes(model, data_prop=True).graph
    return _count_graph(inferred, {})


def _fix_batch(graph: onnx.GraphProto) -> None:
    """Set every free axis of the inputs to one and forget what depends on it."""
    for value in graph.input:
        for axis in value.type.tensor_type.shape.dim:
            if not axis.HasField("dim_value"):
                axis.dim_value = 1
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")


def _count_graph(graph: onnx.GraphProto, outer: dict[str, Shape]) -> int:
    shapes = outer | {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    shapes |= {
        value.name: tuple(axis.dim_value or 1 for axis in value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
    count = 0
    for node in graph.node:
        counter = _COUNTERS.get(node.op_type)
        count += counter(node, shapes) if counter else 0
        inner = [each.g for each in node.attribute if each.type == onnx.AttributeProto.GRAPH]
        count += sum(_count_graph(each, shapes) for each in inner)
    return count


def _shape(shapes: dict[str, Shape], names: list[str], at: int) -> Shape:
    return shapes.get(names[at], ()) if at < len(names) else ()


def _count_convolution(weight: int) -> Callable[[onnx.NodeProto, dict[str, Shape]], int]:
    return lambda node, shapes: (
        prod(_shape(shapes, list(node.output), 0)) * prod(_shape(shapes, list(node.input), weight)[1:])
    )


def _count_transposed(node: onnx.NodeProto, shapes: dict[str, Shape]) -> int:
    return prod(_shape(shapes, list(node.input), 0)) * prod(_shape(shapes, list(node.input), 1)[1:])


def _count_product(node: onnx.NodeProto, shapes: dict[str, Shape]) -> int:
    first = _shape(shapes, list(node.input), 0)
    return prod(_shape(shapes, list(node.output), 0)) * (first[-1] if first else 1)


def _count_gemm(node: onnx.NodeProto, shapes: dict[str, Shape]) -> int:
    first = _shape(shapes, list(node.input), 0)
    turned = any(each.name == "transA" and each.i for each in node.attribute)
    return prod(_shape(shapes, list(node.output), 0)) * (first[0 if turned else -1] if first else 1)


def _count_recurrence(node: onnx.NodeProto, shapes: dict[str, Shape]) -> int:
    steps = prod(_shape(shapes, list(node.input), 0)[:2])
    return steps * sum(prod(_shape(shapes, list(node.input), at)) for at in (1, 2))


def _count_einsum(node: onnx.NodeProto, shapes: dict[str, Shape]) -> int:
    equation = next((each.s.decode() for each in node.attribute if each.name == "equation"), "").replace(" ", "")
    letters: dict[str, int] = {}
    for word, name in zip(equation.partition("->")[0].split(","), node.input, strict=False):
        letters |= dict(zip(word, shapes.get(name, ()), strict=False))
    return prod(letters.values())


_COUNTERS: dict[str, Callable[[onnx.NodeProto, dict[str, Shape]], int]] = {
    **dict.fromkeys(("Conv", "ConvInteger"), _count_convolution(1)),
    "QLinearConv": _count_convolution(3),
    "ConvTranspose": _count_transposed,
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul", "DynamicQuantizeMatMul"), _count_product),
    "Gemm": _count_gemm,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _count_recurrence),
    "Einsum": _count_einsum,
}
