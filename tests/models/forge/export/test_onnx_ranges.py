"""`Range` nodes rewritten as running sums: equal for every length, and allowed by the lint."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.forge.export.onnx import replace_ranges
from models.verification.lint import LintError, lint_graph


def numbered(start: int = 0, step: int = 1) -> onnx.ModelProto:
    """`[batch, 3]` -> the number of each sample."""
    values = {"start": np.int64(start), "step": np.int64(step), "first": np.int64(0)}
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["batch"]),
        helper.make_node("Range", ["start", "batch", "step"], ["numbers"], "count"),
        helper.make_node("Cast", ["numbers"], ["y"], to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(
        nodes,
        "edge",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("count", [1, 2, 7, 300])
def test_a_batch_is_numbered_as_before_by_a_graph_that_may_ship(count):
    with pytest.raises(LintError, match="Range"):
        lint_graph(numbered().SerializeToString())
    data = replace_ranges(numbered()).SerializeToString()
    lint_graph(data)
    (found,) = ort.InferenceSession(data).run(None, {"x": np.zeros((count, 3), np.float32)})
    assert found.tolist() == list(range(count))


def test_a_range_of_another_kind_stays_for_the_lint_to_refuse():
    for model in (numbered(start=1), numbered(step=2)):
        assert [node.op_type for node in replace_ranges(model).graph.node].count("Range") == 1
