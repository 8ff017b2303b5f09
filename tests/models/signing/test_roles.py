"""Tests of the role table: names, paths and lifetimes."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.signing.roles import (
    expiry_for,
    is_delegated,
    is_renewal_due,
    is_repository_path,
    may_list_path,
    model_path,
    model_role,
    parse_role,
    path_pattern,
)
from models.update.trust import is_target_path
from tests.models.doubles.keys import NOW


@given(st.text(max_size=60) | st.from_regex(r"[a-z./_-]{1,40}", fullmatch=True))
def test_paths_are_those_that_devices_take(path):
    assert is_repository_path(path) == is_target_path(path)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a..b", "A", "-a", "a.", "ä", "a\0", "a" * 65, "a\n", "*", "a b"]
)
def test_names_that_make_no_path_make_no_role(name):
    """What a device would refuse is not published."""
    with pytest.raises(ValueError, match="cannot name a family"):
        model_role(name)
    assert not is_delegated(f"models-{name}")


@given(st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}(\.[a-z0-9_-]{1,9})?", fullmatch=True), st.integers(1, 2**40))
def test_a_family_may_list_its_own_paths_and_no_others(family, version):
    role = model_role(family)
    path = model_path(family, version)
    assert may_list_path(role, path)
    assert path_pattern(role) == f"models/{family}/*"
    assert not may_list_path("policy", path)
    assert not may_list_path(role, f"models/{family}x/{family}-1.skb")
    assert not may_list_path(role, f"models/{family}/deeper/x.skb")


def test_words_for_roles():
    assert [parse_role(word) for word in ("root", "policy", "keys", "digits", "models-digits")] == [
        "root",
        "policy",
        "keys",
        "models-digits",
        "models-digits",
    ]


def test_a_role_is_due_daily_or_in_its_last_third():
    assert is_renewal_due("timestamp", expiry_for("timestamp", NOW), NOW + timedelta(days=1))
    assert not is_renewal_due("timestamp", expiry_for("timestamp", NOW), NOW + timedelta(hours=23))
    assert is_renewal_due("snapshot", expiry_for("snapshot", NOW), NOW + timedelta(days=20))
    assert not is_renewal_due("snapshot", expiry_for("snapshot", NOW), NOW + timedelta(days=19))
