"""The device's runner against graphs written by hand; no training, no torch."""

import contextlib
import subprocess
import sys

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from models.manifest import BundleError, Kind
from models.onnx import OnnxRunner
from models.runner import EchoRunner, Runner, SampleError
from tests.models.conftest import LABELS, echo_graph, make, model

BATCH = np.random.default_rng(5).random((7, LABELS), np.float32)


def test_it_computes_what_the_graph_says(made):
    runner: Runner = OnnxRunner(made)
    for inference, echo, sample in zip(runner.infer(BATCH), EchoRunner(LABELS).infer(BATCH), BATCH, strict=True):
        expected = np.exp(sample.astype(float)) / np.exp(sample.astype(float)).sum()
        assert inference.prediction.scores == pytest.approx(expected.tolist(), rel=1e-6)
        assert inference.prediction.label == echo.prediction.label
        assert inference.prediction.confidence == max(inference.prediction.scores)
        assert np.array_equal(inference.features["features"], echo.features["features"])
        assert inference.features["features"].dtype == np.uint8


def test_one_sample_and_a_batch_agree(made):
    runner = OnnxRunner(made)
    for one, sample in zip(runner.infer(BATCH), BATCH, strict=True):
        alone = runner.infer_one(sample)
        assert alone.prediction == one.prediction
        assert np.array_equal(alone.features["features"], one.features["features"])


def test_temperature_flattens_the_scores_and_keeps_the_label(tmp_path):
    cold, hot = (OnnxRunner(make(tmp_path / str(t), temperature=t)).infer_one(BATCH[0]) for t in (0.5, 4.0))
    assert cold.prediction.label == hot.prediction.label
    assert cold.prediction.confidence > hot.prediction.confidence > 1 / LABELS


def test_huge_logits_do_not_overflow(tmp_path):
    scores = OnnxRunner(make(tmp_path / "b", echo_graph(scale=1e6))).infer_one(BATCH[0]).prediction.scores
    assert sum(scores) == pytest.approx(1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.01, 1.01])
def test_an_unfit_value_never_reaches_the_graph(made, value):
    sample = BATCH[0].copy()
    sample[3] = value
    with pytest.raises(SampleError):
        OnnxRunner(made).infer_one(sample)
    with pytest.raises(SampleError):
        OnnxRunner(made).infer(sample[None])


def refused(path, edge, words, **changes):
    with pytest.raises(BundleError, match=words) as caught:
        OnnxRunner(make(path, edge, **changes))
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_graph_are_refused(tmp_path, capfd):
    refused(tmp_path / "b", b"no protobuf", "cannot load edge.onnx")
    assert capfd.readouterr().err == ""


def test_a_graph_with_other_outputs_is_refused(tmp_path):
    refused(tmp_path / "b", echo_graph(outputs=("scores_out", "features")), "not as its manifest says")


def test_a_graph_with_other_codes_is_refused(tmp_path, made):
    wider = msgspec.structs.replace(made.manifest.features[0], shape=(11,))
    refused(tmp_path / "b", None, "output features is uint8", features=(wider,))


def test_a_graph_for_another_input_is_refused(tmp_path, made):
    spec = msgspec.structs.replace(made.manifest.input, shape=(12,))
    refused(tmp_path / "b", None, "does not run|output", input=spec)


def test_23_an_operator_from_elsewhere_is_refused(tmp_path):
    nodes = [helper.make_node("Steal", ["scores"], ["logits"], domain="evil"), *_codes()]
    graph = helper.make_graph(nodes, "edge", *_ends())
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("evil", 1)]
    edge = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    refused(tmp_path / "b", edge, "cannot load")


@pytest.mark.parametrize("location", ["secret.bin", "../secret.bin", "{folder}/secret.bin"])
def test_22_weights_outside_the_bundle_are_never_read(tmp_path, location):
    folder = tmp_path / "cwd"
    folder.mkdir()
    for place in (folder, tmp_path):
        np.zeros(LABELS, np.float32).tofile(place / "secret.bin")
    outside = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[LABELS], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location.format(folder=folder)), ("offset", "0"), ("length", str(4 * LABELS))):
        outside.external_data.add(key=key, value=value)
    inputs, outputs = _ends()
    nodes = [helper.make_node("Add", ["scores", "w"], ["logits"]), *_codes()]
    graph = helper.make_graph(nodes, "edge", inputs, outputs, [outside])
    edge = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString()
    with contextlib.chdir(folder):
        refused(tmp_path / "b", edge, "cannot load.*External data")


def test_a_regressor_is_refused_as_it_has_no_confidence(tmp_path):
    refused(tmp_path / "b", None, "no confidence", kind=Kind.REGRESSOR)


def test_a_closed_runner_answers_no_more(made):
    runner = OnnxRunner(made)
    runner.close()
    with pytest.raises(AttributeError):
        runner.infer_one(BATCH[0])


def test_the_devices_part_brings_no_training_code_along():
    code = (
        "import sys, models.bundle, models.codec, models.runner, models.onnx, models.golden\n"
        "print(sorted({'torch', 'onnx', 'onnxscript', 'sklearn', 'safetensors', 'typer', 'rich'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def _codes():
    return [
        helper.make_node("Round", ["scores"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["features"], to=TensorProto.UINT8),
    ]


def _ends():
    read = onnx.load_from_string(model([*_codes(), helper.make_node("Identity", ["scores"], ["logits"])], []))
    return list(read.graph.input), list(read.graph.output)
