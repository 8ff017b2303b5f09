"""Dynamic batching: the learnt cost model, and batches limited by their tightest deadline."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.serving.batching import (
    COST_WINDOW,
    BatchCost,
    BatchLimits,
    CostModel,
    GrowingBatch,
    WaitingItem,
    choose_batch_size,
    compute_overhead,
    grow_batch,
    is_hopeless,
    learn_cost,
    limit_background,
)

COST = BatchCost(0.050, 0.002)


def taught(pairs, start: CostModel | None = None) -> CostModel:
    learnt = start or CostModel()
    for weight, seconds in pairs:
        learnt = learn_cost(learnt, weight, seconds)
    return learnt


def batch_of(items, room: BatchLimits) -> GrowingBatch:
    batch = GrowingBatch()
    for item in items:
        after = grow_batch(batch, item, room)
        if after is None:
            break
        batch = after
    return batch


@pytest.mark.parametrize(
    ("queued", "free_slots", "expected"),
    [(0, 1, 0), (5, 0, 0), (1, 1, 1), (5, 1, 5), (50, 1, 32), (5, 2, 3), (-1, 1, 0)],
)
def test_an_idle_engine_gets_what_is_there(queued, free_slots, expected):
    assert choose_batch_size(queued, 32, free_slots) == expected


@given(st.integers(1, 1000), st.integers(1, 64), st.integers(1, 8))
def test_all_free_slots_together_empty_the_queue_or_are_full(queued, max_batch, free_slots):
    batch = choose_batch_size(queued, max_batch, free_slots)
    assert 1 <= batch <= max_batch
    assert batch == max_batch or batch * free_slots >= queued


@given(st.floats(0, 1), st.floats(0, 0.1), st.lists(st.integers(1, 64), min_size=2, max_size=80))
def test_a_line_is_learnt_exactly(base_s, item_s, weights):
    learnt = taught((w, base_s + item_s * w) for w in weights)
    for weight in weights[-COST_WINDOW:]:
        assert learnt.cost.predict_seconds(weight) == pytest.approx(base_s + item_s * weight, abs=1e-6)
    if len(set(weights[-COST_WINDOW:])) > 1:
        assert learnt.cost.item_s == pytest.approx(item_s, abs=1e-6)


@given(st.lists(st.tuples(st.floats(0.1, 1e4), st.floats(0, 1e3)), min_size=1, max_size=200))
def test_no_cost_is_negative_and_the_window_is_bounded(pairs):
    learnt = taught(pairs)
    assert len(learnt.seen) == min(len(pairs), COST_WINDOW)
    assert learnt.cost.base_s >= -1e-9
    assert 0 <= learnt.cost.item_s < inf


def test_an_engine_that_became_slower_is_known_after_one_window():
    learnt = taught((n % 16 + 1, 0.001) for n in range(500))
    learnt = taught(((n % 16 + 1, COST.predict_seconds(n % 16 + 1)) for n in range(COST_WINDOW)), learnt)
    assert learnt.cost.base_s == pytest.approx(COST.base_s)
    assert learnt.cost.item_s == pytest.approx(COST.item_s)


def test_batches_of_one_size_keep_the_slope_that_was_learnt():
    learnt = taught([(1, COST.predict_seconds(1)), (16, COST.predict_seconds(16))])
    learnt = taught([(16, COST.predict_seconds(16))] * 2 * COST_WINDOW, learnt)
    assert learnt.cost.base_s == pytest.approx(COST.base_s)
    assert learnt.cost.item_s == pytest.approx(COST.item_s)


@pytest.mark.parametrize(("weight", "seconds"), [(0, 1), (-1, 1), (nan, 1), (1, -1), (1, nan), (1, inf), (inf, 1)])
def test_an_impossible_batch_fails_loudly(weight, seconds):
    with pytest.raises(ValueError):
        learn_cost(CostModel(), weight, seconds)


def test_nothing_is_known_at_first_and_nothing_is_held_back_by_it():
    assert BatchCost().predict_rate(8) == inf
    assert batch_of([WaitingItem(deadline=0.5)] * 20, BatchLimits(16, BatchCost(), 0.0)).items == 16


def test_a_batch_stops_where_the_tightest_deadline_would_be_missed():
    room = BatchLimits(32, COST, now=100.0)
    easy = [WaitingItem(deadline=101.0)] * 40
    assert batch_of(easy, room).items == 32
    tight = [WaitingItem(deadline=100.0 + COST.predict_seconds(20)), *easy]
    assert batch_of(tight, room).items == 20


def test_a_deadline_that_is_missed_anyway_slows_nobody():
    late = [WaitingItem(deadline=100.01)] * 40
    assert is_hopeless(late[0], BatchLimits(32, COST, 100.0))
    assert batch_of(late, BatchLimits(32, COST, 100.0)).items == 32


def test_while_many_wait_one_caller_in_a_hurry_cannot_take_more_than_a_tenth_of_the_engines_rate():
    room = BatchLimits(32, COST, 100.0, pressed=True)
    hurried = [WaitingItem(deadline=100.0 + COST.predict_seconds(1)), *[WaitingItem()] * 40]
    batch = batch_of(hurried, room)
    assert 1 < batch.items < 32
    assert COST.predict_rate(batch.weight) >= 0.9 * COST.predict_rate(32)
    assert batch_of(hurried, BatchLimits(32, COST, 100.0)).items == 1  # while few wait it is served in time


def test_one_heavy_item_always_goes():
    assert batch_of([WaitingItem(1e6, 0.0)], BatchLimits(1, COST, 5.0)).items == 1


@given(
    st.lists(st.builds(WaitingItem, st.floats(0.1, 10), st.floats(0, 3)), min_size=1, max_size=60),
    st.builds(
        BatchLimits,
        st.integers(1, 40),
        st.builds(BatchCost, st.floats(0, 0.5), st.floats(0, 0.1)),
        st.just(1.0),
        st.booleans(),
    ),
)
def test_a_batch_is_bounded_and_keeps_its_promises_unless_they_cost_too_much(items, room):
    batch = batch_of(items, room)
    assert 1 <= batch.items <= max(1, room.max_items)
    assert batch.weight == pytest.approx(sum(item.weight for item in items[: batch.items]))
    ends = room.now + room.cost.predict_seconds(batch.weight)
    broken = [i for i in items[: batch.items] if not is_hopeless(i, room) and i.deadline < ends]
    if broken and batch.items > 1:  # only where all smaller batches would have wasted the engine
        assert room.pressed
        smaller = batch_of(items[: batch.items - 1], room)
        full = smaller.weight * room.max_items / smaller.items
        assert room.cost.predict_rate(smaller.weight) < 0.9 * room.cost.predict_rate(full) + 1e-9


def test_weights_that_differ_by_rounding_alone_say_nothing_of_the_slope_and_small_true_differences_do():
    before = CostModel((), BatchCost(0.0, 1e-4))
    for weight in (1e-3, 1e3):
        same = taught([(weight, 1.0), (weight * (1 + 1e-7), 2.0)] * COST_WINDOW, before)
        assert same.cost.item_s == 1e-4
        apart = taught([(weight, 1.0), (weight * 1.01, 1.005)] * COST_WINDOW, before)
        assert apart.cost.item_s == pytest.approx(0.5 / weight)


def test_items_that_nobody_waits_for_lengthen_a_batch_by_a_twentieth():
    assert limit_background(10, 30, COST) == pytest.approx(10 + 0.05 * 0.070 / 0.002)
    for weight in (10.0, 30.0):
        most = limit_background(weight, 0, COST)
        assert COST.predict_seconds(most) == pytest.approx(1.05 * COST.predict_seconds(weight))
    assert limit_background(0, 30, COST) == limit_background(30, 0, COST)  # others may come
    assert limit_background(0, 0, COST) == inf
    assert limit_background(10, 0, BatchCost(0.05, 0.0)) == inf


@given(st.floats(0, 0.5), st.floats(1e-4, 0.1), st.integers(2, 32))
def test_a_batch_that_is_just_large_enough_for_its_rate_keeps_its_deadline(base_s, item_s, most):
    """The second item would miss the first one's deadline: it waits if batches of one have nine tenths of the rate."""
    cost = BatchCost(base_s, item_s)
    room = BatchLimits(most, cost, 0.0, pressed=True)
    first = GrowingBatch(1, 1.0, cost.predict_seconds(1.0))
    enough = 1.0 / cost.predict_seconds(1.0) >= 0.9 * most / cost.predict_seconds(most)
    grown = grow_batch(first, WaitingItem(), room)
    assert (grown is None) == enough
    assert grown in (None, GrowingBatch(2, 2.0, cost.predict_seconds(1.0)))


def test_an_item_that_meets_its_deadline_to_the_second_is_not_late_and_counts():
    room = BatchLimits(8, BatchCost(1.0, 1.0), 10.0)
    exact = WaitingItem(1.0, 12.0)
    assert not is_hopeless(exact, room)
    assert grow_batch(GrowingBatch(), exact, room) == GrowingBatch(1, 1.0, 12.0)
    assert grow_batch(GrowingBatch(1, 1.0, inf), WaitingItem(1.0, 13.0), room) == GrowingBatch(2, 2.0, 13.0)
    assert grow_batch(GrowingBatch(1, 1.0, 12.0), WaitingItem(1.0, 13.0), room) is None


def test_a_small_batch_costs_what_full_ones_would_have_computed_in_its_time():
    cost = BatchCost(0.08, 0.01)  # 0.16 s a full batch of 8, 0.09 s a single item: the time of 4.5 in full ones
    assert compute_overhead(1.0, 8.0, cost) == pytest.approx(3.5)
    assert compute_overhead(8.0, 8.0, cost) == pytest.approx(0.0)
    assert compute_overhead(1.0, 8.0, BatchCost()) == 0.0
