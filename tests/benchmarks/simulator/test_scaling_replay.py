"""Replicas in virtual time: nothing is lost, what is late is counted, and Skerry's rule beside the others."""

from dataclasses import dataclass, field

import pytest

from benchmarks.simulator.scaling_curves import DAY_S, day_curve, storm_curve
from benchmarks.simulator.scaling_replay import ReplicaModel, replay
from benchmarks.simulator.scaling_rules import FixedPool, LoadRule, OngoingRequestsRule, ReplicaRule
from policies.serving.batching import BatchCost
from policies.serving.scaling import ModelLoad, ScalingRules, rate_in_time

MODEL = ReplicaModel(BatchCost(0.05, 0.02), max_batch=16, start_s=30.0, deadline_s=1.0)
RATE = rate_in_time(MODEL.cost, MODEL.max_batch, MODEL.deadline_s)
PEAK = 8 * 0.8 * RATE  # eight replicas hold it


def by_load(**changes):
    rules = ScalingRules(**{"ceiling": 32, **changes})
    return LoadRule(rules, MODEL.cost, MODEL.max_batch, MODEL.deadline_s)


@pytest.mark.further
def test_the_same_seed_gives_the_same_and_another_one_something_else():
    found = [replay(by_load(), MODEL, storm_curve(5, 200), 1200, seed) for seed in (3, 3, 4)]
    assert found[0] == found[1] != found[2]
    assert found[0].items > 300 * 180


def test_a_pool_that_is_large_enough_is_never_late_and_one_that_is_not_is():
    assert replay(FixedPool(8), MODEL, lambda _: PEAK, 300).late == 0
    starved = replay(FixedPool(4), MODEL, lambda _: PEAK, 300)
    assert starved.late_share > 0.9
    assert starved.replica_s > 4 * 300  # until the last one is computed


@pytest.mark.further
def test_on_constant_load_the_number_moves_only_until_it_is_known():
    found, longer = [replay(by_load(), MODEL, lambda _: PEAK / 2, length_s) for length_s in (2000, 4000)]
    assert found.changes == longer.changes
    assert longer.late < 1.01 * found.late


@pytest.mark.further
def test_a_day_takes_fewer_replicas_than_a_pool_and_is_late_less_often_than_by_requests_under_way():
    def run(rule: ReplicaRule):
        return replay(rule, MODEL, lambda at: day_curve(PEAK / 10, PEAK)(8 * at), DAY_S // 8)

    scaled, pool = run(by_load(down_after_s=75.0)), run(FixedPool(8))
    plain = [run(OngoingRequestsRule(target, 1, 32, down_s=75.0)) for target in (4, 8)]
    assert scaled.replica_s < 0.8 * pool.replica_s
    assert scaled.late_share < 0.01
    assert scaled.late < min(each.late for each in plain)


@dataclass
class Script:
    """Wants what it was told to, and remembers the load that it saw."""

    wanted: list[int]
    seen: list[ModelLoad] = field(default_factory=list)

    def look(self, load: ModelLoad, now: float) -> int:
        self.seen.append(load)
        return self.wanted[min(int(now), len(self.wanted) - 1)]


def test_a_replica_serves_once_it_has_started_and_finishes_its_batch_before_it_goes():
    slow = ReplicaModel(BatchCost(3.0, 0.0), max_batch=10, start_s=5.0, deadline_s=100.0)
    rule = Script([0, 1, 1, 1, 1, 1, 1, 0])  # wanted after a second, there after six
    found = replay(rule, slow, lambda at: 5.0 if at < 1 else 0.0, 8)
    waiting = [each.waiting + each.running for each in rule.seen]
    assert waiting[0] == 0
    assert set(waiting[1:9]) == {found.items}, "its only batch was begun after six seconds and ended after nine"
    assert waiting[9] == 0
    assert (found.late, found.most) == (0, 1)


@pytest.mark.parametrize(("at", "stormy"), [(599, False), (600, True), (899.9, True), (900, False)])
def test_a_storm_has_a_begin_and_an_end(at, stormy):
    assert (storm_curve(1, 9)(at) == 9) is stormy
