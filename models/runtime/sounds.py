"""Code of a sound's preparation: samples become a log-mel spectrogram. The same in forge, calibration and agent.

Pure numpy, no I/O. Sound is float32 `[samples]` of one channel within -1..1.
"""

from functools import lru_cache
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from models.bundle.signal_preparation import MelScale, SoundLog, SoundOrder, SoundPreparation
from models.runtime.windows import cut_windows
from wire.protocol.messages import TensorDType

Sound = npt.NDArray[np.float32]
_ZEROS = 6  # zero crossings of the interpolating sinc, each side
_ROLL_OFF = 0.99  # of the lower half rate
_MAX_KERNEL = 4_000_000  # numbers; rates without a common divisor would need more
_SLANEY_BREAK_HZ, _SLANEY_STEP_HZ, _SLANEY_LOG = 1000.0, 200.0 / 3, np.log(6.4) / 27


def cut_sound(sound: Sound, preparation: SoundPreparation) -> npt.NDArray[np.float32]:
    """The windows `[count, samples]` of a recording that each become a sample; what is left at its end is none."""
    return cut_windows(sound[:, None], preparation.samples, preparation.hop)[:, :, 0]


def prepare_sound(
    sound: Sound, preparation: SoundPreparation, dtype: TensorDType = TensorDType.FP32
) -> npt.NDArray[Any]:
    """The sample of one window of sound at the preparation's rate, for a complete preparation.

    ValueError for another number of samples, or a type that no sound can become.
    """
    p = preparation
    if sound.shape != (p.samples,):
        raise ValueError(f"{sound.shape[0] if sound.ndim else 0} samples of sound, a sample is made of {p.samples}")
    if dtype is not TensorDType.FP32:
        raise ValueError(f"a sound cannot become {dtype}")
    bands = np.maximum(_measure_power(sound, p) @ mel_filters(p).T, p.floor)  # [frames, mels]
    values: npt.NDArray[Any] = ((_take_log(bands, p.log) - p.mean) / p.std).astype(np.float32)
    values = values if p.order is SoundOrder.TM else values.T
    return np.ascontiguousarray(values[None] if p.order is SoundOrder.CMT else values)


def _take_log(power: npt.NDArray[np.float64], log: SoundLog) -> npt.NDArray[np.float64]:
    if log is SoundLog.LN:
        return np.asarray(np.log(power))
    return np.asarray(np.log10(power) * (10 if log is SoundLog.DB else 1))


def _measure_power(sound: Sound, p: SoundPreparation) -> npt.NDArray[np.float64]:
    """Power `[frames, fft // 2 + 1]` of each frame under a periodic Hann window."""
    padded = np.pad(sound, p.fft // 2, mode="reflect") if p.centred else sound
    frames = np.lib.stride_tricks.sliding_window_view(padded, p.fft)[:: p.step][: p.frames]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(p.fft) / p.fft)
    return np.asarray(np.abs(np.fft.rfft(frames * hann, axis=1)) ** 2)


@lru_cache(maxsize=4)
def mel_filters(p: SoundPreparation) -> npt.NDArray[np.float64]:
    """Weights `[mels, fft // 2 + 1]` of the triangular bands, equally spaced on the mel scale."""
    top = p.high_hz or p.rate_hz / 2
    edges = _from_mel(np.linspace(_to_mel(p.low_hz, p.scale), _to_mel(top, p.scale), p.mels + 2), p.scale)
    bins = np.linspace(0, p.rate_hz / 2, p.fft // 2 + 1)
    width = np.diff(edges)
    rising = (bins[None] - edges[:-2, None]) / width[:-1, None]
    falling = (edges[2:, None] - bins[None]) / width[1:, None]
    weights = np.maximum(0, np.minimum(rising, falling))
    return np.asarray(weights * (2 / (edges[2:] - edges[:-2]))[:, None] if p.area else weights)


def _to_mel(hz: float, scale: MelScale) -> float:
    if scale is MelScale.HTK:
        return float(2595 * np.log10(1 + hz / 700))
    if hz < _SLANEY_BREAK_HZ:
        return hz / _SLANEY_STEP_HZ
    return float(_SLANEY_BREAK_HZ / _SLANEY_STEP_HZ + np.log(hz / _SLANEY_BREAK_HZ) / _SLANEY_LOG)


def _from_mel(mels: npt.NDArray[np.float64], scale: MelScale) -> npt.NDArray[np.float64]:
    if scale is MelScale.HTK:
        return np.asarray(700 * (10 ** (mels / 2595) - 1))
    first = _SLANEY_BREAK_HZ / _SLANEY_STEP_HZ
    upper = _SLANEY_BREAK_HZ * np.exp(_SLANEY_LOG * (np.maximum(mels, first) - first))
    return np.where(mels < first, mels * _SLANEY_STEP_HZ, upper)


def resample_sound(sound: Sound, from_hz: int, to_hz: int) -> Sound:
    """Sound at another rate, by a sinc under a Hann window (J. O. Smith, Digital Audio Resampling, 2002).

    ValueError for two rates that have no useful divisor in common.
    """
    if from_hz == to_hz:
        return sound
    common = gcd(from_hz, to_hz)
    old, new = from_hz // common, to_hz // common
    kernel, width = _make_kernel(old, new)
    padded = np.pad(sound, (width, width + old))
    count = -(-len(sound) * new // old)
    blocks = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape[1])[::old]
    return np.ascontiguousarray((blocks @ kernel.T).reshape(-1)[:count], np.float32)


@lru_cache(maxsize=4)
def _make_kernel(old: int, new: int) -> tuple[Sound, int]:
    """One filter for each of the `new` places within `old` samples, and how far each reaches beyond them."""
    base = min(old, new) * _ROLL_OFF
    width = int(np.ceil(_ZEROS * old / base))
    if new * (2 * width + old) > _MAX_KERNEL:
        raise ValueError(f"sound cannot be brought from a rate to another that is {new}/{old} of it")
    at = (np.arange(-width, width + old)[None] / old - np.arange(new)[:, None] / new) * base
    at = np.clip(at, -_ZEROS, _ZEROS)
    kernel = np.sinc(at) * np.cos(at * np.pi / _ZEROS / 2) ** 2 * base / old
    return kernel.astype(np.float32), width
