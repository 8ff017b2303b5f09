"""Tests of the ONNX Runtime runner on graphs written by hand; no training, no torch."""

import contextlib
import subprocess
import sys
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from models.bundle.manifest import (
    CODEC_FILE,
    EDGE_FILE,
    GOLDEN_FILE,
    BundleError,
    InputSpec,
    ModelKind,
    Precision,
    TargetPlatform,
)
from models.bundle.measurements import DomainFigures, DomainScore, GateFigures
from models.runtime import onnx_runner
from models.runtime.feature_codec import ANS, build_ans_tables
from models.runtime.golden import check_golden, pack_golden
from models.runtime.onnx_runner import OnnxRunner
from models.runtime.runner import EchoRunner, Runner, SampleError, echo_manifest
from tests.models.bundles import write_bundle
from tests.models.conftest import LABELS, contents, echo_graph, make, model
from wire.protocol.messages import TensorDType

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


def test_an_operator_from_elsewhere_is_refused(tmp_path):
    nodes = [helper.make_node("Steal", ["scores"], ["logits"], domain="evil"), *_codes()]
    graph = helper.make_graph(nodes, "edge", *_ends())
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("evil", 1)]
    edge = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    refused(tmp_path / "b", edge, "cannot load")


@pytest.mark.parametrize("location", ["secret.bin", "../secret.bin", "{folder}/secret.bin"])
def test_weights_outside_the_bundle_are_never_read(tmp_path, location):
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


REGRESSOR: dict[str, Any] = {"kind": ModelKind.REGRESSOR, "labels": (), "outputs": 1}


def graph_of(nodes, outputs, kind=TensorProto.FLOAT):
    """From `scores` [n, 10]; `outputs`: name -> (type, shape of one sample)."""
    ends = [helper.make_tensor_value_info(name, t, ["batch", *shape]) for name, (t, shape) in outputs.items()]
    features = helper.make_tensor_value_info("features", TensorProto.UINT8, ["batch", LABELS])
    inputs = [helper.make_tensor_value_info("scores", kind, ["batch", LABELS])]
    axis = [helper.make_node("Constant", [], ["one"], value_ints=[1])]
    graph = helper.make_graph([*axis, *nodes], "edge", inputs, [*ends, features])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(made)
    return made.SerializeToString()


def regressor_graph():
    """Value = sum of the scores, logarithm of b = -the largest of them."""
    nodes = [
        helper.make_node("ReduceSum", ["scores", "one"], ["value"]),
        helper.make_node("ReduceMax", ["scores", "one"], ["top"]),
        helper.make_node("Neg", ["top"], ["spread"]),
        helper.make_node("Concat", ["value", "spread"], ["logits"], axis=1),
        *_codes(),
    ]
    return graph_of(nodes, {"logits": (TensorProto.FLOAT, [2])})


def gated_graph():
    """Confidence = the smallest score, novelty = the largest."""
    nodes = [
        helper.make_node("Identity", ["scores"], ["logits"]),
        helper.make_node("ReduceMin", ["scores", "one"], ["confidence"], keepdims=0),
        helper.make_node("ReduceMax", ["scores", "one"], ["novelty"], keepdims=0),
        *_codes(),
    ]
    ends = {"logits": (TensorProto.FLOAT, [LABELS]), "confidence": (TensorProto.FLOAT, [])}
    return graph_of(nodes, {**ends, "novelty": (TensorProto.FLOAT, [])})


def test_a_regressor_answers_with_a_value_and_how_likely_it_is_within_tolerance(tmp_path):
    runner = OnnxRunner(make(tmp_path / "b", regressor_graph(), gate=GateFigures(tolerance=0.5), **REGRESSOR))
    for sample, inference in zip(BATCH, runner.infer(BATCH), strict=True):
        prediction = inference.prediction
        assert (prediction.label, len(prediction.scores)) == (-1, 1)
        assert prediction.scores[0] == pytest.approx(float(sample.sum()), rel=1e-5)
        assert prediction.confidence == pytest.approx(1 - np.exp(-0.5 / np.exp(-float(sample.max()))), rel=1e-5)
        assert runner.infer_one(sample).prediction == prediction


@pytest.mark.parametrize(("spread", "confidence"), [(1e30, 0.0), (-1e30, 1.0), (float("nan"), None)])
def test_a_spread_beyond_all_numbers_is_all_or_nothing_and_none_is_no_confidence(tmp_path, spread, confidence):
    runner = OnnxRunner(make(tmp_path / "b", regressor_graph(), gate=GateFigures(tolerance=0.5), **REGRESSOR))
    found = runner._predict_value([1.0, spread], -1.0, None).confidence
    assert np.isnan(found) if confidence is None else found == pytest.approx(confidence)
    assert np.isnan(runner._predict_value([float("inf"), 0.0], -1.0, None).confidence)


def test_a_learned_gate_and_a_novelty_come_from_the_graph(tmp_path):
    gate = GateFigures(confidence_output=True, novelty_output=True)
    runner = OnnxRunner(make(tmp_path / "b", gated_graph(), gate=gate))
    for sample, inference in zip(BATCH, runner.infer(BATCH), strict=True):
        assert inference.prediction.confidence == pytest.approx(float(sample.min()))
        assert inference.novelty == pytest.approx(float(sample.max()))
        assert list(inference.features) == ["features"]
        assert runner.infer_one(sample).novelty == inference.novelty
    (only,) = OnnxRunner(make(tmp_path / "c", gated_graph(), gate=GateFigures(novelty_output=True))).infer(BATCH[:1])
    assert only.prediction.confidence == max(only.prediction.scores)
    assert only.novelty == pytest.approx(float(BATCH[0].max()))


def test_a_novelty_above_the_bundles_threshold_is_out_of_domain(tmp_path):
    highest = sorted(float(sample.max()) for sample in BATCH)
    domain = DomainFigures(DomainScore.NOVELTY, highest[-2], 0.05, 0.04, 0.02, 0.06, 500)
    runner = OnnxRunner(make(tmp_path / "b", gated_graph(), gate=GateFigures(novelty_output=True, domain=domain)))
    found = [inference.prediction.in_domain for inference in runner.infer(BATCH)]
    assert found == [bool(sample.max() <= np.float32(highest[-2])) for sample in BATCH]
    assert found.count(False) == 1
    without = OnnxRunner(make(tmp_path / "c", gated_graph(), gate=GateFigures(novelty_output=True)))
    assert without.infer_one(BATCH[0]).prediction.in_domain is None


def test_what_the_graph_does_not_give_is_not_made_up(tmp_path, made):
    assert OnnxRunner(made).infer_one(BATCH[0]).novelty == -1
    refused(tmp_path / "b", None, "not as its manifest says", gate=GateFigures(novelty_output=True))
    refused(tmp_path / "c", None, "output logits", gate=GateFigures(tolerance=1.0), **REGRESSOR)


def test_a_processor_that_is_not_there_is_said_and_the_cpu_answers(tmp_path):
    target = TargetPlatform("none", 0, Precision.FLOAT32, "any", ("NoneSuchExecutionProvider", "CPUExecutionProvider"))
    runner = OnnxRunner(make(tmp_path / "b", target=target))
    (note,) = runner.notes
    assert note.startswith("NoneSuchExecutionProvider is not used, CPUExecutionProvider is: this onnxruntime has ")
    assert runner.infer_one(BATCH[0]).prediction.label == int(BATCH[0].argmax())
    assert OnnxRunner(make(tmp_path / "c", target=target), cpu_only=True).notes == ()


def test_what_the_devices_owner_names_wins_over_what_the_bundle_was_made_for(tmp_path):
    target = TargetPlatform("none", 0, Precision.FLOAT32, "any", ("NoneSuchExecutionProvider",))
    bundle = make(tmp_path / "b", target=target)
    assert OnnxRunner(bundle, providers=("CPUExecutionProvider", "OtherExecutionProvider")).notes == ()
    (note,) = OnnxRunner(bundle, providers=("OtherExecutionProvider", "CPUExecutionProvider")).notes
    assert note.startswith("OtherExecutionProvider is not used")


def test_a_provider_that_does_not_start_is_said_with_its_reason_and_nothing_is_printed(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["AbsentExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr(onnx_runner, "_load_session", refuse_absent(onnx_runner._load_session))
    (note,) = OnnxRunner(make(tmp_path / "b"), providers=("AbsentExecutionProvider",)).notes
    assert note == "AbsentExecutionProvider is not used, CPUExecutionProvider is: its driver is missing"
    assert capfd.readouterr().out == ""


def refuse_absent(load):
    def loaded(bundle, threads, providers):
        if "AbsentExecutionProvider" in providers:
            raise BundleError("its driver is missing")
        return load(bundle, threads, providers)

    return loaded


def test_small_weights_are_widened_when_they_are_loaded_and_answer_the_same(tmp_path):
    target = TargetPlatform("none", 0, Precision.INT8_WEIGHTS, "any")
    runner = OnnxRunner(make(tmp_path / "b", target=target))
    assert runner._session.get_session_options().get_session_config_entry("session.disable_quant_qdq") == "1"
    assert check_golden(make(tmp_path / "c", target=target), runner).passed


def test_tables_travel_with_the_bundle_and_bad_ones_are_refused(tmp_path):
    codes = np.rint(BATCH * 15).astype(np.uint8)
    manifest = msgspec.structs.replace(echo_manifest(LABELS), codec=ANS, codec_file=CODEC_FILE)
    files = {**contents(), CODEC_FILE: build_ans_tables(codes, 16)}
    runner = OnnxRunner(write_bundle(tmp_path / "b", manifest, files))
    sent = runner.codec.encode("features", codes[0])
    assert np.array_equal(runner.codec.decode("features", sent), codes[0])
    with pytest.raises(BundleError, match=r"echo@1: .*table"):
        OnnxRunner(write_bundle(tmp_path / "c", manifest, {**files, CODEC_FILE: b"no tables"}))


def test_whole_numbers_go_in_and_a_regressor_passes_its_golden_set(tmp_path):
    nodes = [
        helper.make_node("Cast", ["scores"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["numbers", "one"], ["value"]),
        helper.make_node("Neg", ["value"], ["spread"]),
        helper.make_node("Concat", ["value", "spread"], ["logits"], axis=1),
        helper.make_node("Cast", ["scores"], ["features"], to=TensorProto.UINT8),
    ]
    edge = graph_of(nodes, {"logits": (TensorProto.FLOAT, [2])}, TensorProto.INT64)
    x = np.random.default_rng(2).integers(0, 16, (8, LABELS))
    spec = InputSpec("scores", TensorDType.INT64, (LABELS,), 0.0, 15.0)
    manifest = msgspec.structs.replace(echo_manifest(LABELS), input=spec, gate=GateFigures(tolerance=2.0), **REGRESSOR)
    for off, passes in ((0.0, True), (0.09, True), (0.2, False)):
        golden = pack_golden(x, x.sum(1, keepdims=True) + off, {"features": x.astype(np.uint8)})
        bundle = write_bundle(tmp_path / "b", manifest, {**contents(), EDGE_FILE: edge, GOLDEN_FILE: golden})
        check = check_golden(bundle, OnnxRunner(bundle))
        assert check.passed is passes
        assert check.scores_moved == pytest.approx(off / 2, abs=1e-4)


def test_a_closed_runner_answers_no_more(made):
    runner = OnnxRunner(made)
    runner.close()
    with pytest.raises(AttributeError):
        runner.infer_one(BATCH[0])


def test_the_devices_part_brings_no_training_code_along():
    code = (
        "import sys, models.bundle.bundle, models.runtime.feature_codec, models.runtime.runner\n"
        "import models.runtime.onnx_runner, models.runtime.golden\n"
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
