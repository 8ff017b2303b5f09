"""The running agent and its updates: hints, failures as values, a model replaced while questions are open."""

import asyncio
import contextlib
import io
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from edge_agent.question.records import AnswerKind, AnswerSource, DisabledError, NoModelError
from edge_agent.system.policy_layers import PolicyStack
from edge_agent.update.installed import InstalledUpdates, read_installed
from edge_agent.update.poller import Updates, run_update_worker
from edge_agent.update.worker import run_job
from edge_agent.update.worker_protocol import PollReport, UpdateJob
from models.runtime.runner import EchoRunner, SampleError
from models.update.floors import FloorDatabase
from policies.language.document import parse_policy
from policies.model.reasons import DecisionReason
from tests import ROOT
from tests.edge_agent.doubles.hub_double import (
    DEFAULTS,
    POLICY,
    SURE,
    TRUTH,
    AgentRig,
    HubDouble,
    policy,
    sample,
    until,
)
from tests.edge_agent.doubles.updates_bench import NAMES, UpdateBench, bundle_path, make_hub_keys, open_bench
from tests.models.doubles.mirror import Faults
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.logging import JsonLog
from wire.protocol.messages import HelloNote
from wire.protocol.rollout import InstallFailure
from wire.protocol.topics import TopicChannel, build_topic
from wire.transport.base import IncomingMessage


@pytest.fixture
def device(tmp_path):
    with open_bench(tmp_path) as made:
        yield made


class ThreadedUpdates(Updates):
    """Updates whose worker is a thread of this process: no interpreter to start for each look."""

    async def run_worker(self, job: UpdateJob) -> PollReport:
        return await asyncio.to_thread(run_job, job)


@asynccontextmanager
async def updating(
    device: UpdateBench,
    rig: AgentRig,
    start: InstalledUpdates | None = None,
    standing: PolicyStack | None = None,
    kind: type[Updates] = ThreadedUpdates,
) -> AsyncIterator[tuple[Updates, io.StringIO]]:
    """The task itself, until the end of the block; it has looked once. `Updates` has a process for each look."""
    log = io.StringIO()
    updates = kind(
        device.store, NAMES, device.make_job, start or InstalledUpdates(), JsonLog(log), standing or PolicyStack()
    )
    rig.agent.add_status_provider(updates)
    task = asyncio.create_task(updates.run(rig.agent))
    await polled(updates, 1)
    try:
        yield updates, log
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def polled(updates: Updates, count: int) -> None:
    await until(lambda: updates.status_fields()["updates"]["polls"] >= count, 30)


def events(log: io.StringIO) -> list[str]:
    return [json.loads(line)["event"] for line in log.getvalue().splitlines()]


# The model is replaced


async def test_questions_in_flight_keep_their_model_and_each_ends_once(tmp_path: Path):
    hub = HubDouble(verdicts=False)
    async with AgentRig(tmp_path, policy(), hub) as rig:
        before = await rig.agent.infer(sample())
        await until(lambda: len(hub.questions) == 1)
        await rig.agent.use_bundle(EchoRunner(2, version=2))
        after = await rig.agent.infer(sample())
        await until(lambda: len(hub.questions) == 2)
        assert [question.model.version for _, _, question in hub.questions] == [1, 2]
        assert (before.prediction.model, after.prediction.model) == ("echo@1", "echo@2")
        hub.verdicts = True
        for frame, _, question in hub.questions:
            hub.send_frame(hub.seal_verdict(frame, question))
        await until(lambda: rig.open == 0)
        for record in (before, after):
            assert [r.kind for r in await rig.agent.wait(record.id, 1)] == [AnswerKind.ANSWER, AnswerKind.CORRECTION]
        assert rig.event_count("outcome_answered") == 2


async def test_the_hub_hears_which_model_answers_now(tmp_path: Path):
    async with AgentRig(tmp_path, policy()) as rig:
        await rig.agent.use_bundle(EchoRunner(2, version=2))
        await until(lambda: len([n for n in rig.hub.notes if isinstance(n, HelloNote)]) == 2)
        assert [n.models[0].version for n in rig.hub.notes if isinstance(n, HelloNote)] == [1, 2]
        assert rig.agent.status()["model"] == "echo@2"


async def test_a_slow_model_that_is_replaced_while_it_runs_gives_no_answer_of_the_old_one(tmp_path: Path):
    async with AgentRig(tmp_path, policy(), inline_infer_s=0.0) as rig:
        await rig.agent.use_bundle(EchoRunner(2, version=1))
        asked = asyncio.create_task(rig.agent.infer(sample(SURE)))
        await asyncio.sleep(0)
        await rig.agent.use_bundle(EchoRunner(2, version=2))
        assert (await asked).prediction.model in ("echo@1", "echo@2")
        assert (await rig.agent.infer(sample(SURE))).prediction.model == "echo@2"


async def test_a_model_of_another_shape_refuses_samples_of_the_old_one(tmp_path: Path):
    async with AgentRig(tmp_path, policy()) as rig:
        await rig.agent.use_bundle(EchoRunner(3, version=2))
        with pytest.raises(SampleError):
            await rig.agent.infer(sample())


async def test_without_a_model_nothing_is_guessed(tmp_path: Path):
    async with AgentRig(tmp_path, policy()) as rig:
        await rig.agent.use_bundle(None)
        assert rig.agent.manifest is None
        assert rig.agent.status()["model"] == ""
        with pytest.raises(NoModelError):
            await rig.agent.infer(sample())
        assert issubclass(NoModelError, DisabledError)
        await rig.agent.use_bundle(EchoRunner(2))
        assert (await rig.agent.infer(sample(SURE))).why is DecisionReason.CONFIDENT


# Looking


async def test_an_agent_without_anything_gets_all_of_it_by_its_first_look(device, tmp_path):
    device.publish_keys(make_hub_keys(*own_keys(HubDouble())), 2)
    device.publish_bundle(1)
    async with AgentRig(tmp_path) as rig:
        await rig.agent.use_bundle(None)
        async with updating(device, rig, kind=Updates) as (updates, log):
            status = rig.agent.status()
            assert (status["model"], status["alarms"]) == ("echo@1", [])
            assert status["policy"]
            assert status["updates"]["failures"] == []
            assert status["updates"]["refreshed_ms"] > 0
            assert events(log) == ["policy_taken", "hub_keys_taken", "model_taken"]
            with FloorDatabase(device.store / "metadata") as floors:
                assert floors.read_floors()["target/models/echo"].version == 1
            assert updates.alarms() == set()


def own_keys(hub: HubDouble) -> tuple[bytes, bytes]:
    return hub.keys.hpke_key, hub.keys.signing_key


async def test_a_hint_of_the_hub_makes_it_look_at_once(device, tmp_path):
    device.publish_bundle(1)
    async with AgentRig(tmp_path, policy()) as rig, updating(device, rig) as (updates, _):
        assert rig.agent.status()["model"] == "echo@1"
        device.publish_bundle(2)
        rig.hub.broker.publish(IncomingMessage(build_topic("demo--d1", TopicChannel.DESIRED), b""))
        await until(lambda: rig.agent.status()["model"] == "echo@2", 30)
        assert rig.event_count("hints") == 1
        await polled(updates, 2)


async def test_a_flood_of_hints_costs_a_handful_of_looks(device, tmp_path):
    async with AgentRig(tmp_path, policy()) as rig, updating(device, rig) as (updates, _):
        for number in range(2, 6):
            rig.agent.refresh()
            await polled(updates, number)
        for _ in range(1000):
            rig.hub.broker.publish(IncomingMessage(build_topic("demo--d1", TopicChannel.DESIRED), b""))
        await until(lambda: rig.event_count("hints") == 1000)  # all are heard, and no look is under way
        assert not updates.busy.locked()
        assert updates.status_fields()["updates"]["polls"] == 5


async def test_every_failure_is_a_value_and_the_agent_answers_on(device, tmp_path):
    device.publish_keys(make_hub_keys(*own_keys(HubDouble())), 2)
    device.publish_bundle(1)
    async with AgentRig(tmp_path, policy()) as rig, updating(device, rig) as (updates, log):
        device.mirror.faults = Faults(where="", status=503)
        rig.agent.refresh()
        await polled(updates, 2)
        status = rig.agent.status()
        assert status["updates"]["failures"][0].startswith("network: ")
        assert (status["model"], status["alarms"]) == ("echo@1", [])
        assert rig.event_count("updates_failure_network") == 1
        assert events(log)[-1] == "update_failed"
        assert '"failure":"network"' in log.getvalue()
        assert (await rig.agent.infer(sample_of(rig))).source is AnswerSource.LOCAL


def sample_of(rig: AgentRig) -> Any:
    assert rig.agent.manifest is not None
    return sample(np.eye(len(rig.agent.manifest.labels), dtype=np.float32)[0])


async def test_a_tampered_target_is_an_alarm_and_the_old_model_serves(device, tmp_path):
    device.publish_bundle(1)
    async with AgentRig(tmp_path, policy()) as rig, updating(device, rig) as (updates, _):
        device.publish_bundle(2)
        place = device.repo.place(device.repo.targets("models-echo").targets[bundle_path(2)])
        device.mirror.files[place] = device.mirror.files[place][:-1] + b"\x01"
        rig.agent.refresh()
        await polled(updates, 2)
        assert rig.agent.status()["alarms"] == ["update_refused"]
        assert rig.agent.status()["model"] == "echo@1"


async def test_a_device_whose_only_model_is_revoked_says_so_and_serves_none(device, tmp_path):
    device.publish_bundle(1)
    async with AgentRig(tmp_path, policy()) as rig, updating(device, rig) as (updates, log):
        device.revoke_bundle(1)
        rig.agent.refresh()
        await polled(updates, 2)
        assert rig.agent.status()["alarms"] == ["no_model", "safe_mode"]
        assert "model_revoked" in events(log)
        with pytest.raises(NoModelError):
            await rig.agent.infer(sample())
        device.publish_bundle(2)
        rig.agent.refresh()
        await polled(updates, 3)
        assert (rig.agent.status()["model"], rig.agent.status()["alarms"]) == ("echo@2", [])


async def test_a_new_hub_key_counts_only_once_it_came_by_tuf(device, tmp_path):
    """The hub was given new keys; before the repository has them a verdict under them is a stranger's."""
    hub = HubDouble(verdicts=False)
    device.publish_keys(make_hub_keys(*own_keys(hub)), 2)
    device.publish_bundle(1)
    async with AgentRig(tmp_path, policy(), hub) as rig, updating(device, rig) as (updates, _):
        asked = await rig.agent.infer(unsure_of(rig))
        await until(lambda: len(hub.questions) == 1)
        frame, _, question = hub.questions[0]
        stranger = HubDouble()
        stranger.signing = Ed25519PrivateKey.from_private_bytes(b"x" * 32)
        hub.send_frame(hub.seal_verdict(frame, question, by=stranger.signing))
        await until(lambda: rig.event_count("refused_signature") == 1)
        assert rig.open == 1
        device.publish_keys(make_hub_keys(hub.keys.hpke_key, stranger.signing.public_key().public_bytes_raw()), 3)
        rig.agent.refresh()
        await polled(updates, 2)
        hub.send_frame(hub.seal_verdict(frame, question, by=stranger.signing))
        await until(lambda: rig.open == 0)
        records = await rig.agent.wait(asked.id, 1)
        assert records[-1].prediction == TRUTH


def unsure_of(rig: AgentRig) -> Any:
    assert rig.agent.manifest is not None
    return sample(np.full(len(rig.agent.manifest.labels), 0.1, np.float32))


async def test_an_older_policy_is_not_taken_while_a_newer_one_is_in_force(device, tmp_path):
    standing = PolicyStack(published=(parse_policy(POLICY.format(**{**DEFAULTS, "version": 9})).compile_layer(),))
    newer = standing.policy
    assert newer is not None
    async with AgentRig(tmp_path, newer) as rig, updating(device, rig, standing=standing):
        assert rig.agent.status()["policy"] == newer.hash


# After a restart


async def test_what_was_installed_serves_after_a_restart_without_any_network(device, tmp_path):
    device.publish_bundle(1)
    device.run_worker()
    device.mirror.faults = Faults(where="", status=503)
    found = read_installed(device.store, NAMES)
    standing = PolicyStack(published=found.policies)
    async with AgentRig(tmp_path, standing.policy) as rig:
        await rig.agent.use_bundle(found.runner)
        async with updating(device, rig, found, standing):
            status = rig.agent.status()
            assert (status["model"], status["alarms"]) == ("echo@1", [])
            assert status["updates"]["versions"] == {"policy/test.toml": 1, "keys/local.json": 1}
            assert status["updates"]["refreshed_ms"] == 0


# The errand as a process


@pytest.mark.further
async def test_an_errand_that_finds_its_store_in_use_is_a_failure_like_any_other(device):
    device.store.mkdir()
    with FolderLock(device.store):
        report = await run_update_worker(device.make_job())
    assert (report.looked, [r.failure for r in report.refusals]) == (False, [InstallFailure.INTERNAL])


async def test_an_agent_whose_store_is_in_use_goes_on(device, tmp_path):
    async with AgentRig(tmp_path, policy()) as rig:
        device.store.mkdir()
        with FolderLock(device.store):
            async with updating(device, rig) as (updates, _):
                assert updates.alarms() == {"no_model", "update_refused"}
        assert rig.agent.status()["model"] == "echo@1"


async def test_a_job_that_cannot_be_made_is_a_failure_like_any_other(device, tmp_path):
    def job() -> UpdateJob:
        raise ExitError(ExitCode.CREDENTIALS, "root.json: gone")

    async with AgentRig(tmp_path, policy()) as rig:
        updates = Updates(device.store, NAMES, job, InstalledUpdates(), JsonLog(io.StringIO()), PolicyStack())
        await updates.poll_once(rig.agent)
        assert updates.status_fields()["updates"]["failures"] == ["internal: root.json: gone"]


async def test_an_errand_ends_when_its_agent_does(device):
    """Its standard input is ours: once that is closed it ends, whatever it waits for."""
    device.mirror.faults = Faults(where="", drip_header=True, drip_s=0.5)
    words = (sys.executable, "-m", "edge_agent.update.worker")
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, cwd=ROOT)
    assert child.stdin is not None
    child.stdin.write(msgspec.json.encode(device.make_job()) + b"\n")
    await child.stdin.drain()
    await until(lambda: device.mirror.requests, 10)
    assert child.returncode is None
    child.stdin.close()
    assert await asyncio.wait_for(child.wait(), 60) == 1
