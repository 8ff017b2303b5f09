"""One device against a hub double: real keys, real frames, a memory broker, a real database."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from edge_agent.question.records import AnswerKind, AnswerRecord, AnswerSource, DisabledError
from models.runtime.runner import SampleError
from policies.model.reasons import DecisionReason
from tests.edge_agent.doubles.hub_double import SURE, TRUTH, AgentRig, HubDouble, policy, sample, until
from wire.protocol import codec, sealing
from wire.protocol.messages import HelloNote, RefusalReason
from wire.protocol.topics import TopicChannel


async def test_a_confident_answer_asks_nobody_and_comes_at_once(tmp_path: Path):
    async with AgentRig(tmp_path, policy()) as rig:
        record = rig.agent.answer_now(sample(SURE))
        assert isinstance(record, AnswerRecord)
        assert (record.source, record.why, record.prediction.label, record.seq) == (
            AnswerSource.LOCAL,
            DecisionReason.CONFIDENT,
            0,
            "",
        )
        assert await rig.agent.wait(record.id, 0) == [record_like(record, event=1)]
        assert not rig.hub.questions


def record_like(record: AnswerRecord, **changes: object) -> AnswerRecord:

    return msgspec.structs.replace(record, **changes)


async def test_a_waiting_caller_gets_the_hubs_answer(tmp_path: Path):
    async with AgentRig(tmp_path, policy(mode="wait")) as rig:
        record = await rig.agent.infer(sample(trace="00-" + "a" * 32 + "-" + "b" * 16 + "-01"))
        assert (record.source, record.why, record.prediction) == (AnswerSource.HUB, DecisionReason.VERDICT, TRUTH)
        assert record.seq.endswith("-1")
        assert record.timings.total_s > 0
        assert record.timings.compute_s == 0.002
        assert rig.hub.questions[0][2].trace == record.trace
        assert [r.kind for r in await rig.agent.wait(record.id, 1)] == [AnswerKind.ANSWER]
        story = await rig.agent.explain(record.id)
        assert story["outcome"]["outcome"] == "answered"
        assert [entry["kind"] for entry in story["ledger"]] == ["question"]


async def test_an_unsure_answer_is_given_at_once_and_corrected_once(tmp_path: Path):
    async with AgentRig(tmp_path, policy()) as rig:
        record = await rig.agent.infer(sample())
        assert (record.source, record.why, record.prediction.label) == (AnswerSource.LOCAL, DecisionReason.UNSURE, 1)
        records = await rig.agent.wait(record.id, 2)
        assert [(r.kind, r.source, r.prediction.label) for r in records] == [
            (AnswerKind.ANSWER, AnswerSource.LOCAL, 1),
            (AnswerKind.CORRECTION, AnswerSource.HUB, 0),
        ]
        assert rig.open == 0


async def test_the_budget_elapses_then_the_late_verdict_corrects(tmp_path: Path):
    hub = HubDouble(verdicts=False)
    async with AgentRig(tmp_path, policy(mode="wait", budget_s=0.05), hub) as rig:
        record = await rig.agent.infer(sample())
        assert record.why is DecisionReason.BUDGET_ELAPSED
        frame, _, question = hub.questions[0]
        late = hub.seal_verdict(frame, question)
        hub.send_frame(late)
        hub.send_frame(late)  # and once more
        records = await rig.agent.wait(record.id, 2)
        assert [r.kind for r in records] == [AnswerKind.ANSWER, AnswerKind.CORRECTION]
        await until(lambda: rig.event_count("verdicts_repeated") == 1)
        assert rig.event_count("corrections") == 1


async def test_policy_denies_a_private_sample_and_says_so(tmp_path: Path):
    async with AgentRig(tmp_path, policy(mode="wait")) as rig:
        record = await rig.agent.infer(sample(data_class="private"))
        assert (record.source, record.why) == (AnswerSource.LOCAL, DecisionReason.DENIED_DATA_CLASS)
        assert not rig.hub.questions


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (None, DecisionReason.DENIED_POLICY_ERROR),
        (policy(level="P0"), DecisionReason.DENIED_LABEL),
        (policy(bytes_per_day=100), DecisionReason.DENIED_BUDGET),
        (policy(mode="local_only"), DecisionReason.LOCAL_ONLY),
    ],
)
async def test_what_may_not_leave_is_answered_here_with_the_reason(tmp_path: Path, rules, why):
    async with AgentRig(tmp_path, rules) as rig:
        record = await rig.agent.infer(sample())
        assert (record.why, record.seq) == (why, "")
        assert not rig.hub.questions


async def test_disabled_means_no_inference(tmp_path: Path):
    async with AgentRig(tmp_path, policy(mode="disabled")) as rig:
        with pytest.raises(DisabledError):
            await rig.agent.infer(sample())


async def test_a_sample_of_wrong_shape_is_refused(tmp_path: Path):
    async with AgentRig(tmp_path, policy()) as rig:
        with pytest.raises(SampleError):
            await rig.agent.infer(sample(SURE[:1]))


@pytest.mark.parametrize("text", ["\ud800", "x" * 129, "ä"])
async def test_a_text_that_no_table_takes_is_refused_before_it_spoils_the_commit_of_others(tmp_path: Path, text: str):
    async with AgentRig(tmp_path, policy()) as rig:
        for asked in (sample(SURE, data_class=text), sample(SURE, trace=text)):
            with pytest.raises(SampleError):
                rig.agent.answer_now(asked)


async def test_a_slow_model_runs_in_its_own_thread(tmp_path: Path):
    async with AgentRig(tmp_path, policy(mode="wait"), inline_infer_s=0.0) as rig:
        assert (await rig.agent.infer(sample())).source is AnswerSource.HUB
        assert (await rig.agent.infer(sample(SURE))).why is DecisionReason.CONFIDENT


async def test_hello_comes_first_on_each_connection(tmp_path: Path):
    async with AgentRig(tmp_path, policy()) as rig:
        await until(lambda: rig.hub.notes)
        hello = rig.hub.notes[0]
        assert isinstance(hello, HelloNote)
        assert f"{hello.epoch:x}" == rig.agent.status()["epoch"]
        rig.hub.broker.kill()
        rig.hub.broker.up = True
        await until(lambda: sum(isinstance(n, HelloNote) for n in rig.hub.notes) >= 2)


async def test_questions_queue_while_the_link_is_down_and_end_when_it_is_back(tmp_path: Path):
    async with AgentRig(tmp_path, policy(mode="wait")) as rig:
        rig.hub.broker.kill()
        await until(lambda: rig.agent.status()["link"] == "down")
        records = [await rig.agent.infer(sample()) for _ in range(5)]
        assert {r.why for r in records} == {DecisionReason.LINK_DOWN}
        assert rig.open == 5
        rig.hub.broker.up = True
        await until(lambda: rig.open == 0)
        for record in records:
            assert [r.kind for r in await rig.agent.wait(record.id, 1)] == [AnswerKind.ANSWER, AnswerKind.CORRECTION]
        assert len(rig.hub.effects) == 5


@pytest.mark.further
async def test_a_hub_that_forgot_gets_the_same_bytes_again(tmp_path: Path):
    hub = HubDouble(verdicts=False)
    async with AgentRig(tmp_path, policy(), hub) as rig:
        await rig.agent.infer(sample())
        await until(lambda: rig.agent.status()["receipted"] == 1)
        hub.effects.clear()  # restored from an old backup
        await until(lambda: len(hub.questions) >= 2)
        assert len({data for _, data, _ in hub.questions}) == 1
        hub.verdicts = True
        await until(lambda: rig.open == 0)


async def test_a_refusal_for_now_waits_and_a_final_one_ends(tmp_path: Path):
    hub = HubDouble(receipts=False, verdicts=False)
    async with AgentRig(tmp_path, policy(), hub) as rig:
        record = await rig.agent.infer(sample())
        await until(lambda: hub.questions)
        data = hub.questions[0][1]
        hub.send_note(hub.make_refusal(data, RefusalReason.BUSY, 0.2, final=False))
        await until(lambda: rig.agent.status()["in_flight"] == 0)
        quiet = await rig.agent.infer(sample())
        assert quiet.why is DecisionReason.HUB_QUIET
        sent = len(hub.questions)
        await until(lambda: len(hub.questions) > sent)
        hub.send_note(hub.make_refusal(data, RefusalReason.MODEL_GONE, final=True))
        await until(lambda: rig.open == 0)
        assert (await rig.agent.explain(record.id))["outcome"]["reason"] == "model_gone"


async def test_an_expired_key_seals_the_same_plaintext_anew_without_a_new_charge(tmp_path: Path):

    hub = HubDouble(receipts=False, verdicts=False)
    async with AgentRig(tmp_path, policy(), hub) as rig:
        record = await rig.agent.infer(sample())
        await until(lambda: hub.questions)
        old, data, _ = hub.questions[0]
        spent = rig.agent.status()["spent_bytes"]
        fingerprint = seal_print(hub, old)
        hub.hpke = X25519PrivateKey.generate()
        hub.keys = type(hub.keys)("hub-1", "local", hub.hpke.public_key().public_bytes_raw(), hub.keys.signing_key)
        hub.questions.clear()
        rig.agent.use_hubs((hub.keys,))
        hub.broker.carried.clear()
        hub.receipts = hub.verdicts = True
        hub.send_note(hub.make_refusal(data, RefusalReason.KEY_EXPIRED, final=True))
        records = await rig.agent.wait(record.id, 3)
        assert len(records) == 2
        assert hub.effects[(old.header.epoch, 1)] == fingerprint
        assert rig.agent.status()["spent_bytes"] == spent
        kinds = [entry["kind"] for entry in (await rig.agent.explain(record.id))["ledger"]]
        assert kinds == ["question", "resealed"]


def seal_print(hub: HubDouble, frame) -> bytes:

    return codec.hash_plaintext(sealing.open_sealed_frame(frame, key=hub.hpke, channel=TopicChannel.QUESTION))


async def test_a_changed_policy_judges_waiting_questions_again(tmp_path: Path):
    async with AgentRig(tmp_path, policy()) as rig:
        rig.hub.broker.kill()
        await until(lambda: rig.agent.status()["link"] == "down")
        record = await rig.agent.infer(sample())
        rig.agent.use_policy(policy(version=2, level="P0"))
        rig.hub.broker.up = True
        await until(lambda: rig.open == 0)
        assert not rig.hub.questions
        assert (await rig.agent.explain(record.id))["outcome"]["reason"] == "denied_policy_changed"


async def test_events_resume_after_the_last_one_seen(tmp_path: Path):
    async with AgentRig(tmp_path, policy()) as rig:
        first = await rig.agent.infer(sample())
        await rig.agent.wait(first.id, 2)
        seen = []
        async with asyncio.timeout(60):
            async for event in rig.agent.events(0):
                seen.append(event)
                if len(seen) == 2:
                    break
            rig.agent.answer_now(sample(SURE))
            async for event in rig.agent.events(seen[-1].event):
                seen.append(event)
                break
        assert [e.answer.kind for e in seen] == [AnswerKind.ANSWER, AnswerKind.CORRECTION, AnswerKind.ANSWER]
        assert [e.event for e in seen] == sorted({e.event for e in seen})


async def test_feedback_is_kept_for_known_answers_only(tmp_path: Path):
    async with AgentRig(tmp_path, policy()) as rig:
        record = await rig.agent.infer(sample(SURE))
        assert await rig.agent.feedback(record.id, 1)
        assert not await rig.agent.feedback("0" * 32, 1)
        assert not await rig.agent.feedback(record.id, 2**70)
        assert (await rig.agent.explain(record.id))["truth"] == 1
        assert rig.agent.status()["disk"] == "ok"
