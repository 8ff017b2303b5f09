"""Precisions of a bundle's engine: checked against float32 on the golden set before they serve."""

import math

import numpy as np
import pytest
import torch

from cloud_hub.engine.base import EngineError
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.precision import MAX_SCORE_MOVE, PrecisionCheck, PrecisionError, compare_outputs
from cloud_hub.engine.torch import TorchEngine, choose_cpu_precision, serve_as_stored
from cloud_hub.engine.types import EngineOptions, WorkItem
from models.bundle.bundle import Bundle
from models.bundle.manifest import BundleError, ModelKind
from models.graph.hub_model import open_hub_graphs
from models.runtime.golden import pack_golden
from policies.serving.computing import ComputeOptions, ComputeOverride, DeviceChoice, Precision
from tests.cloud_hub.engine.test_bundle import a_manifest, bundle, codes_of

RNG = np.random.default_rng(4)
SAMPLES = RNG.random((12, 1, 8, 8), np.float32)


def golden(samples: np.ndarray = SAMPLES, outputs: int = 10) -> bytes:
    codes = codes_of(torch.from_numpy(samples)).numpy().astype(np.uint8)
    return pack_golden(samples, np.full((len(samples), outputs), 1 / outputs), {"features": codes})


def engine_in(opened: Bundle, precision: Precision, *, allow_fallback: bool = False) -> TorchEngine:
    engine = TorchEngine(opened, options=ComputeOptions(DeviceChoice.CPU, precision, allow_fallback))
    engine.start()
    return engine


@pytest.mark.parametrize("precision", [Precision.BFLOAT16, Precision.FLOAT16, Precision.INT8])
def test_a_precision_that_keeps_the_golden_answers_serves_and_says_which_it_is(tmp_path, precision):
    opened = bundle(tmp_path, "large", golden=golden())
    exact, engine = engine_in(opened, Precision.FLOAT32), engine_in(opened, precision)
    assert engine.setup.precision is precision
    assert engine.setup.fallback == ""
    assert engine.setup.weight_bytes <= 0.6 * exact.setup.weight_bytes
    engine.warm()
    batch = [WorkItem(raw=sample) for sample in SAMPLES]
    pairs = list(zip(engine.infer(batch), exact.infer(batch), strict=True))
    moved = max(abs(a - b) for one, other in pairs for a, b in zip(one.scores, other.scores, strict=True))
    assert 0 < moved <= MAX_SCORE_MOVE


def test_a_precision_that_breaks_the_golden_set_is_one_line(tmp_path):
    with pytest.raises(PrecisionError) as caught:
        engine_in(bundle(tmp_path, "fragile", golden=golden()), Precision.BFLOAT16)
    assert str(caught.value).startswith("digits@1: bfloat16 breaks the golden set: a score moves by")
    assert "\n" not in str(caught.value)


def test_a_precision_that_breaks_the_golden_set_falls_back_to_float32_only_if_allowed_and_says_so(tmp_path):
    opened = bundle(tmp_path, "fragile", golden=golden())
    engine = engine_in(opened, Precision.BFLOAT16, allow_fallback=True)
    assert engine.setup.precision is Precision.FLOAT32
    assert "bfloat16 breaks the golden set" in engine.setup.fallback
    exact = engine_in(opened, Precision.FLOAT32)
    batch = [WorkItem(raw=sample) for sample in SAMPLES]
    assert engine.infer(batch) == exact.infer(batch)


def test_int8_of_a_model_without_a_layer_for_it_is_refused(tmp_path):
    with pytest.raises(EngineError, match="no linear layer"):
        engine_in(bundle(tmp_path, golden=golden()), Precision.INT8)


def test_a_precision_needs_a_golden_set_to_be_checked_on(tmp_path):
    with pytest.raises(BundleError, match=r"golden\.npz cannot be read"):
        engine_in(bundle(tmp_path, "large"), Precision.BFLOAT16)


def test_auto_stays_with_float32_for_what_is_computed_in_no_time(tmp_path):
    engine = engine_in(bundle(tmp_path, golden=golden()), Precision.AUTO)
    assert (engine.setup.precision, engine.setup.fallback) == (Precision.FLOAT32, "")


def test_auto_without_a_readable_golden_set_is_float32(tmp_path):
    opened = bundle(tmp_path)
    graphs = open_hub_graphs(opened)
    stored = serve_as_stored({"tail": graphs.tail, "whole": graphs.whole})
    assert choose_cpu_precision(stored, opened) is stored


def test_one_model_has_a_precision_of_its_own(tmp_path):
    opened = bundle(tmp_path, "large", golden=golden())
    own = {"digits": ComputeOverride(precision=Precision.INT8), "digits@2": ComputeOverride()}
    asked = ComputeOptions(DeviceChoice.CPU)
    assert open_engine(opened.path, EngineOptions(compute=asked, models=own)).setup.precision is Precision.INT8
    other = {"letters": ComputeOverride(precision=Precision.INT8)}
    assert open_engine(opened.path, EngineOptions(compute=asked, models=other)).setup.precision is Precision.FLOAT32


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_a_card_that_is_not_there_is_one_line_and_falls_back_only_if_allowed(tmp_path):
    opened = bundle(tmp_path)
    with pytest.raises(EngineError, match="digits@1: no graphics card") as caught:
        TorchEngine(opened, options=ComputeOptions(DeviceChoice.CUDA))
    assert "\n" not in str(caught.value)
    engine = TorchEngine(opened, options=ComputeOptions(DeviceChoice.CUDA, allow_fallback=True))
    engine.start()
    assert (engine.setup.device, engine.infer([engine.sample()])[0].model) == ("cpu", "digits@1")
    assert engine.setup.fallback.startswith("no graphics card")


def logits(*rows: tuple[float, ...]) -> np.ndarray:
    return np.array(rows, np.float32)


def test_a_label_that_was_a_close_call_may_change_and_a_clear_one_may_not():
    manifest = a_manifest(hub_temperature=1.0)
    close = compare_outputs(logits((0.01, 0.0)), logits((0.0, 0.01)), manifest)
    assert (close.labels_changed, close.passed) == (0, True)
    clear = compare_outputs(logits((0.5, 0.0)), logits((0.0, 0.5)), manifest)
    assert (clear.labels_changed, clear.passed) == (1, False)


def test_nan_passes_no_check():
    manifest = a_manifest(hub_temperature=1.0)
    assert not compare_outputs(logits((1.0, 0.0)), logits((math.nan, 0.0)), manifest).passed
    assert not PrecisionCheck(1, 0, math.nan).passed


def test_values_of_a_regressor_are_held_against_their_spread():
    manifest = a_manifest(kind=ModelKind.REGRESSOR, labels=(), outputs=1)
    before = logits((0.0,), (100.0,))
    assert compare_outputs(before, before + 4, manifest).passed
    assert not compare_outputs(before, before + 6, manifest).passed
