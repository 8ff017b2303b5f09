"""Virtual time: order of events, and conditions and faults that are the same for the same seed."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.kernel.kernel import Kernel
from simulations.scenario.conditions import IDEAL_CONDITIONS, ConditionSampler, DeviceClock, EnvironmentConditions

times = st.floats(0, 1e6)


@given(st.lists(times, max_size=50))
def test_calls_happen_in_order_of_time_and_ties_in_order_of_scheduling(whens: list[float]) -> None:
    kernel = Kernel()
    seen: list[tuple[float, int]] = []
    for number, when in enumerate(whens):
        kernel.schedule_at(when, lambda mine: seen.append((kernel.now, mine)), number)
    kernel.run(1e6)
    assert seen == sorted((when, number) for number, when in enumerate(whens))
    assert kernel.events == len(whens)


def test_a_call_due_later_waits_for_its_time() -> None:
    kernel = Kernel()
    seen: list[str] = []
    kernel.schedule_at(5.0, seen.append, "x")
    kernel.run(4.9)
    assert (seen, kernel.now, kernel.pending) == ([], 4.9, 1)
    kernel.run(5.0)
    assert (seen, kernel.pending) == (["x"], 0)


def test_what_should_have_happened_already_happens_now_and_time_never_goes_back() -> None:
    kernel, seen = Kernel(), []
    kernel.schedule_at(3.0, lambda: kernel.schedule_at(1.0, lambda: seen.append(kernel.now)))
    kernel.run(10.0)
    assert seen == [3.0]


def test_calls_schedule_calls() -> None:
    kernel, seen = Kernel(), []

    def tick() -> None:
        seen.append(kernel.now)
        kernel.schedule_after(1.0, tick)

    kernel.schedule_at(0.0, tick)
    kernel.run(3.5)
    assert seen == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("when", [float("inf"), float("nan")])
def test_a_time_that_never_comes_is_refused(when: float) -> None:
    with pytest.raises(ValueError, match="is not finite"):
        Kernel().schedule_at(when, print)


@given(st.floats(0, 1e4), st.floats(-1e-3, 1e-3), st.floats(0, 1e6))
def test_a_skewed_clock_is_read_both_ways(skew_s: float, drift: float, true_s: float) -> None:
    clock = DeviceClock(skew_s, 1.0 + drift)
    assert clock.true_time_at(clock.read(true_s)) == pytest.approx(true_s, abs=1e-6)


def test_the_same_seed_gives_the_same_weather() -> None:
    one, other, third = (ConditionSampler(EnvironmentConditions(), Random(seed)) for seed in (1, 1, 2))
    seen = [[w.draw_delays() for _ in range(100)] for w in (one, other, third)]
    assert seen[0] == seen[1] != seen[2]


def test_messages_are_lost_and_repeated_as_often_as_the_climate_says() -> None:
    weather = ConditionSampler(EnvironmentConditions(loss=0.2, repeats=0.1), Random(1))
    copies = [len(weather.draw_delays()) for _ in range(10_000)]
    assert copies.count(0) == pytest.approx(2000, rel=0.1)
    assert copies.count(2) == pytest.approx(1000, rel=0.1)


def test_calm_weather_loses_nothing_and_tells_every_clock_the_truth() -> None:
    weather = ConditionSampler(IDEAL_CONDITIONS, Random(1))
    assert all(len(weather.draw_delays()) == 1 for _ in range(1000))
    assert weather.draw_notice_s() == 0.0
