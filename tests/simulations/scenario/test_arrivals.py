"""Arrival processes: rates keep their mean, a trace is followed exactly, equal slices give equal samples."""

from itertools import chain

import numpy as np
import pytest
from msgspec.structs import replace

from simulations.scenario.arrivals import ArrivalProcess, select_devices
from simulations.scenario.types import EventKind, Load, LoadKind, Region, Scenario, ScenarioEvent, TraceRow

HOUR_S = 3600.0
TRACE = tuple(TraceRow(n * 600.0, 100.0 * (n + 1)) for n in range(7))


def scenario(kind=LoadKind.POISSON, **changes):
    load = Load(kind, 0.05, trace=TRACE if kind is LoadKind.TRACE else ())
    return replace(Scenario(duration_s=HOUR_S, devices=400, load=load), **changes)


def taken(scenario, number=0, step_s=60.0, seed=1):
    arrivals = ArrivalProcess(scenario, number, np.random.default_rng(seed))
    slices = [
        arrivals.draw_between(at_s, at_s + step_s) for at_s in np.arange(0.0, scenario.duration_s + step_s, step_s)
    ]
    return [list(chain.from_iterable(parts)) for parts in zip(*slices, strict=True)]


@pytest.mark.parametrize("kind", LoadKind)
def test_the_same_seed_gives_the_same_samples(kind):
    assert taken(scenario(kind)) == taken(scenario(kind))
    assert taken(scenario(kind)) != taken(scenario(kind), seed=2)


@pytest.mark.parametrize("kind", LoadKind)
def test_samples_come_in_order_within_the_duration_from_devices_of_the_region(kind):
    regions = (Region("eu", 0.25), Region("us", 0.75))
    at_s, device, _ = taken(scenario(kind, regions=regions), number=1)
    assert at_s == sorted(at_s)
    assert min(at_s) >= 0
    assert max(at_s) < HOUR_S
    assert set(device) <= set(range(100, 400))
    assert len(set(device)) > 250


@pytest.mark.parametrize("kind", [LoadKind.POISSON, LoadKind.BURSTY])
def test_the_mean_is_as_stated(kind):
    count = len(taken(scenario(kind))[0])
    assert count == pytest.approx(400 * HOUR_S * 0.05, rel=0.03)


def test_a_day_has_a_noon_and_a_night_and_its_mean():
    day = scenario(
        LoadKind.DIURNAL, duration_s=86_400.0, load=Load(LoadKind.DIURNAL, 0.01, swing=0.8, peak_s=14 * HOUR_S)
    )
    at_s = np.array(taken(day, step_s=HOUR_S)[0])
    hours = np.histogram(at_s, bins=24, range=(0, 86_400))[0]
    assert len(at_s) == pytest.approx(400 * 864, rel=0.02)
    assert hours[14] / hours[2] == pytest.approx(1.8 / 0.2, rel=0.2)


def test_a_region_to_the_west_has_its_noon_later():
    load, regions = Load(LoadKind.DIURNAL, 0.01, swing=1.0), (Region("eu", 0.5), Region("us", 0.5, shift_s=6 * HOUR_S))
    day = scenario(duration_s=86_400.0, load=load, regions=regions, begins_minute=8 * 60)
    noons = [np.argmax(np.histogram(taken(day, n, HOUR_S)[0], 24, (0, 86_400))[0]) for n in (0, 1)]
    assert noons[0] in range(4, 8)  # 14:00, begun at 8:00
    assert noons[1] in range(10, 14)


def test_bursts_come_in_clusters():
    load = Load(LoadKind.BURSTY, 0.02, burst_factor=50.0, burst_every_s=1800.0, burst_lasts_s=20.0)
    bursty, even = (np.array(taken(scenario(load=each), step_s=7.0)[0:2]) for each in (load, Load(samples_per_s=0.02)))
    close = [_pairs_within(found, 5.0) for found in (bursty, even)]
    assert close[0] > 3 * close[1]


def _pairs_within(found, gap_s):
    order = np.lexsort((found[0], found[1]))
    at_s, device = found[:, order]
    return int(((np.diff(at_s) < gap_s) & (np.diff(device) == 0)).sum())


def test_a_trace_is_followed_to_the_sample_whatever_the_slices():
    regions = (Region("eu", 0.5), Region("us", 0.5))
    for step_s in (60.0, 7.0, HOUR_S):
        at_s, _, _ = taken(scenario(LoadKind.TRACE, regions=regions), step_s=step_s)
        assert np.histogram(at_s, bins=6, range=(0, HOUR_S))[0].tolist() == [50, 100, 150, 200, 250, 300]


def test_a_surge_strikes_its_share_of_devices_while_it_lasts():
    surge = ScenarioEvent(EventKind.SURGE, 600.0, 300.0, share=0.1, amount=11.0)
    at_s, device, _ = taken(scenario(events=(surge,)))
    some = [at for at, number in zip(at_s, device, strict=True) if number < 40]
    within = sum(600 <= at < 900 for at in some)
    assert within == pytest.approx(40 * 300 * 0.05 * 11, rel=0.1)
    assert len(some) - within == pytest.approx(40 * 3300 * 0.05, rel=0.1)
    assert select_devices(surge, range(100, 200)) == range(100, 110)


def test_data_classes_have_their_shares():
    mixed = scenario(load=Load(samples_per_s=0.05, classes=(("open", 0.7), ("private", 0.2), ("alarm", 0.1))))
    found = taken(mixed)[2]
    assert [found.count(name) / len(found) for name in ("open", "private", "alarm")] == pytest.approx(
        [0.7, 0.2, 0.1], abs=0.01
    )
