"""Presence of devices: online from the first message to the last will, unknown after the hub's own absence."""

from cloud_hub.registry.presence import DeviceActivity, DevicePresence
from wire.protocol.topics import TopicChannel, build_topic, compute_shard

NAME = "demo--d1"
SHARD = compute_shard(NAME)
ASK, WILL = (build_topic(NAME, channel) for channel in (TopicChannel.ASK, TopicChannel.STATE))


def test_a_device_is_online_from_its_first_message_to_its_last_will():
    presence = DevicePresence()
    assert presence.describe(NAME, (), 5).online is None
    assert presence.describe(NAME, (), 5).last_seen_ms == 5  # from an earlier life of the hub
    presence.on_message(ASK, 10)
    assert (presence.describe(NAME, (), 5).online, presence.describe(NAME, (), 5).last_seen_ms) == (True, 10)
    presence.on_message(WILL, 20)
    assert (presence.describe(NAME, (), 5).online, presence.describe(NAME, (), 5).last_seen_ms) == (False, 10)


def test_after_its_own_absence_the_hub_does_not_know_who_is_there():
    presence = DevicePresence()
    presence.on_message(ASK, 10)
    presence.on_link()
    assert presence.describe(NAME, (), 0).online is None


def test_whether_a_device_is_there_that_another_hub_serves_now_is_not_known():
    other = next(name for name in (f"demo--d{number}" for number in range(2, 99)) if compute_shard(name) != SHARD)
    presence = DevicePresence()
    for topic in (ASK, build_topic(other, TopicChannel.ASK)):
        presence.on_message(topic, 10)
    presence.forget_shards(frozenset({SHARD}))
    assert presence.describe(NAME, (), 0) == DeviceActivity(None, 10, ())
    assert presence.describe(other, (), 0).online is True


def test_a_flood_of_names_and_other_topics_take_no_memory(monkeypatch):
    monkeypatch.setattr("cloud_hub.registry.presence.MAX_DEVICES", 1)
    presence = DevicePresence()
    for topic in ("nonsense", ASK, build_topic("demo--d2", TopicChannel.ASK)):
        presence.on_message(topic, 10)
    assert presence.describe(NAME, (), 0).online is True
    assert presence.describe("demo--d2", (), 0).online is None
