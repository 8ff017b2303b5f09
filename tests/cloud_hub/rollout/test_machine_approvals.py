"""Approvals of a rollout: how many people, of which plan, and for how long."""

import pytest
from msgspec.structs import replace

from cloud_hub.database.connection import IN_MEMORY
from cloud_hub.rollout.planning import build_plan, build_record
from cloud_hub.rollout.store import RolloutStore
from cloud_hub.rollout.types import Approval, RolloutError, RolloutState
from tests.cloud_hub.doubles.rollout_bench import OLD, Bench, members

S = RolloutState


def large(**rules):
    """Two hundred devices: a rollout to all of them needs two people."""
    bench = Bench(200, **rules)
    plan = build_plan(replace(bench.order, id="r2"), members(200), "ann", bench.ms)
    assert plan.people == 2
    bench.store = RolloutStore.open(IN_MEMORY)
    record, entry = build_record(replace(plan, id="r1"))
    record.head = replace(record.head, approvals=(Approval("ann", record.plan.digest, bench.ms),))
    bench.store.create_rollout(record, (entry,))
    bench.pick_up()
    bench.to(S.WAITING_APPROVAL)
    return bench


def test_nothing_begins_before_a_second_person_has_approved():
    bench = large()
    bench.run(3600.0)
    assert bench.core.state is S.WAITING_APPROVAL
    bench.approve("bob")
    assert bench.run() is S.COMPLETED
    assert [(entry.by, entry.what) for entry in bench.store.read_history("r1") if entry.what == "approved"] == [
        ("bob", "approved")
    ]


def test_the_last_approval_lets_the_rollout_go_on_at_once():
    bench = large()
    bench.tick()
    assert bench.core.wake_at > bench.now
    bench.approve("bob")
    assert bench.core.wake_at <= bench.now
    bench.tick()
    assert bench.core.state is S.READY


def test_the_same_person_twice_is_one_person():
    bench = large()
    for _ in range(2):
        with pytest.raises(RolloutError, match="takes 2 people"):
            bench.approve("ann")
    bench.run(3600.0)
    assert bench.core.state is S.WAITING_APPROVAL


def test_an_approval_that_is_too_old_counts_no_more():
    bench = large(approval_s=3600.0, wave_deadline_s=90_000.0)
    bench.now += 3601.0
    bench.approve("bob")  # ann's, from the start, is over
    bench.run(600.0)
    assert bench.core.state is S.WAITING_APPROVAL
    bench.approve("ann")
    assert bench.run(600.0, {S.RUNNING}) is S.RUNNING


def test_an_approval_of_other_content_is_refused():
    bench = large()
    with pytest.raises(RolloutError, match="the plan has changed"):
        bench.approve("bob", "0" * 64)
    bench.run(600.0)
    assert bench.core.state is S.WAITING_APPROVAL


def test_content_that_was_changed_after_it_was_approved_is_not_carried_out():
    for state, end in ((S.WAITING_APPROVAL, S.WAITING_APPROVAL), (S.READY, S.DENIED), (S.RUNNING, S.PAUSED_MANUAL)):
        bench = large()
        if state is not S.WAITING_APPROVAL:
            bench.approve("bob")
            bench.to(state)
        record = bench.store.read_record("r1")
        record.plan = replace(record.plan, target=OLD)
        core = type(bench.core)(record, now=bench.now)
        for _ in range(3):
            core.on_tick(bench.now + 100)
        assert core.state is end
        if end is S.PAUSED_MANUAL:
            with pytest.raises(RolloutError, match="not what was approved"):
                core.resume("ann", bench.now)


def test_what_nobody_approves_expires():
    bench = large()
    assert bench.run(10_000.0) is S.EXPIRED


def test_nobody_can_order_fewer_people_than_its_size_asks_for():
    order = replace(Bench(3).order, rules={"approvals": 0})
    assert build_plan(order, members(200), "ann", 0).people == 2
    assert build_plan(order, members(99), "ann", 0).people == 0
    assert build_plan(replace(order, rules={"approvals": 3}), members(99), "ann", 0).people == 3
    assert build_plan(replace(order, rules={"waves": ["1%", "10%"]}), members(200), "ann", 0).people == 0
