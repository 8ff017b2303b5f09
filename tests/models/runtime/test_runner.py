from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models.bundle.manifest import check_manifest
from models.runtime.runner import EchoRunner, Runner, SampleError, check_samples, check_values, echo_manifest

SPEC = echo_manifest().input
GOOD = np.full((3, 10), 0.5, np.float32)


def test_the_double_answers_what_it_was_shown():
    runner: Runner = EchoRunner(labels=3)
    inference = runner.infer_one(np.array([0.1, 0.7, 0.2], np.float32))
    assert inference.prediction.label == 1
    assert inference.prediction.confidence == pytest.approx(0.7)
    assert inference.prediction.model == "echo@1"
    assert inference.features["features"].tolist() == [2, 10, 3]
    check_manifest(runner.manifest)


def test_a_batch_is_answered_in_order():
    batch = np.eye(10, dtype=np.float32)
    assert [i.prediction.label for i in EchoRunner().infer(batch)] == list(range(10))


UNFIT: dict[str, Any] = {
    "shape": np.zeros((3, 9), np.float32),
    "shape ": np.zeros(10, np.float32),
    "shape  ": np.zeros((0, 10), np.float32),
    "shape   ": np.zeros((1, 1, 10), np.float32),
    "float64": GOOD.astype(np.float64),
    ">f4": np.zeros((1, 10), ">f4"),
    "object": np.array([[None] * 10]),
    "NaN": np.where(np.arange(30).reshape(3, 10) == 17, np.float32("nan"), GOOD),
    "infinite": np.where(np.arange(30).reshape(3, 10) == 29, np.float32("inf"), GOOD),
    "infinite ": np.where(np.arange(30).reshape(3, 10) == 0, np.float32("-inf"), GOOD),
    "0.5..1.5": np.where(np.arange(30).reshape(3, 10) == 3, np.float32(1.5), GOOD),
    "-0.5..0.5": np.where(np.arange(30).reshape(3, 10) == 3, np.float32(-0.5), GOOD),
}


@pytest.mark.parametrize("words", UNFIT)
def test_an_unfit_sample_is_refused_with_what_is_wrong(words):
    with pytest.raises(SampleError, match=words.strip()):
        EchoRunner().infer(UNFIT[words])


def test_one_sample_must_not_bring_a_batch_axis():
    with pytest.raises(SampleError, match=r"takes \[10\]"):
        EchoRunner().infer_one(GOOD[:1])


@pytest.mark.parametrize("size", [4096, 4097])
@pytest.mark.parametrize("step", [1, 2])
def test_few_values_and_many_are_judged_alike(size, step):
    """Bounds count as float32, as the values do: 0.1 lies between 0.1 and 0.1, wherever it stands."""
    spec = msgspec.structs.replace(SPEC, low=0.1, high=0.1)
    values = np.full(size * step, 0.1, np.float32)[::step]
    check_values(values, spec)
    for at in (0, size // 2, size - 1):
        for bad in (np.nextafter(np.float32(0.1), np.float32(0)), 0.2, np.nan, np.inf, -np.inf):
            spoiled = values.copy()
            spoiled[at] = bad
            with pytest.raises(SampleError):
                check_values(spoiled, spec)


@given(arrays(np.float32, (2, 10), elements=st.floats(width=32)))
def test_whatever_passes_the_check_is_finite_and_in_range(batch):
    try:
        check_samples(batch, SPEC)
    except SampleError:
        assert not (np.isfinite(batch).all() and batch.min() >= 0 and batch.max() <= 1)
    else:
        assert np.isfinite(batch).all()
        assert 0 <= batch.min() <= batch.max() <= 1
