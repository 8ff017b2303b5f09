"""Power loss in each state of the install machine, and where the next process goes on."""

import pytest
from msgspec.structs import replace

from edge_agent.update.types import Checked, Fetch
from tests.edge_agent.doubles.install_world import FINE, OLD, S, World, at, probation, soaked, states
from wire.protocol.rollout import Failure


@pytest.mark.parametrize(
    ("state", "goes_on"),
    [
        (S.CHECKING, S.CHECKING),
        (S.DOWNLOADING, S.DOWNLOADING),
        (S.VERIFYING, S.VERIFYING),
        (S.STAGED, S.VERIFYING),
        (S.SELF_TEST, S.SELF_TEST),
        (S.PROBATION, S.PROBATION),
    ],
)
def test_case_41_power_loss_in_each_state_goes_on_as_its_row_says(state, goes_on):
    world = at(state)
    world.crash()
    world.start()
    assert world.core.row.state is goes_on
    world.bring_home()
    assert world.core.row.state is S.PROBATION
    soaked(world)
    assert (world.core.row.state, world.serving) == (S.IDLE, world.committed)


def test_case_41_power_loss_before_the_switch_is_tested_again_and_after_it_is_on_trial():
    for deeds, goes_on in ((1, S.SELF_TEST), (2, S.PROBATION)):
        world = at(S.SELF_TEST)
        world.fuse = deeds
        world.errand_step()
        assert not world.alive
        world.start()
        assert world.core.row.state is goes_on
        world.bring_home()
        assert world.core.row.state is S.PROBATION


def test_case_41_a_self_test_that_never_ends_is_tried_twice():
    world = at(S.SELF_TEST)
    for _ in range(2):
        world.crash()
        world.start()
    assert (world.core.row.state, states(world)[-1], world.serving) == (S.IDLE, S.FAILED, OLD)


def test_case_41_power_loss_while_it_goes_back_goes_on_going_back():
    for deeds in range(6):
        world = probation()
        world.fuse = deeds
        world.tick(1.0, replace(FINE, crashes=3))
        if not world.alive:
            world.start()
        for _ in range(3):
            world.tick(61.0, replace(FINE, crashes=3))
        assert (world.core.row.state, world.serving, world.disk.trial) == (S.IDLE, OLD, False), deeds


def test_a_row_that_is_lost_takes_back_what_was_never_committed():
    world = probation()
    world.crash()
    world.disk.row = b'{"state":"idle"}'
    world.start()
    assert (world.core.row.state, world.serving, world.disk.trial) == (S.IDLE, OLD, False)


def test_a_download_goes_on_where_it_was_told_to():
    world = at(S.VERIFYING)
    world.crash()
    world.start()
    assert isinstance(world.errand, Fetch)
    assert world.errand.state is S.VERIFYING


def test_an_answer_of_an_errand_that_nobody_waits_for_changes_nothing():
    world = World()
    world.see(Checked(None, failure=Failure.NETWORK))
    assert world.core.row.state is S.IDLE
