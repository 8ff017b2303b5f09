"""What a purely local answer makes durable, and when: few commits, and nothing that a hub knows of waits for them."""

import asyncio
from pathlib import Path

from edge_agent.question.records import AnswerKind, AnswerRecord
from edge_agent.runtime.answering import draw_dice
from edge_agent.storage import answers, ledger, outbox
from tests.edge_agent.doubles.hub_double import SURE, AgentRig, HubDouble, policy, sample, until

HOUR_S = 3600.0


async def give_local(rig: AgentRig, count: int = 40) -> list[AnswerRecord]:
    """Answers that no hub is asked about, each in a turn of the event loop of its own."""
    given = []
    for _ in range(count):
        answer = rig.agent.answer_now(sample(SURE))
        assert isinstance(answer, AnswerRecord)
        given.append(answer)
        await asyncio.sleep(0)
    return given


def offline() -> HubDouble:
    """A hub that cannot be reached: then nothing but answers is written."""
    hub = HubDouble()
    hub.broker.up = False
    return hub


async def written_ids(rig: AgentRig) -> set[str]:
    return {record.id for record in await rig.agent._db.read(lambda db: answers.read_records_after(db, 0, 10_000))}


async def test_local_answers_do_not_each_cost_a_commit_and_a_stop_writes_them_all(tmp_path: Path):
    async with AgentRig(tmp_path, policy(), offline(), answers_every_s=HOUR_S) as rig:
        before = rig.agent._db.commits
        given = await give_local(rig)
        assert await written_ids(rig) == set()
        assert rig.agent._db.commits == before
    async with AgentRig(tmp_path, policy(), answers_every_s=HOUR_S) as rig:
        assert await written_ids(rig) == {record.id for record in given}


async def test_an_interval_of_nothing_writes_each_local_answer_at_once(tmp_path: Path):
    async with AgentRig(tmp_path, policy(), answers_every_s=0.0) as rig:
        for answer in await give_local(rig, 3):
            await until(lambda: rig.agent._db.waiting_units == 0)
            assert answer.id in await written_ids(rig)


async def test_a_question_is_durable_at_once_while_local_answers_wait_and_takes_them_along(tmp_path: Path):
    hub = HubDouble(receipts=False, verdicts=False)
    async with AgentRig(tmp_path, policy(), hub, answers_every_s=HOUR_S) as rig:
        given = await give_local(rig)
        asked = await rig.agent.infer(sample())
        await until(lambda: rig.agent._db.waiting_units == 0)
        assert len(await rig.agent._db.read(outbox.read_rows)) == 1
        assert [e["kind"] for e in await rig.agent._db.read(lambda db: ledger.read_entries(db, asked.id))]
        order = await rig.agent._db.read(lambda db: answers.read_records_after(db, 0, 10_000))
        assert [record.id for record in order] == [record.id for record in (*given, asked)]


async def test_an_open_event_stream_gets_local_answers_without_waiting_for_the_interval(tmp_path: Path):
    async with AgentRig(tmp_path, policy(), offline(), answers_every_s=HOUR_S) as rig:
        early = await give_local(rig)
        after = await rig.agent.last_event()  # a stream of new records begins behind what was answered before it
        stream = rig.agent.events(after)
        coming = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        late = await give_local(rig, 2)
        async with asyncio.timeout(60):
            found = [await coming, await anext(stream)]
        assert [event.answer.id for event in found] == [record.id for record in late]
        assert {record.id for record in early} <= await written_ids(rig)
        await stream.aclose()  # type: ignore[attr-defined]
        before = rig.agent._db.commits
        await give_local(rig)
        assert rig.agent._db.commits == before  # nobody listens any more


async def test_whoever_asks_for_a_local_answer_by_its_id_finds_it_and_may_correct_it(tmp_path: Path):
    async with AgentRig(tmp_path, policy(), answers_every_s=HOUR_S) as rig:
        first, second, third = await give_local(rig, 3)
        assert [r.kind for r in await rig.agent.wait(first.id, 0)] == [AnswerKind.ANSWER]
        assert (await rig.agent.explain(second.id))["id"] == second.id
        assert await rig.agent.feedback(third.id, 1)


async def test_what_was_asked_outlives_a_process_that_dies_before_local_answers_are_written(tmp_path: Path):
    hub = HubDouble(receipts=False, verdicts=False)
    async with AgentRig(tmp_path, policy(), hub, answers_every_s=HOUR_S) as rig:
        asked = await rig.agent.infer(sample())
        lost = await give_local(rig)
        await until(lambda: rig.agent._executor.unrecorded == 0)
        rig.agent._journal._pending.clear()  # what a power cut takes: memory
    async with AgentRig(tmp_path, policy(), HubDouble(), answers_every_s=HOUR_S) as rig:
        await until(lambda: rig.open == 0)
        kinds = [record.kind for record in await rig.agent.wait(asked.id, 1)]
        assert kinds == [AnswerKind.ANSWER, AnswerKind.CORRECTION]
        assert not await rig.agent.wait(lost[0].id, 0)


def test_ids_of_answers_stand_in_the_order_of_their_time_and_cannot_be_foreseen():
    ids = [draw_dice(1_790_000_000_000 + second * 1000).id for second in range(100)]
    assert ids == sorted(ids)
    assert all(len(answer) == 32 for answer in ids)
    assert len({draw_dice(0).id for _ in range(100)}) == 100
