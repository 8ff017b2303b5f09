"""Curves of arrivals: a day, a storm, and steady load. Seconds since the begin give arrivals a second."""

from math import cos, pi

from benchmarks.simulator.scaling_replay import RateCurve

DAY_S = 86_400


def day_curve(lowest: float, highest: float) -> RateCurve:
    """A day: least at its begin, most at noon, with half an hour of double the load in the evening."""

    def rate(at: float) -> float:
        calm = lowest + (highest - lowest) * (1 - cos(2 * pi * at / DAY_S)) / 2
        return min(highest, calm * 2) if 19 * 3600 <= at % DAY_S < 19.5 * 3600 else calm

    return rate


def storm_curve(quiet: float, storm: float, begin_s: float = 600.0, length_s: float = 300.0) -> RateCurve:
    """Quiet, then so much more for a while, without a slope."""
    return lambda at: storm if begin_s <= at < begin_s + length_s else quiet
