"""However ten hostile callers try, an honest one may try as often as alone, within its share."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_hub.enrollment.rate_limit import AttemptLimiter

HOSTILE = 10
RATE_PER_S, BURST = 20.0, 200.0
# who tries, how often at once, how long after the one before, and how many of them fail
STEPS = st.lists(
    st.tuples(st.integers(0, HOSTILE - 1), st.integers(1, 300), st.floats(0.0, 20.0), st.booleans()),
    min_size=1,
    max_size=25,
)
SITE = "192.0.2.1"


def make_limiter() -> AttemptLimiter:
    return AttemptLimiter(RATE_PER_S, BURST, failures_per_s=10 / 60, failures=20.0)


def play(steps: list[tuple[int, int, float, bool]], *, hostile: bool, same_site: bool) -> list[bool]:
    """Return whether each attempt of an honest device was admitted, beside hostile ones or alone.

    `same_site`: all have proved who they are, and come from one address.
    """
    limiter, now, admitted = make_limiter(), 100.0, []
    for name in ["honest", *map(str, range(HOSTILE))] if same_site else ():
        limiter.record_proof(SITE, name)
    for number, times, pause_s, fails in steps:
        now += pause_s
        address, device = (SITE, str(number)) if same_site else (f"198.51.100.{number}", "")
        for _ in range(times if hostile else 0):
            if limiter.admit_attempt(address, now, device) and fails:
                limiter.record_failure(address, now, device)
        mine = (SITE, "honest") if same_site else ("203.0.113.9", "")
        admitted.append(limiter.admit_attempt(mine[0], now, mine[1]))
    return admitted


@pytest.mark.parametrize("same_site", [False, True])
@settings(max_examples=50, deadline=None)
@given(STEPS)
def test_an_honest_caller_is_admitted_beside_ten_hostile_ones_as_often_as_alone(same_site, steps):
    within = [(number, times, 2.0 + pause_s, fails) for number, times, pause_s, fails in steps]
    alone = play(within, hostile=False, same_site=same_site)
    assert play(within, hostile=True, same_site=same_site) == alone == [True] * len(within)


@given(STEPS)
def test_all_together_try_no_more_than_the_burst_and_the_rate_allow(steps):
    limiter, admitted, seconds = make_limiter(), 0, 0.0
    for number, times, pause_s, _ in steps:
        seconds += pause_s
        admitted += sum(limiter.admit_attempt(f"198.51.100.{number}", seconds) for _ in range(times))
    assert admitted <= BURST + RATE_PER_S * seconds + 1e-6


def test_a_site_alone_has_half_of_everything_at_once_and_the_whole_rate():
    limiter = make_limiter()
    assert BURST / 2 <= sum(limiter.admit_attempt(SITE, 0.0) for _ in range(1000)) <= BURST
    later = sum(limiter.admit_attempt(SITE, second / 10) for second in range(1000) for _ in range(5))
    assert later >= 0.99 * RATE_PER_S * 99.9


def test_a_device_that_fails_keeps_no_proven_device_of_its_site_from_trying():
    limiter = make_limiter()
    limiter.record_proof(SITE, "acme--proven")
    for _ in range(100):
        limiter.record_failure(SITE, 0.0, "acme--unknown")
    assert not limiter.admit_attempt(SITE, 0.0, "acme--unknown")
    assert limiter.admit_attempt(SITE, 0.0, "acme--proven")


def test_a_name_alone_opens_no_share_and_a_stranger_elsewhere_uses_up_nobodys():
    limiter = make_limiter()
    limiter.record_proof(SITE, "acme--proven")
    for number in range(1000):
        if limiter.admit_attempt("198.51.100.1", 0.0, f"acme--{number}"):
            limiter.record_failure("198.51.100.1", 0.0, "acme--proven")
    assert limiter.remembered_addresses == 1
    assert limiter.admit_attempt(SITE, 0.0, "acme--proven")
