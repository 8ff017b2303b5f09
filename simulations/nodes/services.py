"""Interfaces of a simulated region for its nodes: time, conditions, counters, message transport, core classes."""

from random import Random
from typing import NamedTuple, Protocol

import msgspec
from numpy.random import Generator

from cloud_hub.core.commands import QuestionKey
from cloud_hub.core.core import HubCore
from cloud_hub.rollout.dispatch import GateFunction
from edge_agent.question.commands import CoreSetup
from edge_agent.question.decide import EdgeCore
from edge_agent.question.seal import InboundVerifier
from edge_agent.update.machine import InstallMachine
from policies.model.context import DecisionContext
from policies.model.policy import Policy
from policies.rollout_rules.gate import evaluate_gate
from simulations.checking.history import HistoryChecker
from simulations.kernel.kernel import Kernel
from simulations.kernel.world import SimulationDelays
from simulations.nodes import connections
from simulations.nodes.device_disk import DeviceDisk, SampleTruth
from simulations.nodes.hub_disk import HubDisk
from simulations.nodes.recorder import RegionRecorder
from simulations.nodes.registry import SimulatedRegistry
from simulations.scenario.conditions import ConditionSampler, EnvironmentConditions
from simulations.scenario.types import Scenario
from wire.protocol.messages import ModelRef
from wire.protocol.topics import TopicChannel


class CoreClasses(NamedTuple):
    """The production cores, disk twins and quality gate; tests replace one to plant a defect that must be found.

    `install`, `orders`: of the devices of a rollout, the install machine and what verifies assignments.
    """

    edge: type[EdgeCore] = EdgeCore
    hub: type[HubCore] = HubCore
    disk: type[DeviceDisk] = DeviceDisk
    hub_disk: type[HubDisk] = HubDisk
    gate: GateFunction = evaluate_gate
    install: type[InstallMachine] = InstallMachine
    orders: type[InboundVerifier] = InboundVerifier


class ModelRegression(msgspec.Struct, frozen=True):
    """A model head that is wrong in a share `amount` of its answers, as confident as ever.

    `label`: only for samples of this class, if >= 0. `tail`: the hub's half of it is wrong alike, so that both
    agree.
    """

    amount: float
    label: int = -1
    tail: bool = False


class RolloutTrial(Protocol):
    """What a device counts for a rollout, sample by sample."""

    def apply_candidate(self, said: tuple[int, int, int], sure: float, luck: float) -> tuple[int, int, int]:
        """Labels of device and hub for a sample, and the committed head's label if it is audited (else -1)."""

    def on_verdict(self, sampled: SampleTruth) -> None:
        """The hub's verdict for a sampled question has arrived."""


class RegionServices(Protocol):
    """One region, as its nodes see it.

    `rng`, `dice`: random generators of this region alone. `zero_s`: hub time at virtual time 0.
    """

    scenario: Scenario
    cores: CoreClasses
    seed: int
    zero_s: float
    kernel: Kernel
    dice: Random
    rng: Generator
    climate: EnvironmentConditions
    weather: ConditionSampler
    pace: SimulationDelays
    recorder: RegionRecorder
    judge: HistoryChecker
    policy: Policy | None
    registry: SimulatedRegistry
    model: ModelRef
    model_name: str
    metered_share: float
    classes: tuple[str, ...]
    setup: CoreSetup
    max_age_s: float

    @property
    def brokers(self) -> dict[str, connections.BrokerState]:
        """Brokers by line name, those of other regions included."""

    @property
    def has_storm(self) -> bool:
        """Whether a storm makes devices less confident than the model would be."""

    def hub_now(self) -> float:
        """Hub time in seconds since 1970."""

    def line_of(self, hub: str) -> str:
        """Name of the line that leads to a hub."""

    def build_context(self, *, metered: bool) -> DecisionContext:
        """Policy context of a device at this moment."""

    def confidence_of(self, number: int, drawn: float) -> float:
        """Confidence of a device in a sample: as drawn, or below the threshold during a storm."""

    def send_up(self, key: QuestionKey, line: str, channel: TopicChannel, frame: bytes) -> None:
        """Send a frame of a device to the hub of a line."""

    def send_down(self, hub: str, device: str, frame: bytes, delays: tuple[float, ...] | None = None) -> None:
        """Send a frame of a hub to a device. `delays`: after which it arrives; None = drawn now."""

    def on_effect(self, hub: str, key: QuestionKey) -> None:
        """A hub stored the verdict of this question."""

    def on_undone(self, hub: str, key: QuestionKey) -> None:
        """A hub lost a stored verdict by a restored backup."""

    def on_ended(self, key: QuestionKey) -> None:
        """A device has recorded the outcome of this question."""
