"""Turbofan engines of NASA's C-MAPSS set: how many cycles are left? Split by engine."""

from functools import cache

from torch import nn

from models.forge.data.types import Data
from models.zoo.cmapss import TurbofanNet
from models.zoo.datasets import load_turbofans
from models.zoo.training import SignalTraining, load_or_train

PLAN = SignalTraining(epochs=12, batch=256, peak=3e-3, noise=0.1, unit=125.0)


@cache
def samples() -> Data:
    """Windows `[n, 60, 15]` of sensors, cycles left, engine: 80 engines to learn from, 20 to calibrate, 100 more."""
    return load_turbofans()


def build_model() -> nn.Module:
    """The network, trained once and kept in the zoo's cache."""
    return load_or_train("example-factory", _normalised_net, (PLAN,), samples)


def _normalised_net() -> nn.Module:
    net = TurbofanNet()
    x = samples().training.x[0]
    net.set_scale(x.reshape(-1, x.shape[-1]))
    return net
