"""Who is batched by itself after its samples made an engine fail, for how long, and what is remembered of it."""

from hypothesis import given
from hypothesis import strategies as st

from policies.serving.isolation import FIRST_S, LONGEST_S, MANY_DEVICES, MAX_SENDERS, MEMORY_S, BatchIsolation, Sender


def test_a_device_whose_sample_failed_is_alone_for_a_while_and_no_other_of_its_tenant_is():
    isolation = BatchIsolation()
    isolation.record_failure("acme", "acme--a", 10.0)
    assert isolation.find_sender("acme", "acme--a", 10.0 + FIRST_S - 1) == Sender("acme", "acme--a")
    assert isolation.find_sender("acme", "acme--b", 11.0) is None
    assert isolation.find_sender("acme", "acme--a", 10.0 + FIRST_S) is None


def test_a_tenant_of_which_many_devices_failed_is_alone_as_a_whole():
    isolation = BatchIsolation()
    for number in range(MANY_DEVICES):
        assert isolation.find_sender("acme", "acme--new", 10.0) is None
        isolation.record_failure("acme", f"acme--{number}", 10.0)
    assert isolation.find_sender("acme", "acme--new", 11.0) == Sender("acme", "")
    assert isolation.find_sender("other", "other--new", 11.0) is None


def test_one_that_fails_whenever_it_is_among_others_again_is_among_them_ever_more_seldom():
    isolation, now, failures = BatchIsolation(), 0.0, 0
    while now < 86_400.0:
        if isolation.find_sender("acme", "acme--a", now) is None:
            isolation.record_failure("acme", "acme--a", now)
            failures += 1
        now += 1.0
    assert failures <= 7 + 86_400 / LONGEST_S


def test_failures_by_itself_prolong_the_time_and_do_not_double_it():
    isolation = BatchIsolation()
    for now in (0.0, 30.0, 59.0):
        isolation.record_failure("acme", "acme--a", now)
    assert isolation.find_sender("acme", "acme--a", 59.0 + FIRST_S - 1) is not None
    assert isolation.find_sender("acme", "acme--a", 59.0 + FIRST_S) is None


def test_what_lies_long_ago_is_forgotten():
    isolation = BatchIsolation()
    for number in range(MANY_DEVICES - 1):
        isolation.record_failure("acme", f"acme--{number}", 0.0)
    isolation.record_failure("acme", "acme--late", MEMORY_S)
    assert len(isolation) == 1
    assert isolation.find_sender("acme", "acme--other", MEMORY_S) is None, "two of three were forgotten"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.floats(0, 2 * MEMORY_S)), max_size=60))
def test_the_devices_of_a_tenant_are_counted_as_they_are_remembered(failures: list[tuple[str, str, float]]):
    isolation = BatchIsolation()
    for tenant, device, now in sorted(failures, key=lambda each: each[2]):
        isolation.record_failure(tenant, device, now)
    senders = list(isolation._records)
    for tenant in "abc":
        assert isolation._devices[tenant] == sum(each.tenant == tenant and bool(each.device) for each in senders)


def test_no_number_of_senders_takes_more_memory():
    isolation = BatchIsolation()
    for number in range(2 * MAX_SENDERS):
        isolation.record_failure(f"t{number}", "d", 0.0)
    assert len(isolation) == MAX_SENDERS
    assert isolation.find_sender(f"t{2 * MAX_SENDERS - 1}", "d", 1.0) is not None
    assert len(isolation._devices) == MAX_SENDERS


def test_a_sender_that_fails_again_after_its_time_is_alone_for_twice_as_long_up_to_the_longest():
    isolation, now, periods = BatchIsolation(), 0.0, []
    for _ in range(8):
        isolation.record_failure("acme", "acme--a", now)
        period = next(
            s
            for s in (60, 120, 240, 480, 960, 1920, 3600, 7200)
            if not isolation.find_sender("acme", "acme--a", now + s)
        )
        assert isolation.find_sender("acme", "acme--a", now + period - 0.5)
        periods.append(period)
        now += period
    assert periods == [60, 120, 240, 480, 960, 1920, 3600, 3600]


def test_the_oldest_sender_is_forgotten_first_and_only_once_there_are_too_many():
    isolation = BatchIsolation()
    for number in range(MAX_SENDERS):
        isolation.record_failure(f"t{number}", "d", 0.0)
    assert isolation.find_sender("t0", "d", 1.0) is not None
    isolation.record_failure("t0", "d", 1.0)  # it failed again: now the second is the oldest
    isolation.record_failure("late", "d", 1.0)
    assert [isolation.find_sender(tenant, "d", 2.0) is not None for tenant in ("t0", "t1", "t2")] == [True, False, True]
