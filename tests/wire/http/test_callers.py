"""The address of a caller behind proxies: only what a trusted proxy wrote counts, and no word of the caller itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from wire.http.access import parse_networks
from wire.http.callers import find_address, find_network, is_forwarded, read_forwarded

TRUSTED = parse_networks(["10.0.0.0/8", "::1", "127.0.0.1"])
STRANGER, PROXY = "203.0.113.7", "10.0.0.1"


@pytest.mark.parametrize(
    ("peer", "forwarded", "caller"),
    [
        (STRANGER, ["127.0.0.1"], STRANGER),  # written by the caller: not a proxy's word
        (PROXY, [STRANGER], STRANGER),
        (PROXY, ["127.0.0.1", STRANGER], STRANGER),  # the caller wrote the first
        (PROXY, [STRANGER, "10.9.9.9"], STRANGER),  # two proxies of ours
        (PROXY, [], PROXY),
        (PROXY, ["unknown"], PROXY),
        (PROXY, [STRANGER, "_hidden"], PROXY),
        (PROXY, ["203.0.113.7:4711"], STRANGER),
        (PROXY, ["[2001:db8::7]:4711"], "2001:db8::7"),
        (PROXY, ["::ffff:203.0.113.7"], STRANGER),
        ("::ffff:10.0.0.1", [STRANGER], STRANGER),
        ("unix", [STRANGER], "unix"),
    ],
)
def test_the_right_most_address_that_is_no_proxys_is_the_callers(peer: str, forwarded: list[str], caller: str):
    assert find_address(peer, forwarded, TRUSTED) == caller


@given(st.lists(st.text(max_size=40)), st.ip_addresses())
def test_whatever_a_caller_writes_before_the_proxys_word_changes_nothing(written, seen):
    alone = find_address(PROXY, [str(seen)], TRUSTED)
    if not any(seen in network for network in TRUSTED if network.version == seen.version):
        assert find_address(PROXY, [*written, str(seen)], TRUSTED) == alone


def test_both_headers_are_read_and_a_pair_of_them_not_at_all():
    both = CIMultiDict([("X-Forwarded-For", "1.1.1.1, 2.2.2.2"), ("Forwarded", "for=3.3.3.3")])
    assert read_forwarded(both) == []
    del both["Forwarded"]
    assert read_forwarded(both) == ["1.1.1.1", "2.2.2.2"]
    both.add("X-Forwarded-For", "4.4.4.4")
    assert read_forwarded(both) == ["1.1.1.1", "2.2.2.2", "4.4.4.4"]
    named = CIMultiDict([("Forwarded", 'for="[2001:db8::1]:80";proto=https, For=5.5.5.5'), ("Forwarded", "by=x")])
    assert read_forwarded(named) == ["[2001:db8::1]:80", "5.5.5.5", ""]


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"])
def test_what_a_proxy_passed_on_is_seen_by_any_of_its_headers(name: str):
    assert is_forwarded(CIMultiDict([(name.lower(), "x")]))
    assert not is_forwarded(CIMultiDict([("Host", "localhost")]))


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("unix", "unix"),
    ],
)
def test_all_addresses_that_one_caller_may_have_are_one(address, network):
    assert find_network(address) == network
