"""Tests of the privacy transforms, one by one; and that none gives a value outside its field."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.system.noise import draw_noise
from models.runtime.chain import TransformStep
from models.runtime.feature_codec import NUMPY_DTYPES
from models.runtime.transforms import STEPS, TransformStepError, TransformTools, apply_transforms
from policies.decisions.egress import REDACTION_PATTERNS, redact_text
from policies.model.policy import TransformKind
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType

KEY = bytes(range(32))
TOOLS = TransformTools(draw_noise, KEY, redact_text)
NUMBERS = st.floats() | st.integers(-3, 300).map(float)
ANY = st.builds(
    TransformStep, st.sampled_from(sorted(STEPS)), NUMBERS, NUMBERS, NUMBERS, st.lists(NUMBERS, max_size=4).map(tuple),
    st.lists(st.sampled_from(sorted(REDACTION_PATTERNS)), max_size=2).map(tuple),
)  # fmt: skip


def field(dtype: TensorDType, shape: tuple[int, ...], low: float = 0, high: float = 15) -> FieldSpec:
    return FieldSpec("f", dtype, shape, low, high, SensitivityLevel.P2, "features")


CODES = field(TensorDType.UINT8, (6,))


def codes(values: list[int], *steps: TransformStep, spec: FieldSpec = CODES) -> list[int]:
    given_values = np.array([values], np.uint8)
    return list(map(int, apply_transforms(given_values, steps, spec, TOOLS)[0]))


def test_every_transform_of_the_policy_language_but_drop_is_a_step():
    assert set(STEPS) == {kind.value for kind in TransformKind} - {"drop"}


@given(
    st.sampled_from(
        [TensorDType.UINT8, TensorDType.INT8, TensorDType.INT32, TensorDType.FP32, TensorDType.FP16, TensorDType.INT64]
    ),
    st.sampled_from([(1,), (5,), (3, 4), (2, 3, 3)]),
    st.sampled_from([(0.0, 15.0), (-4.0, 9.5), (0.0, 255.0), (3.0, 7.0)]),
    st.lists(ANY, max_size=3),
    st.integers(0, 2**32),
)
@example(TensorDType.FP32, (5,), (0.0, 15.0), [TransformStep("quantise", step=5e-324)], 0)
@example(TensorDType.FP32, (5,), (0.0, 15.0), [TransformStep("coarsen", step=5e-324)], 0)
@example(TensorDType.INT64, (5,), (0.0, 15.0), [TransformStep("quantise", step=1e-308)], 0)
def test_whatever_the_steps_a_field_keeps_type_shape_and_range_or_nothing_leaves(dtype, shape, ends, steps, seed):
    low, high = ends[0], min(ends[1], 100 if dtype is TensorDType.INT8 else 255)
    spec = field(dtype, shape, low, high)
    raw = np.random.default_rng(seed).uniform(max(low, 0) if dtype is TensorDType.UINT8 else low, high, (2, *shape))
    values = np.clip(np.trunc(raw) if dtype.name.startswith(("I", "U")) else raw, max(low, -100), high).astype(
        NUMPY_DTYPES[dtype]
    )
    try:
        out = apply_transforms(values, steps, spec, TOOLS)
    except TransformStepError:
        return
    assert (out.dtype, out.shape) == (values.dtype, values.shape)
    assert np.isfinite(out.astype(float)).all()
    margin = 0.01 if dtype in {TensorDType.FP16, TensorDType.FP32} else 0  # an end that the type cannot hold
    assert low - margin <= out.min() <= out.max() <= high + margin


def test_each_step_does_what_the_language_says():
    given_codes = [0, 3, 7, 9, 12, 15]
    assert codes(given_codes, TransformStep("clip", 2, 9)) == [2, 3, 7, 9, 9, 9]
    assert codes(given_codes, TransformStep("quantise", step=4)) == [0, 4, 8, 8, 12, 15]
    assert codes(given_codes, TransformStep("coarsen", step=4)) == [0, 0, 4, 8, 12, 12]
    assert codes(given_codes, TransformStep("bucketize", values=(3, 10))) == [0, 3, 3, 3, 10, 10]
    assert codes(given_codes, TransformStep("top_k", step=2)) == [12, 12, 12, 12, 12, 15]
    assert codes(given_codes, TransformStep("top_k", step=3, values=(8,))) == [0, 3, 8, 8, 8, 15]
    assert codes(given_codes, TransformStep("pool", step=4)) == [4, 4, 4, 4, 13, 13]
    assert codes(given_codes, TransformStep("pool", step=2**63)) == [7] * 6


def test_pooling_takes_squares_of_maps_and_the_ragged_edge_alone():
    spec = field(TensorDType.FP32, (1, 3, 3))
    values = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    out = apply_transforms(values, (TransformStep("pool", step=2),), spec, TOOLS)[0, 0]
    assert out.tolist() == [[2, 2, 3.5], [2, 2, 3.5], [6.5, 6.5, 8]]


@given(st.lists(st.integers(0, 255), min_size=6, max_size=6), st.floats(0.5, 400))
def test_no_sample_is_outside_the_ball_after_clip_norm(values, norm):
    out = codes(values, TransformStep("clip_norm", high=norm), spec=field(TensorDType.UINT8, (6,), 0, 255))
    assert np.linalg.norm(out) <= norm
    if np.linalg.norm(values) <= norm:
        assert out == values


def test_a_projection_forgets_what_is_perpendicular_and_keeps_the_rest():
    spec = field(TensorDType.FP32, (8,), -100, 100)
    values = np.random.default_rng(1).normal(size=(50, 8)).astype(np.float32)
    step = TransformStep("project", low=7, step=3)
    once = apply_transforms(values, (step,), spec, TOOLS)
    assert np.linalg.matrix_rank(once, tol=1e-4) == 3
    assert np.allclose(apply_transforms(once, (step,), spec, TOOLS), once, atol=1e-5)
    assert np.allclose(
        apply_transforms(values, (TransformStep("project", low=7, step=8),), spec, TOOLS), values, atol=1e-5
    )


def test_a_keyed_hash_is_the_same_for_the_same_value_and_tells_another_key_nothing():
    spec = field(TensorDType.INT32, (3,), 0, 2**31 - 1)
    values = np.array([[5, 6, 5]], np.int32)
    step = (TransformStep("keyed_hash", step=31),)
    here = apply_transforms(values, step, spec, TOOLS)[0].tolist()
    there = apply_transforms(values, step, spec, TransformTools(draw_noise, bytes(32), redact_text))[0].tolist()
    assert here[0] == here[2] != here[1]
    assert set(here).isdisjoint(there)
    assert apply_transforms(values, (TransformStep("keyed_hash", step=1),), spec, TOOLS).max() <= 1


def test_text_is_redacted_in_its_place():
    text = "mail ann@example.org, 0171 2345678 or DE89 3704 0044 0532 0130 00; seen 192.168.1.20."
    spec = field(TensorDType.UINT8, (100,), 0, 255)
    raw = np.frombuffer(text.encode().ljust(100, b"\0"), np.uint8)[None].copy()
    out = apply_transforms(raw, (TransformStep("redact"),), spec, TOOLS)[0].tobytes().rstrip(b"\0").decode()
    assert len(out) == len(text)
    assert out.startswith("mail ***************, ")
    assert not any(figure in out for figure in "0123456789@")
    assert "; seen " in out


@given(st.binary(max_size=400), st.lists(st.sampled_from(sorted(REDACTION_PATTERNS)), max_size=3))
def test_redaction_takes_any_bytes_and_keeps_their_number(text, names):
    assert len(redact_text(text, names)) == len(text)


def test_redaction_of_a_long_hostile_text_takes_no_time():
    for piece in (b"a@", b"1-", b"www.", b"1:", b"a.b@c.", b"DE12 ", b"Dr. A"):
        redact_text(piece * 20_000, tuple(REDACTION_PATTERNS))


@pytest.mark.parametrize(
    ("step", "spec"),
    [
        (TransformStep("noise", step=1e6), CODES),
        (TransformStep("noise", step=4, high=0.5), CODES),
        (TransformStep("noise", step=4, high=-1), CODES),
        (TransformStep("project", low=0.5, step=2), CODES),
        (TransformStep("project", low=math.nan, step=2), CODES),
        (TransformStep("project", low=math.inf, step=2), CODES),
        (TransformStep("project", low=1, step=7), CODES),
        (TransformStep("clip_norm", high=3), field(TensorDType.UINT8, (6,), 1, 15)),
        (TransformStep("keyed_hash", step=9), CODES),
        (TransformStep("bucketize", values=(3, 3)), CODES),
        (TransformStep("redact"), CODES),
        (TransformStep("top_k", step=1.5), CODES),
        (TransformStep("top_k", step=2, values=(16,)), CODES),
        (TransformStep("top_k", step=2, values=(3, 4)), CODES),
        (TransformStep("clip", 9, 2), CODES),
        (TransformStep("smear"), CODES),
    ],
)
def test_a_step_that_cannot_be_done_to_this_field_is_an_error(step, spec):
    with pytest.raises(TransformStepError):
        apply_transforms(np.full((1, 6), 5, np.uint8), (step,), spec, TOOLS)
