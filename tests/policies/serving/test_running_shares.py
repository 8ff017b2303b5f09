"""What a tenant needed a moment ago is kept for it; all else anybody may have."""

from hypothesis import given
from hypothesis import strategies as st

from policies.serving.running_shares import MAX_TENANTS, MEMORY_S, RunningShares

PLACES = 16


def take(shares: RunningShares, tenant: str, count: int, now: float = 0.0) -> int:
    """Begin as many requests of one place as may begin; how many did."""
    begun = 0
    for _ in range(count):
        shares.on_waiting(tenant, 1, now)
        if shares.may_begin(tenant, 1, PLACES, now):
            shares.on_begun(tenant, 1, now)
            begun += 1
        shares.on_left(tenant, 1)
    return begun


def release(shares: RunningShares, tenant: str, count: int) -> None:
    for _ in range(count):
        shares.on_ended(tenant, 1)


def test_one_tenant_alone_has_everything():
    assert take(RunningShares(), "a", PLACES + 3) == PLACES


def test_what_a_tenant_needed_a_moment_ago_is_kept_for_it_up_to_its_share():
    shares = RunningShares()
    assert take(shares, "honest", 3) == 3
    release(shares, "honest", 3)
    assert take(shares, "hostile", PLACES) == PLACES - 3
    assert take(shares, "honest", 3) == 3


def test_a_need_is_forgotten_after_a_while():
    shares = RunningShares()
    take(shares, "honest", 3)
    release(shares, "honest", 3)
    assert take(shares, "hostile", PLACES, now=2 * MEMORY_S) == PLACES


def test_no_tenant_keeps_more_than_its_share_however_much_it_had():
    shares = RunningShares()
    take(shares, "hostile", PLACES)
    release(shares, "hostile", PLACES)
    assert take(shares, "honest", PLACES) == PLACES // 2


def test_with_more_tenants_than_places_nothing_is_kept():
    shares = RunningShares()
    for number in range(PLACES + 1):
        assert take(shares, f"t{number}", 1) == 1
        release(shares, f"t{number}", 1)
    assert take(shares, "late", PLACES) == PLACES


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.booleans()), max_size=60))
def test_no_more_is_given_than_there_is_and_all_of_it_where_nothing_else_runs(steps):
    shares, running = RunningShares(), dict.fromkeys("abc", 0)
    for now, (tenant, count, ends) in enumerate(steps):
        if ends:
            ended = min(count, running[tenant])
            release(shares, tenant, ended)
            running[tenant] -= ended
        else:
            running[tenant] += take(shares, tenant, count, float(now))
        assert sum(running.values()) <= PLACES
    for tenant, count in running.items():
        release(shares, tenant, count)
    assert take(shares, "a", PLACES, now=len(steps) + 2 * MEMORY_S) == PLACES


def test_the_tenants_that_are_remembered_are_bounded():
    shares = RunningShares()
    for number in range(MAX_TENANTS + 50):
        take(shares, f"t{number}", 1)
        release(shares, f"t{number}", 1)
    assert len(shares._uses) <= MAX_TENANTS + 1


def test_places_are_kept_within_two_periods_of_the_last_need_and_not_at_their_end():
    for later, kept in ((MEMORY_S, 3), (2 * MEMORY_S - 0.1, 3), (2 * MEMORY_S, 0)):
        shares = RunningShares()
        take(shares, "honest", 3)
        release(shares, "honest", 3)
        take(shares, "hostile", 0, now=later)
        assert take(shares, "hostile", PLACES, now=later) == PLACES - kept, later


def test_a_need_of_the_period_before_counts_in_the_next_one_and_no_longer():
    for pause, kept in ((MEMORY_S, 3), (2 * MEMORY_S, 1)):
        shares = RunningShares()
        take(shares, "honest", 3)
        release(shares, "honest", 3)
        take(shares, "honest", 1, now=pause)  # a new period, in which it needs less
        release(shares, "honest", 1)
        assert take(shares, "hostile", PLACES, now=pause) == PLACES - kept, pause


def test_what_still_runs_when_a_period_begins_is_a_need_of_it():
    shares = RunningShares()
    take(shares, "slow", 3)
    shares.on_waiting("slow", 1, MEMORY_S)
    shares.on_left("slow", 1)
    release(shares, "slow", 3)
    assert take(shares, "hostile", PLACES, now=3 * MEMORY_S - 0.1) == PLACES - 3


def test_of_all_places_no_more_may_be_kept_for_others_than_the_caller_allows():
    for most_kept, left in ((1.0, 12), (0.125, 14), (0.0, 16)):
        shares = RunningShares()
        take(shares, "honest", 4)
        release(shares, "honest", 4)
        assert shares.may_begin("hostile", left, PLACES, 0.0, most_kept)
        assert not shares.may_begin("hostile", left + 0.5, PLACES, 0.0, most_kept)


def test_a_tenant_is_within_its_share_up_to_an_even_one_and_always_with_one_place():
    shares = RunningShares()
    take(shares, "a", 5)
    assert shares.count_running("a") == 5
    assert shares.count_running("b") == 0
    assert shares.is_within("a", 3, 8)  # alone it may have all
    assert not shares.is_within("a", 3.5, 8)
    assert shares.is_within("b", 4, 8)  # a second tenant has half of it
    assert not shares.is_within("b", 4.5, 8)
    assert shares.is_within("b", 1, 0)
    assert not shares.is_within("b", 1.5, 0)


def test_of_too_many_tenants_the_ones_that_asked_longest_ago_are_forgotten_and_none_that_has_or_waits_for_something():
    for busy in ("runs", "waits", None):
        shares = RunningShares()
        if busy == "runs":
            take(shares, "first", 1)
        elif busy == "waits":
            shares.on_waiting("first", 1, 0.0)
        else:
            take(shares, "first", 1)
            release(shares, "first", 1)
        for number in range(MAX_TENANTS):
            take(shares, f"t{number}", 1)
            release(shares, f"t{number}", 1)
        shares.may_begin("late", 1, 10**6, 0.0)
        assert len(shares._uses) == MAX_TENANTS + (busy is not None)
        assert ("first" in shares._uses) == (busy is not None)
        assert shares.is_covered("t0", 1, 10**6, 0.0)  # the second to ask is still known


def test_a_tenant_that_asked_for_nothing_in_two_periods_no_longer_halves_the_share_of_others():
    shares = RunningShares()
    take(shares, "gone", 1)
    release(shares, "gone", 1)
    later = 2 * MEMORY_S
    take(shares, "a", PLACES // 2, now=later)
    release(shares, "a", PLACES // 2)
    assert take(shares, "b", PLACES, now=later) == PLACES // 2  # an even share of two, not a third
