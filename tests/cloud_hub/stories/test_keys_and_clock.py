"""Hub keys survive restarts and rotations without losing a question, and the hub clock never runs backwards."""

import stat

import hypothesis.strategies as st
import pytest
from hypothesis import given

from cloud_hub.security.hub_keys import load_or_create_keys, retire_hpke_key, rotate_hpke_key
from cloud_hub.system.clock import MAX_STEP_S, HubClock
from wire.process.exit_codes import ExitCode, ExitError


def test_keys_are_made_once_and_private(tmp_path):
    folder = tmp_path / "keys"
    first = load_or_create_keys(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    again = load_or_create_keys(folder)
    assert (again.hpke_public, again.signing_public) == (first.hpke_public, first.signing_public)


def test_after_a_rotation_both_keys_open_and_the_newest_is_handed_out(tmp_path):
    first = load_or_create_keys(tmp_path)
    second = rotate_hpke_key(tmp_path)
    assert second.hpke_public != first.hpke_public
    assert set(second.hpke) == {first.current, second.current}
    assert second.signing_public == first.signing_public


def test_a_retired_key_is_destroyed_and_the_newest_never_is(tmp_path):
    first = load_or_create_keys(tmp_path)
    second = rotate_hpke_key(tmp_path)
    left = retire_hpke_key(tmp_path, first.current)
    assert set(left.hpke) == {second.current}
    assert set(retire_hpke_key(tmp_path, second.current).hpke) == {second.current}


@pytest.mark.parametrize("name", ["reply.key", "hpke-0001.key"])
@pytest.mark.parametrize("content", [b"", b"rubbish", None])
def test_a_damaged_or_swapped_key_file_stops_the_hub(tmp_path, name, content):
    load_or_create_keys(tmp_path)
    other = {"reply.key": "hpke-0001.key", "hpke-0001.key": "reply.key"}[name]
    (tmp_path / name).write_bytes((tmp_path / other).read_bytes() if content is None else content)
    with pytest.raises(ExitError) as stop:
        load_or_create_keys(tmp_path)
    assert stop.value.code is ExitCode.CREDENTIALS


def test_a_key_that_others_may_read_stops_the_hub(tmp_path):
    load_or_create_keys(tmp_path)
    (tmp_path / "reply.key").chmod(0o644)
    with pytest.raises(ExitError) as stop:
        load_or_create_keys(tmp_path)
    assert stop.value.code is ExitCode.CREDENTIALS


class Machine:
    def __init__(self, wall: float) -> None:
        self.wall_s = wall
        self.monotonic_s = 5.0

    def clock(self, floor_s: float = 0.0) -> HubClock:
        return HubClock(floor_s, lambda: self.wall_s, lambda: self.monotonic_s)

    def pass_(self, seconds: float) -> None:
        self.wall_s += seconds
        self.monotonic_s += seconds


def test_a_clock_set_back_an_hour_goes_on_forwards():
    machine = Machine(1000.0)
    clock = machine.clock()
    machine.wall_s -= 3600
    machine.pass_(10)
    assert clock.now() == 1010.0
    machine.wall_s += 3600
    assert clock.now() == 1010.0


def test_a_small_step_ahead_is_followed_and_a_leap_is_not():
    machine = Machine(1000.0)
    clock = machine.clock()
    machine.wall_s += 30
    assert clock.now() == 1030.0
    machine.wall_s += MAX_STEP_S + 1
    machine.pass_(1)
    assert clock.now() == 1031.0


def test_a_machine_that_boots_in_1970_starts_where_the_store_ended():
    machine = Machine(0.0)
    clock = machine.clock(floor_s=500.0)
    machine.pass_(2)
    assert clock.now() == 502.0


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e4)), max_size=20))
def test_whatever_is_done_to_the_machines_clock_hub_time_never_runs_back(steps):
    machine = Machine(1e9)
    clock = machine.clock()
    seen = [clock.now()]
    for jump, passing in steps:
        machine.wall_s += jump
        machine.pass_(passing)
        seen.append(clock.now())
    assert seen == sorted(seen)
