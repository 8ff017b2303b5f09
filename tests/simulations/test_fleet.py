"""The two production cores as a fleet, under weather and faults, judged by the history checker."""

from random import Random

import pytest

from edge_agent.records import Kind
from policies.policy import Mode
from simulations.facts import AnswerSeen, Event, Flaw
from simulations.faults import KillAgent, KillBroker, KillHub, Partition, Recall, draw
from simulations.fleet import Fleet, Plan, Result
from simulations.weather import CALM, Climate
from simulations.world import Pace

STORMY = Climate(loss=0.05, repeats=0.05, bad_disk=0.01, bad_batch=0.05)
ALL_KINDS = (Partition(120.0, 90.0, 0.3), KillHub(300.0, 20.0), KillBroker(420.0, 10.0), KillAgent(200.0, 60.0, 3))
# The retry limits of a device add up to three minutes: reconnect, resend and Ask wait up to one each.
PATIENCE_S = 180.0


def run(plan: Plan) -> Result:
    return Fleet(plan).run()


def test_a_thousand_edges_for_ten_minutes_lose_nothing_double_nothing_and_do_it_twice_alike() -> None:
    """Loss, a partition, a killed hub, broker and agent. `make sim` runs it with more samples."""
    plan = Plan(1000, 600.0, seed=1, faults=ALL_KINDS, pace=Pace(samples_per_s=0.02))
    result = run(plan)
    assert result.report.ok, result.report.text()
    assert result.report.accepted > 1000
    assert result.report.late > 0
    assert result.counts["air.gone"] > 0
    assert run(plan) == result


def test_another_seed_is_another_run() -> None:
    one, other = (run(Plan(20, 120.0, seed=seed, faults=(KillHub(30.0, 5.0),))) for seed in (1, 2))
    assert one.counts != other.counts


def test_in_calm_weather_every_caller_who_waits_is_answered_by_the_hub() -> None:
    report = run(Plan(20, 120.0, seed=1, climate=CALM)).report
    assert report.ok
    assert report.late == report.whys["audit"]  # only those who did not wait
    assert report.answered == report.accepted > 20


def test_in_mode_answer_now_every_verdict_is_a_correction() -> None:
    report = run(Plan(20, 120.0, seed=1, climate=CALM, mode=Mode.ANSWER_NOW)).report
    assert report.ok
    assert report.late == report.accepted > 20
    assert report.answers_by_hub == 0


def test_while_the_hub_is_dead_callers_get_the_local_answer_and_later_its_correction() -> None:
    report = run(Plan(20, 120.0, seed=1, climate=CALM, faults=(KillHub(0.5, 119.0),))).report
    assert report.ok, report.text()
    assert report.answered == report.accepted
    assert report.whys["budget_elapsed"] > 0
    assert report.late > report.answers_by_hub


def test_a_killed_agent_takes_up_its_open_questions_from_its_database() -> None:
    kills = tuple(KillAgent(10.0 + 7 * number, 3.0, number) for number in range(10))
    report = run(Plan(10, 120.0, seed=1, faults=kills, pace=Pace(samples_per_s=2.0, commit_s=0.2))).report
    assert report.ok, report.text()


def test_a_policy_that_is_narrowed_ends_what_waits_as_denied() -> None:
    outage = (KillBroker(10.0, 60.0), Recall(40.0, 60.0))
    report = run(Plan(20, 120.0, seed=1, climate=CALM, faults=outage)).report
    assert report.ok, report.text()
    assert report.denied > 0
    assert report.denied + report.answered == report.accepted


def test_a_lost_verdict_is_asked_for_though_receipts_of_others_keep_coming() -> None:
    plan = Plan(20, 600.0, seed=1, climate=Climate(loss=0.02), clears_up_s=200.0, pace=Pace(samples_per_s=0.5))
    report = run(plan).report
    assert report.ok, report.text()


@pytest.mark.parametrize("seed", range(12))
def test_case_101_random_fault_schedules_lose_nothing_and_double_nothing(seed: int) -> None:
    rng = Random(seed)
    seconds, devices = rng.uniform(30.0, 200.0), rng.randint(1, 15)
    plan = Plan(
        devices,
        seconds,
        seed,
        draw(rng, devices, seconds, rng.randint(1, 8)),
        STORMY,
        rng.choice([Mode.WAIT, Mode.ANSWER_NOW, Mode.HUB_FIRST]),
        Pace(samples_per_s=0.2, commit_s=rng.choice([0.001, 0.2])),
        heal_s=600.0,
        grace_s=PATIENCE_S,
    )
    report = run(plan).report
    assert report.ok, report.text()


# The simulation must be able to fail: products with a defect, and what the checker says of them.


def test_a_hub_that_forgets_what_it_computed_is_caught() -> None:
    """Devices that never heard their verdict ask, hear `unknown`, and have it computed a second time."""
    busy = Pace(samples_per_s=1.0)
    fleet = Fleet(Plan(20, 120.0, seed=1, climate=Climate(loss=0.3), faults=(KillHub(60.0, 5.0),), pace=busy))
    fleet._world.kernel.at(62.0, fleet._hub._disk._rows.clear)
    assert fleet.run().report.flaws.keys() == {Flaw.DOUBLED_EFFECT.value}


def test_a_device_that_forgets_its_outbox_at_a_restart_is_caught() -> None:
    outage = (KillBroker(10.0, 60.0), KillAgent(40.0, 5.0, 0))
    fleet = Fleet(Plan(5, 120.0, seed=1, climate=CALM, faults=outage, pace=Pace(samples_per_s=1.0)))
    fleet._world.kernel.at(42.0, fleet._devices[0]._disk.rows.clear)
    assert fleet.run().report.flaws.keys() == {Flaw.LOST.value}


def test_a_device_that_says_everything_twice_is_caught() -> None:
    fleet = Fleet(Plan(20, 120.0, seed=1, climate=CALM, faults=(KillHub(60.0, 5.0),)))
    see = fleet._world.judge.see

    def twice(event: Event) -> None:
        see(event)
        if type(event) is AnswerSeen:
            see(event)

    for device in fleet._devices:
        device._disk._tell = twice
    report = fleet.run().report
    assert report.doubled == report.answers + report.late
    assert report.flaws.keys() == {Flaw.DOUBLED_ANSWER.value, Flaw.DOUBLED_CORRECTION.value}


def test_a_device_that_keeps_a_correction_to_itself_is_caught() -> None:
    fleet = Fleet(Plan(5, 60.0, seed=1, climate=CALM, mode=Mode.ANSWER_NOW))
    see = fleet._world.judge.see

    def discreet(event: Event) -> None:
        if not (isinstance(event, AnswerSeen) and event.kind is Kind.CORRECTION):
            see(event)

    for device in fleet._devices:
        device._disk._tell = discreet
    assert fleet.run().report.flaws.keys() == {Flaw.UNSAID.value}
