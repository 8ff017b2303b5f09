"""A device that is offline for long, and one whose clock is wrong. Time is set by the tests."""

from pathlib import Path

import pytest

from edge_agent.question.limits import OutboxLimits
from edge_agent.question.records import AnswerKind
from edge_agent.storage.database import prune_tables
from policies.model.reasons import DecisionReason
from tests.edge_agent.doubles.hub_double import (
    HUB_TIME_MS,
    SURE,
    AgentRig,
    HubDouble,
    ManualClock,
    policy,
    sample,
    until,
)
from wire.protocol.messages import RefusalReason

DAY_S = 86_400.0
LIMITS = OutboxLimits(max_rows=50, resend_base_s=0.05, resend_cap_s=0.1, ask_interval_s=0.2)


@pytest.mark.further
async def test_thirty_days_offline_keeps_the_disk_bounded_and_the_counters_right(tmp_path: Path):
    time, hub = ManualClock(), HubDouble()
    hub.broker.up = False
    async with AgentRig(tmp_path, policy(), hub, clock=time.hub_clock(), outbox=LIMITS, answers_max_rows=1000) as rig:
        asked = full = 0
        sizes = []
        for _ in range(30):  # days
            for _ in range(20):
                record = await rig.agent.infer(sample())
                asked += record.why is DecisionReason.LINK_DOWN
                full += record.why is DecisionReason.OUTBOX_FULL
                rig.agent.answer_now(sample(SURE))
            time.advance(DAY_S)
            rig.agent._executor.run_due()
            rig.agent._upkeep.save_time_floor()
            sizes.append(rig.open)
        await until(lambda: rig.agent._executor.unrecorded == 0)
        # the oldest leave after seven days, new ones are refused while it is full; nothing is silent
        assert max(sizes) <= 50
        assert asked + full == 600
        assert rig.event_count("accepted") == asked
        assert rig.event_count("outcome_expired") == asked - rig.open
        assert rig.event_count("answers_local") == 1200
        gone = await rig.agent._db.read(lambda db: prune_tables(db, (100, 100, 100)))
        assert gone > 0
        assert await rig.agent._db.read(lambda db: db.execute("select count(*) from answers").fetchone()[0]) <= 160
        waiting = rig.open
        hub.now_ms = HUB_TIME_MS + int(30 * DAY_S * 1000)
        hub.broker.up = True
        await until(lambda: rig.open == 0)
        assert len(hub.effects) == waiting
        assert rig.event_count("outcome_answered") == waiting


async def test_a_wall_clock_that_goes_back_an_hour_changes_no_order_and_no_expiry(tmp_path: Path):
    time, hub = ManualClock(), HubDouble(receipts=False, verdicts=False)
    hub.broker.up = False
    async with AgentRig(tmp_path, policy(), hub, clock=time.hub_clock()) as rig:
        first = await rig.agent.infer(sample())
        time.wall -= 3_600_000
        time.advance(1.0)
        second = await rig.agent.infer(sample())
        assert second.at_ms > first.at_ms
        hub.broker.up = True

        def both() -> bool:
            time.advance(0.01)
            rig.agent._executor.run_due()
            return len(hub.questions) >= 2

        await until(both)
        assert [frame.header.seq for frame, _, _ in hub.questions[:2]] == [1, 2]
        created = [frame.header.created_ms for frame, _, _ in hub.questions[:2]]
        assert created == sorted(created)


async def test_a_wall_clock_a_month_ahead_expires_nothing_that_waits(tmp_path: Path):
    time, hub = ManualClock(), HubDouble()
    hub.broker.up = False
    async with AgentRig(tmp_path, policy(), hub, clock=time.hub_clock()) as rig:
        record = await rig.agent.infer(sample())
    time.wall += int(30 * DAY_S * 1000)
    async with AgentRig(tmp_path, policy(), hub, clock=time.hub_clock()) as rig:
        assert rig.open == 1
        hub.broker.up = True
        await until(lambda: rig.open == 0)
        assert [r.kind for r in await rig.agent.wait(record.id, 1)] == [AnswerKind.ANSWER, AnswerKind.CORRECTION]


async def test_a_question_made_under_a_clock_ahead_is_sealed_anew_with_the_hubs_time(tmp_path: Path):
    time, hub = ManualClock(), HubDouble(receipts=False, verdicts=False)
    hub.broker.up = False
    time.wall += int(30 * DAY_S * 1000)
    async with AgentRig(tmp_path, policy(), hub, clock=time.hub_clock()) as rig:
        record = await rig.agent.infer(sample())
        hub.broker.up = True
        await until(lambda: hub.questions)
        frame, data, _ = hub.questions[0]
        assert frame.header.created_ms > HUB_TIME_MS + int(29 * DAY_S * 1000)
        hub.receipts = hub.verdicts = True
        hub.questions.clear()
        await until(lambda: rig.event_count("notes") >= 1)  # the Welcome: now the device knows the time
        hub.send_note(hub.make_refusal(data, RefusalReason.CREATED_AHEAD, 1.0, final=False))
        await until(lambda: rig.event_count("resealed") == 1 and hub.questions)
        assert abs(hub.questions[-1][0].header.created_ms - HUB_TIME_MS) < 60_000
        assert len(await rig.agent.wait(record.id, 2)) == 2
