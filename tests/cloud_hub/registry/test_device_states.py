"""State machine of a device: the allowed transitions, and revoked as the final state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.registry.device_states import GONE, HEARD, DeviceState, explain_refusal, may_be_invited, may_become

STATES = st.sampled_from(DeviceState)


@given(st.lists(STATES))
def test_nobody_comes_back_from_revoked_and_from_retired_only_to_be_revoked(wishes):
    state = DeviceState.ACTIVE
    for wish in wishes:
        before = state
        state = wish if may_become(state, wish) else state
        if before in GONE:
            assert state in (before, DeviceState.REVOKED)
            assert state not in HEARD


@given(STATES, STATES)
def test_every_refusal_has_its_line(now, wanted):
    if not may_become(now, wanted):
        assert "\n" not in explain_refusal(now, wanted)


@given(STATES)
def test_every_living_state_can_be_revoked_and_stays_what_it_is(state):
    assert may_become(state, DeviceState.REVOKED)
    assert may_become(state, state)


@pytest.mark.parametrize(
    ("state", "plain", "replace"),
    [
        (None, True, True),
        (DeviceState.ACTIVE, True, True),
        (DeviceState.SUSPENDED, False, True),
        (DeviceState.RETIRING, False, False),
        (DeviceState.RETIRED, True, True),
        (DeviceState.REVOKED, False, False),
    ],
)
def test_who_may_be_invited(state, plain, replace):
    assert may_be_invited(state, replace=False) is plain
    assert may_be_invited(state, replace=True) is replace
