"""Preparations of signals and sounds: closed values that say how readings over time become a sample.

They stand beside `PicturePreparation` under `preparation` of a manifest and `[input]` of a configuration. Rule:
whatever does not fit is a ValueError of one line.
"""

import math
from enum import StrEnum

import msgspec

MAX_STEPS = 1 << 20  # of one window
MAX_CHANNELS = 1024
MAX_RATE_HZ = 1e6
_KIND = "kind"


class SignalOrder(StrEnum):
    """Axes of a prepared signal: channels and time in either order, both in one plane, time alone, or all in a row."""

    CT = "ct"
    PLANE = "1ct"
    TC = "tc"
    T = "t"
    FLAT = "flat"


class SignalScaling(StrEnum):
    """What is done to a window by itself. `window`: each channel has mean 0 and deviation 1 in it."""

    NONE = "none"
    WINDOW = "window"


class SignalPreparation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field=_KIND, tag="signal"):
    """How readings of one or several channels become a sample: a window of steps, one every `hop` steps.

    `window`: steps; 0 in a configuration means the model's. `hop` 0: windows beside each other. `channels` 0: the
    model's. `rate_hz` 0: each reading is a step. Above 0 a step is 1/`rate_hz` seconds of event time: readings within
    one step are averaged, at most `gap` steps without any keep the last value, and `lateness_s` is how long a step
    waits for readings that come out of order. Then `mean` is subtracted and it is divided by `std` (one for all
    channels, or one each).
    """

    window: int = 0
    hop: int = 0
    channels: int = 0
    order: SignalOrder = SignalOrder.CT
    rate_hz: float = 0.0
    gap: int = 2
    lateness_s: float = 0.0
    scaling: SignalScaling = SignalScaling.NONE
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


class MelScale(StrEnum):
    """Spacing of the mel bands. `htk`: 2595 log10(1 + f/700). `slaney`: linear below 1 kHz, then logarithmic."""

    HTK = "htk"
    SLANEY = "slaney"


class SoundLog(StrEnum):
    """Logarithm of a band's power: natural, to base 10, or decibel (10 log10)."""

    LN = "ln"
    LOG10 = "log10"
    DB = "db"


class SoundOrder(StrEnum):
    """Axes of prepared sound: mel bands and time in either order, or bands and time behind an axis of one channel."""

    MT = "mt"
    TM = "tm"
    CMT = "cmt"


class SoundPreparation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field=_KIND, tag="sound"):
    """How sound becomes a log-mel sample: one channel at `rate_hz`, Hann windows of `fft` samples every `step` samples.

    `mels`, `frames`: bands and frames of the sample; 0 in a configuration means the model's. `hop`: samples from one
    window of `frames` to the next; 0: beside each other. `centred`: frames are centred on their first sample, with the
    edges mirrored. `low_hz`, `high_hz`: ends of the bands, 0 = half the rate. `area`: each band has an area of one
    (Slaney). Power below `floor` counts as `floor`. Then `mean` is subtracted and it is divided by `std`.
    """

    rate_hz: int = 16_000
    fft: int = 400
    step: int = 160
    mels: int = 0
    frames: int = 0
    hop: int = 0
    order: SoundOrder = SoundOrder.MT
    centred: bool = False
    low_hz: float = 0.0
    high_hz: float = 0.0
    scale: MelScale = MelScale.HTK
    area: bool = False
    log: SoundLog = SoundLog.LN
    floor: float = 1e-10
    mean: float = 0.0
    std: float = 1.0

    @property
    def samples(self) -> int:
        """Samples of sound, at `rate_hz`, that one window of `frames` is made of."""
        between = (self.frames - 1) * self.step
        return max(1, between) if self.centred else between + self.fft


def signal_rules(p: SignalPreparation, least: int) -> tuple[tuple[str, bool], ...]:
    """List (key, whether its value is possible). `least`: of the sizes."""
    numbers = (*p.mean, *p.std, p.rate_hz, p.lateness_s)
    return (
        ("window", least <= p.window <= MAX_STEPS),
        ("hop", 0 <= p.hop <= MAX_STEPS),
        ("channels", least <= p.channels <= MAX_CHANNELS and p.window * p.channels <= MAX_STEPS),
        ('order: "t" has one channel', p.order is not SignalOrder.T or p.channels <= 1),
        ("rate_hz, lateness_s, mean or std: a number", all(map(math.isfinite, numbers))),
        ("rate_hz", 0 <= p.rate_hz <= MAX_RATE_HZ),
        ("gap", 0 <= p.gap <= MAX_STEPS),
        ("lateness_s", 0 <= p.lateness_s <= 3600 and p.lateness_s * p.rate_hz <= MAX_STEPS),
        ("mean: one number, or one a channel", len(p.mean) in {0, 1, p.channels} or not p.channels),
        ("std: one number, or one a channel", len(p.std) in {0, 1, p.channels} or not p.channels),
        ("std: above 0", min(p.std, default=1.0) > 0),
    )


def sound_rules(p: SoundPreparation, least: int) -> tuple[tuple[str, bool], ...]:
    """List (key, whether its value is possible). `least`: of the sizes."""
    top = p.high_hz or p.rate_hz / 2
    numbers = (p.low_hz, p.high_hz, p.floor, p.mean, p.std)
    return (
        ("rate_hz", 1000 <= p.rate_hz <= 384_000),
        ("fft", 16 <= p.fft <= 1 << 16),
        ("step", 1 <= p.step <= p.fft),
        ("mels", least <= p.mels <= min(MAX_CHANNELS, p.fft)),
        ("frames", least <= p.frames and p.frames * p.step + p.fft <= MAX_STEPS * 8),
        ("hop", 0 <= p.hop <= MAX_STEPS * 8),
        ("low_hz, high_hz, floor, mean or std: a number", all(map(math.isfinite, numbers))),
        ("low_hz and high_hz: rising, up to half the rate", 0 <= p.low_hz < top <= p.rate_hz / 2),
        ("floor: above 0", p.floor > 0),
        ("std: above 0", p.std > 0),
        ("centred: more frames", not p.centred or not p.frames or (p.frames - 1) * p.step > p.fft // 2),
    )  # fmt: skip


def signal_shape(p: SignalPreparation) -> tuple[int, ...]:
    """Shape of a prepared signal, without the batch axis."""
    match p.order:
        case SignalOrder.CT:
            return p.channels, p.window
        case SignalOrder.PLANE:
            return 1, p.channels, p.window
        case SignalOrder.TC:
            return p.window, p.channels
        case SignalOrder.T:
            return (p.window,)
    return (p.window * p.channels,)


def sound_shape(p: SoundPreparation) -> tuple[int, ...]:
    """Shape of prepared sound, without the batch axis."""
    match p.order:
        case SoundOrder.MT:
            return p.mels, p.frames
        case SoundOrder.TM:
            return p.frames, p.mels
    return 1, p.mels, p.frames


def complete_signal(p: SignalPreparation, shape: tuple[int, ...]) -> SignalPreparation:
    """The preparation with the sizes that it leaves to the model, whose input has this shape."""
    channels, window = p.channels, p.window
    if p.order is SignalOrder.PLANE and len(shape) == 3:
        channels, window = channels or shape[1], window or shape[2]
    elif len(shape) == 2 and p.order in (SignalOrder.CT, SignalOrder.TC):
        axis = 0 if p.order is SignalOrder.CT else 1
        channels, window = channels or shape[axis], window or shape[1 - axis]
    elif len(shape) == 1:
        channels = channels or 1
        window = window or shape[0] // channels
    return msgspec.structs.replace(p, channels=channels, window=window)


def complete_sound(p: SoundPreparation, shape: tuple[int, ...]) -> SoundPreparation:
    """As `complete_signal`, for sound."""
    sides = shape[1:] if p.order is SoundOrder.CMT else shape
    if len(sides) != 2:
        return p
    mels, frames = reversed(sides) if p.order is SoundOrder.TM else sides
    return msgspec.structs.replace(p, mels=p.mels or mels, frames=p.frames or frames)
