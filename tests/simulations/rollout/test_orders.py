"""Assignments in a simulated rollout are signed and verified by the product, and old copies are refused."""

from random import Random

import pytest

from simulations.kernel.kernel import Kernel
from simulations.kernel.world import HUB_ZERO_S
from simulations.regions.run import run_scenario
from simulations.rollout.fleet import RolloutCourse, RolloutFleet
from simulations.rollout.orders import COUNTER_BEFORE, SignedOrders
from simulations.rollout.versions import build_stated_pair
from simulations.scenario.conditions import IDEAL_CONDITIONS
from simulations.scenario.types import EventKind, Link, Load, Model, Region, Rollout, Scenario, ScenarioEvent
from tests.examples import further
from wire.protocol.rollout import Assignment, RolloutCohort

DEVICE = "sim--d0"
ASSIGNMENT = Assignment(
    0, DEVICE, 7, 1, 2, "r1", "sim", "models/sim/sim-2.skb", 2, "b" * 64, RolloutCohort.CANDIDATE, needs_release=True
)
QUICK = Rollout(
    harm=0.8, audit_share=1.0, probation_s=1.0, soak_s=1.0, look_s=1.0, report_s=1.0, min_inferences=0, max_soak_s=30.0
)


def scenario(*events: ScenarioEvent) -> Scenario:
    return Scenario(
        devices=3,
        duration_s=200.0,
        regions=(Region(link=Link(IDEAL_CONDITIONS)),),
        load=Load(samples_per_s=1.0),
        model=Model(unsure_share=0.5),
        rollout=QUICK,
        events=events,
        grace_s=200.0,
    )


def test_a_device_reads_what_was_signed_for_its_present_key_and_refuses_what_was_moved_to_another_device() -> None:
    orders = SignedOrders(Kernel(), HUB_ZERO_S)
    frame = orders.sign(DEVICE, ASSIGNMENT)
    assert orders.open(DEVICE, frame) == ASSIGNMENT
    assert orders.open("sim--d1", frame) is None
    assert orders.counts == {"refused_topic": 1}


def test_of_all_copies_the_one_of_the_earlier_enrolment_is_not_opened_and_has_the_higher_counter() -> None:
    core = RolloutFleet(RolloutCourse(1, 1, build_stated_pair(0.4))).core
    orders = SignedOrders(Kernel(), HUB_ZERO_S)
    orders.sign(DEVICE, ASSIGNMENT)
    frames = orders.shuffle_copies(DEVICE, core.plan, core.rules, Random(1))
    opened = [assignment for frame in frames if (assignment := orders.open(DEVICE, frame)) is not None]
    assert sorted(each.counter for each in opened) == [COUNTER_BEFORE - 1, COUNTER_BEFORE, ASSIGNMENT.counter]
    assert [each.needs_release for each in opened if each.counter == COUNTER_BEFORE - 1] == [False]
    assert orders.counts == {"refused_signature": 1}


@pytest.mark.parametrize("at_s", [further(0.5), 5.0, further(60.0), further(150.0)])
def test_old_assignments_that_are_sent_again_are_refused_and_no_worse_model_is_kept(at_s: float) -> None:
    calm, replayed = run_scenario(scenario()), run_scenario(scenario(ScenarioEvent(EventKind.REPLAYED, at_s, 20.0)))
    assert replayed.history.ok, replayed.history.format_text()
    assert replayed.counts["orders.refused_signature"] == 3
    assert replayed.counts["orders.refused_replay"] >= 6
    assert (replayed.rollouts[0].end, replayed.rollouts[0].exposed) == (calm.rollouts[0].end, calm.rollouts[0].exposed)
