"""Fair queue of bands, tenants and devices: shares, no starvation, no gain from claiming urgency."""

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.serving.fair_queue import (
    BAND_SHARES,
    HIGH,
    LOW,
    NORMAL,
    FairQueue,
    FlowKey,
    TurnOrder,
    VirtualClock,
    extract_tenant,
    priority_to_band,
)

NAMES = st.sampled_from("abcd")
PLACES = st.builds(FlowKey, st.integers(HIGH, LOW), NAMES, NAMES)
WEIGHTS = st.floats(0.1, 8.0)


def full(*given: tuple[FlowKey, int]) -> FairQueue[FlowKey]:
    queue: FairQueue[FlowKey] = FairQueue()
    for place, count in given:
        for _ in range(count):
            queue.put(place, 1.0, place)
    return queue


def served(queue: FairQueue[FlowKey], count: int) -> list[FlowKey]:
    return [queue.take_next() for _ in range(count)]


def test_the_protocols_priorities_become_bands():
    assert [priority_to_band(number) for number in (0, 1, 2, 3, 4, 99)] == [NORMAL, HIGH, NORMAL, LOW, LOW, LOW]


def test_a_tenant_is_what_stands_before_the_two_dashes():
    assert [extract_tenant(name) for name in ("acme--camera-1", "", "alone")] == ["acme", "", "alone"]


def test_fifty_tenants_that_flood_alike_are_served_alike():
    queue = full(*((FlowKey(NORMAL, f"t{n}", "d"), 100) for n in range(50)))
    had = Counter(place.tenant for place in served(queue, 1000))
    assert set(had.values()) == {20}


def test_a_tenant_with_a_hundred_devices_has_no_more_than_one_with_one():
    crowd = [(FlowKey(NORMAL, "crowd", f"d{n}"), 10) for n in range(100)]
    queue = full((FlowKey(NORMAL, "single", "d"), 1000), *crowd)
    had = Counter(place.tenant for place in served(queue, 400))
    assert had == {"single": 200, "crowd": 200}


def test_the_devices_of_a_tenant_take_turns():
    queue = full((FlowKey(NORMAL, "t", "flood"), 500), (FlowKey(NORMAL, "t", "quiet"), 3))
    assert [place.device for place in served(queue, 6)].count("quiet") == 3


def test_bands_share_by_weight_and_the_lowest_is_never_starved():
    queue = full(*((FlowKey(band, "t", "d"), 1000) for band in BAND_SHARES))
    had = Counter(place.band for place in served(queue, 210))
    assert had == {HIGH: 160, NORMAL: 40, LOW: 10}


def test_calling_everything_urgent_takes_no_turn_from_those_who_are_honest():
    queue = full(
        (FlowKey(HIGH, "liar", "d"), 1000), (FlowKey(NORMAL, "liar", "d"), 1000), (FlowKey(NORMAL, "fair", "d"), 50)
    )
    had = Counter(place for place in served(queue, 250))
    assert had[FlowKey(NORMAL, "fair", "d")] == 50  # all of the normal band's share: the liar has had its turns


def test_urgent_work_that_comes_last_is_served_almost_at_once():
    queue = full((FlowKey(NORMAL, "a", "d"), 1000), (FlowKey(LOW, "b", "d"), 1000))
    served(queue, 100)
    urgent = FlowKey(HIGH, "a", "d")
    queue.put(urgent, 1.0, urgent)
    assert urgent in served(queue, 2)


def test_silence_saves_up_nothing():
    queue = full((FlowKey(NORMAL, "busy", "d"), 1000))
    served(queue, 500)
    for _ in range(500):
        queue.put(FlowKey(NORMAL, "away", "d"), 1.0, FlowKey(NORMAL, "away", "d"))
    assert Counter(place.tenant for place in served(queue, 200)) == {"busy": 100, "away": 100}


def test_heavy_items_count_as_what_they_weigh():
    queue: FairQueue[FlowKey] = FairQueue()
    for tenant, weight in (("heavy", 4.0), ("light", 1.0)):
        for _ in range(400):
            queue.put(FlowKey(NORMAL, tenant, "d"), weight, FlowKey(NORMAL, tenant, "d"))
    had = Counter(place.tenant for place in served(queue, 250))
    assert had["light"] == pytest.approx(4 * had["heavy"], rel=0.05)


@given(st.lists(st.tuples(PLACES, WEIGHTS), max_size=120))
def test_everything_that_was_put_in_comes_out_once_and_each_device_keeps_its_order(puts):
    queue: FairQueue[tuple[FlowKey, int]] = FairQueue()
    own: dict[FlowKey, deque[int]] = {}
    for number, (place, weight) in enumerate(puts):
        queue.put(place, weight, (place, number))
        own.setdefault(place, deque()).append(number)
    assert len(queue) == len(list(queue)) == len(puts)
    while len(queue):
        expected = queue.peek()
        place, number = queue.take_next()
        assert (place, number) == expected
        assert own[place].popleft() == number
    assert not any(own.values())


@given(st.lists(PLACES, min_size=2, max_size=120))
def test_nobody_who_waits_is_passed_over_for_long(puts):
    """Every 21 turns each waiting band has one, and in it each tenant before any other has its second more."""
    queue = full(*((place, 1) for place in puts))
    waits = Counter(puts)
    for place in served(queue, len(puts)):
        waits[place] -= 1
    assert not any(waits.values())
    again = full(*((place, 40) for place in set(puts)))
    bands = {place.band for place in puts}
    assert {place.band for place in served(again, 21)} == bands


@given(st.lists(st.integers(1, 60), min_size=2, max_size=8), st.integers(1, 40))
def test_tenants_that_all_wait_differ_by_one_item_at_most(backlogs, count):
    queue = full(*((FlowKey(NORMAL, f"t{n}", "d"), 60 + backlog) for n, backlog in enumerate(backlogs)))
    had = Counter(place.tenant for place in served(queue, count))
    counts = [had[f"t{n}"] for n in range(len(backlogs))]
    assert max(counts) - min(counts) <= 1


@given(st.lists(st.tuples(PLACES, st.booleans()), max_size=80))
def test_what_is_swept_is_gone_and_the_rest_is_served(puts):
    queue: FairQueue[tuple[FlowKey, bool]] = FairQueue()
    for place, alive in puts:
        queue.put(place, 1.0, (place, alive))
    gone = queue.remove_unless(lambda item: item[1])
    assert not any(alive for _, alive in gone)
    left = [queue.take_next() for _ in range(len(queue))]
    assert all(alive for _, alive in left)
    assert len(left) + len(gone) == len(puts)


def test_of_flows_that_left_little_is_remembered_and_after_a_pause_nothing():
    queue: FairQueue[int] = FairQueue()
    for number in range(3_000):
        queue.put(FlowKey(NORMAL, f"t{number}", "d"), 1.0, number)
        queue.put(FlowKey(NORMAL, f"t{number + 1}", "d"), 1.0, number)
        queue.take_next()
    assert len(queue._tenants._tags) > 0
    while len(queue):
        queue.take_next()
    assert not queue._tenants._tags
    assert not queue._flows
    assert all(not turns._heap for turns in queue._turns.values())


def test_a_flow_that_comes_and_goes_leaves_nothing_behind():
    turns: TurnOrder[str] = TurnOrder(VirtualClock())
    turns.enter("stays")
    for _ in range(10_000):
        turns.enter("flickers")
        turns.leave("flickers")
    assert turns.first() == "stays"
    assert len(turns._heap) <= 2048


def test_how_much_may_be_ahead_of_a_newcomer_and_of_a_greedy_one():
    queue = full((FlowKey(NORMAL, "greedy", "d"), 300), (FlowKey(NORMAL, "quiet", "d"), 2))
    assert queue.estimate_ahead(NORMAL, "newcomer") == 2
    assert queue.estimate_ahead(NORMAL, "quiet") == 5
    assert queue.estimate_ahead(NORMAL, "greedy") == 601  # if the quiet one begins to send as much
    mark = FlowKey(NORMAL, "newcomer", "d")
    queue.put(mark, 1.0, mark)
    assert mark in served(queue, 3)


@given(st.lists(PLACES, max_size=60), PLACES, st.integers(0, 30))
def test_nothing_waits_longer_than_was_said_when_it_came(puts, place, served_before):
    """Where all begin alike: of what comes later only other tenants' turns count, and these are counted in."""
    queue: FairQueue[object] = FairQueue()
    for each in puts:
        queue.put(each, 1.0, each)
    ahead, mark = queue.estimate_ahead(place.band, place.tenant), object()
    queue.put(place, 1.0, mark)
    for number in range(3 * served_before):  # the others go on and on
        queue.put(FlowKey(place.band, "abcd"[number % 4], "later"), 1.0, number)
    position = next(n for n in range(len(queue)) if queue.take_next() is mark)
    others = sum(each.tenant == place.tenant and each.band != place.band for each in puts)
    devices = len({each.device for each in puts if each[:2] == place[:2]} | {place.device}) + 1
    assert position <= (ahead + others * 4 + 42) * devices  # a start of at most two turns of each band


@given(st.lists(PLACES, min_size=1, max_size=60), st.integers(0, 3))
def test_who_is_passed_over_waits_until_it_is_recalled_and_nothing_is_lost(puts, passed):
    queue = full(*((place, 1) for place in puts))
    aside = set()
    for _ in range(passed):
        if queue.has_next:
            place = queue.peek()
            aside.add((place.band, place.tenant))
            queue.pass_over()
    while queue.has_next:
        place = queue.take_next()
        assert (place.band, place.tenant) not in aside
        puts.remove(place)
    assert {(place.band, place.tenant) for place in puts} == aside
    queue.recall()
    assert sorted(served(queue, len(puts))) == sorted(puts)
    assert not len(queue)


@given(st.lists(PLACES, min_size=1, max_size=60), st.booleans(), st.integers(0, 20))
def test_a_queue_that_is_narrowed_serves_one_tenant_or_device_and_nothing_is_lost(puts, device_only, most):
    queue = full(*((place, 1) for place in puts))
    only = queue.peek()
    queue.narrow(device_only=device_only)
    length = 2 + device_only
    for _ in range(most):
        if queue.has_next:
            place = queue.peek()
            assert queue.take_next() == place
            assert place[:length] == only[:length]
            puts.remove(place)
    assert queue.has_next == any(place[:length] == only[:length] for place in puts)
    queue.recall()
    assert sorted(served(queue, len(puts))) == sorted(puts)
    assert not len(queue)


@given(st.lists(PLACES, min_size=1, max_size=60), st.integers(0, 5))
def test_a_device_that_is_passed_over_keeps_no_other_of_its_tenant_waiting(puts, passed):
    queue = full(*((place, 1) for place in puts))
    aside = set()
    for _ in range(passed):
        if queue.has_next:
            aside.add(queue.peek())
            queue.pass_over(device_only=True)
    while queue.has_next:
        place = queue.take_next()
        assert place not in aside
        puts.remove(place)
    assert set(puts) == aside
    queue.recall()
    assert sorted(served(queue, len(puts))) == sorted(puts)


@pytest.mark.parametrize("other", [FlowKey(NORMAL, "t", "other"), FlowKey(NORMAL, "u", "d"), FlowKey(HIGH, "u", "d")])
def test_what_is_served_out_of_turn_is_charged_and_costs_the_others_nothing_of_what_they_are_owed(other: FlowKey):
    queue = full((FlowKey(NORMAL, "t", "one"), 20), (other, 20))
    while queue.peek() == other:
        queue.take_next()
    queue.narrow(device_only=True)
    served(queue, 10)
    queue.recall()
    assert served(queue, 9).count(other) == 9


def test_what_is_put_back_comes_first_of_its_device_and_is_charged_again():
    one, other = FlowKey(NORMAL, "one", "d"), FlowKey(NORMAL, "other", "d")
    queue: FairQueue[str] = FairQueue()
    for number in range(4):
        queue.put(one, 1.0, f"one {number}")
        queue.put(other, 1.0, f"other {number}")
    first = [queue.take_next(), queue.take_next()]
    queue.put_back(one, 1.0, "one 0")
    assert sorted(first) == ["one 0", "other 0"]
    assert [queue.take_next() for _ in range(4)] == ["one 0", "other 1", "one 1", "other 2"]


def test_a_tenant_that_is_charged_for_more_waits_for_so_many_turns():
    one, other = FlowKey(NORMAL, "one", "d"), FlowKey(NORMAL, "other", "d")
    queue = full((one, 20), (other, 20))
    queue.charge(one, 10.0)
    assert served(queue, 10).count(other) >= 9


def test_a_heap_is_made_anew_only_when_it_holds_a_thousand_entries_more_than_twice_what_waits():
    turns: TurnOrder[str] = TurnOrder(VirtualClock())
    for name in ("stays", "too"):
        turns.enter(name)
    most = 0
    for _ in range(5_000):
        turns.enter("flickers")
        turns.leave("flickers")
        most = max(most, len(turns._heap))
        assert len(turns._heap) <= 2 * 3 + 1024
    assert most > 1024
    assert [turns.first(), len(turns)] == ["stays", 2]


def test_tags_that_lie_in_the_past_are_dropped_and_those_of_the_future_stay():
    clock: VirtualClock[str] = VirtualClock()
    for number in range(1024):
        clock.charge(f"t{number}", 1.0 if number % 2 else 3.0)
    assert len(clock._tags) == 1024
    clock.advance(1.0)
    clock.charge("one more", 1.0)
    assert len(clock._tags) == 513
    assert (clock.start_tag("t0"), clock.start_tag("t1"), clock.start_tag("one more")) == (3.0, 1.0, 2.0)
    for number in range(2 * 1024):  # of those that lie in the future as many again may come before the next look
        clock.charge(f"u{number}", 2.0)
    assert len(clock._tags) == 513 + 2048
    clock.advance(0.5)
    assert clock.now == 1.0  # never back


def test_what_was_charged_puts_a_flow_behind_the_others_by_its_weight_and_share():
    clock: VirtualClock[int] = VirtualClock({HIGH: 16.0, LOW: 1.0})
    for band in (HIGH, LOW, NORMAL):
        clock.charge(band, 8.0)
    assert [clock.start_tag(band) for band in (HIGH, LOW, NORMAL)] == [0.5, 8.0, 8.0]


def test_who_comes_to_a_queue_in_which_one_item_waits_is_served_behind_it():
    queue: FairQueue[str] = FairQueue()
    queue.put(FlowKey(NORMAL, "a", "d"), 1.0, "first")
    assert (queue.peek(), queue.has_next, len(queue)) == ("first", True, 1)
    queue.put(FlowKey(NORMAL, "b", "d"), 1.0, "second")
    assert queue.peek() == "first"
    queue.put(FlowKey(HIGH, "c", "d"), 1.0, "urgent")
    assert queue.peek() in {"first", "urgent"}
    assert sorted(queue) == ["first", "second", "urgent"]
    assert sorted(queue.drop_next() for _ in range(3)) == ["first", "second", "urgent"]
    assert (queue.has_next, len(queue), list(queue)) == (False, 0, [])


def test_who_is_dropped_is_charged_nothing():
    queue = full((FlowKey(NORMAL, "a", "d"), 3), (FlowKey(NORMAL, "b", "d"), 3))
    assert queue.drop_next().tenant == "a"
    assert [queue.take_next().tenant for _ in range(2)] == ["a", "b"]


def test_an_estimate_counts_own_items_debts_and_the_turns_of_other_bands():
    queue = full((FlowKey(NORMAL, "a", "d"), 4), (FlowKey(LOW, "b", "d"), 4))
    own = BAND_SHARES[NORMAL]
    assert queue.estimate_ahead(NORMAL, "a") == 4 * (own + BAND_SHARES[LOW]) / own
    assert queue.estimate_ahead(NORMAL, "c") == 1 * (own + BAND_SHARES[LOW]) / own
    assert queue.estimate_ahead(HIGH, "c") == 0.0
    assert queue.take_next().tenant == "a"
    assert queue.estimate_ahead(LOW, "a") == ((0 + 1 + 1) * 2 - 1) * (BAND_SHARES[LOW] + own) / BAND_SHARES[LOW]
