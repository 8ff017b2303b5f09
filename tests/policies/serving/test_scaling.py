"""Replicas wanted: up at once, down late, never to and fro on constant load, from zero with a room that ends."""

from itertools import pairwise
from math import ceil, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.serving.batching import BatchCost
from policies.serving.scaling import (
    ModelLoad,
    ScalingRules,
    ScalingState,
    count_needed,
    may_wait,
    measure_need,
    plan_replicas,
    rate_in_time,
)

RULES = ScalingRules(floor=1, ceiling=20, down_after_s=60.0, idle_s=120.0)
RATE = 10.0  # items a second of one replica
LOADS = st.builds(ModelLoad, st.floats(0, 500), st.floats(0, 5000), st.floats(0, 5000))
LIMITS = st.builds(
    lambda floor, more, share: ScalingRules(floor, floor + more, share, down_after_s=60.0, idle_s=90.0),
    st.integers(0, 5),
    st.integers(1, 20),
    st.floats(0.1, 1),
)


def look_through(rules, loads, every_s=1.0, start=0.0):
    """The state after each look at one load after another."""
    state, states = ScalingState.start(rules, start), []
    for at, load in enumerate(loads):
        state = plan_replicas(rules, state, load, RATE, start + at * every_s)
        states.append(state)
    return states


@given(LIMITS, st.lists(LOADS, min_size=1, max_size=300))
def test_the_number_lies_between_floor_and_ceiling_and_is_never_below_the_need(rules, loads):
    for load, state in zip(loads, look_through(rules, loads), strict=True):
        assert rules.floor <= state.wanted <= rules.ceiling
        assert state.wanted >= min(rules.ceiling, count_needed(rules, load, RATE))


@given(LIMITS, LOADS, st.integers(1, 400))
def test_on_constant_load_the_number_moves_once_and_never_again(rules, load, looks):
    numbers = [state.wanted for state in look_through(rules, [load] * looks)]
    idle = load.rate == load.waiting == load.running == 0
    assert numbers == sorted(numbers, reverse=True) if idle else len(set(numbers)) == 1


@given(st.lists(LOADS, min_size=2, max_size=400))
def test_a_step_down_leaves_enough_for_the_highest_need_of_the_time_before(loads):
    needs = [count_needed(RULES, load, RATE) for load in loads]
    states = look_through(RULES, loads)
    for at in range(1, len(states)):
        if states[at].wanted < states[at - 1].wanted:
            assert at >= RULES.down_after_s
            assert states[at].wanted == states[at - 1].wanted - 1
            assert states[at].wanted >= max(needs[at - int(RULES.down_after_s) + 1 : at + 1])


def test_a_storm_is_met_at_once_and_left_after_its_time_step_by_step():
    quiet, storm = ModelLoad(5, 0), ModelLoad(75, 0)
    states = look_through(RULES, [quiet] * 100 + [storm] * 10 + [quiet] * 200)
    numbers = [state.wanted for state in states]
    assert numbers[99:102] == [1, 10, 10]
    assert numbers[109 + 59] == 10
    assert numbers[109 + 90] == 1
    assert all(after >= before - 1 for before, after in pairwise(numbers[110:]))


def test_a_load_that_swings_keeps_what_its_peaks_need():
    numbers = [state.wanted for state in look_through(RULES, [ModelLoad(20, 0), ModelLoad(60, 0)] * 200)]
    assert numbers[1:] == [8] * 399


def test_what_waits_is_to_be_gone_in_its_time_and_what_is_computed_needs_no_more():
    assert count_needed(RULES, ModelLoad(0, 800, 90), RATE) == ceil(800 / RULES.drain_s / (RATE * RULES.busy_share))


def test_a_replica_that_is_never_in_time_is_not_multiplied():
    assert count_needed(RULES, ModelLoad(1e6, 1e6), 0.0) == 1


def test_the_last_replica_goes_when_nothing_was_asked_for_long_and_comes_back_at_once():
    rules = ScalingRules(floor=0, ceiling=4, down_after_s=60.0, idle_s=120.0)
    numbers = [s.wanted for s in look_through(rules, [ModelLoad(1, 0)] + [ModelLoad(0, 0)] * 130 + [ModelLoad(0, 1)])]
    assert numbers[119:122] == [1, 0, 0]
    assert numbers[-2:] == [0, 1]


def test_the_waiting_room_has_a_size_and_an_end():
    rules = ScalingRules(floor=0, room_items=3, room_s=10.0)
    assert may_wait(rules, 2, 9.9)
    assert not may_wait(rules, 3, 0.0)
    assert not may_wait(rules, 0, 10.0)


@given(st.floats(0, 0.2), st.floats(0, 0.1), st.integers(1, 64), st.floats(0.001, 2))
def test_what_one_replica_does_in_time_fits_two_batches_into_the_deadline(base_s, item_s, most, deadline_s):
    cost = BatchCost(base_s, item_s)
    rate = rate_in_time(cost, most, deadline_s)
    sizes = [n for n in range(1, most + 1) if 2 * cost.predict_seconds(n) <= deadline_s * (1 - 1e-9)]
    assert rate >= max((cost.predict_rate(n) for n in sizes), default=0.0) * (1 - 1e-9)
    if 2 * cost.predict_seconds(1) > deadline_s * (1 + 1e-9):
        assert rate == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"floor": -1}, {"floor": 3, "ceiling": 2}, {"floor": 0, "ceiling": 0}, {"busy_share": 0.0}, {"busy_share": 1.1},
        {"drain_s": 0.0}, {"down_after_s": -1.0}, {"idle_s": float("inf")}, {"room_s": float("nan")},
    ],
)  # fmt: skip
def test_limits_that_contradict_one_another_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ScalingRules(**wrong)


@pytest.mark.parametrize("wrong", [(-1.0, 0.0), (0.0, -1.0), (float("nan"), 0.0), (0.0, float("inf"))])
def test_a_load_that_cannot_have_been_measured_is_refused(wrong):
    with pytest.raises(ValueError, match="no model has"):
        ModelLoad(*wrong)


def test_what_arrives_what_waits_and_what_has_time_add_up_to_a_need_in_replicas():
    rules = ScalingRules(busy_share=0.5, drain_s=10.0, backlog_s=100.0)
    assert measure_need(rules, ModelLoad(3.0, 20.0, 99.0, 500.0), 4.0) == pytest.approx((3 + 2 + 5) / (4 * 0.5))
    assert measure_need(rules, ModelLoad(0.0, running=5.0), 4.0) == 0.0
    assert [measure_need(rules, ModelLoad(0.5), rate) for rate in (0.0, -1.0, inf, float("nan"))] == [1.0] * 4
    assert [count_needed(rules, ModelLoad(rate), 4.0) for rate in (0.0, 0.1, 2.0, 2.1, 4.0, 4.1)] == [0, 1, 1, 2, 2, 3]


@pytest.mark.parametrize("work", ["rate", "waiting", "running", "backlog"])
def test_any_work_keeps_the_last_replica_until_its_idle_time_is_over(work):
    rules = ScalingRules(floor=0, ceiling=4, down_after_s=10.0, idle_s=50.0)
    state = plan_replicas(rules, ScalingState(1, 0.0, 0.0), ModelLoad(**{"rate": 0.0, work: 1.0}), RATE, 100.0)
    assert (state.wanted, state.worked_at) == (1, 100.0)
    numbers = []
    for now in (149.0, 149.9, 150.0):
        state = plan_replicas(rules, state, ModelLoad(0.0), RATE, now)
        numbers.append((state.wanted, state.worked_at, state.began_at))
    assert numbers == [(1, 100.0, 0.0), (1, 100.0, 0.0), (0, 100.0, 0.0)]


def test_nothing_goes_before_a_model_was_watched_for_the_whole_time_before_a_step_down():
    rules = ScalingRules(floor=1, ceiling=9, down_after_s=60.0)
    first = ScalingState(5, 100.0, 100.0)
    assert plan_replicas(rules, first, ModelLoad(1.0), RATE, 159.9).wanted == 5
    assert plan_replicas(rules, first, ModelLoad(1.0), RATE, 160.0).wanted == 4
    assert plan_replicas(rules, ScalingState(5, 0.0, 0.0), ModelLoad(8.0 * 5), RATE, 160.0).wanted == 5


def test_the_highest_need_of_each_part_of_the_time_is_kept_until_that_time_is_over():
    rules = ScalingRules(down_after_s=160.0)  # sixteen parts of ten seconds
    state = ScalingState.start(rules, 0.0)
    for now, replicas in ((0.0, 2), (9.9, 7), (9.95, 3), (10.0, 4), (25.0, 1), (185.0, 1)):
        state = plan_replicas(rules, state, ModelLoad(8.0 * replicas), RATE, now)
        if now == 25.0:
            assert state.peaks == ((10.0, 7), (20.0, 4), (35.0, 1))
    assert state.peaks == ((35.0, 1), (195.0, 1))


def test_limits_may_touch_their_bounds_and_a_load_its_highest_figure():
    assert ScalingRules(floor=1, ceiling=1, busy_share=1.0).ceiling == 1
    assert ModelLoad(1e9, 1e9, 1e9, 1e9).backlog == 1e9
    for name in ("rate", "waiting", "running", "backlog"):
        for value in (1.0001e9, -0.1):
            with pytest.raises(ValueError, match=f"no model has a {name} of"):
                ModelLoad(**{"rate": 0.0, name: value})


def test_a_batch_of_no_growing_cost_is_full_if_its_base_fits_half_the_deadline():
    assert rate_in_time(BatchCost(0.5, 0.0), 8, 1.0) == 16.0
    assert rate_in_time(BatchCost(0.5001, 0.0), 8, 1.0) == 0.0
    assert rate_in_time(BatchCost(0.25, 0.25), 8, 1.0) == 2.0  # one item each half second
    assert rate_in_time(BatchCost(0.25, 0.26), 8, 1.0) == 0.0
