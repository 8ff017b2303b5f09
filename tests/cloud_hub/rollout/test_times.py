"""When time alone leads a rollout on, when it looks again, and that it is asked for no earlier than it says."""

from math import inf

import msgspec
import pytest

from cloud_hub.rollout.machine import RolloutCore
from cloud_hub.rollout.planning import RolloutOrder
from cloud_hub.rollout.types import RolloutState
from tests.cloud_hub.doubles.rollout_bench import FAIL, NEW, OLD, PASS, UNSURE, Bench

S = RolloutState
TIMES = {
    "soak_first_s": 120.0, "soak_s": 60.0, "look_s": 7.0, "report_s": 10.0, "wave_deadline_s": 7200.0,
    "withdraw_s": 90.0,
}  # fmt: skip


def ends_s(state: RolloutState, **head: object) -> float:
    """After how many seconds from 1000 s on time alone leads out of this state."""
    record = Bench(20, **TIMES).store.read_record("r1")
    head = {"state": state, "wave_ms": 1_000_000, "soak_ms": 0, "look_ms": 0, "changed_ms": 1_000_000} | head
    core = RolloutCore(msgspec.structs.replace(record, head=msgspec.structs.replace(record.head, **head)), PASS, 0.0)
    return core.course.ends_ms / 1000 - 1000.0


@pytest.mark.parametrize(
    ("state", "head", "seconds"),
    [
        (S.RUNNING, {}, 7200.0),
        (S.SOAKING, {"soak_ms": 1_000_000}, 120.0),
        (S.SOAKING, {"soak_ms": 1_000_000, "wave": 1}, 60.0),
        (S.SOAKING, {"soak_ms": 900_000, "look_ms": 1_000_000}, 120.0),
        (S.PAUSED_INCONCLUSIVE, {}, 120.0),
        (S.PAUSED_INCONCLUSIVE, {"held": True}, inf),
        (S.PAUSED_MANUAL, {}, inf),
        (S.ABORTING, {}, 90.0),
        (S.REVERTING, {}, 7200.0),
        (S.COMPLETED, {}, inf),
    ],
)
def test_time_alone_leads_out_of_a_state_after_its_own_time_and_out_of_others_never(state, head, seconds):
    assert ends_s(state, **head) == seconds


def test_a_rollout_that_goes_back_waits_for_its_rate_while_devices_are_left_and_for_nothing_after():
    order = RolloutOrder("digits", NEW, back=OLD, permit="permits/digits/1.json", id="r1")
    bench = Bench(200, order=order, per_minute=1, most_per_minute=1)
    bench.to(S.SOAKING)
    bench.run(until={S.RUNNING})
    bench.core._judge = FAIL
    bench.to(S.REVERTING)
    bench.tick()
    dispatcher = bench.core.told
    waits = []
    while not dispatcher.all_assigned:
        waits.append(dispatcher.free_at(bench.core.head))
        bench.step()
    assert waits
    assert max(waits) < inf
    assert dispatcher.free_at(bench.core.head) == inf


def test_a_rollout_wakes_at_its_next_look_or_the_end_of_its_soak_whichever_is_first():
    bench = Bench(20, **TIMES)
    bench.to(S.SOAKING)
    bench.tick()
    while bench.core.fleet.news:
        bench.tick()
    assert bench.core.wake_at == bench.core.looked_s + 7.0
    ends_s = bench.core.course.ends_ms / 1000
    bench.now = ends_s - 1.0
    bench.tick()
    assert (bench.core.state, bench.core.wake_at) == (S.SOAKING, ends_s)
    bench.now = ends_s
    bench.tick()
    assert (bench.core.state, bench.core.wake_at) == (S.EVALUATING, -inf)


@pytest.mark.parametrize("judge", [PASS, UNSURE])
def test_a_rollout_that_is_woken_only_when_it_asked_for_it_ends_the_same_and_one_look_a_wave_later_at_most(judge):
    patient, eager = Bench(20, judge, **TIMES), Bench(20, judge, **TIMES)
    for _ in range(600):
        for bench in (patient, eager):
            bench.now += 1.0
            if bench is eager or bench.core.wake_at <= bench.now:
                bench.tick()
            for device in bench.devices.values():
                for report in device.step(bench.now):
                    bench.hear(device.name, report)
    assert patient.states == eager.states
    assert patient.states[-1] in {S.COMPLETED, S.ABORTED}
    assert [told[1:] for told in patient.told] == [told[1:] for told in eager.told]
    late_s = (patient.core.head.changed_ms - eager.core.head.changed_ms) / 1000
    assert 0 <= late_s <= 7.0 * len(patient.plan.waves)


def test_a_wave_is_given_up_at_its_deadline_and_not_before():
    bench = Bench(20, **TIMES)
    bench.to(S.RUNNING)
    for device in bench.devices.values():
        device.online = False
    ends_s = bench.core.course.ends_ms / 1000
    seen = []
    for bench.now in (ends_s - 0.001, ends_s):
        bench.tick()
        seen.append(bench.core.state)
    assert seen == [S.RUNNING, S.COMPLETED_PARTIAL]


def test_a_pause_does_not_make_the_soak_begin_anew():
    bench = Bench(20, **TIMES)
    bench.to(S.SOAKING)
    began_ms = bench.core.head.soak_ms
    bench.do(lambda core: core.pause("ann", "", bench.now))
    bench.now += 30.0
    bench.do(lambda core: core.resume("ann", bench.now))
    bench.to(S.SOAKING)
    assert bench.core.head.soak_ms == began_ms < bench.ms


@pytest.mark.parametrize(
    ("audits", "later_ms", "prolonged"),
    [(8, 499_999, True), (8, 500_000, False), (7, 1_000, False), (6, 1_000, False)],
)
def test_a_soak_is_prolonged_while_audits_come_and_until_its_longest_time_is_over(audits, later_ms, prolonged):
    record = Bench(20, **TIMES, max_soak_s=500.0).store.read_record("r1")
    head = msgspec.structs.replace(record.head, state=S.SOAKING, soak_ms=1_000_000, audits=7)
    core = RolloutCore(msgspec.structs.replace(record, head=head), PASS, 0.0)
    now_ms = 1_000_000 + later_ms
    assert core.course.prolong_soak(audits, now_ms) is prolonged
    expected = msgspec.structs.replace(head, audits=8, look_ms=now_ms) if prolonged else head
    assert core.course.head == expected
