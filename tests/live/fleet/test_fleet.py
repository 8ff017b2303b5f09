"""A whole fleet of real processes under faults; the history checker judges every run from the databases."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from models.bundle.bundle import Bundle
from simulations.processes import ProcessHarness
from tests.live.doubles.fleet import PATIENT_S, QUICK, ask, burst, judged, policy, samples, settle, the_hub_answers
from tests.live.doubles.own_broker import OwnBroker, tapped
from wire.protocol.codec import encode_wire_message
from wire.protocol.messages import FrameHeader, Receipt, Refusal, RefusalReason
from wire.protocol.sealing import sign_frame
from wire.protocol.topics import TopicChannel, build_topic, compute_shard

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


async def test_broker_killed_in_mid_burst_every_question_has_one_effect(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    await stage.start_hub(bundle.path)
    for name in ("a", "b", "c"):
        await stage.start_agent(await stage.add_agent(name, bundle.path, policy(tmp_path), QUICK))
    feeding = [asyncio.create_task(burst(stage, agent, bundle, samples(150))) for agent in stage.agents]
    for _ in range(3):
        await asyncio.sleep(0.4)
        pid = stage.broker_pid()
        if pid:
            os.kill(pid, signal.SIGKILL)
    answers = [answer for part in await asyncio.gather(*feeding) for answer in part]
    await settle(stage)
    report = judged(stage)
    assert (report.lost, report.doubled) == (0, 0), report.format_text()
    assert report.accepted == sum(bool(a["escalation_id"]) for a in answers) == 450
    assert report.late > 0


async def test_killed_agent_takes_up_every_question_it_had_accepted(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    await stage.start_hub(bundle.path)
    agent = await stage.add_agent("a", bundle.path, policy(tmp_path, "answer_now"), QUICK)
    await stage.start_agent(agent)
    for _ in range(4):
        feeding = asyncio.create_task(burst(stage, agent, bundle, samples(400)))
        await asyncio.sleep(0.3)
        await agent.child.kill()
        await asyncio.gather(feeding, return_exceptions=True)
        await stage.start_agent(agent)
    await settle(stage)
    report = judged(stage)
    assert (report.lost, report.doubled) == (0, 0), report.format_text()
    assert report.accepted > 0


async def test_killed_hub_answers_what_it_owed_and_computes_nothing_twice(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    hub = await stage.start_hub(bundle.path)
    agent = await stage.add_agent("a", bundle.path, policy(tmp_path, "answer_now"), QUICK)
    await stage.start_agent(agent)
    for _ in range(2):
        feeding = asyncio.create_task(burst(stage, agent, bundle, samples(200)))
        await asyncio.sleep(0.3)
        await hub.child.kill()
        await feeding
        await hub.child.start()
    await settle(stage)
    report = judged(stage)
    assert (report.lost, report.doubled) == (0, 0), report.format_text()
    assert report.accepted > 0


async def test_a_session_the_broker_forgot_is_made_anew_and_nothing_is_lost(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    hub = await stage.start_hub(bundle.path)
    agent = await stage.add_agent("a", bundle.path, policy(tmp_path, budget_s=PATIENT_S), QUICK)
    await stage.start_agent(agent)
    await burst(stage, agent, bundle, samples(20))
    for kept in (hub.folder / "broker").glob("*.db*"):
        kept.unlink()
    pid = stage.broker_pid()
    assert pid
    os.kill(pid, signal.SIGKILL)
    late = await burst(stage, agent, bundle, samples(20))
    assert await the_hub_answers(stage, agent, bundle)
    after = await burst(stage, agent, bundle, samples(20), at_once=1)
    await settle(stage)
    report = judged(stage)
    assert (report.lost, report.doubled) == (0, 0), report.format_text()
    assert after[-1]["source"] == "hub", (late, after)


async def test_a_private_sample_never_reaches_the_link(stage: ProcessHarness, bundle: Bundle, tmp_path: Path):
    await stage.start_hub(bundle.path)
    agent = await stage.add_agent("a", bundle.path, policy(tmp_path), QUICK)
    await stage.start_agent(agent)
    answer = await ask(stage, agent, bundle, samples(1)[0], parameters={"data_class": "private"})
    assert (answer["source"], answer["reason"], answer["escalation_id"]) == ("local", "denied_data_class", "")
    assert judged(stage).accepted == 0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OwnBroker]:
    with OwnBroker(tmp_path) as broker:
        yield broker


async def test_words_the_hub_did_not_sign_change_nothing(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path, broker: OwnBroker
):
    """Whoever owns the broker can publish on a device's reply topic, but sign nothing."""
    await stage.start_hub(bundle.path, broker.for_the_hub)
    agent = await stage.add_agent("a", bundle.path, policy(tmp_path, budget_s=PATIENT_S), QUICK)
    await stage.start_agent(agent)
    with (broker.config.parent / "acl").open("a") as acl:
        acl.write("user thief\ntopic write #\n")
    broker.kill()
    broker.start()
    thief = await broker.connect("thief")
    assert await the_hub_answers(stage, agent, bundle)
    forged = list(forgeries(agent.device, int((await stage.fetch_status(agent))["epoch"], 16)))
    for frame in forged:
        await thief.post(build_topic(agent.device, TopicChannel.REPLY), frame)
    answers = await burst(stage, agent, bundle, samples(30))
    for frame in forged:
        await thief.post(build_topic(agent.device, TopicChannel.REPLY), frame)
    await settle(stage)
    await thief.close()
    report = judged(stage)
    assert (report.lost, report.doubled, report.refused) == (0, 0, 0), report.format_text()
    assert {a["source"] for a in answers} == {"hub"}
    await stage.wait_for(agent, lambda status: refused(status) >= 2 * len(forged), "forgeries not counted")


def refused(status: dict[str, Any]) -> int:
    return sum(count for kind, count in status["counts"].items() if kind.startswith("refused_"))


def forgeries(device: str, epoch: int) -> Iterator[bytes]:
    """Receipts and final refusals for the next questions, well formed, signed by a stranger."""
    stranger = Ed25519PrivateKey.generate()
    header = FrameHeader(compute_shard(device), device, epoch, 0, int(time.time() * 1000), b"x" * 8)
    for seq in range(1, 40):
        refusal = Refusal(epoch, seq, bytes(32), RefusalReason.POLICY, 0.0, final=True)
        for note in (Receipt(epoch, (seq,)), refusal):
            yield sign_frame(header, encode_wire_message(note), by=stranger, channel=TopicChannel.REPLY)


async def test_nothing_of_a_sample_crosses_the_broker_or_lies_in_a_file(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path, broker: OwnBroker
):
    """The canaries: a sample's own bytes, a pixel in text form, and what a caller wrote into the request id."""
    async with tapped(broker) as carried:
        await stage.start_hub(bundle.path, broker.for_the_hub)
        agent = await stage.add_agent("a", bundle.path, policy(tmp_path, budget_s=PATIENT_S), QUICK)
        await stage.start_agent(agent)
        x = samples(1)[0] * 0.0 + np.float32(0.7234567)
        answer = await ask(stage, agent, bundle, x, id="CANARY-request")
        await settle(stage)
    assert answer["source"] == "hub"
    channels = {message.split(b" ")[0].rsplit(b"/", 2)[1:][0] for message in carried}
    assert channels == {b"up", b"down"}, "the tap should have heard both ways"
    canaries = (x.tobytes()[:12], b"0.7234567", b"CANARY-request", str(answer["answer_id"]).encode())
    for canary in canaries:
        assert not any(canary in message for message in carried), canary
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    for canary in canaries[:3]:
        assert [str(path) for path in files if canary in path.read_bytes()] == [], canary


async def test_a_broker_that_silently_drops_most_of_a_burst_loses_nothing(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    """Queue and in-flight limit 10: while the hub is away the broker acknowledges everything and keeps 20."""
    with OwnBroker(tmp_path, {"max_queued_messages": "10", "max_inflight_messages": "10"}) as broker:
        hub = await stage.start_hub(bundle.path, broker.for_the_hub)
        for name in ("a", "b"):
            await stage.start_agent(await stage.add_agent(name, bundle.path, policy(tmp_path), QUICK))
        await hub.child.kill()
        await asyncio.gather(*(burst(stage, agent, bundle, samples(500), at_once=64) for agent in stage.agents))
        await hub.child.start()
        await settle(stage)
    report = judged(stage)
    assert (report.lost, report.doubled, report.accepted) == (0, 0, 1000), report.format_text()
