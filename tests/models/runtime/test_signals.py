"""The preparation of signals: what a configuration may say, and what becomes of a window."""

import numpy as np
import pytest

from models.bundle.preparation import (
    check_preparation,
    complete_preparation,
    encode_preparation,
    parse_preparation,
    preparation_shape,
)
from models.bundle.signal_preparation import SignalPreparation
from models.runtime.signals import prepare_signal
from wire.protocol.messages import TensorDType

WINDOW = np.arange(6, dtype=np.float32).reshape(3, 2)


def signal(**keys):
    return parse_preparation({"kind": "signal", **keys})


@pytest.mark.parametrize(
    ("order", "shape", "first"),
    [
        ("1ct", (1, 2, 3), [[[0, 2, 4], [1, 3, 5]]]),
        ("ct", (2, 3), [[0, 2, 4], [1, 3, 5]]),
        ("tc", (3, 2), WINDOW.tolist()),
        ("flat", (6,), [0, 1, 2, 3, 4, 5]),
    ],
)
def test_a_window_gets_the_models_order(order, shape, first):
    made = complete_preparation(signal(order=order, channels=2), shape)
    assert isinstance(made, SignalPreparation)
    assert (made.window, made.channels, preparation_shape(made)) == (3, 2, shape)
    assert prepare_signal(WINDOW, made).tolist() == first


def test_values_are_scaled_by_channel_or_by_window():
    made = complete_preparation(signal(order="tc", mean=[0, 1], std=[2]), (3, 2))
    assert prepare_signal(WINDOW, made).tolist() == [[0, 0], [1, 1], [2, 2]]  # type: ignore[arg-type]
    made = complete_preparation(signal(order="tc", scaling="window"), (3, 2))
    scaled = prepare_signal(WINDOW, made)  # type: ignore[arg-type]
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(scaled.std(axis=0), 1, rtol=1e-6)
    assert (prepare_signal(np.ones((3, 2), np.float32), made) == 0).all()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"window": -1}, "window"),
        ({"window": 1 << 21}, "window"),
        ({"hop": -1}, "hop"),
        ({"rate_hz": -1}, "rate_hz"),
        ({"rate_hz": 1e9}, "rate_hz"),
        ({"lateness_s": 1e9, "rate_hz": 1}, "lateness_s"),
        ({"gap": -1}, "gap"),
        ({"channels": 3, "mean": [1, 2]}, "mean"),
        ({"std": [0]}, "std"),
        ({"order": "t", "channels": 2}, "one channel"),
        ({"order": "xy"}, "order"),
        ({"colour": 1}, "colour"),
    ],
)
def test_what_cannot_be_meant_is_refused(keys, line):
    with pytest.raises(ValueError, match=line):
        signal(**keys)


@pytest.mark.parametrize("shape", [(2, 3, 4), (7,), ()])
def test_a_model_of_another_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r"the model takes|impossible"):
        complete_preparation(signal(order="flat", channels=2), shape)


def test_what_is_no_window_is_refused():
    made = complete_preparation(signal(order="tc"), (3, 2))
    assert isinstance(made, SignalPreparation)
    check_preparation(made, complete=True)
    for values, dtype in (
        (WINDOW[:2], TensorDType.FP32),
        (WINDOW, TensorDType.INT8),
        (WINDOW * np.float32("nan"), TensorDType.FP32),
    ):
        with pytest.raises(ValueError, match=r"window|become|number"):
            prepare_signal(values, made, dtype)


def test_another_hop_is_another_encoding():
    one, other = (complete_preparation(signal(hop=hop), (2, 3)) for hop in (1, 2))
    assert encode_preparation(one) != encode_preparation(other)
