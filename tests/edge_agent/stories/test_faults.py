"""One device against a hub double that loses, repeats, delays and forges messages, or dies."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from edge_agent.question.limits import OutboxLimits
from edge_agent.question.records import AnswerKind, AnswerSource
from policies.model.reasons import DecisionReason
from tests.edge_agent.doubles.hub_double import (
    HPKE,
    TRUTH,
    UNSURE,
    AgentRig,
    HubDouble,
    ManualClock,
    policy,
    public_bytes,
    sample,
    until,
)
from wire.protocol import codec, sealing
from wire.protocol.messages import FrameHeader, Receipt, Refusal, RefusalReason, StatusReply, StatusRequest, Verdict
from wire.protocol.topics import TopicChannel
from wire.transport.base import MemoryBroker


async def test_an_oversized_question_is_denied_and_the_next_one_flows(tmp_path: Path):
    class Narrow(HubDouble):
        limit = 400  # a question of this model takes about 700 bytes

        async def connect(self):
            transport = await super().connect()
            transport._max_bytes = self.limit
            return transport

    hub = Narrow()
    async with AgentRig(tmp_path, policy(mode="wait"), hub) as rig:
        assert (await rig.agent.infer(sample())).why is DecisionReason.DENIED_TOO_BIG
        await until(lambda: rig.open == 0)
        hub.limit = 10_000
        hub.broker.kill()
        hub.broker.up = True
        await until(lambda: rig.event_count("link_up") == 2)
        assert (await rig.agent.infer(sample())).source is AnswerSource.HUB
        await until(lambda: len(rows(tmp_path, "select 1 from outcomes")) == 2)
        ends = [r[0] for r in rows(tmp_path, "select outcome || ':' || reason from outcomes order by seq")]
        assert ends == ["denied:denied_too_big", "answered:verdict"]


def rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    db = sqlite3.connect(folder / "agent.db")
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


async def test_an_exception_in_a_handler_is_counted_and_the_task_lives(tmp_path: Path, capsys):
    async with AgentRig(tmp_path, policy(mode="wait")) as rig:
        rig.agent.on_batch([None])  # type: ignore[list-item] # nothing a link could send: a defect of ours
        await until(lambda: rig.event_count("handler_errors") == 1)
        assert (await rig.agent.infer(sample())).source is AnswerSource.HUB
    assert "handler_failed" in capsys.readouterr().err


async def test_a_task_ended_by_force_is_started_again(tmp_path: Path, capsys):
    async with AgentRig(tmp_path, policy(mode="wait")) as rig:
        for title in ("link", "upkeep"):
            rig.agent._tasks[title].cancel()
        await until(lambda: rig.event_count("tasks_revived") == 2)
        await until(lambda: rig.agent.status()["link"] == "up")
        assert (await rig.agent.infer(sample())).source is AnswerSource.HUB
    assert "task_revived" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_dead_writer_thread_is_started_again(tmp_path: Path):
    def die(_: sqlite3.Connection) -> None:
        raise SystemExit

    async with AgentRig(tmp_path, policy(mode="wait")) as rig:
        rig.agent._db.write((die,))
        await until(lambda: rig.event_count("writer_revived") == 1)
        assert (await rig.agent.infer(sample())).source is AnswerSource.HUB


async def test_a_silent_link_is_dropped_and_made_anew(tmp_path: Path):
    hub = HubDouble(receipts=False, verdicts=False)
    async with AgentRig(tmp_path, policy(), hub, silent_after_s=0.1) as rig:
        await rig.agent.infer(sample())
        await until(lambda: rig.event_count("link_silent") >= 1 and rig.event_count("link_up") >= 2)
        hub.receipts = hub.verdicts = True
        await until(lambda: rig.open == 0)


@pytest.mark.further
async def test_a_link_that_was_idle_is_given_time_to_answer(tmp_path: Path):
    time = ManualClock()
    hub = HubDouble(receipts=False, verdicts=False)
    async with AgentRig(tmp_path, policy(), hub, clock=time.hub_clock()) as rig:
        await until(lambda: rig.agent.status()["link"] == "up")
        await asyncio.sleep(0.2)  # longer than two looks of the watchdog
        time.advance(1000)
        await asyncio.sleep(0.2)
        await rig.agent.infer(sample())
        await asyncio.sleep(0.2)
        assert (rig.open, rig.event_count("link_silent"), rig.event_count("link_up")) == (1, 0, 1)


async def test_an_expired_question_is_dropped_before_it_is_sent(tmp_path: Path):
    time = ManualClock()
    async with AgentRig(tmp_path, policy(), clock=time.hub_clock()) as rig:
        rig.hub.broker.kill()
        await until(lambda: rig.agent.status()["link"] == "down")
        record = await rig.agent.infer(sample())
        time.advance(7 * 86_400 + 1)
        rig.hub.broker.up = True
        await until(lambda: rig.open == 0)
        assert not rig.hub.questions
        assert rig.event_count("outcome_expired") == 1
        assert [r.kind for r in await rig.agent.wait(record.id, 0)] == [AnswerKind.ANSWER]


class NoPuback(MemoryBroker):
    """Accepts every publish and acknowledges none while `deaf`."""

    deaf = False

    def publish(self, message):
        return super().publish(message) if not (self.deaf and "/up/" in message.topic) else "lost"


async def test_puback_lost_means_the_same_bytes_again(tmp_path: Path):
    broker = NoPuback()
    hub = HubDouble(broker=broker)
    async with AgentRig(tmp_path, policy(mode="wait"), hub) as rig:
        broker.deaf = True
        asking = asyncio.ensure_future(rig.agent.infer(sample()))
        await until(lambda: rig.event_count("sent") >= 2)
        assert not hub.questions
        broker.deaf = False
        assert (await asking).source is AnswerSource.HUB
        assert len({data for _, data, _ in hub.questions}) == 1


@pytest.mark.further
async def test_receipt_lost_means_the_same_bytes_again_and_one_effect(tmp_path: Path):
    hub = HubDouble(receipts=False, verdicts=False)
    async with AgentRig(tmp_path, policy(), hub) as rig:
        await rig.agent.infer(sample())
        await until(lambda: len(hub.questions) >= 3)
        assert len({data for _, data, _ in hub.questions}) == 1
        hub.receipts = True
        await until(lambda: rig.agent.status()["receipted"] == 1)
        sent = rig.event_count("sent")
        await asyncio.sleep(0.15)
        assert rig.event_count("sent") == sent  # a receipt stops the fast retry
        assert rig.open == 1  # and nothing else: the row lives until the outcome
        assert len(hub.effects) == 1


async def test_a_receipt_twice_or_for_an_unknown_id_changes_nothing(tmp_path: Path):
    hub = HubDouble(verdicts=False)
    async with AgentRig(tmp_path, policy(), hub) as rig:
        await rig.agent.infer(sample())
        await until(lambda: rig.agent.status()["receipted"] == 1)
        epoch = hub.questions[0][0].header.epoch
        for note in (
            Receipt(epoch, (1,)),
            Receipt(epoch, (77,)),
            Receipt(epoch + 1, (1,)),
            StatusReply(epoch, (), (99,)),
        ):
            hub.send_note(note)
        await until(lambda: rig.event_count("notes") >= 6)
        assert (rig.open, rig.agent.status()["receipted"]) == (1, 1)
        assert rig.event_count("handler_errors") == 0


async def test_a_lost_verdict_is_healed_by_ask(tmp_path: Path):
    hub = HubDouble(verdicts=False)
    async with AgentRig(tmp_path, policy(), hub) as rig:
        record = await rig.agent.infer(sample())
        await until(lambda: rig.agent.status()["receipted"] == 1)
        hub.verdicts = True  # the verdict of that time is lost; the device asks
        assert len(await rig.agent.wait(record.id, 3)) == 2
        assert any(isinstance(note, StatusRequest) and note.seqs == (1,) for note in hub.notes)


async def test_a_forged_moved_or_replayed_word_of_the_hub_is_refused_and_counted(tmp_path: Path):

    hub = HubDouble(receipts=False, verdicts=False)
    async with AgentRig(tmp_path, policy(), hub, outbox=OutboxLimits()) as rig:
        for x in (UNSURE, UNSURE[::-1].copy()):
            await rig.agent.infer(sample(x))
        await until(lambda: len(hub.questions) == 2)
        (frame, data, question), (other, _, _) = hub.questions
        forger = Ed25519PrivateKey.generate()
        hub.send_frame(hub.sign_note(Receipt(frame.header.epoch, (1,)), by=forger))
        hub.send_frame(hub.seal_verdict(frame, question, by=forger))
        final = hub.make_refusal(data, RefusalReason.POLICY, final=True)
        hub.send_frame(hub.sign_note(final, by=forger))
        await until(lambda: rig.event_count("refused_signature") == 3)
        # the verdict of one question under the header of the other: signed by the hub, bound to the wrong question
        moved_frame = type(frame)(frame.suite, other.header, frame.clear, frame.body, frame.signature)
        hub.send_frame(_moved(hub, frame, moved_frame, question))
        await until(lambda: rig.event_count("refused_seal") == 1)
        # a refusal moved to another row
        hub.send_note(Refusal(final.epoch, 2, final.digest, RefusalReason.POLICY, 0.0, True))
        hub.send_frame(b"\x00" * 300)
        await until(lambda: rig.event_count("refused_version") == 1)
        assert rig.open == 2
        assert rig.agent.status()["receipted"] == 0


def _moved(hub: HubDouble, frame, target, question) -> bytes:
    """What the hub would have sealed for `frame`, under the header of `target`."""

    padded = sealing.open_sealed_frame(frame, key=hub.hpke, channel=TopicChannel.QUESTION)
    binding = sealing.compute_verdict_binding(codec.hash_plaintext(padded), "echo@1", question.policy)
    told = target.header
    header = FrameHeader(
        told.shard, told.device, told.epoch, told.seq, hub.now_ms, sealing.compute_key_id(public_bytes(HPKE))
    )
    body = codec.pad_plaintext(codec.encode_wire_message(Verdict(TRUTH, "hub-1", "local", 0.0, 0.0)))
    return sealing.seal_frame(
        header, body, to=HPKE.public_key(), by=hub.signing, channel=TopicChannel.REPLY, binding=binding
    )
