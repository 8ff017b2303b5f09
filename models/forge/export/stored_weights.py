"""Weights of an ONNX graph stored in eight or sixteen bits, one scale per channel, and widened at load.

Rule: what is stored is one number per weight and one scale per channel; arithmetic stays float32. Equal weights give
equal bytes.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

WORTH_ELEMENTS = 256  # below this, scales and names take what eight bits save
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
_NARROW = 16  # columns: a table narrower than this has one scale per column and not per row
_EXACT = 1e-3  # of a step


class _WeightAxis(NamedTuple):
    name: str
    axis: int  # one scale per index of it


def store_int8(graph: onnx.GraphProto) -> int:
    """Store every weight as int8 with the DequantizeLinear that computes it again; returns how many there were."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    chosen = [weight for weight in _find_weights(graph) if _is_worth_quantising(tensors[weight.name])]
    _put_first(graph, [_store_int8(graph, tensors[weight.name], weight.axis) for weight in chosen])
    return len(chosen)


def store_closely(graph: onnx.GraphProto, names: set[str]) -> None:
    """Store the weights that these nodes read as int8, or int16, each widened by a Cast and a Mul.

    Any session computes these once, at load. A DequantizeLinear would be computed anew for each sample wherever the
    graph has activations in eight bits (see `precisions.int8_weights`).
    """
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    read = {name for node in graph.node if node.name in names for name in node.input}
    for weight in _find_weights(graph):
        if weight.name in read and _is_worth_quantising(tensors[weight.name]):
            name, found = weight.name, _round_closely(tensors[weight.name], weight.axis)
            graph.initializer.remove(tensors[name])
            graph.initializer.append(numpy_helper.from_array(found.codes, f"{name}_codes"))
            graph.initializer.append(numpy_helper.from_array(found.scale, f"{name}_scale"))
            cast = onnx.helper.make_node(
                "Cast", [f"{name}_codes"], [f"{name}_wide"], name=f"{name}_cast", to=onnx.TensorProto.FLOAT
            )
            widen = onnx.helper.make_node("Mul", [f"{name}_wide", f"{name}_scale"], [name], name=f"{name}_float")
            _put_first(graph, [cast, widen])


def _put_first(graph: onnx.GraphProto, made: Sequence[onnx.NodeProto]) -> None:
    nodes = [*made, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


def _find_weights(graph: onnx.GraphProto) -> list[_WeightAxis]:
    """Every constant that a layer takes as its weights or table, once, with the axis its scales differ along."""
    ranks = {
        tensor.name: len(tensor.dims) for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT
    }
    widths = {tensor.name: tensor.dims[-1] for tensor in graph.initializer if len(tensor.dims)}
    found: dict[str, _WeightAxis] = {}
    for node in graph.node:
        for index, name in enumerate(node.input):
            if ranks.get(name, 0) >= 2 and node.op_type in _AXES:
                axis = _AXES[node.op_type](node, index, ranks[name], widths[name])
                found.setdefault(name, _WeightAxis(name, axis))
    return list(found.values())


def _gemm_axis(node: onnx.NodeProto, index: int, _rank: int, _width: int) -> int:
    turned = any(attribute.name == ("transB" if index else "transA") and attribute.i for attribute in node.attribute)
    return int(not turned) if index else int(turned)


_Axis = Callable[[onnx.NodeProto, int, int, int], int]
_AXES: dict[str, _Axis] = {
    "Conv": lambda *_: 0,
    "Transpose": lambda *_: 0,
    "MatMul": lambda _node, _index, rank, _width: rank - 1,
    "ConvTranspose": lambda *_: 1,
    "Gemm": _gemm_axis,
    "Gather": lambda _node, _index, rank, width: rank - 1 if width < _NARROW else 0,
    **{name: lambda *_: 1 for name in _RECURRENT},
}


def _is_worth_quantising(tensor: onnx.TensorProto) -> bool:
    """Large enough, and without the infinities that masks are made of."""
    return int(np.prod(tensor.dims)) >= WORTH_ELEMENTS and bool(np.isfinite(numpy_helper.to_array(tensor)).all())


class _RoundedWeights(NamedTuple):
    """`codes` int8 or int16, and `scale` float32 of one per index of an axis, of as many axes as `codes`."""

    codes: npt.NDArray[Any]
    scale: npt.NDArray[np.float32]


def _round_weights(tensor: onnx.TensorProto, axis: int, dtype: type[np.signedinteger[Any]]) -> _RoundedWeights:
    values, most = numpy_helper.to_array(tensor), np.iinfo(dtype).max
    others = tuple(index for index in range(values.ndim) if index != axis)
    scale = np.abs(values).max(others, keepdims=True) / np.float32(most)
    scale = np.where(scale == 0, 1, scale).astype(np.float32)
    return _RoundedWeights(np.clip(np.rint(values / scale), -most, most).astype(dtype), scale)


def _round_closely(tensor: onnx.TensorProto, axis: int) -> _RoundedWeights:
    """In eight bits if these say the values all but exactly, else in sixteen."""
    found = _round_weights(tensor, axis, np.int8)
    exact = np.abs(found.codes * found.scale - numpy_helper.to_array(tensor)) <= _EXACT * found.scale
    return found if exact.all() else _round_weights(tensor, axis, np.int16)


def _store_int8(graph: onnx.GraphProto, tensor: onnx.TensorProto, axis: int) -> onnx.NodeProto:
    """Replace a constant by its int8 form; returns the node that computes the original again under its name."""
    codes, scale = _round_weights(tensor, axis, np.int8)
    name = tensor.name
    graph.initializer.remove(tensor)
    graph.initializer.append(numpy_helper.from_array(codes, f"{name}_int8"))
    graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(scale.reshape(-1)), f"{name}_scale"))
    inputs = [f"{name}_int8", f"{name}_scale"]
    node: onnx.NodeProto = onnx.helper.make_node("DequantizeLinear", inputs, [name], name=f"{name}_float", axis=axis)
    return node
