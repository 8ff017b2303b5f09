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
