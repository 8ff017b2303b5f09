"""MQTT topics under attack: an id is one whole level, its shard is fixed, and foreign topics are refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.errors import Fault, LocalError, RemoteError
from wire.protocol import topics
from wire.protocol.topics import TopicChannel

BAD_IDS = [
    "+",
    "#",
    "a/b",
    "",
    "a" * 65,
    "$SYS",
    "$SYS/broker",
    "ünï",
    "A",
    "a b",
    "a\n",
    "\n",
    "a\0",
    "a_b",
    "a.b",
    "%u",
]
ids = st.from_regex(re.compile(r"[a-z0-9-]{1,64}", re.ASCII), fullmatch=True)
UP = [c for c in TopicChannel if c.value.startswith("up/")]


@pytest.mark.parametrize("bad", [*BAD_IDS, "\ud800"])
def test_an_id_that_is_not_one_plain_level_is_refused(bad: str) -> None:
    with pytest.raises(LocalError):
        topics.validate_device_id(bad)
    with pytest.raises(LocalError):
        topics.build_topic(bad, TopicChannel.QUESTION)


@given(st.text(max_size=70))
def test_an_id_is_taken_or_refused_with_one_error_type(text: str) -> None:
    try:
        taken = topics.validate_device_id(text)
    except LocalError:
        return
    assert re.fullmatch(r"[a-z0-9-]{1,64}", taken)
    assert taken.isascii()


@pytest.mark.parametrize("bad", BAD_IDS)
@pytest.mark.parametrize("shard", ["00", "+", "zz"])
def test_a_topic_of_such_an_id_is_not_heard(bad: str, shard: str) -> None:
    with pytest.raises(RemoteError) as refused:
        topics.parse_up_topic(f"v1/{shard}/{bad}/up/q")
    assert refused.value.fault is Fault.TOPIC


@given(ids, st.sampled_from(UP))
def test_a_topic_says_who_and_what_and_is_read_back(device: str, channel: TopicChannel) -> None:
    assert topics.parse_up_topic(topics.build_topic(device, channel)) == (device, channel)


@given(ids, st.integers(0, 255))
def test_a_foreign_shard_is_refused(device: str, shard: int) -> None:
    topic = f"v1/{shard:02x}/{device}/up/q"
    if shard == topics.compute_shard(device):
        assert topics.parse_up_topic(topic) == (device, TopicChannel.QUESTION)
        return
    with pytest.raises(RemoteError) as refused:
        topics.parse_up_topic(topic)
    assert refused.value.fault is Fault.TOPIC


@given(st.text(max_size=100))
def test_any_other_topic_is_refused_with_one_error_type(text: str) -> None:
    with pytest.raises(RemoteError):
        topics.parse_up_topic(text)


def test_only_the_device_side_of_the_tree_is_heard() -> None:
    for channel in (TopicChannel.REPLY, TopicChannel.DESIRED):
        with pytest.raises(RemoteError):
            topics.parse_up_topic(topics.build_topic("demo--dev-1", channel))
    good = topics.build_topic("demo--dev-1", TopicChannel.QUESTION)
    for near in (good.upper(), good + "/", "/" + good, good + "\n", good.replace("v1", "v2"), good + "/q"):
        with pytest.raises(RemoteError):
            topics.parse_up_topic(near)


def test_a_shard_never_moves() -> None:
    """Fixed for ever: a device's questions would land at another hub otherwise."""
    assert topics.build_topic("demo--dev-1", TopicChannel.QUESTION) == "v1/8d/demo--dev-1/up/q"


def test_a_tenant_and_a_device_are_joined_so_that_they_come_apart_again() -> None:
    joined = topics.join_device_id("acme-corp", "pump-7")
    assert joined == "acme-corp--pump-7"
    assert topics.extract_tenant(joined) == "acme-corp"
    assert topics.validate_device_id(joined) == joined


@pytest.mark.parametrize("bad", [*BAD_IDS, "-a", "a-", "a--b", "-", "--"])
def test_a_part_that_could_pass_for_another_tenant_is_refused(bad: str) -> None:
    with pytest.raises(LocalError):
        topics.join_device_id(bad, "dev")
    with pytest.raises(LocalError):
        topics.join_device_id("demo", bad)


@given(ids, ids, ids, ids)
def test_no_two_devices_share_an_id(tenant: str, device: str, other_tenant: str, other_device: str) -> None:
    try:
        one, other = topics.join_device_id(tenant, device), topics.join_device_id(other_tenant, other_device)
    except LocalError:
        return
    assert (one == other) == ((tenant, device) == (other_tenant, other_device))


def test_the_longest_id_still_fits_and_one_more_does_not() -> None:
    assert len(topics.join_device_id("t", "d" * 61)) == 64
    with pytest.raises(LocalError, match="65 characters"):
        topics.join_device_id("t", "d" * 62)


def test_a_hub_hears_each_channel_of_a_device_exactly_once() -> None:
    for channel in UP:
        heard = [
            f
            for f in topics.list_hub_filters()
            if re.fullmatch(f.replace("+", "[^/]+"), topics.build_topic("demo--a", channel))
        ]
        assert len(heard) == 1


def test_the_broker_lets_a_device_write_only_below_its_own_name() -> None:
    patterns = [line for line in topics.render_broker_acl().splitlines() if line.startswith("pattern")]
    assert patterns == ["pattern write v1/+/%u/up/+", "pattern read v1/+/%u/down/+"]


def test_the_broker_knows_sixteen_hubs_and_none_of_them_can_be_a_device() -> None:
    users = re.findall(r"^user (.*)$", topics.render_broker_acl(), re.MULTILINE)
    assert users == ["hub", *(f"hub-{number}" for number in range(2, 17))] == list(topics.HUB_NAMES)
    assert not [name for name in users if "--" in name]
