"""Interfaces of a simulated region for its nodes: time, conditions, counters, message transport, core classes."""

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
    """Classes of the production cores and of the disk twins; tests replace one to plant a defect that must be found."""

    edge: type[EdgeCore] = EdgeCore
    hub: type[HubCore] = HubCore
    disk: type[DeviceDisk] = DeviceDisk
    hub_disk: type[HubDisk] = HubDisk


class Regressed(msgspec.Struct, frozen=True):
    """A model head that is wrong in a share `amount` of its answers, as confident as ever.

    `label`: only for samples of this class, if >= 0. `tail`: the hub's half of it is wrong alike, so that both
    agree.
    """

    amount: float
    label: int = -1
    tail: bool = False


class Trial(Protocol):
    """What a device counts for a rollout, sample by sample."""

    def answers(self, said: tuple[int, int, int], sure: float, luck: float) -> tuple[int, int, int]:
        """Labels of device and hub for a sample, and the committed head's label if it is audited (else -1)."""

    def verdict(self, sampled: Sampled) -> None:
        """The hub's verdict for a sampled question has arrived."""


class RegionServices(Protocol):
    """One region, as its nodes see it.

    `rng`, `dice`: random generators of this region alone. `zero_s`: hub time at virtual time 0.
    """

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
    def brokers(self) -> dict[str, connections.Broker]:
        """Brokers by line name, those of other regions included."""

    @property
    def upset(self) -> bool:
        """Whether a storm makes devices less confident than the model would be."""

    def hub_now(self) -> float:
        """Hub time in seconds since 1970."""

    def line_of(self, hub: str) -> str:
        """Name of the line that leads to a hub."""

    def around(self, *, metered: bool) -> Context:
        """Policy context of a device at this moment."""

    def confidence(self, number: int, drawn: float) -> float:
        """Confidence of a device in a sample: as drawn, or below the threshold during a storm."""

    def send(self, key: Key, line: str, channel: Channel, frame: bytes) -> None:
        """Send a frame of a device to the hub of a line."""

    def reply(self, hub: str, device: str, frame: bytes) -> None:
        """Send a frame of a hub to a device."""

    def effect(self, hub: str, key: Key) -> None:
        """A hub stored the verdict of this question."""

    def undone(self, hub: str, key: Key) -> None:
        """A hub lost a stored verdict by a restored backup."""

    def ended(self, key: Key) -> None:
        """A device has recorded the outcome of this question."""
