"""What all parts of a simulated fleet share: virtual time, weather, dice, the judge of the history, the set-up."""

from dataclasses import dataclass, field
from random import Random

import msgspec

from edge_agent.commands import OutboxLimits, Setup
from policies.document import parse
from policies.locality import HubSite
from policies.policy import Mode, Policy
from simulations.air import Air
from simulations.check import Judge
from simulations.kernel import Kernel
from simulations.weather import Weather
from wire.messages import DType, FieldSpec, Level, ModelRef, Tensor

HUB_ZERO_S = 1_700_000_000.0  # hub time when virtual time is 0
FRAME_BYTES = 320
MODEL = ModelRef("sim", 1, "cut", "pack8")
SITE = HubSite("hub-1", "local")
FEATURES = FieldSpec("features", DType.UINT8, (16,), 0.0, 15.0, Level.P1, "features")
SAMPLE = Tensor(DType.UINT8, (16,), bytes(range(16)))


class Pace(msgspec.Struct, frozen=True):
    """How fast things go: samples of each device, commits, and the hub's batches."""

    samples_per_s: float = 0.1
    commit_s: float = 0.005
    infer_s: float = 0.004


@dataclass
class World:
    """`dice` are the loops' random numbers."""

    kernel: Kernel
    weather: Weather
    dice: Random
    judge: Judge
    air: Air
    policy: Policy
    pace: Pace
    setup: Setup = field(default_factory=lambda: Setup((FEATURES,), (SITE,), FRAME_BYTES, OutboxLimits()))

    def hub_now(self) -> float:
        return HUB_ZERO_S + self.kernel.now


def policy(mode: Mode, version: int = 1, *, leaves: bool = True) -> Policy:
    """A policy that lets the features of class `open` leave, unless `leaves` is False; never those of another class."""
    text = _POLICY.format(version=version, mode=mode, leaves=str(leaves).lower(), site=SITE, field=FEATURES.name)
    return parse(text).compile()


_POLICY = """
schema = 2
name = "sim"
version = {version}
issued = 2020-01-01
expires = 2099-12-31
escalation = {{ mode = "{mode}", threshold = 0.8, audit_share = 0.01, budget_s = 2.0 }}
locality = {{ hubs = ["{site.name}"], regions = ["{site.region}"] }}
budget = {{ bytes_per_day = 1_000_000_000 }}
retention = {{ purpose = "simulation" }}
[egress]
ceiling = "P2"
field = [{{ name = "{field}", level = "P2" }}]
data_class = {{ open = {leaves}, private = false }}
"""
