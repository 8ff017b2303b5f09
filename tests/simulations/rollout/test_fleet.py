"""Rollouts in virtual time: the product's machines and gate, good and bad versions, lying devices, newest-wins."""

import msgspec
import numpy as np
import pytest

from benchmarks.rollout.drivers import run_by_status, run_gated, run_newest_wins
from benchmarks.rollout.paired_answers import (
    ModelVersion,
    PairedAnswers,
    bound_expected_gap,
    compare_versions,
    make_regression,
    split_halves,
)
from simulations.regions.run import run_scenario
from simulations.rollout.device import DeviceBehaviour
from simulations.rollout.fleet import LyingDevices, RolloutCourse
from simulations.rollout.versions import build_stated_pair
from simulations.scenario.writer import format_scenario
from simulations.scenario_files import load_scenario, parse_scenario
from tests.examples import further

QUICK: dict[str, object] = {
    "audit_share": 0.2, "probation_s": 1800.0, "soak_first_s": 600.0, "soak_s": 600.0, "look_s": 300.0,
}  # fmt: skip
DEVICES = 1000


def course(harm: float, seed: int = 1, **changes: object) -> RolloutCourse:
    usual = RolloutCourse(
        DEVICES,
        seed,
        build_stated_pair(harm, churn=0.01),
        {**QUICK, "waves": ["1%", "10%"]},
        DeviceBehaviour(look_s=300.0),
    )
    return msgspec.structs.replace(usual, **changes)


def test_twenty_points_worse_is_stopped_in_the_first_wave_and_every_device_goes_back():
    story = run_gated(course(0.2))
    assert story.aborted
    assert story.ran <= DEVICES // 100
    assert story.told[1:] == (0,)
    assert story.stopped_s <= story.clear_s < story.stopped_s + 60
    assert story.looks[-1].verdict in {"hold", "fail"}


def test_a_version_that_is_as_good_reaches_everybody_it_is_for():
    story = run_gated(course(0.0))
    assert (story.end, story.ran, story.passed) == ("completed", DEVICES // 10, 2)
    assert not story.aborted


@pytest.mark.parametrize("devices", [1, further(3)])
def test_a_worse_version_is_kept_by_no_device_of_a_small_fleet(devices: int):
    rules: dict[str, object] = {"probation_s": 600.0, "soak_first_s": 600.0, "soak_s": 600.0, "audit_share": 0.2}
    story = run_gated(course(0.4, devices=devices, rules=rules))
    assert (story.committed, story.passed) == (0, 0)
    good = run_gated(course(0.0, devices=devices, rules=rules))
    assert (good.end, good.committed) == ("completed", devices)


def test_by_status_alone_the_same_bad_version_is_let_through():
    story = run_by_status(course(0.2))
    assert story.end == "completed"
    assert story.ran == DEVICES // 10


def test_newest_wins_gives_it_to_everybody_within_the_hour():
    story = run_newest_wins(course(0.2))
    assert story.ran == DEVICES
    assert story.worst_hour > 0.05


def test_a_third_that_cries_wolf_pauses_a_good_version_and_does_not_abort_it():
    story = run_gated(course(0.0, liars=LyingDevices(0.3, worse=True)))
    assert story.end == "paused_inconclusive"
    assert story.told[1] == 0


@pytest.mark.parametrize("worse", [False, None])
def test_a_third_that_praises_a_bad_version_does_not_promote_it(worse: bool | None):
    story = run_gated(course(0.2, liars=LyingDevices(0.3, worse=worse)))
    assert story.told[1] == 0
    assert story.ran <= DEVICES // 100


def test_equal_courses_have_equal_stories():
    assert run_gated(course(0.2, seed=7)) == run_gated(course(0.2, seed=7))


# What devices and audits see


def made_up(seed: int = 1, count: int = 20_000) -> PairedAnswers:
    """Two heads that are as good, and a tail that shares the first one's mistakes."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 10, count)
    wrong = (truth + 1) % 10
    hard = rng.random(count) < 0.06
    old, new = (np.where(hard | (rng.random(count) < 0.04), wrong, truth) for _ in range(2))
    tail = np.where(rng.random(count) < 0.5, old, truth)
    sure = rng.random(count)
    return PairedAnswers(truth, ModelVersion(old, sure, tail), ModelVersion(new, sure, truth))


def test_a_regression_is_as_large_as_asked_for_and_its_tail_says_the_same():
    bad = make_regression(made_up(), 0.2, 10, np.random.default_rng(2), tail=True)
    seen = compare_versions(bad, 0.2)
    assert seen.points == pytest.approx(-0.2, abs=0.001)
    struck = bad.candidate.edge != made_up().candidate.edge
    assert (bad.candidate.tail[struck] == bad.candidate.edge[struck]).all()


def test_a_head_as_good_agrees_less_with_the_old_tail_and_that_is_measured_beforehand():
    measured, answered = split_halves(made_up())
    seen = compare_versions(answered, 0.2)
    audits_say = seen.better - seen.worse
    assert audits_say < -0.01 < seen.points < 0.01
    assert bound_expected_gap(measured) <= audits_say - seen.points


# In a scenario, sample by sample


def test_the_shipped_scenario_reads_back_as_it_is_written():
    scenario = load_scenario("bad-canary")
    assert scenario.rollout is not None
    again = parse_scenario(format_scenario(scenario))
    assert again.rollout == scenario.rollout


@pytest.mark.heavy
def test_sample_by_sample_it_is_stopped_as_when_counts_are_drawn():
    seen = run_scenario(load_scenario("bad-canary")).rollouts[0]
    assert seen.end == "paused_inconclusive" or seen.end.startswith("abort")
    assert max(seen.exposed) <= 20
    assert seen.exposed[-1] == 0
    assert [look.verdict for look in seen.looks][-1] in {"hold", "fail"}
