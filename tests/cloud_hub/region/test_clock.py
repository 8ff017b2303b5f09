"""The clock of a region: a hub goes by its database's, wherever its own machine's goes."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.region.clock import RegionClock
from cloud_hub.system.clock import HubClock

DAY_S = 86_400.0
NOW_S = 1_800_000_000.0


class Machine:
    """A machine with a clock that can be set, and one that only goes on."""

    def __init__(self, off_s: float = 0.0) -> None:
        self.at_s, self.off_s = 500.0, off_s
        self.clock = RegionClock(lambda: self.true_s + self.off_s, lambda: self.at_s)

    @property
    def true_s(self) -> float:
        return NOW_S + self.at_s

    def look(self, took_s: float = 0.01) -> None:
        began_s, self.at_s = self.at_s, self.at_s + took_s
        self.clock.follow(self.true_s - took_s / 2, began_s)


@pytest.mark.parametrize("off_s", [DAY_S, -DAY_S])
def test_a_hub_whose_machine_is_a_day_off_goes_by_its_region_and_says_so(off_s: float):
    machine = Machine(off_s)
    machine.look()
    hub = HubClock(0.0, machine.clock.now, lambda: machine.at_s)
    for _ in range(10):
        machine.at_s += 7.0
        assert hub.now() == pytest.approx(machine.true_s)
    assert machine.clock.off_s == pytest.approx(off_s)
    assert f"86400 s {'ahead of' if off_s > 0 else 'behind'} the database's" in machine.clock.fault()


@pytest.mark.parametrize("off_s", [DAY_S, -DAY_S])
def test_a_machine_whose_clock_is_set_wrong_and_right_again_moves_no_hub(off_s: float):
    machine = Machine()
    machine.look()
    hub = HubClock(0.0, machine.clock.now, lambda: machine.at_s)
    for off in (0.0, off_s, 0.0):
        machine.off_s = off
        machine.look()
        assert hub.now() == pytest.approx(machine.true_s)
        assert bool(machine.clock.fault()) is bool(off)


@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.floats(0.0, 1.0)), max_size=50))
def test_what_a_busy_server_says_late_moves_no_clock(looks: list[tuple[float, float]]):
    machine = Machine()
    machine.look(0.0)
    for took_s, moment in looks:
        began_s, machine.at_s = machine.at_s, machine.at_s + took_s
        machine.clock.follow(NOW_S + began_s + took_s * moment, began_s)
        assert machine.clock.now() == pytest.approx(machine.true_s, abs=1e-3)


def test_a_clock_that_was_learnt_from_a_late_answer_is_mended_by_a_quick_one_and_follows_a_server_that_drifts():
    machine = Machine()
    machine.clock.follow(machine.true_s - 4.0, machine.at_s - 4.0)  # said at once, and heard four seconds later
    assert abs(machine.clock.now() - machine.true_s) == pytest.approx(2.0)
    machine.look()
    assert machine.clock.now() == pytest.approx(machine.true_s, abs=0.01)
    machine.at_s += 1000.0
    machine.clock.follow(machine.true_s + 0.1, machine.at_s)
    assert machine.clock.now() == pytest.approx(machine.true_s + 0.1)


def test_a_server_that_is_set_back_takes_no_hub_back():
    machine = Machine()
    machine.look()
    hub = HubClock(0.0, machine.clock.now, lambda: machine.at_s)
    before = hub.now()
    machine.clock.follow(machine.true_s - DAY_S, machine.at_s)
    assert hub.now() >= before
    machine.clock.follow(machine.true_s + DAY_S, machine.at_s)
    assert hub.now() == pytest.approx(before)


def test_before_the_server_was_asked_the_machines_clock_has_to_do():
    clock = RegionClock()
    assert abs(clock.now() - time.time()) < 60
    assert clock.fault() == ""
