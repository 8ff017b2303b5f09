"""The rollouts' figures for Prometheus: how many there are in each state, their devices, and what the gate leaves open.

Rule: no label names a rollout or a family; which one it is says `skerry rollout list`.
"""

from collections import Counter as Counted
from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cloud_hub.api.interface import RolloutControl
from cloud_hub.rollout.types import PAUSED, TERMINAL, RolloutDeviceState, RolloutState
from cloud_hub.rollout.view import View

WAITING = PAUSED | {RolloutState.WAITING_APPROVAL}
STOPPED = frozenset((RolloutState.ABORTING, RolloutState.ABORTED, RolloutState.REVERTING, RolloutState.REVERTED))
RECENT_MS = 86_400_000  # a rollout that was stopped is somebody's to look at for a day


class RolloutCollector(Collector):
    """`desk` None: a hub without rollouts shows zeros."""

    def __init__(self, desk: RolloutControl | None, now_ms: Callable[[], int]) -> None:
        self._desk = desk
        self._now_ms = now_ms

    def collect(self) -> Iterator[GaugeMetricFamily]:
        views = self._desk.views() if self._desk else ()
        under_way = [view for view in views if view.state not in TERMINAL]
        yield _counted("skerry_hub_rollouts", "Rollouts under way.", RolloutState, Counted(v.state for v in under_way))
        devices: Counted[str] = Counted()
        for view in under_way:
            devices.update(view.states)
        yield _counted("skerry_hub_rollout_devices", "Devices of rollouts under way.", RolloutDeviceState, devices)
        bounds = [view.gate.bound for view in under_way if view.gate is not None]
        says = "The most that a candidate under way may be worse by, as a share of answers; 0 while none is judged."
        yield GaugeMetricFamily("skerry_hub_rollout_bound", says, value=max(bounds, default=0.0))
        yield self._alarms(views)

    def _alarms(self, views: tuple[View, ...]) -> GaugeMetricFamily:
        """What a person has to look at, as `skerry_hub_alarms` for everything else."""
        since_ms = self._now_ms() - RECENT_MS
        stopped = sum(view.state in STOPPED and view.changed_ms > since_ms for view in views)
        found = GaugeMetricFamily(
            "skerry_hub_rollout_alarms", "Rollouts that a person has to look at.", labels=["alarm"]
        )
        found.add_metric(["waits"], sum(view.state in WAITING for view in views))
        found.add_metric(["stopped"], stopped)
        return found


def _counted(
    name: str, says: str, states: type[RolloutState] | type[RolloutDeviceState], counts: Counted[str]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, says, labels=["state"])
    for state in states:
        family.add_metric([state.value], counts[state.value])
    return family
