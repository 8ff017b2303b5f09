"""The rollouts of a running hub: what they need of its devices, its update repository and its link, put together."""

from collections.abc import Iterable, Mapping

from cloud_hub.core.merging_web_requests_requests import InferRefusedError
from cloud_hub.registry.registry import Registry
from cloud_hub.repository.repository import Repository
from cloud_hub.rollout.catalog import Catalog
from cloud_hub.rollout.controller import Desk, Rollouts
from cloud_hub.rollout.store import RolloutStore
from cloud_hub.runtime.hub import Hub
from cloud_hub.system.state_folder import StateDir
from policies.rollout.merging_plan_waves import Member
from wire.process.logging import Log


def open_rollouts(
    hub: Hub, registry: Registry, grounds: tuple[StateDir, Repository], log: Log
) -> tuple[Rollouts, Catalog]:
    """ExitError(DATABASE) if they cannot be read. The link hears of them at once; `run` is the caller's to start."""
    state, repository = grounds

    def members() -> Iterable[Member]:
        active = (each for each in registry.devices() if each.active)
        return [Member(each.id, each.device_class, each.region, each.tenant) for each in active]

    def speaking(model: str) -> Mapping[str, int]:
        try:
            return hub.versions.speaking(model, hub.now_ms())
        except InferRefusedError:
            return {}

    catalog = Catalog(repository, speaking, hub.now_ms)
    store = RolloutStore.open(state.rollouts)
    rollouts = Rollouts(store, Desk(hub.voice.tell, hub.voice.seen, members, catalog.check, log))
    hub.voice.attach_rollouts(rollouts)
    return rollouts, catalog
