"""Tests of samples as codes: exact enough, of one length, exported like any other part of both halves."""

import numpy as np
import pytest
import torch

from models.bundle.manifest import InputSpec
from models.forge.export.onnx import export_edge_graph, serialise_model
from models.forge.export.quantise import run_graph
from models.forge.routes.sample.sample_code import fit_sample_codes
from models.forge.routes.sample.transform_code import fit_code
from models.forge.routes.sample.transforms import SynthesisTransform, fit_axis_transform, fit_joint_transform
from models.graph.exporter import export_graph
from models.runtime.feature_codec import build_codec
from models.verification.lint import lint_graph
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType

SPEC = InputSpec("sample", TensorDType.FP32, (2, 6, 8), -4.0, 4.0)


def waves(count, seed=1, shape=(2, 6, 8)):
    """Smooth pictures float32 `[count, *shape]`: a few waves of random strength, and a little noise."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[: shape[-2], : shape[-1]] / 8.0
    patterns = np.stack([np.cos(np.pi * (i * rows + j * columns)) for i in range(3) for j in range(3)])
    strengths = rng.normal(0, 1, (count, *shape[:-2], 9)) / (1 + np.arange(9))
    noise = rng.normal(0, 0.02, (count, *shape))
    return (np.tensordot(strengths, patterns, 1) + noise).astype(np.float32).clip(-4, 4)


TRAINING, OTHERS = waves(600), waves(40, seed=2)
CODES = fit_sample_codes(TRAINING, SPEC, (8, 24, 60))


def send(code, x):
    """Samples as the hub decodes them, through the codec."""
    spec = FieldSpec("codes", TensorDType.UINT8, code.shape, 0, code.levels - 1, SensitivityLevel.P2, "codes")
    codec = build_codec(code.codec, (spec,), code.tables)
    with torch.inference_mode():
        codes = code.coder(torch.from_numpy(x)).numpy().astype(np.uint8)
        sent = [codec.encode("codes", one) for one in codes]
        assert {len(one.data) for one in sent} == {code.payload_bytes}
        back = np.stack([codec.decode("codes", one) for one in sent])
        return code.decoder(torch.from_numpy(back).float()).numpy()


@pytest.mark.parametrize("fit", [fit_joint_transform, fit_axis_transform])
def test_all_coefficients_give_the_sample_back_and_the_first_say_most(fit):
    transform = fit(TRAINING)
    coefficients = transform.apply(OTHERS)
    back = SynthesisTransform(transform, transform.values)(torch.from_numpy(coefficients)).numpy()
    assert np.allclose(back, OTHERS, atol=1e-4)
    assert (np.diff(transform.deviations) <= 0).all()
    assert np.allclose(transform.apply(TRAINING).std(0), transform.deviations, rtol=0.05, atol=1e-3)
    few = SynthesisTransform(transform, 18)(torch.from_numpy(coefficients[:, :18])).numpy()
    assert np.square(few - OTHERS).mean() < 0.05 * np.square(OTHERS - transform.mean).mean()


def test_more_bytes_carry_the_sample_more_exactly():
    errors = [float(np.square(send(code, OTHERS) - OTHERS).mean()) for code in CODES]
    assert [code.payload_bytes for code in CODES] == [8, 24, 60]
    assert errors[0] < 0.5 * OTHERS.var()
    assert errors[0] > 4 * errors[1] > 8 * errors[2]


def test_decoded_samples_are_of_the_type_and_range_that_the_model_takes():
    spec = InputSpec("sample", TensorDType.FP32, (2, 6, 8), -0.5, 0.5)
    (code,) = fit_sample_codes(TRAINING.clip(-0.5, 0.5), spec, (24,))
    found = send(code, OTHERS)
    assert found.dtype == np.float32
    assert found.shape == OTHERS.shape
    assert -0.5 <= found.min() < found.max() <= 0.5


class _Coders(torch.nn.Module):
    """Both kinds of coder in one graph: exporting takes seconds."""

    def __init__(self):
        super().__init__()
        axes, payload = fit_axis_transform(TRAINING), 24
        self.joint, self.by_axis = CODES[1].coder, fit_code(axes, axes.apply(TRAINING), SPEC, payload).coder

    def forward(self, sample):
        return self.joint(sample), self.by_axis(sample)


@pytest.mark.further
def test_coders_export_to_a_graph_that_a_device_loads():
    module = _Coders().eval()
    graph = serialise_model(export_edge_graph(module, SPEC, ("joint", "by_axis")))
    lint_graph(graph)
    for found, wanted in zip(run_graph(graph, OTHERS), module(torch.from_numpy(OTHERS)), strict=True):
        assert np.abs(found - wanted.numpy()).max() <= 1
        assert (found != wanted.numpy()).mean() < 0.01


@pytest.mark.further
def test_decoders_export_to_a_graph_that_a_hub_runs():
    axes = fit_axis_transform(TRAINING)
    for code in (CODES[0], fit_code(axes, axes.apply(TRAINING), SPEC, 8)):
        codes = torch.full((2, *code.shape), 130.0)
        graph = export_graph(code.decoder, (codes,))
        assert torch.equal(graph(codes), code.decoder(codes))


def test_longer_payloads_than_256_levels_fill_are_left_out():
    few = np.random.default_rng(0).normal(0, 1, (300, 1, 3)).astype(np.float32)
    spec = InputSpec("row", TensorDType.FP32, (1, 3), -5.0, 5.0)
    codes = fit_sample_codes(few, spec, (16, 4, 3, 64, 1024))
    assert [code.payload_bytes for code in codes] == [3, 4]
    assert np.abs(send(codes[-1], few[:50]) - few[:50]).max() < 0.05


@pytest.mark.parametrize("axis", [0, 1])
def test_channels_of_unlike_units_are_each_carried(axis):
    units = np.array([1e-3, 1, 1e4], np.float32)
    x = np.moveaxis(waves(600, shape=(3, 8)) * units[:, None], 1, 1 + axis)
    spec = InputSpec("signal", TensorDType.FP32, x.shape[1:], float(x.min()), float(x.max()))
    (code,) = fit_sample_codes(x[:500], spec, (24,))
    lost = np.square(send(code, x[500:]) - x[500:]).mean((0, 2 - axis)) / x[500:].var((0, 2 - axis))
    assert lost.max() < 0.05


def test_long_payloads_span_the_largest_coefficient_still():
    x = waves(600) * np.array([1000, 1], np.float32)[:, None, None]
    spec = InputSpec("sample", TensorDType.FP32, x.shape[1:], float(x.min()), float(x.max()))
    errors = [np.square(send(code, x[:40]) - x[:40]).mean() for code in fit_sample_codes(x, spec, (60, 120, 240))]
    assert errors == sorted(errors, reverse=True)


def test_samples_that_are_all_alike_have_no_code():
    assert fit_sample_codes(np.ones((20, 2, 6, 8), np.float32), SPEC, (24,)) == []


def test_equal_samples_and_seed_make_equal_codes():
    again = fit_sample_codes(TRAINING, SPEC, (24,))[0]
    assert again.tables == CODES[1].tables
    assert torch.equal(again.coder(torch.from_numpy(OTHERS)), CODES[1].coder(torch.from_numpy(OTHERS)))
