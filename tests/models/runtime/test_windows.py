"""Windows over a signal: the stream makes what a recording would be cut into, and counts what it does not use."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle.signal_preparation import SignalPreparation
from models.runtime.windows import CountedWindows, StepLoss, TimedWindows, cut_windows, open_windows

SIZES = {"window": st.integers(1, 9), "hop": st.integers(0, 14)}
MANY = st.lists(st.floats(-1e12, 1e12) | st.floats(0, 50) | st.sampled_from([float("nan"), float("inf")]), max_size=80)


def ramp(count, channels=2):
    return np.arange(count * channels, dtype=np.float32).reshape(count, channels)


def timed(**keys):
    return TimedWindows(SignalPreparation(channels=2, **{"rate_hz": 10.0, **keys}))


def feed(stream, steps, times):
    return [window for values, at in zip(steps, times, strict=True) for window in stream.add(values[None], [at])]


def expected(steps, window, hop):
    return list(cut_windows(steps, window, hop))


def same(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@given(st.integers(0, 60), SIZES["window"], SIZES["hop"], st.lists(st.integers(1, 20), max_size=60))
def test_counted_windows_are_those_of_the_whole_recording_however_it_comes(count, window, hop, cuts):
    steps, at, found = ramp(count), 0, []
    stream = open_windows(SignalPreparation(window=window, hop=hop, channels=2))
    assert isinstance(stream, CountedWindows)
    for size in [*cuts, count]:
        found += stream.add(steps[at : at + size])
        at += size
        assert stream.waiting < max(window, 1)
    same(found, expected(steps, window, hop))


@given(st.integers(0, 60), SIZES["window"], SIZES["hop"], st.integers(-100, 10**9))
def test_timed_windows_of_a_steady_sensor_are_those_of_the_recording(count, window, hop, first):
    steps = ramp(count)
    stream = timed(window=window, hop=hop)
    found = feed(stream, steps, [(first + place) / 10 for place in range(count)])
    same(found, expected(steps, window, hop))
    assert not +stream.lost


@given(st.integers(0, 60), SIZES["window"], SIZES["hop"], st.randoms(use_true_random=False))
def test_readings_out_of_order_within_the_lateness_change_nothing(count, window, hop, random):
    steps, late = ramp(count), 5
    order = sorted(range(count), key=lambda place: place + random.uniform(0, late - 0.01))
    if order:
        order.remove(0)
        order.insert(0, 0)  # the grid begins with the first that comes
    stream = timed(window=window, hop=hop, lateness_s=late / 10)
    found = feed(stream, steps[order], [place / 10 for place in order])
    whole = expected(steps, window, hop)
    same(found, whole[: len(found)])
    assert len(whole) - len(found) <= late // (hop or window) + 1
    assert not +stream.lost


def test_a_short_gap_keeps_the_last_value_and_a_long_one_costs_its_window():
    steps = ramp(12)
    stream = timed(window=4, gap=2)
    found = feed(stream, steps[[0, 3, 4, 7, 8, 9]], [0, 0.3, 0.4, 0.7, 0.8, 0.9])
    same(found, [steps[[0, 0, 0, 3]], steps[[4, 4, 4, 7]]])
    stream = timed(window=4, gap=1)
    found = feed(stream, steps[[0, 3, 4, 5, 6, 7]], [0, 0.3, 0.4, 0.5, 0.6, 0.7])
    same(found, [steps[[4, 5, 6, 7]]])
    assert +stream.lost == {StepLoss.GAP: 2}


def test_readings_within_one_step_are_averaged():
    stream = timed(window=2)
    values = np.array([[1, 1], [3, 5], [7, 7]], np.float32)
    (window,) = feed(stream, values, [0.0, 0.04, 0.1])
    np.testing.assert_array_equal(window, [[2, 3], [7, 7]])


def test_what_comes_too_late_is_counted():
    stream = timed(window=2)
    feed(stream, ramp(4), [0.0, 0.1, 0.2, 0.1])
    assert +stream.lost == {StepLoss.LATE: 1}


@pytest.mark.parametrize("jump", [1e9, -1e9])
def test_one_reading_with_a_wrong_time_costs_itself_alone(jump):
    steps = ramp(8)
    stream = timed(window=4)
    times = [place / 10 for place in range(8)]
    found = feed(stream, steps[:2], times[:2]) + feed(stream, steps[:1], [jump]) + feed(stream, steps[2:], times[2:])
    same(found, expected(steps, 4, 0))
    assert +stream.lost == {StepLoss.CLOCK: 1}


@pytest.mark.parametrize("jump", [1e6, -1e6, 3600, -60])
def test_a_clock_that_was_set_is_followed_and_no_reading_after_it_is_lost(jump):
    steps = ramp(10)
    stream = timed(window=4)
    found = feed(stream, steps, [place / 10 + (jump if place >= 6 else 0) for place in range(10)])
    same(found, [steps[:4], steps[6:]])
    assert +stream.lost == {StepLoss.GAP: 2}  # the two that waited for the rest of their window


@given(MANY, SIZES["window"], SIZES["hop"], st.integers(0, 3), st.floats(0, 2))
def test_whatever_times_come_nothing_is_raised_memory_is_bounded_and_every_reading_is_accounted_for(
    times, window, hop, gap, lateness_s
):
    stream = timed(window=window, hop=hop, gap=gap, lateness_s=lateness_s)
    steps = ramp(len(times))
    found = feed(stream, steps, times)
    assert stream.waiting <= 4 * (window + gap + int(lateness_s * 10) + max(hop, window) + 4)
    assert sum((+stream.lost).values()) <= len(times)
    if found:
        assert np.stack(found).shape[1:] == (window, 2)
        assert np.stack(found).max() <= steps.max()
