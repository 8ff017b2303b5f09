"""Hub time from signed messages on a monotonic clock; the wall clock is a hint at most."""

from tests.edge_agent.doubles.hub_double import HUB_TIME_MS, Time

DAY_MS = 86_400_000


def test_until_the_hub_speaks_a_plausible_wall_clock_is_a_hint():
    time = Time()
    time.wall = HUB_TIME_MS + DAY_MS
    assert time.clock().ms() == HUB_TIME_MS + DAY_MS
    for wrong in (0, HUB_TIME_MS - 1, HUB_TIME_MS + 4000 * DAY_MS):
        time.wall = wrong
        assert time.clock().ms() == HUB_TIME_MS


def test_a_late_message_never_sets_the_clock_back():
    time = Time()
    clock = time.clock()
    clock.hear(HUB_TIME_MS + 60_000)
    time.turn(1.0)
    clock.hear(HUB_TIME_MS + 10_000)
    assert clock.ms() == HUB_TIME_MS + 61_000


def test_only_a_welcome_to_our_own_fresh_hello_sets_it_back():
    time = Time()
    time.wall = HUB_TIME_MS + 30 * DAY_MS
    clock = time.clock()
    clock.hear(HUB_TIME_MS + 1000, welcome=True)
    assert clock.ms() == HUB_TIME_MS + 30 * DAY_MS
    clock.said_hello()
    time.turn(11.0)
    clock.hear(HUB_TIME_MS + 12_000, welcome=True)
    assert clock.ms() > HUB_TIME_MS + 29 * DAY_MS
    clock.said_hello()
    clock.hear(HUB_TIME_MS + 12_000, welcome=True)
    assert clock.ms() == HUB_TIME_MS + 12_000


def test_a_replayed_welcome_does_not_go_below_the_floor():
    time = Time()
    clock = time.clock()
    clock.hear(HUB_TIME_MS + DAY_MS)
    clock.said_hello()
    clock.hear(HUB_TIME_MS, welcome=True)
    assert clock.ms() == HUB_TIME_MS + DAY_MS


def test_case_99_the_wall_clock_moves_nothing_once_we_run():
    time = Time()
    clock = time.clock()
    before = clock.ms()
    time.wall -= 3_600_000
    time.mono_s += 5
    assert clock.ms() == before + 5000


def test_sure_time_is_never_ahead_and_survives_restarts():
    time = Time()
    time.wall = HUB_TIME_MS + 30 * DAY_MS
    clock = time.clock()
    time.turn(100.0)
    assert clock.sure_ms() == HUB_TIME_MS + 100_000
    again = time.clock()
    again.raise_floor(HUB_TIME_MS, clock.sure_ms())
    assert again.sure_ms() == HUB_TIME_MS + 100_000
    assert again.at_ms(again.moment(HUB_TIME_MS + 7)) == HUB_TIME_MS + 7
    assert again.day() == (HUB_TIME_MS + 100_000) // DAY_MS
