"""Code of a signal's preparation: a window becomes a sample, scaled and in the model's order. Pure."""

from typing import Any

import numpy as np
import numpy.typing as npt

from models.bundle.signal_preparation import SignalOrder, SignalPreparation, SignalScaling
from wire.protocol.messages import TensorDType


def prepare_signal(
    window: npt.NDArray[np.float32], preparation: SignalPreparation, dtype: TensorDType = TensorDType.FP32
) -> npt.NDArray[Any]:
    """The sample of a window `[steps, channels]`, for a complete preparation.

    ValueError for a window of another shape, a value that is no number, or a type that no signal can become.
    """
    if window.shape != (preparation.window, preparation.channels):
        wanted = [preparation.window, preparation.channels]
        raise ValueError(f"a window of {list(window.shape)}, the model takes {wanted} (steps, channels)")
    if dtype is not TensorDType.FP32:
        raise ValueError(f"a signal cannot become {dtype}")
    values: npt.NDArray[Any] = window.astype(np.float32)
    if preparation.mean:
        values = values - np.asarray(preparation.mean, np.float32)
    if preparation.std:
        values = values / np.asarray(preparation.std, np.float32)
    if preparation.scaling is SignalScaling.WINDOW:
        spread = values.std(axis=0)
        values = (values - values.mean(axis=0)) / np.where(spread > 0, spread, np.float32(1))
    if not np.isfinite(values).all():
        raise ValueError("a value is no number")
    return np.ascontiguousarray(_order_axes(values, preparation.order), np.float32)


def _order_axes(values: npt.NDArray[Any], order: SignalOrder) -> npt.NDArray[Any]:
    """A window `[steps, channels]` in the model's order."""
    match order:
        case SignalOrder.CT:
            return values.T
        case SignalOrder.PLANE:
            return values.T[None]
        case SignalOrder.T:
            return values[:, 0]
        case SignalOrder.FLAT:
            return values.reshape(-1)
    return values
