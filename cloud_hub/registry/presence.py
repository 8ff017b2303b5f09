"""Which devices are connected and when each was last heard, from the topics of their messages. Pure.

Rule: for people alone; it decides nothing. The broker lets a device publish under its own name only, so that a topic
names who sent a message; its content is not looked at here.
"""

from collections.abc import Set as AbstractSet

import msgspec

from wire.errors import RemoteError
from wire.protocol.topics import TopicChannel, compute_shard, parse_up_topic

MAX_DEVICES = 1_000_000  # whose activity is kept: a broker of others may let strangers in


class DeviceActivity(msgspec.Struct, frozen=True):
    """What a hub knows of a device's activity.

    `online` None: not known, as nothing came since the hub's own connection was made. `last_seen_ms`: ms since 1970,
    0 = never. `models`: those it announced, as MODEL@VERSION. `agent`: version of its software, "" = not known.
    """

    online: bool | None = None
    last_seen_ms: int = 0
    models: tuple[str, ...] = ()
    agent: str = ""


class DevicePresence:
    """Keeps the time of each device's last message. On `up/state` the broker publishes a device's last will."""

    def __init__(self) -> None:
        self._seen_ms: dict[str, int] = {}
        self._online: dict[str, bool] = {}

    def on_link(self) -> None:
        """The hub's own connection was made anew: who came and went meanwhile is not known."""
        self._online.clear()

    def forget_shards(self, shards: AbstractSet[int]) -> None:
        """Another hub hears the devices of these shards: whether they are connected is not known here any more."""
        for device in [device for device in self._online if compute_shard(device) in shards]:
            del self._online[device]

    def on_message(self, topic: str, now_ms: int) -> None:
        """A message arrived on `topic`; `now_ms`: ms since 1970. Other topics are left out."""
        try:
            device, channel = parse_up_topic(topic)
        except RemoteError:
            return
        if device not in self._seen_ms and len(self._seen_ms) >= MAX_DEVICES:
            return
        gone = channel is TopicChannel.STATE
        self._online[device] = not gone
        if not gone:
            self._seen_ms[device] = now_ms

    def describe(self, device: str, models: tuple[str, ...], before_ms: int, agent: str = "") -> DeviceActivity:
        """Return what is known; `before_ms`: when it was heard in an earlier life of this hub, 0 = never."""
        return DeviceActivity(self._online.get(device), self._seen_ms.get(device, before_ms), models, agent)
