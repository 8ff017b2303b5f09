"""Motion, simulated: two seconds of a wrist's accelerometer and gyroscope, six activities, forty people who differ.

Each person has a pace, a strength and a way to wear the sensor of their own; each window its own phase, noise and
disturbances. No recording: public ones cannot be had from where the project is built.
"""

from functools import cache
from typing import cast

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from benchmarks.forge.unseen.plain_training import PlainTraining, load_or_train_plain, split_by_group
from models.forge.data.types import Data

STEPS, CHANNELS, RATE_HZ = 128, 6, 64
PEOPLE, WINDOWS = 40, 300
ACTIVITIES = ("standing", "walking", "climbing", "descending", "running", "cycling")
_PACE_HZ = (0.3, 1.8, 1.5, 1.9, 2.7, 1.2)
_STRENGTH = (0.05, 0.45, 0.4, 0.55, 1.1, 0.25)  # of gravity
_HARMONICS = ((1.0, 0.3, 0.1), (1.0, 0.6, 0.2), (1.0, 0.4, 0.35), (1.0, 0.8, 0.4), (1.0, 0.5, 0.3), (1.0, 0.2, 0.1))
_SEED = 31

Floats = npt.NDArray[np.float32]


class MotionNet(nn.Module):
    """Windows `[n, 6, 128]` -> logits `[n, 6]`: four convolutions and a mean."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((CHANNELS, width), (width, width), (width, 2 * width), (2 * width, 2 * width)):
            layers += [nn.Conv1d(inputs, outputs, 5, stride=2, padding=2), nn.BatchNorm1d(outputs), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.answer = nn.Sequential(nn.Dropout(0.3), nn.Linear(2 * width, len(ACTIVITIES)))

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.answer(self.body(x).mean(2)))


def build_model() -> nn.Module:
    """The net, trained once and kept."""
    return load_or_train_plain("motion", MotionNet, samples, PlainTraining(8))


@cache
def samples() -> Data:
    """12,000 windows `[n, 6, 128]` float32 (three axes in g, three in rad/s); no person is in two parts."""
    rng = np.random.default_rng(_SEED)
    person = np.repeat(np.arange(PEOPLE), WINDOWS)
    y = rng.integers(0, len(ACTIVITIES), len(person))
    ways = [Person(rng) for _ in range(PEOPLE)]
    x = np.stack([ways[who].move(int(what), rng) for who, what in zip(person, y, strict=True)])
    return split_by_group(x, y.astype(np.int64), person, ACTIVITIES, person=person.astype(np.int64))


class Person:
    """One person: pace, strength, how the sensor sits, and how even their steps are."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.pace, self.strength = rng.lognormal(0, 0.14), rng.lognormal(0, 0.35)
        self.turn = np.linalg.qr(np.eye(3) + 0.5 * rng.normal(size=(3, 3)))[0]
        self.uneven = rng.uniform(0.05, 0.4)
        self.axes = rng.normal(1, 0.35, (len(ACTIVITIES), 3))

    def move(self, activity: int, rng: np.random.Generator) -> Floats:
        """One window `[6, 128]` of an activity."""
        time_s = np.arange(STEPS) / RATE_HZ
        pace_hz = _PACE_HZ[activity] * self.pace * rng.lognormal(0, 0.10)
        phase = 2 * np.pi * (pace_hz * time_s + rng.random()) + np.cumsum(rng.normal(0, self.uneven / 4, STEPS))
        strength = _STRENGTH[activity] * self.strength * rng.lognormal(0, 0.25)
        swing = np.zeros((3, STEPS))
        for number, share in enumerate(_HARMONICS[activity], start=1):
            shares = share * self.axes[activity] * rng.normal(1, 0.3, 3)
            swing += strength * shares[:, None] * np.sin(number * phase + rng.normal(0, 0.6, (3, 1)))
        knock = rng.random(STEPS) < 0.01  # a bump against something
        swing += np.where(knock, rng.normal(0, 0.6, (3, STEPS)), 0.0)
        lean = rng.normal(0, 0.25, 3) + np.array((0.0, 0.0, 1.0))  # upright, as worn
        acceleration = self.turn @ (swing + lean[:, None]) + rng.normal(0, 0.12, (3, STEPS))
        rotation = 2.5 * self.turn @ np.gradient(swing, axis=1) * pace_hz + rng.normal(0, 0.25, (3, STEPS))
        return np.concatenate([acceleration, rotation]).astype(np.float32)
