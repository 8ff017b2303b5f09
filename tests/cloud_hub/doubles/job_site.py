"""A hub with its web API and jobs, on either database; the link is in memory, the store is real."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cloud_hub.database.parts import DatabaseUrls
from cloud_hub.engine.base import EchoEngine, Engine
from cloud_hub.jobs.decisions import JobSettings
from cloud_hub.jobs.sealing import JobVault
from cloud_hub.registry.access import Scope
from cloud_hub.runtime.hub import Hub
from cloud_hub.runtime.jobs import JobServices
from cloud_hub.runtime.services import HubServices
from tests.cloud_hub.doubles import api_site
from tests.cloud_hub.doubles.devices import CARD
from tests.cloud_hub.doubles.site import Site
from wire.process.logging import JsonLog

POISON = b"\x0d" * 8
POISONED = 4.4441856e-31  # as float32 its four bytes are 0x0d, ...
PATIENCE_S = 60.0


class JobHub(Site):
    """A hub with jobs. `job_settings`: theirs."""

    def __init__(self, folder: Path, urls: DatabaseUrls, job_settings: JobSettings, **settings: Any) -> None:
        engine: Engine = settings.pop("engine", None) or EchoEngine(CARD, poison=POISON)
        super().__init__(folder, engine=engine, database_url=urls.questions, **settings)
        self._jobs = JobServices(JobVault.open(folder), job_settings)

    def make_hub(self) -> Hub:
        return self.build_hub(HubServices(JsonLog(self.log), jobs=self._jobs))


class JobSite:
    """The hub, its API, and a client with a tenant's key."""

    def __init__(self, folder: Path, urls: DatabaseUrls, job_settings: JobSettings, **settings: Any) -> None:
        self.folder = folder
        self.site = JobHub(folder, urls, job_settings, **settings)
        self.api: api_site.Site

    async def open(self) -> "JobSite":
        hub = await self.site.start()
        self.api = await api_site.Site(self.folder, max_body_bytes=16_384, jobs=hub.jobs.desk).open()
        self.key = self.api.key("acme", Scope.INFER)
        return self

    async def close(self, *, kill: bool = False) -> None:
        await self.api.close()
        if kill:
            await self.site.kill()
        else:
            await self.site.stop()

    async def ask(self, method: str, path: str, key: dict[str, str] | None = None, **options: Any) -> tuple[int, Any]:
        headers = {**(self.key if key is None else key), **options.pop("headers", {})}
        return await self.api.ask(method, path, headers=headers, **options)

    async def submit(self, *values: float, **changes: Any) -> str:
        """Hand over a job of one sample; its id."""
        status, told = await self.ask("POST", "/v1/jobs", json=job_body(*values, **changes))
        assert status == 202, told
        return str(told["id"])

    async def ended(self, job_id: str, key: dict[str, str] | None = None) -> dict[str, Any]:
        """Wait until a job has ended."""
        return await self.until(job_id, ["answered", "failed", "cancelled", "expired", "dead"], key)

    async def until(self, job_id: str, states: list[str], key: dict[str, str] | None = None) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                status, told = await self.ask("GET", f"/v1/jobs/{job_id}", key)
                assert status == 200, told
                if told["state"] in states:
                    return dict(told)
                await asyncio.sleep(0.01)


def job_body(*values: float, **changes: Any) -> dict[str, Any]:
    """A job of one sample of the echo model; what is not said is 0."""
    data = [*values, *[0.0] * (10 - len(values))]
    tensor = {"name": CARD.input.name, "datatype": "FP32", "shape": [1, 10], "data": data}
    return {"model": "echo", "request": {"inputs": [tensor]}, **changes}


@asynccontextmanager
async def job_site(
    folder: Path, urls: DatabaseUrls, job_settings: JobSettings | None = None, **settings: Any
) -> AsyncIterator[JobSite]:
    site = await JobSite(folder, urls, job_settings or JobSettings(), **settings).open()
    try:
        yield site
    finally:
        await site.close()
