"""Hostile ONNX graphs, and tools to make them: `HOSTILE` maps a name to (bytes, text of the refusal)."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.models.conftest import LABELS, echo_graph

Edit = Callable[[onnx.ModelProto], None]
OPSET = helper.make_opsetid("", 20)


def edited(edit: Edit) -> bytes:
    """The harmless echo graph with one thing changed."""
    model = onnx.load_from_string(echo_graph())
    edit(model)
    data: bytes = model.SerializeToString()
    return data


def node(operator: str, *inputs: str, domain: str = "", out: str = "extra", **attributes: Any) -> bytes:
    """The echo graph and one more node at its end."""
    return edited(lambda m: m.graph.node.append(helper.make_node(operator, inputs, [out], domain=domain, **attributes)))


def tensor(name: str = "extra", dims=(4,), kind: int = TensorProto.FLOAT, **fields: Any) -> TensorProto:
    return TensorProto(name=name, dims=dims, data_type=kind, **fields)


def weights(made: TensorProto) -> bytes:
    """The echo graph and one more initialiser."""
    return edited(lambda m: m.graph.initializer.append(made))


def outside(name: str = "extra", location: str = "../etc/passwd") -> TensorProto:
    """A tensor whose data lie in an external file."""
    made = tensor(name, data_location=TensorProto.EXTERNAL)
    made.external_data.add(key="location", value=location)
    return made


def in_attribute(made: TensorProto) -> bytes:
    return node("Constant", value=made)


def nested(depth: int) -> bytes:
    """Subgraphs nested in If nodes: a graph inside an attribute of a node of a graph."""
    inner = helper.make_graph([helper.make_node("Identity", ["scores"], ["x"])], "g", [], [_float("x", [])])
    for _ in range(depth):
        branch = helper.make_node("If", ["scores"], ["x"], then_branch=inner)  # two branches would double it each time
        inner = helper.make_graph([branch], "g", [], [_float("x", [])])
    return edited(lambda m: m.graph.node.append(helper.make_node("If", ["scores"], ["extra"], then_branch=inner)))


def loop_bomb() -> bytes:
    body = helper.make_graph([], "body", [_float("i", [])], [_float("i", [])])
    trips = numpy_helper.from_array(np.array(2**62), "trips")

    def edit(m: onnx.ModelProto) -> None:
        m.graph.initializer.append(trips)
        m.graph.node.append(helper.make_node("Loop", ["trips", ""], ["extra"], body=body))

    return edited(edit)


def cycle() -> bytes:
    def edit(m: onnx.ModelProto) -> None:
        m.graph.node.append(helper.make_node("Identity", ["b"], ["a"]))
        m.graph.node.append(helper.make_node("Identity", ["a"], ["b"]))

    return edited(edit)


def doubled_graph() -> bytes:
    """Two `graph` fields: protobuf merges them, a careless parser sees one."""
    return echo_graph() + edited(lambda m: m.ClearField("opset_import"))


def other_format() -> bytes:
    """A valid model whose bytes 4..8 tell ONNX Runtime to read everything as its own format."""
    return b"\x12\x20xxORTM" + b"y" * 26 + echo_graph()


def sparse() -> bytes:
    made = helper.make_sparse_tensor(
        outside("values"), helper.make_tensor("indices", TensorProto.INT64, [1], [0]), [LABELS]
    )
    return edited(lambda m: m.graph.sparse_initializer.append(made))


def function() -> bytes:
    made = helper.make_function(
        "own", "Own", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 20)]
    )
    return edited(lambda m: m.functions.append(made))


def imports(*sets: onnx.OperatorSetIdProto) -> bytes:
    def edit(m: onnx.ModelProto) -> None:
        del m.opset_import[:]
        m.opset_import.extend(sets)

    return edited(edit)


def ends(name: str, shape, kind: int = TensorProto.FLOAT) -> bytes:
    """The echo graph with one more input."""
    return edited(lambda m: m.graph.input.append(helper.make_tensor_value_info(name, kind, shape)))


def repeated(operator: str, times: int) -> bytes:
    names = ["scores", *(f"x{i}" for i in range(times))]
    chain = [helper.make_node(operator, [a], [b]) for a, b in pairwise(names)]
    return edited(lambda m: m.graph.node.extend(chain))


def _float(name: str, shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _say(m: onnx.ModelProto, key: str, value: str) -> None:
    m.metadata_props.add(key=key, value=value)


HOSTILE: dict[str, tuple[bytes, str]] = {
    # external data and sparse tensors
    "external data": (weights(outside()), "external data is not allowed"),
    "external data, absolute": (weights(outside(location="/etc/passwd")), "external data"),
    "external data without a place": (weights(tensor(data_location=TensorProto.EXTERNAL)), "external data"),
    "external data in an attribute": (in_attribute(outside()), "external data"),
    "external data in a sparse tensor": (sparse(), "sparse tensors are not allowed"),
    "sparse tensor in an attribute": (
        node("Constant", sparse_value=onnx.SparseTensorProto(values=outside(), dims=[4])),
        "sparse tensors",
    ),
    "external data in a subgraph": (
        node("If", "scores", then_branch=helper.make_graph([], "g", [], [], [outside()])),
        "subgraphs are not allowed",
    ),
    # operators, opsets, subgraphs and sizes
    "operator of an own domain": (node("Steal", "scores", domain="evil"), "domain is not imported"),
    "own domain, imported": (imports(OPSET, helper.make_opsetid("evil", 1)), "domain 'evil' are not allowed"),
    "own domain, in disguise": (
        imports(OPSET, helper.make_opsetid("com.microsoft.nchwc", 1)),
        "are not allowed",
    ),
    "opset too new": (imports(helper.make_opsetid("", 99)), "opset 99 of '', allowed 13..21"),
    "opset too old": (imports(helper.make_opsetid("", 12)), "opset 12"),
    "two opsets": (imports(OPSET, helper.make_opsetid("ai.onnx", 13)), "imported twice"),
    "no opset": (imports(), "domain is not imported|version of its operators"),
    "format too new": (edited(lambda m: setattr(m, "ir_version", 99)), "IR version 99, allowed 7..10"),
    "Loop bomb": (loop_bomb(), "subgraphs are not allowed"),
    "Loop without a body": (node("Loop", "scores"), "'Loop'.: this operator is not allowed"),
    "thirty graphs in each other": (nested(30), "subgraphs are not allowed"),
    "10^9 elements that are not there": (weights(tensor(dims=[10**9])), "4000000000 bytes; that is not what it has"),
    "10^9 elements in an attribute": (in_attribute(tensor(dims=[10**9])), "not what it has"),
    "10^36 elements": (weights(tensor(dims=[2**30] * 4)), "not what it has"),
    "zero elements": (weights(tensor(dims=[4, 0])), "a dimension of 0"),
    "negative dimension": (weights(tensor(dims=[-4], raw_data=bytes(16))), "a dimension of -4"),
    "nine dimensions": (weights(tensor(dims=[1] * 9, raw_data=bytes(4))), "9 dimensions, at most 8"),
    "cyclic graph": (cycle(), "nothing before it makes 'b'"),
    "reads itself": (node("Identity", "extra"), "nothing before it makes 'extra'"),
    # everything else
    "empty": (b"", "0 bytes, at most"),
    "no graph": (edited(lambda m: m.ClearField("graph")), "no graph in it"),
    "a pickle": (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os", "edge.onnx: "),
    "another format": (other_format(), "mark of another format"),
    "two graphs": (doubled_graph(), "is there twice"),
    "cut": (echo_graph()[:-3], "beyond the end"),
    "more at the end": (echo_graph() + b"\x98\x3f\x01", "field 1011 is not known"),
    "functions": (function(), "functions are not allowed"),
    "training": (edited(lambda m: m.training_info.add()), "training information is not allowed"),
    "session options": (edited(lambda m: _say(m, "ort_config", "{}")), "property ort_config"),
    "less than declared": (weights(tensor(raw_data=bytes(15))), "4 elements, 16 bytes; that is not"),
    "more than declared": (weights(tensor(raw_data=bytes(17))), "not what it has"),
    "data twice": (weights(tensor(raw_data=bytes(16), float_data=[0] * 4)), "not what it has"),
    "texts": (weights(tensor(kind=TensorProto.STRING, string_data=[b"x"] * 4)), "texts in tensors"),
    "texts made": (node("Cast", "scores", to=TensorProto.STRING), "tensors of texts"),
    "texts as constants": (node("Constant", value_string="x"), "tensors of texts"),
    "a segment": (weights(tensor(segment=TensorProto.Segment(begin=0, end=1))), "segments are not allowed"),
    "same tensor twice": (weights(tensor("scale", [1], raw_data=bytes(4))), "'scale' is defined twice"),
    "a tensor that is an input": (weights(tensor("scores", [1], raw_data=bytes(4))), "'scores' is defined twice"),
    "same output twice": (node("Relu", "scores", out="logits"), "'logits' is defined twice"),
    "same attribute twice": (
        edited(lambda m: m.graph.node[3].attribute.append(m.graph.node[3].attribute[0])),
        "an attribute is there twice",
    ),
    "attribute of another type": (
        edited(lambda m: setattr(m.graph.node[3].attribute[0], "type", onnx.AttributeProto.FLOAT)),
        "not what its type says",
    ),
    "input without type": (edited(lambda m: m.graph.input.add(name="x")), "no tensor of an allowed type"),
    "input of zero": (ends("x", [0]), "a dimension of 0"),
    "input below zero": (ends("x", [-1]), "a dimension of -1"),
    "input of 10^10 elements": (ends("x", [10**5, 10**5]), "10000000000 elements"),
    "seventeen inputs": (
        edited(lambda m: m.graph.input.extend([_float(f"x{i}", [1]) for i in range(16)])),
        "17 inputs",
    ),
    "output from nowhere": (edited(lambda m: m.graph.output.append(_float("x", [1]))), "'x' is made by nothing"),
    "same end twice": (edited(lambda m: m.graph.output.append(m.graph.output[0])), "an output is there twice"),
    "long name": (node("Relu", "scores", out="x" * 513), "a name of 513 bytes"),
    "escapes in a name": (node("Relu", "\x1b[2J\nok"), r"'\\x1b\[2J\\nok'"),
    "too many nodes": (repeated("Identity", 8_000), "more than 8000 nodes"),
    "random": (node("RandomNormal", shape=[4]), "not allowed"),
    "memory by the sample": (
        edited(
            lambda m: m.graph.node.extend(
                [
                    helper.make_node("Cast", ["wide"], ["many"], to=TensorProto.INT64),
                    helper.make_node("Tile", ["scores", "many"], ["extra"]),
                ]
            )
        ),
        "the values of a sample decide",
    ),
}
