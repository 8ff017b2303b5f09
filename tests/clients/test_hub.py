"""A hub's own routes through the client, blocking and on asyncio: jobs, batches, devices, models, rollouts, costs."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

import skerry_client
from cloud_hub.database.parts import DatabaseUrls
from cloud_hub.engine.base import EchoEngine, WorkItem
from cloud_hub.jobs.decisions import JobSettings
from cloud_hub.registry.access import Scope
from cloud_hub.storage.costs import CostEntry
from skerry_client import JobOptions, JobState
from tests.clients.calls import HUBS, KINDS, call, take
from tests.cloud_hub.api.test_rollouts import published  # noqa: F401 - a fixture, of the next one
from tests.cloud_hub.api.test_rollouts import site as rollout_site  # noqa: F401 - a fixture
from tests.cloud_hub.doubles.api_site import DEVICE, Site
from tests.cloud_hub.doubles.devices import CARD
from tests.cloud_hub.doubles.job_site import PATIENCE_S, POISON, job_site
from tests.examples import mark_further
from wire.protocol.messages import Prediction

SAMPLE = np.arange(10, dtype=np.float32) / 10


@pytest.fixture(params=mark_further(KINDS, ["blocking"]))
def kind(request):
    return request.param


@asynccontextmanager
async def client_of(kind: str, site: Site, key: dict[str, str] | None = None) -> AsyncIterator[Any]:
    token = (key or site.admin)["Authorization"].removeprefix("Bearer ")
    client = HUBS[kind](site.url, token=token)
    try:
        yield client
    finally:
        await call(client.close)


@asynccontextmanager
async def job_hub(
    kind: str, folder: Path, settings: JobSettings | None = None, engine: EchoEngine | None = None
) -> AsyncIterator[Any]:
    """A client with a tenant's key of a hub that has jobs for the model `echo`, and says what that takes."""
    async with job_site(folder, DatabaseUrls(folder), settings, engine=engine) as site:
        site.api.hub.engines[CARD.name] = EchoEngine(CARD)
        async with client_of(kind, site.api, site.key) as hub:
            yield hub


class HeldEngine(EchoEngine):
    """One that computes in a thread, and none of whose batches ends while `free` is clear."""

    inline = False

    def __init__(self) -> None:
        super().__init__(CARD, poison=POISON)
        self.free = Event()
        self.free.set()

    def infer(self, batch: Sequence[WorkItem]) -> list[Prediction]:
        assert self.free.wait(PATIENCE_S)
        return super().infer(batch)


@pytest.fixture
async def plain(tmp_path):
    site = await Site(tmp_path).open()
    yield site
    await site.close()


async def test_a_job_is_handed_over_and_come_back_for(kind, tmp_path):
    async with job_hub(kind, tmp_path) as hub:
        job = await call(hub.jobs.submit, "echo", SAMPLE, key="order-17", options=JobOptions(timeout_s=60))
        again = await call(hub.jobs.submit, "echo", SAMPLE, key="order-17", options=JobOptions(timeout_s=60))
        assert again.id == job.id
        ended = await call(hub.jobs.wait, job)
        assert (ended.state, ended.ended, ended.tenant) == (JobState.ANSWERED, True, "acme")
        assert ended.predictions[0].label == 9
        assert [each.id for each in await take(9, hub.jobs.list(state="answered"))] == [job.id]
        assert await take(9, hub.jobs.list(state=["dead", "failed"])) == []
        with pytest.raises(skerry_client.ConflictError, match="ended already"):
            await call(hub.jobs.cancel, job)
        with pytest.raises(skerry_client.UnprocessableEntityError):
            await call(hub.jobs.submit, "echo", SAMPLE[::-1].copy(), key="order-17")
        with pytest.raises(skerry_client.NotFoundError):
            await call(hub.jobs.get, "no-such-job")
        with pytest.raises(skerry_client.NotFoundError):
            await call(hub.jobs.submit, "nobody", SAMPLE)
        with pytest.raises(skerry_client.SampleError):
            await call(hub.jobs.submit, "echo", SAMPLE[:3])


async def test_a_dead_job_is_queued_again_and_a_wait_has_an_end(kind, tmp_path):
    engine = HeldEngine()
    async with job_hub(kind, tmp_path, JobSettings(tries=1), engine) as hub:
        poisoned = await call(hub.jobs.submit, "echo", np.frombuffer(POISON * 5, np.float32))
        dead = await call(hub.jobs.wait, poisoned.id)
        assert (dead.state, dead.predictions) == (JobState.DEAD, ())
        engine.free.clear()  # no try ends from here on: the job cannot be dead again before the wait looks
        again = await call(hub.jobs.requeue, dead)
        assert not again.ended
        with pytest.raises(skerry_client.APITimeoutError, match="ask again, or cancel it"):
            await call(hub.jobs.wait, again, wait_s=0.0)
        engine.free.set()
        assert (await call(hub.jobs.wait, again)).state == JobState.DEAD


async def test_a_batch_is_handed_over_and_its_answers_come_in_order(kind, tmp_path):
    async with job_hub(kind, tmp_path) as hub:
        samples = [SAMPLE / (number + 1) for number in range(5)]
        labels = [each.label for each in EchoEngine(CARD).infer([WorkItem(raw=sample) for sample in samples])]
        batch = await call(hub.batches.submit, "echo", samples, key="night-17")
        ended = await call(hub.batches.wait, batch)
        assert (ended.lines, ended.ended, ended.jobs["answered"]) == (5, 5, 5)
        answers = await take(99, hub.batches.answers(batch))
        assert [answer.line for answer in answers] == [1, 2, 3, 4, 5]
        assert [answer.predictions[0].label for answer in answers] == labels
        assert [answer.line for answer in await take(99, hub.batches.answers(batch.id, after=3))] == [4, 5]
        with pytest.raises(skerry_client.ConflictError):
            await call(hub.batches.cancel, batch)


async def test_devices_are_invited_listed_and_changed(kind, plain):
    await plain.enrolled(DEVICE)
    async with client_of(kind, plain) as hub:
        [device] = await call(hub.devices.list)
        assert (device.device, device.state, device.online) == (DEVICE, "active", True)
        assert (await call(hub.devices.set_state, DEVICE, "suspended")).state == "suspended"
        assert (await call(hub.devices.get, DEVICE)).state == "suspended"
        invite = await call(hub.devices.invite, "demo--cam-2", expires_s=60, device_class="camera")
        assert invite.device == "demo--cam-2"
        with pytest.raises(skerry_client.NotFoundError):
            await call(hub.devices.get, "demo--nobody")
        with pytest.raises(skerry_client.BadRequestError):
            await call(hub.devices.set_state, DEVICE, "gone")


async def test_models_costs_status_and_readiness(kind, plain):
    plain.store.entries = [CostEntry(1, "acme", "digits", "local", "requests", 3)]
    async with client_of(kind, plain) as hub:
        versions = await call(hub.models.list)
        assert {version.model for version in versions} == {"digits@6", "digits@7"}
        with pytest.raises(skerry_client.NotFoundError):
            await call(hub.models.retire, "digits@5")
        bill = await call(hub.costs, days=400)
        assert bill.total is None
        with pytest.raises(skerry_client.BadRequestError, match="days is a whole number"):
            await call(hub.costs, days=0)
        assert (await call(hub.status))["hub"] == "hub-1"
        assert await call(hub.ready)
        plain.hub.facts["draining"] = True
        assert not await call(hub.ready)


async def test_a_key_does_what_its_scope_allows_and_no_more(kind, plain):
    async with client_of(kind, plain, plain.key("acme", Scope.READ)) as hub:
        assert await call(hub.devices.list) == ()
        with pytest.raises(skerry_client.PermissionDeniedError):
            await call(hub.devices.invite, "acme--cam-1")
    client = HUBS[kind](plain.url)
    with pytest.raises(skerry_client.AuthenticationError):
        await call(client.devices.list)
    await call(client.close)


async def test_a_rollout_is_started_watched_and_ended(kind, rollout_site):  # noqa: F811
    async with client_of(kind, rollout_site) as hub:
        made = await call(hub.rollouts.start, "echo@3", to="class=door", rules={"waves": ["1"]})
        assert (made.family, made.target.version, made.back.version) == ("echo", 3, 2)
        assert [each.id for each in await call(hub.rollouts.list)] == [made.id]
        await rollout_site.until(made.id, "running")
        assert (await call(hub.rollouts.pause, made.id, "look")).state == "paused_manual"
        assert (await call(hub.rollouts.resume, made.id)).state == "running"
        assert "queued" in {device.state for device in await call(hub.rollouts.devices, made.id)}
        with pytest.raises(skerry_client.ConflictError):
            await call(hub.rollouts.approve, made.id, "no such plan")
        assert (await call(hub.rollouts.abort, made.id, "no")).state == "aborting"
        history = await call(hub.rollouts.history, made.id)
        assert ("started", "admin") in [(step.what, step.by) for step in history]
        with pytest.raises(skerry_client.NotFoundError):
            await call(hub.rollouts.get, "r-none")
        with pytest.raises(skerry_client.APIStatusError):
            await call(hub.rollouts.undo, made.id)
