"""Opens the rollouts of a hub: their store, their controller, the bundles they assign and the fleet they are for."""

from collections.abc import Callable, Iterable, Mapping

from cloud_hub.core.web_requests import InferRefusedError
from cloud_hub.database.changes import Topic
from cloud_hub.region.lease_keeper import does_task
from cloud_hub.region.leases import RegionTask
from cloud_hub.region.membership import NewsReader
from cloud_hub.registry.registry import Registry
from cloud_hub.repository.repository import Repository
from cloud_hub.rollout.catalog import BundleTargets
from cloud_hub.rollout.controller import RolloutController
from cloud_hub.rollout.dependencies import RolloutDependencies, SteadyClock
from cloud_hub.rollout.store import RolloutStore
from cloud_hub.runtime.hub import Hub
from policies.rollout_rules.plan import FleetMember
from wire.process.logging import JsonLog


def open_rollouts(
    hub: Hub, registry: Registry, grounds: tuple[str, Repository], log: JsonLog
) -> tuple[RolloutController, BundleTargets]:
    """Open the rollouts (`grounds`: the URL of their database first) and attach a controller to the hub.

    The caller starts its `run`. Of a region's hubs the one that does `RegionTask.ROLLOUTS` decides.

    ExitError(DATABASE) if it cannot be read.
    """
    where, repository = grounds

    def members() -> Iterable[FleetMember]:
        active = (each for each in registry.devices() if each.active)
        return [FleetMember(each.id, each.device_class, each.region, each.tenant) for each in active]

    def speaking(model: str) -> Mapping[str, int]:
        try:
            return hub.versions.devices_using(model, hub.now_ms())
        except InferRefusedError:
            return {}

    catalog = BundleTargets(repository, speaking, hub.now_ms)
    store = RolloutStore.open(where)
    desk = RolloutDependencies(
        tell=hub.voice.publish_note,
        seen=hub.voice.acknowledge_report,
        members=members,
        check=catalog.check_plan,
        words=log,
        decides=decide_here(hub),
    )
    rollouts = RolloutController(store, desk, SteadyClock(store.newest_ms() / 1000, lambda: hub.now_ms() / 1000))
    hub.voice.attach_rollouts(rollouts)
    return rollouts, catalog


def decide_here(hub: Hub) -> Callable[[], bool] | None:
    """Whether a hub of a region decides at present: it has the task, and a link to the broker. None of one alone.

    Without a link its decisions would be written and sent to nobody. Once it has one again it takes all rollouts up
    anew, and sends again what may have been lost with the link before.
    """
    if hub.leases is None:
        return None
    return lambda: hub.voice.is_connected and does_task(hub.leases, RegionTask.ROLLOUTS)


def follow_changes(rollouts: RolloutController) -> NewsReader:
    """Have a hub read the rollouts again when another one has changed them."""
    return NewsReader(
        Topic.ROLLOUTS, lambda _rows, _ids: None, lambda _none, _revision: rollouts.on_changed_elsewhere()
    )
