"""What devices, the fleet and hubs get from the simulated region they are in: time, weather, records, and a way out."""

from random import Random
from typing import NamedTuple, Protocol

import msgspec
from numpy.random import Generator

from cloud_hub.core.commands import Key
from cloud_hub.core.core import HubCore
from edge_agent.core.commands import Setup
from edge_agent.core.core import EdgeCore
from policies.model.context import Context
from policies.model.policy import Policy
from simulations.checking.history import Judge
from simulations.kernel.kernel import Kernel
from simulations.kernel.world import Pace
from simulations.nodes import connections
from simulations.nodes.device_disk import DeviceDisk, Sampled
from simulations.nodes.hub_disk import HubDisk
from simulations.nodes.recorder import Recorder
from simulations.nodes.registry import SimulatedRegistry
from simulations.scenario.conditions import Climate, Weather
from simulations.scenario.types import Scenario
from wire.protocol.messages import ModelRef
from wire.protocol.topics import Channel


class Cores(NamedTuple):
    """The production cores and their stores' twins: a seam to plant defects in, which must be found."""

    edge: type[EdgeCore] = EdgeCore
    hub: type[HubCore] = HubCore
    disk: type[DeviceDisk] = DeviceDisk
    hub_disk: type[HubDisk] = HubDisk


class Regressed(msgspec.Struct, frozen=True):
    """A head that is wrong in a share `amount` of its answers, as sure as ever; of class `label` alone if >= 0.

    `tail`: the hub's half of it is wrong alike, so that both agree.
    """

    amount: float
    label: int = -1
    tail: bool = False


class Trial(Protocol):
    """What a device counts for a rollout, sample by sample."""

    def answers(self, said: tuple[int, int, int], sure: float, luck: float) -> tuple[int, int, int]: ...
    def verdict(self, sampled: Sampled) -> None: ...


class RegionServices(Protocol):
    """One region, as its nodes see it. `rng`, `dice`: of this region alone; `zero_s`: hub time at virtual time 0."""

    scenario: Scenario
    cores: Cores
    seed: int
    zero_s: float
    kernel: Kernel
    dice: Random
    rng: Generator
    climate: Climate
    weather: Weather
    pace: Pace
    recorder: Recorder
    judge: Judge
    policy: Policy | None
    registry: SimulatedRegistry
    model: ModelRef
    model_name: str
    metered_share: float
    classes: tuple[str, ...]
    setup: Setup
    max_age_s: float

    @property
    def brokers(self) -> dict[str, connections.Broker]: ...
    @property
    def upset(self) -> bool: ...
    def hub_now(self) -> float: ...
    def line_of(self, hub: str) -> str: ...
    def around(self, *, metered: bool) -> Context: ...
    def confidence(self, number: int, drawn: float) -> float: ...
    def send(self, key: Key, line: str, channel: Channel, frame: bytes) -> None: ...
    def reply(self, hub: str, device: str, frame: bytes) -> None: ...
    def effect(self, hub: str, key: Key) -> None: ...
    def undone(self, hub: str, key: Key) -> None: ...
    def ended(self, key: Key) -> None: ...
