"""`Range` written with operators that a device's lint allows: a running sum of ones.

Law: only a range from 0 in steps of 1 is rewritten, and it is equal for every length; any other stays, and the lint
says so. Such ranges number the samples of a batch (masks of text encoders): their length follows from a shape.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Values = npt.NDArray[Any]
_WHOLE = (np.dtype(np.int64), np.dtype(np.int32))


def without_ranges(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model, changed in place."""
    graph = model.graph
    constants = _constants(graph)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes += _counted(node, constants, graph) if node.op_type == "Range" else [node]
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return model


def _constants(graph: onnx.GraphProto) -> dict[str, Values]:
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return found


def _counted(node: onnx.NodeProto, constants: dict[str, Values], graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    start, limit, delta = node.input
    begins, step = constants.get(start), constants.get(delta)
    if begins is None or step is None or begins.dtype not in _WHOLE or int(begins) != 0 or int(step) != 1:
        return [node]
    stem = node.name or node.output[0]
    one = np.array([1], np.int64)
    added = {"one": one, "step": one[0].astype(begins.dtype), "axis": np.int64(0)}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(v), f"{stem}_{name}") for name, v in added.items())
    filled = numpy_helper.from_array(one.astype(begins.dtype), "value")
    return [
        helper.make_node("Cast", [limit], [f"{stem}_long"], f"{stem}_cast", to=onnx.TensorProto.INT64),
        helper.make_node("Reshape", [f"{stem}_long", f"{stem}_one"], [f"{stem}_length"], f"{stem}_reshape"),
        helper.make_node("ConstantOfShape", [f"{stem}_length"], [f"{stem}_ones"], f"{stem}_fill", value=filled),
        helper.make_node("CumSum", [f"{stem}_ones", f"{stem}_axis"], [f"{stem}_from_one"], f"{stem}_sum"),
        helper.make_node("Sub", [f"{stem}_from_one", f"{stem}_step"], [node.output[0]], f"{stem}_less"),
    ]
