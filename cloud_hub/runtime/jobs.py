"""The jobs of a hub: its runner, and the desk that the web API asks, over the hub's own store and queues."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from cloud_hub.core.replica_scaling import ReplicaScaling
from cloud_hub.database.errors import log_fault
from cloud_hub.jobs.decisions import JobSettings
from cloud_hub.jobs.desk import JobDesk, JobReader
from cloud_hub.jobs.runner import JobRunner
from cloud_hub.jobs.sealing import JobVault
from cloud_hub.jobs.webhooks import HookRunner, HttpHooks
from cloud_hub.llm.job_computing import LanguageComputer
from cloud_hub.llm.service import LanguageModels
from cloud_hub.region.shared_files import SharedFiles
from cloud_hub.region.vault import KEY_BYTES, RegionVault
from cloud_hub.runtime.config import HubConfig
from cloud_hub.serving.job_computing import QueuedComputer
from cloud_hub.serving.web_inference import WebInference
from cloud_hub.storage.gateway import StoreGateway
from wire.process.logging import JsonLog

BACKLOG_S = 5.0  # how late scaling hears of jobs that wait


class JobServices(msgspec.Struct, frozen=True):
    """What a hub is given for its jobs. `vault` None: bodies are sealed under a key that ends with the process."""

    vault: JobVault | None = None
    settings: JobSettings = JobSettings()
    hub: str = "hub"  # its name, as events say where they come from


def open_job_services(config: HubConfig, keys: Path, shared: SharedFiles | None) -> JobServices:
    """Open the key of bodies: the region's, or this hub's own in its folder of keys. ExitError if it is none."""
    return JobServices(
        JobVault(shared.vault) if shared else JobVault.open(keys), config.jobs.job_settings(), config.hub.name
    )


class HubJobs:
    """Runs the jobs of a hub, and takes new ones. `url`: of the questions' database; `now`: hub time in seconds."""

    def __init__(
        self,
        store: StoreGateway,
        inference: WebInference,
        url: str,
        *,
        models: LanguageModels,
        services: JobServices,
        now: Callable[[], float],
        log: JsonLog,
    ) -> None:
        vault = services.vault or JobVault(RegionVault(secrets.token_bytes(KEY_BYTES)))
        self._runner = JobRunner(
            store=store,
            computer=LanguageComputer(models, QueuedComputer(inference)),
            vault=vault,
            settings=services.settings,
            now=now,
            log=log,
        )
        sender = HttpHooks(inwards=services.settings.webhooks_inwards)
        self._hooks = HookRunner(store, sender, vault, services.hub, now)
        runners = self._runner, self._hooks
        self._inference, self._log = inference, log
        self._scaling: ReplicaScaling | None = None
        self.desk = JobDesk(store, runners, JobReader(url), vault, lambda: int(now() * 1000))

    @property
    def counts(self) -> Counter[str]:
        """What was done, by name."""
        return self._runner.counts + self._hooks.counts

    def follow_backlog(self, scaling: ReplicaScaling) -> None:
        """Tell scaling of the jobs that wait in the database, while this runs, if any model is scaled."""
        self._scaling = None if scaling.is_empty else scaling

    def drain(self) -> None:
        """Begin no more jobs."""
        self._runner.drain()

    async def settle(self, within_s: float) -> None:
        """Wait until what is in hand has ended or was given back."""
        await self._runner.settle(within_s)

    async def _tell_backlog(self, scaling: ReplicaScaling) -> None:
        """Tell scaling how many jobs wait in the database here, by model, until cancelled."""
        while True:
            try:
                scaling.on_backlog(self._name_versions(await self.desk.count_waiting()))
            except SQLAlchemyError as error:
                log_fault(self._log, "jobs_uncounted", error)
            await asyncio.sleep(BACKLOG_S)

    def _name_versions(self, waiting: Mapping[str, int]) -> Counter[str]:
        """Jobs by the version that would compute them now."""
        found: Counter[str] = Counter()
        for model, count in waiting.items():
            card = self._inference.card_for(model)
            if card is not None:
                found[card.name] += count
        return found

    async def run(self) -> None:
        """Run jobs until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._runner.run(), name="jobs")
                group.create_task(self._hooks.run(), name="jobs-webhooks")
                if self._scaling is not None:
                    group.create_task(self._tell_backlog(self._scaling), name="jobs-backlog")
        finally:
            self.desk.close()
