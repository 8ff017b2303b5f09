"""Precision conversion and choice of the edge graph: what each keeps and costs, which ships and why others do not."""

import math
import subprocess
import sys
from hashlib import sha256

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from models.forge.data.types import ForgeError
from models.forge.export import benchmark, precisions
from models.forge.export.onnx import serialise_model
from models.forge.export.precisions import (
    PrecisionError,
    closing_nodes,
    code_nodes,
    convert_float16,
    dynamic_int8,
    int8_weights,
    static_int8,
)
from models.forge.export.quantise import NOISE, PrecisionCandidate, build_candidates, choose_precision
from models.forge.export.targets import PROFILES, ActivationType, Precision, local_profile
from models.verification.lint import lint_graph
from tests.examples import count_examples

WIDE = 96


def tensor(name, *shape, seed=0):
    rng = np.random.default_rng([seed, len(name), *name.encode()])
    return numpy_helper.from_array((rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32), name)


def graph(nodes, weights, inputs, outputs):
    made = helper.make_graph(nodes, "edge", inputs, outputs, weights)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def value(name, element, *shape):
    return helper.make_tensor_value_info(name, element, ["batch", *shape])


CODES = (  # logits -> codes, as the forge ends its graphs
    helper.make_node("Mul", ["logits", "fifteen"], ["scaled"], "scale"),
    helper.make_node("Round", ["scaled"], ["rounded"], "round"),
    helper.make_node("Clip", ["rounded", "low", "high"], ["clipped"], "clip"),
    helper.make_node("Cast", ["clipped"], ["codes"], "cast", to=TensorProto.UINT8),
)
CONSTANTS = [
    numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("fifteen", 15), ("low", 0), ("high", 15))
]
OUTPUTS = [value("logits", TensorProto.FLOAT, 10), value("codes", TensorProto.UINT8, 10)]


def convolving():
    nodes = [
        helper.make_node("Conv", ["x", "k1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Clip", ["c1", "low", "six"], ["r1"], "relu6"),
        helper.make_node("Conv", ["r1", "k2"], ["c2"], "conv2", strides=[2, 2]),
        helper.make_node("Relu", ["c2"], ["r2"], "relu"),
        helper.make_node("GlobalAveragePool", ["r2"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "w", "b"], ["logits"], "last", transB=1),
        *CODES,
    ]
    six = numpy_helper.from_array(np.array(6, np.float32), "six")
    weights = [
        tensor("k1", 16, 3, 3, 3),
        tensor("b1", 16),
        tensor("k2", 32, 16, 3, 3),
        tensor("w", 10, 32),
        tensor("b", 10),
    ]
    return graph(nodes, [*weights, six, *CONSTANTS], [value("x", TensorProto.FLOAT, 3, 12, 12)], OUTPUTS)


def reading():
    """Tokens -> table -> recurrent layer -> product."""
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["e"], "embed"),
        helper.make_node("Transpose", ["e"], ["t"], "turn", perm=[1, 0, 2]),
        helper.make_node("GRU", ["t", "gw", "gr"], ["", "h"], "gru", hidden_size=64),
        helper.make_node("Squeeze", ["h", "first"], ["s"], "flat"),
        helper.make_node("MatMul", ["s", "w"], ["m"], "product"),
        helper.make_node("Add", ["m", "b"], ["logits"], "last"),
        *CODES,
    ]
    weights = [tensor("table", 500, WIDE), tensor("gw", 1, 192, WIDE), tensor("gr", 1, 192, 64)]
    weights += [tensor("w", 64, 10), tensor("b", 10), numpy_helper.from_array(np.array([0], np.int64), "first")]
    return graph(nodes, [*weights, *CONSTANTS], [value("x", TensorProto.INT64, 12)], OUTPUTS)


def transforming():
    """A net beside a transform of the sample, which alone makes the codes; its basis is exact in eight bits."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "v"], ["logits"], "last"),
        helper.make_node("Sub", ["x", "mean"], ["centred"], "centre"),
        helper.make_node("MatMul", ["centred", "basis"], ["c"], "transform"),
        helper.make_node("Mul", ["c", "rate"], ["scaled"], "scale"),
        *CODES[1:],
    ]
    whole = np.random.default_rng(1).integers(-127, 128, (WIDE, WIDE))
    whole[0] = 127
    basis = numpy_helper.from_array((whole * np.float32(0.001)).astype(np.float32), "basis")
    mean, rate = (numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("mean", 0.25), ("rate", 17)))
    weights = [tensor("w", WIDE, WIDE), tensor("v", WIDE, 10), basis, mean, rate, *CONSTANTS[1:]]
    outputs = [value("logits", TensorProto.FLOAT, 10), value("codes", TensorProto.UINT8, WIDE)]
    return graph(nodes, weights, [value("x", TensorProto.FLOAT, WIDE)], outputs)


def test_what_feeds_the_codes_alone_computes_as_in_float_in_every_precision():
    x = np.random.default_rng(3).normal(size=(128, WIDE)).astype(np.float32)
    assert code_nodes(transforming().graph) == {"centre", "transform", "scale", "round", "clip", "cast"}
    for small in (
        *(static_int8(transforming(), x, activation) for activation in ActivationType),
        dynamic_int8(transforming()),
        int8_weights(transforming()),
        convert_float16(transforming()),
    ):
        lint_graph(serialise_model(small))
        moved, same = close(transforming(), small, x)
        assert 0 < moved < 0.1
        assert same > 0.9999
        assert len(serialise_model(small)) < 0.6 * len(serialise_model(transforming()))


def test_widened_weights_of_the_codes_are_computed_once_at_load(tmp_path):
    x = np.random.default_rng(3).normal(size=(8, WIDE)).astype(np.float32)
    small = static_int8(transforming(), x, ActivationType.UNSIGNED)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    ort.InferenceSession(serialise_model(small), options, providers=["CPUExecutionProvider"])
    loaded = {node.name: node for node in onnx.load(tmp_path / "loaded.onnx").graph.node}
    assert "basis_float" in {node.name for node in small.graph.node}
    assert not {"basis_cast", "basis_float"} & loaded.keys()


def samples(count=128):
    return np.random.default_rng(3).normal(size=(count, 3, 12, 12)).astype(np.float32)


def tokens(count=128):
    return np.random.default_rng(3).integers(0, 500, (count, 12))


def digests():
    made = [
        static_int8(convolving(), samples(), ActivationType.UNSIGNED),
        int8_weights(convolving()),
        convert_float16(convolving()),
    ]
    made.append(dynamic_int8(reading()))
    return " ".join(sha256(serialise_model(model)).hexdigest() for model in made)


def operators(model):
    return [node.op_type for node in model.graph.node]


def close(model, other, x):
    (exact, codes), (found, others) = (
        benchmark.run_graph(serialise_model(model), x),
        benchmark.run_graph(serialise_model(other), x),
    )
    moved = np.abs(exact - found).max() / np.abs(exact).max()
    return moved, (codes == others).mean()


@pytest.mark.parametrize("activation", ActivationType)
def test_static_int8_answers_nearly_as_float_and_passes_the_lint(activation):
    small = static_int8(convolving(), samples(), activation)
    lint_graph(serialise_model(small))
    moved, same = close(convolving(), small, samples(64))
    assert moved < 0.1
    assert same > 0.75
    assert len(serialise_model(small)) < 0.6 * len(serialise_model(convolving()))


def test_what_makes_codes_stays_float_but_an_activation_inside_the_net_does_not():
    assert closing_nodes(convolving().graph) == {"scale", "round", "clip", "cast"}
    found = static_int8(convolving(), samples(), ActivationType.UNSIGNED)
    readers = {name: node for node in found.graph.node for name in node.input}
    maker = next(node for node in found.graph.node if "logits" in node.output)
    assert maker.op_type == "Gemm"  # its result is not rounded to eight bits on the way to codes
    assert {node.op_type for node in found.graph.node if "logits" in node.input} == {"Mul"}
    inner = next(node for node in found.graph.node if node.op_type == "Conv")
    assert readers[inner.output[0]].op_type in {"Clip", "QuantizeLinear"}


def test_ranges_come_from_the_samples_given():
    wide = static_int8(convolving(), samples() * 10, ActivationType.UNSIGNED)
    assert serialise_model(wide) != serialise_model(static_int8(convolving(), samples(), ActivationType.UNSIGNED))


def test_weights_in_eight_bits_are_a_quarter_and_fold_to_the_very_same_graph(tmp_path):
    small = int8_weights(reading())
    assert len(serialise_model(small)) < 0.3 * len(serialise_model(reading()))
    lint_graph(serialise_model(small))
    options = ort.SessionOptions()
    options.add_session_config_entry(benchmark.FOLD_OPTION, "1")
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    ort.InferenceSession(serialise_model(small), options, providers=["CPUExecutionProvider"])
    assert "DequantizeLinear" not in operators(onnx.load(tmp_path / "loaded.onnx"))
    moved, same = close(reading(), small, tokens(64))
    assert moved < 0.02
    assert same > 0.9


def test_a_session_folds_only_graphs_whose_activations_are_float():
    assert benchmark.has_int8_weights_only(serialise_model(int8_weights(reading())))
    assert not benchmark.has_int8_weights_only(serialise_model(reading()))
    assert not benchmark.has_int8_weights_only(serialise_model(dynamic_int8(reading())))
    assert not benchmark.has_int8_weights_only(
        serialise_model(static_int8(convolving(), samples(), ActivationType.UNSIGNED))
    )


@settings(max_examples=count_examples(30), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(16, 16), (300, 40), (1000, 4)]), st.floats(1e-6, 1e6))
def test_no_stored_weight_is_off_by_more_than_half_a_step(seed, shape, size):
    table = tensor("table", *shape, seed=seed)
    values = numpy_helper.to_array(table) * np.float32(size)
    values[0] = 0.0  # a row of nothing
    table = numpy_helper.from_array(values, "table")
    node = helper.make_node("Gather", ["table", "x"], ["y"], "embed")
    model = graph([node], [table], [value("x", TensorProto.INT64)], [value("y", TensorProto.FLOAT, shape[1])])
    found = benchmark.run_graph(serialise_model(int8_weights(model)), np.arange(shape[0]))[0]
    step = np.abs(values).max(1 if shape[1] >= 16 else 0, keepdims=True) / 127
    assert (np.abs(found - values) <= step * 0.501 + 1e-30).all()


def test_constants_that_are_no_weights_and_tables_of_infinities_stay_as_they_are():
    mask = numpy_helper.from_array(np.triu(np.full((32, 32), -np.inf, np.float32), 1), "mask")
    place = tensor("place", 32, 32)
    nodes = [
        helper.make_node("Gather", ["mask", "x"], ["m"], "look"),
        helper.make_node("Add", ["m", "place"], ["a"], "add"),
        helper.make_node("MatMul", ["a", "w"], ["y"], "product"),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 32, 16])]
    model = graph(nodes, [mask, place, tensor("w", 32, 16)], [value("x", TensorProto.INT64, 32)], outputs)
    stored = {weight.name: weight.data_type for weight in int8_weights(model).graph.initializer}
    assert stored == {"mask": 1, "place": 1, "w_int8": TensorProto.INT8, "w_scale": 1}


def test_float16_halves_and_keeps_inputs_and_outputs():
    half = convert_float16(convolving())
    lint_graph(serialise_model(half))
    assert [v.type.tensor_type.elem_type for v in half.graph.output] == [TensorProto.FLOAT, TensorProto.UINT8]
    assert close(convolving(), half, samples(64))[0] < 0.01


def test_dynamic_int8_is_refused_for_convolutions_and_static_where_nothing_has_weights():
    with pytest.raises(PrecisionError, match="convolutions"):
        dynamic_int8(convolving())
    bare = graph([helper.make_node("Relu", ["x"], ["y"], "relu")], [], [value("x", 1, 4)], [value("y", 1, 4)])
    with pytest.raises(PrecisionError):
        static_int8(bare, np.zeros((2, 4), np.float32), ActivationType.UNSIGNED)
    with pytest.raises(PrecisionError):
        int8_weights(bare)


def test_dynamic_int8_takes_products_and_tables():
    small = dynamic_int8(reading())
    lint_graph(serialise_model(small))
    assert "MatMulInteger" in operators(small)
    assert close(reading(), small, tokens(64))[0] < 0.1


def test_a_product_with_a_vector_stays_as_it_is_in_dynamic_int8_and_the_graph_runs():
    model = reading()
    model.graph.node.append(helper.make_node("MatMul", ["logits", "vector"], ["score"], "scored"))
    model.graph.initializer.append(tensor("vector", 10))
    model.graph.output.append(helper.make_tensor_value_info("score", TensorProto.FLOAT, ["batch"]))
    small = dynamic_int8(model)
    assert "scored" in [node.name for node in small.graph.node if node.op_type == "MatMul"]
    session = ort.InferenceSession(serialise_model(small), providers=["CPUExecutionProvider"])
    (score,) = session.run(["score"], {"x": tokens(64)})
    assert score.shape == (64,)


@pytest.mark.further
def test_equal_inputs_give_equal_bytes_in_another_process_with_another_hash_seed(pytestconfig):
    root = str(pytestconfig.rootpath)
    module = "tests.models.forge.export.test_precisions"
    code = f"import sys; sys.path.insert(0, {root!r}); from {module} import digests; print(digests())"
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONHASHSEED": "77"}, check=True
    )
    assert child.stdout.split() == digests().split()


@pytest.mark.further
def test_all_candidates_are_measured_here_and_one_ships_with_a_reason_for_each_other():
    x = samples()
    found = build_candidates(convolving(), x, local_profile())
    assert [candidate.precision for candidate in found] == ["float32", "int8", "int8-dynamic", "int8-weights"]
    exact = found[0]
    assert exact.ratio == 1.0
    assert exact.rss_bytes > 1 << 20
    for candidate in found:
        assert candidate.fault or (candidate.p50_us > 0 and candidate.size_bytes == len(candidate.graph))
    expected = benchmark.run_graph(exact.graph, x)[0].argmax(1)
    choice = choose_precision(
        found, lambda made: float((benchmark.run_graph(made, x)[0].argmax(1) == expected).mean()), max_loss=0.1
    )
    assert choice.shipped.size_bytes < exact.size_bytes
    assert choice.shipped.ratio <= 1 + NOISE
    assert {each.precision for each in choice.dropped} == {c.precision for c in found} - {choice.shipped.precision}
    assert all(each.reason and "\n" not in each.reason for each in choice.dropped)
    assert all(c.fault or not math.isnan(c.accuracy) for c in choice.candidates)


def test_a_target_that_is_not_here_is_converted_but_never_ships_what_nobody_timed():
    profile = PROFILES["arm64" if local_profile().name == "x86" else "x86"]
    found = build_candidates(convolving(), samples(), profile)
    assert all(math.isnan(candidate.p50_us) for candidate in found)
    choice = choose_precision(found, lambda _made: 0.9)
    assert choice.shipped.precision == Precision.INT8_WEIGHTS
    assert "is unknown" in dict(choice.dropped)["int8"]


def made(precision, size=100, accuracy=0.9, ratio=1.0):
    return PrecisionCandidate(precision, accuracy.hex().encode(), ratio * 100, size, 0, ratio=ratio)


def shipped(*found):
    return choose_precision(found, lambda data: float.fromhex(data.decode()))


def test_a_small_graph_that_is_slower_than_float_does_not_ship():
    choice = shipped(made("float32", 1 << 20), made("int8", 1 << 18, ratio=1.0 + 2 * NOISE))
    assert choice.shipped.precision == "float32"
    assert choice.dropped[0].reason == "1.06 x the time of float32 (106 against 100 us)"


def test_a_small_graph_that_loses_accuracy_does_not_ship():
    choice = shipped(made("float32", 1 << 20), made("int8", 1 << 18, accuracy=0.894))
    assert choice.shipped.precision == "float32"
    assert choice.dropped[0].reason == "loses 0.60 points, at most 0.5 are allowed"


def test_of_two_that_may_ship_the_smaller_does_and_of_equals_the_quicker():
    large, small = made("float32", 4 << 20), made("int8-weights", 1 << 20)
    assert shipped(large, small, made("int8", 2 << 20, ratio=0.3)).shipped.precision == "int8-weights"
    assert shipped(large, small, made("int8", (1 << 20) + 1000, ratio=0.3)).shipped.precision == "int8"


def test_an_accuracy_that_is_not_a_number_does_not_ship():
    assert shipped(made("float32"), made("int8", 10, accuracy=math.nan)).shipped.precision == "float32"


@pytest.mark.further
def test_a_candidate_that_cannot_be_made_is_told_and_the_others_stand(monkeypatch):
    def broken(*_, whole_codes):
        raise KeyError("tensor_17")

    monkeypatch.setattr("models.forge.export.quantise.static_int8", broken)
    found = build_candidates(convolving(), samples(), local_profile())
    assert "tensor_17" in dict(choose_precision(found, lambda _made: 0.9).dropped)["int8"]


def test_a_graph_that_does_not_run_is_one_line():
    model = convolving()
    model.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(ForgeError, match="NoSuchOperator") as refusal:
        build_candidates(model, samples(), local_profile())
    assert "\n" not in str(refusal.value)


@pytest.mark.further
def test_two_runs_of_one_graph_are_alike():
    data = serialise_model(convolving())
    first, second = benchmark.compare_graphs([data, data], samples(1))
    assert first.ratio == 1.0
    assert 0.8 < second.ratio < 1.25


def test_equal_order_whatever_the_order_given():
    model, other = convolving(), convolving()
    weights = list(reversed(other.graph.initializer))
    del other.graph.initializer[:]
    other.graph.initializer.extend(weights)
    assert serialise_model(precisions.sort_graph(other)) == serialise_model(precisions.sort_graph(model))
