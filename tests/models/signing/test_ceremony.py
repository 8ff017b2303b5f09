"""Tests of offline signing operations (begin, rotate, add, renew) and of request files."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.signing import ceremony, review
from models.signing.request import RequestError, dump_request, dump_state, load_request, load_state
from models.signing.roles import SMALL_THRESHOLDS
from tests.examples import count_examples
from tests.models.doubles.keys import NOW, MemoryKeyring, begin_repository, installed_state, targets_of


@pytest.fixture
def memory():
    return MemoryKeyring()


def test_an_online_role_needs_a_fresh_key_of_the_hub(memory):
    with pytest.raises(RequestError, match="offers no fresh key for timestamp"):
        ceremony.rotate_keys(installed_state(memory), ceremony.KeyRotation(("timestamp",)), memory.draw, NOW)


def test_a_key_that_nobody_has_cannot_be_dropped(memory):
    with pytest.raises(RequestError, match="no key of it is named root-9"):
        ceremony.rotate_keys(
            installed_state(memory), ceremony.KeyRotation(("root",), frozenset({"root-9"})), memory.draw, NOW
        )


def test_a_family_is_added_once(memory):
    state = installed_state(memory)
    request = memory.sign(ceremony.add_family(state, "faces", memory.draw, NOW))
    review.check_request(request, state.roots[-1], NOW)
    review.check_signatures(request, frozenset({"keys"}))
    with pytest.raises(RequestError, match="there already"):
        ceremony.add_family(state, "echo", memory.draw, NOW)


def test_what_people_sign_is_all_but_the_hubs(memory):
    assert ceremony.list_offline_roles(installed_state(memory)) == ("root", "targets", "models-echo", "policy")


def test_a_small_fleet_is_one_key_each(memory):
    root = begin_repository(memory, SMALL_THRESHOLDS).root
    assert [root.roles[role].threshold for role in ("root", "targets")] == [1, 1]
    assert [len(root.roles[role].keyids) for role in ("root", "targets")] == [1, 1]


def test_files_come_back_as_they_went(memory):
    state = installed_state(memory)
    request = memory.sign(targets_of(state, "models-echo", ("models/echo/echo-1.skb", 1)))
    assert dump_request(load_request(dump_request(request))) == dump_request(request)
    assert dump_state(load_state(dump_state(state))) == dump_state(state)


WHOLE = dump_request(targets_of(installed_state(MemoryKeyring()), "models-echo", ("models/echo/echo-1.skb", 1)))


@given(st.binary(max_size=40), st.integers(0, len(WHOLE)), st.integers(0, 200))
@settings(max_examples=count_examples(200), deadline=None)
def test_a_damaged_file_is_one_line(junk, place, gone):
    """Bytes put in, bytes cut out: `RequestError` or a request, never anything else."""
    lines = []
    for read in (load_request, load_state):
        try:
            read(WHOLE[:place] + junk + WHOLE[place + gone :])
        except RequestError as error:
            lines.append(str(error))
    assert all("\n" not in line for line in lines)


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"1", b'{"format": 1}', b"[" * 100_000, b'{"a":' * 50_000])
def test_what_is_no_request_is_one_line(data):
    with pytest.raises(RequestError):
        load_request(data)
    with pytest.raises(RequestError):
        load_state(data)
