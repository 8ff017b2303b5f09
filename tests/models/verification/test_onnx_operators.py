"""Tests of the operator allow-list against the schemas of ONNX and ONNX Runtime, and against common models."""

import logging
import re
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, defs, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static

from models.verification.lint import MAX_MODEL_BYTES, MAX_RANK, lint_graph
from models.verification.onnx_operators import (
    ALLOWED_OPERATORS,
    ELEMENT_BITS,
    IR_VERSIONS,
    MICROSOFT,
    ONNX,
    OPERATOR_GROUPS,
    OPSETS,
    QUANTISED_BY_RUNTIME,
    SHAPE_ONLY,
    SIZE_INPUTS,
)
from models.verification.onnx_reader import (
    _MESSAGE_RULES,
    MAX_NAME_BYTES,
    MAX_NODES,
    Annotation,
    Attribute,
    Dimension,
    Graph,
    Model,
    Node,
    OperatorSet,
    Property,
    Shape,
    Tensor,
    TensorType,
    Type,
    Value,
)
from models.verification.sandbox import SandboxLimits
from tests import ROOT

PAGE = ROOT / "docs" / "bundles.md"
NEWEST = OPSETS[ONNX].stop - 1
# formal names under which ONNX's operators take what decides the size of their result
DECIDING = {"shape", "axes", "pads", "roi", "scales", "sizes", "starts", "ends", "steps", "split", "repeats", "K"}
RNG = np.random.default_rng(7)


@pytest.mark.parametrize("operator", sorted(ALLOWED_OPERATORS[ONNX]))
def test_an_allowed_operator_exists_runs_no_subgraph_and_draws_nothing(operator):
    schema = defs.get_schema(operator, NEWEST)
    kinds = {each.type for each in schema.attributes.values()}
    assert not kinds & {defs.OpSchema.AttrType.GRAPH, defs.OpSchema.AttrType.GRAPHS, defs.OpSchema.AttrType.TYPE_PROTO}
    assert "seed" not in schema.attributes
    assert not any("seq(" in kind or "optional(" in kind for each in schema.outputs for kind in each.types) or (
        operator == "Identity"  # what it passes on cannot be a sequence if nothing makes one
    )


@pytest.mark.parametrize("operator", sorted(ALLOWED_OPERATORS[ONNX]))
def test_the_inputs_that_decide_sizes_are_all_known(operator):
    formal = [each.name for each in defs.get_schema(operator, NEWEST).inputs]
    deciding = tuple(i for i, name in enumerate(formal) if name in DECIDING)
    if operator == "ConstantOfShape":
        deciding = (0,)  # called `input`
    assert SIZE_INPUTS.get(operator, ()) == deciding


def test_quantised_operators_of_the_runtime_exist_and_run_no_subgraph():
    known = {schema.name: schema for schema in get_all_operator_schema() if schema.domain == MICROSOFT}
    assert ALLOWED_OPERATORS[MICROSOFT] <= known.keys()
    for operator in ALLOWED_OPERATORS[MICROSOFT]:
        assert not any("GRAPH" in str(each.type) for each in known[operator].attributes.values())
    assert ALLOWED_OPERATORS[ONNX] >= SHAPE_ONLY


@pytest.mark.parametrize("operator", ["Loop", "If", "Scan", "SequenceMap", "RandomNormal", "NonZero", "Range"])
def test_what_loops_draws_or_grows_by_values_is_not_allowed(operator):
    assert defs.has(operator, NEWEST)
    assert operator not in ALLOWED_OPERATORS[ONNX]


def test_the_walk_knows_exactly_the_fields_that_onnx_has():
    messages: dict[type, Any] = {
        Model: onnx.ModelProto,
        Graph: onnx.GraphProto,
        Node: onnx.NodeProto,
        Attribute: onnx.AttributeProto,
        Tensor: onnx.TensorProto,
        Value: onnx.ValueInfoProto,
        Type: onnx.TypeProto,
        TensorType: onnx.TypeProto.Tensor,
        Shape: onnx.TensorShapeProto,
        Dimension: onnx.TensorShapeProto.Dimension,
        OperatorSet: onnx.OperatorSetIdProto,
        Property: onnx.StringStringEntryProto,
        Annotation: onnx.TensorAnnotation,
    }
    assert messages.keys() == _MESSAGE_RULES.keys()
    for kind, message in messages.items():
        assert set(_MESSAGE_RULES[kind]) == {each.number for each in message.DESCRIPTOR.fields}, kind.__name__


def test_sizes_of_elements_are_those_of_onnx():
    for kind, bits in ELEMENT_BITS.items():
        if bits >= 8:
            assert helper.tensor_dtype_to_np_dtype(kind).itemsize * 8 == bits


def test_page_lists_exactly_what_is_allowed():
    page = PAGE.read_text(encoding="utf-8")
    table = page.split("### Operators")[1].split("The last row")[0]
    rows = dict(re.findall(r"^\| ([a-z]+) \| ([A-Za-z0-9 ]+) \|$", table, re.MULTILINE))
    assert rows.pop("group") == "operators"
    assert rows == {**OPERATOR_GROUPS, "runtime": QUANTISED_BY_RUNTIME}
    for number in (MAX_MODEL_BYTES >> 20, MAX_NODES, MAX_RANK, MAX_NAME_BYTES, NEWEST, IR_VERSIONS.stop - 1):
        assert f"{number}" in page.replace(",", "")
    limits = SandboxLimits()
    assert f"| {limits.memory_bytes >> 20} MiB, the runtime included |" in page
    assert f"| {limits.lint_s} s; {limits.cpu_s} s |" in page
    assert f"| {limits.wall_s:g} s |" in page


class Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, name, shape):
        self._left = [{name: RNG.random(shape, np.float32)} for _ in range(2)]

    def get_next(self):
        return self._left.pop() if self._left else None


def value(name, shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def built(nodes, weights, shape, out):
    tensors = [numpy_helper.from_array(np.asarray(each), name) for name, each in weights.items()]
    graph = helper.make_graph(nodes, "g", [value("x", shape)], [value("y", out)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def convolutions():
    weights = {
        "w": RNG.random((4, 1, 3, 3), np.float32),
        "g": RNG.random((10, 4), np.float32),
        "flat": np.array([1, 4], np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Add", ["r", "c"], ["a"], name="add"),
        helper.make_node("GlobalAveragePool", ["a"], ["p"], name="pool"),
        helper.make_node("Reshape", ["p", "flat"], ["f"], name="reshape"),
        helper.make_node("Gemm", ["f", "g"], ["y"], transB=1, name="gemm"),
    ]
    return built(nodes, weights, [1, 1, 8, 8], [1, 10])


def recurrent():
    """As torch exports an LSTM for batches of any size: the state's shape comes from the input's."""
    weights = {
        "w": RNG.random((1, 16, 3), np.float32),
        "r": RNG.random((1, 16, 4), np.float32),
        "one": np.array([1], np.int64),
        "four": np.array([4], np.int64),
        "zero": np.array(0, np.int64),
        "head": RNG.random((4, 5), np.float32),
    }
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("Shape", ["x"], ["s"], start=0, end=1),
        helper.make_node("Concat", ["one", "s", "four"], ["hs"], axis=0),
        helper.make_node("ConstantOfShape", ["hs"], ["h"]),
        helper.make_node("LSTM", ["t", "w", "r", "", "", "h", "h"], ["", "last", ""], hidden_size=4),
        helper.make_node("Squeeze", ["last", "one0"], ["q"]),
        helper.make_node("MatMul", ["q", "head"], ["y"]),
    ]
    weights["one0"] = np.array([0], np.int64)
    return built(nodes, weights, ["batch", 6, 3], ["batch", 5])


def layer_norm():
    weights = {
        "scale": np.ones(8, np.float32),
        "m": RNG.random((8, 8), np.float32),
        "to": np.array([0, -1], np.int64),
    }
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale"], ["n"]),
        helper.make_node("MatMul", ["n", "m"], ["k"]),
        helper.make_node("Gelu", ["k"], ["e"]),
        helper.make_node("Softmax", ["e"], ["p"]),
        helper.make_node("Reshape", ["p", "to"], ["y"]),
    ]
    return built(nodes, weights, ["batch", 4, 8], ["batch", 32])


@pytest.fixture
def quiet():
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    yield
    root.setLevel(level)


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
def test_a_network_quantised_by_the_runtime_passes(tmp_path, quiet, form):
    path = tmp_path / "small.onnx"
    source = convolutions()
    onnx.save(source, tmp_path / "source.onnx")
    quantize_static(tmp_path / "source.onnx", path, Reader("x", (1, 1, 8, 8)), quant_format=form, per_channel=True)
    facts = lint_graph(path.read_bytes())
    wanted = {"DequantizeLinear"} if form is QuantFormat.QDQ else {"QLinearConv", "QLinearAdd", "QGemm"}
    assert wanted <= set(facts.operators)


@pytest.mark.parametrize("make", [convolutions, recurrent, layer_norm])
@pytest.mark.parametrize("dynamic", [False, True])
def test_common_classifiers_pass_exact_and_dynamically_quantised(tmp_path, quiet, make, dynamic):
    path = tmp_path / "model.onnx"
    onnx.save(make(), path)
    if dynamic:
        quantize_dynamic(path, tmp_path / "small.onnx")
        path = tmp_path / "small.onnx"
    facts = lint_graph(path.read_bytes())
    assert facts.nodes >= 5
    ort.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
