"""Hub time from signed messages on a monotonic clock; the wall clock is a hint at most."""

from tests.edge_agent.doubles.hub_double import HUB_TIME_MS, ManualClock

DAY_MS = 86_400_000


def test_until_the_hub_speaks_a_plausible_wall_clock_is_a_hint():
    time = ManualClock()
    time.wall = HUB_TIME_MS + DAY_MS
    assert time.hub_clock().hub_ms() == HUB_TIME_MS + DAY_MS
    for wrong in (0, HUB_TIME_MS - 1, HUB_TIME_MS + 4000 * DAY_MS):
        time.wall = wrong
        assert time.hub_clock().hub_ms() == HUB_TIME_MS


def test_a_late_message_never_sets_the_clock_back():
    time = ManualClock()
    clock = time.hub_clock()
    clock.on_signed_time(HUB_TIME_MS + 60_000)
    time.advance(1.0)
    clock.on_signed_time(HUB_TIME_MS + 10_000)
    assert clock.hub_ms() == HUB_TIME_MS + 61_000


def test_only_a_welcome_to_our_own_fresh_hello_sets_it_back():
    time = ManualClock()
    time.wall = HUB_TIME_MS + 30 * DAY_MS
    clock = time.hub_clock()
    clock.on_signed_time(HUB_TIME_MS + 1000, welcome=True)
    assert clock.hub_ms() == HUB_TIME_MS + 30 * DAY_MS
    clock.on_hello_sent()
    time.advance(11.0)
    clock.on_signed_time(HUB_TIME_MS + 12_000, welcome=True)
    assert clock.hub_ms() > HUB_TIME_MS + 29 * DAY_MS
    clock.on_hello_sent()
    clock.on_signed_time(HUB_TIME_MS + 12_000, welcome=True)
    assert clock.hub_ms() == HUB_TIME_MS + 12_000


def test_a_replayed_welcome_does_not_go_below_the_floor():
    time = ManualClock()
    clock = time.hub_clock()
    clock.on_signed_time(HUB_TIME_MS + DAY_MS)
    clock.on_hello_sent()
    clock.on_signed_time(HUB_TIME_MS, welcome=True)
    assert clock.hub_ms() == HUB_TIME_MS + DAY_MS


def test_the_wall_clock_moves_nothing_once_we_run():
    time = ManualClock()
    clock = time.hub_clock()
    before = clock.hub_ms()
    time.wall -= 3_600_000
    time.mono_s += 5
    assert clock.hub_ms() == before + 5000


def test_sure_time_is_never_ahead_and_survives_restarts():
    time = ManualClock()
    time.wall = HUB_TIME_MS + 30 * DAY_MS
    clock = time.hub_clock()
    time.advance(100.0)
    assert clock.sure_ms() == HUB_TIME_MS + 100_000
    again = time.hub_clock()
    again.raise_floor(HUB_TIME_MS, clock.sure_ms())
    assert again.sure_ms() == HUB_TIME_MS + 100_000
    assert again.to_sure_ms(again.to_core_time(HUB_TIME_MS + 7)) == HUB_TIME_MS + 7
    assert again.hub_day() == (HUB_TIME_MS + 100_000) // DAY_MS
