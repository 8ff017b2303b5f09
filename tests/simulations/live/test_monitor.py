"""Growth of a process over a run, by the medians of two quarters of the looks; and the size of a real one."""

import os

import pytest

from simulations.live.monitor import _find_growth, _read_size


@pytest.mark.parametrize(
    ("seen", "growth"),
    [
        ([], 0),
        ([5, 9, 100], 0),  # too few looks to have quarters
        ([0, 50, 90, 100, 100, 100, 100, 100, 100, 100, 100, 100], 0),  # what warms up in the first quarter
        ([*range(100, 200)], 50),
        ([100] * 50 + [150] * 50, 50),  # a step that stays
        ([100] * 99 + [9999], 0),  # a peak at the end is no growth
    ],
)
def test_growth_is_told_from_warming_up_and_from_a_peak(seen, growth):
    assert _find_growth(seen) == growth


def test_the_size_of_a_process_counts_its_memory_and_descriptors_and_of_one_that_is_gone_nothing():
    before = _read_size([os.getpid()])
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(7)]
    after = _read_size([os.getpid()])
    for each in held:
        os.close(each)
    assert before is not None
    assert after is not None
    assert after.descriptors == before.descriptors + 7
    assert after.rss_kib > 1000
    assert _read_size([2**22 + 1]) is None
