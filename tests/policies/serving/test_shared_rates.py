"""A tenant's rate is one rate, however many hubs of a region it asks, and whichever of them come and go."""

from hypothesis import given
from hypothesis import strategies as st

from policies.serving.admission import (
    RateLimit,
    TokenBucket,
    seconds_until_token,
    settle_bucket,
    take_from_share,
    take_token,
)

RATE, BURST = 5.0, 24.0
asked = st.lists(st.tuples(st.floats(0, 2), st.integers(0, 3), st.integers(1, 60)), max_size=120)


class TenantAtHubs:
    """A tenant's buckets at several hubs, each of which knows how many there are."""

    def __init__(self, hubs: int) -> None:
        self.now = 0.0
        self.limits = [RateLimit(RATE, BURST, hubs)] * hubs
        self.buckets = [TokenBucket(limit.share, 0.0) for limit in self.limits]

    def ask(self, hub: int, count: float) -> float:
        """Tokens that it was given."""
        number = hub % len(self.buckets)
        left = take_from_share(self.buckets[number], self.limits[number], self.now, count)
        if left is None:
            return 0.0
        self.buckets[number] = left
        return min(count, BURST)

    def divide(self, hubs: int) -> None:
        """All hubs that stay hear that there are so many now; new ones begin with their share."""
        limit = RateLimit(RATE, BURST, hubs)
        stay = zip(self.buckets[:hubs], self.limits, strict=False)
        self.buckets = [settle_bucket(bucket, old, self.now) for bucket, old in stay]
        self.buckets += [TokenBucket(limit.share, self.now)] * (hubs - len(self.buckets))
        self.limits = [limit] * hubs


@given(st.integers(1, 4), asked)
def test_all_hubs_together_give_a_tenant_no_more_than_its_burst_and_rate(hubs, steps):
    tenant, given_ = TenantAtHubs(hubs), 0.0
    for gap, hub, count in steps:
        tenant.now += gap
        given_ += tenant.ask(hub, min(count, BURST / hubs))
    assert given_ <= BURST + RATE * tenant.now + 1e-6


@given(st.integers(1, 4), asked)
def test_requests_larger_than_a_hubs_share_are_owed_and_paid_back(hubs, steps):
    tenant, given_ = TenantAtHubs(hubs), 0.0
    for gap, hub, count in steps:
        tenant.now += gap
        given_ += tenant.ask(hub, count)
    assert given_ <= hubs * BURST + RATE * tenant.now + 1e-6


@given(asked, st.lists(st.integers(1, 4), min_size=1, max_size=4), asked)
def test_after_hubs_have_come_or_gone_the_rate_is_one_rate_again(before, changes, after):
    tenant = TenantAtHubs(2)
    for gap, hub, _ in before:
        tenant.now += gap
        tenant.ask(hub, 1)
    for hubs in changes:
        tenant.divide(hubs)
    settled, given_ = tenant.now, 0.0
    for gap, hub, _ in after:
        tenant.now += gap
        given_ += tenant.ask(hub, 1)
    assert given_ <= BURST + RATE * (tenant.now - settled) + 1e-6


@given(st.integers(1, 16), st.integers(1, 100), st.floats(0, 100))
def test_who_waits_as_long_as_told_is_let_in_at_the_same_hub(hubs, count, now):
    limit = RateLimit(RATE, BURST, hubs)
    empty = TokenBucket(0.0, now)
    assert take_from_share(empty, limit, now, count) is None
    wait_s = seconds_until_token(empty, limit.share_per_s, now, limit.count_needed(count))
    assert take_from_share(empty, limit, now + wait_s + 1e-6, count) is not None


@given(st.floats(0, 24), st.integers(1, 60), st.floats(0, 100))
def test_of_one_hub_nothing_is_divided_or_owed(tokens, count, gap):
    bucket, needed = TokenBucket(tokens, 0.0), min(float(count), BURST)
    assert take_from_share(bucket, RateLimit(RATE, BURST), gap, count) == take_token(bucket, RATE, BURST, gap, needed)
