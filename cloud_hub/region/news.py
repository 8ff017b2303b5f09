"""Which of the other hubs' changes this hub has not taken in, and whether it still knows enough to take new work. Pure.

Rule: what cannot be heard of is assumed to have happened. A hub that has not caught up for `NEWS_LIFE_S` is closed: a
device may have been revoked and everything denied in the meantime. A revision that went back (a database restored from
a backup) is a change of everything.
"""

from collections.abc import Iterable, Mapping

import msgspec

from cloud_hub.database.changes import Topic

NEWS_LIFE_S = 5.0
EVERYTHING = -1  # revision after which all subjects count as changed


class StaleTopic(msgspec.Struct, frozen=True):
    """A topic to be read again: subjects changed after revision `after`, which are then as of `revision`."""

    topic: Topic
    after: int
    revision: int


class NewsState(msgspec.Struct, frozen=True):
    """What a hub has taken in: the revision of each topic."""

    seen: Mapping[Topic, int]

    def find_stale(self, revisions: Mapping[Topic, int]) -> tuple[StaleTopic, ...]:
        """Topics whose revision is not the one that was taken in."""
        pairs = [(topic, self.seen.get(topic, 0), revisions.get(topic, 0)) for topic in Topic]
        return tuple(
            StaleTopic(topic, seen if now > seen else EVERYTHING, now) for topic, seen, now in pairs if now != seen
        )

    def take_in(self, stale: Iterable[StaleTopic]) -> "NewsState":
        """State after these topics were read again."""
        return NewsState({**self.seen, **{each.topic: each.revision for each in stale}})

    def forget(self) -> "NewsState":
        """State in which every topic has to be read again."""
        return NewsState(dict.fromkeys(Topic, EVERYTHING))


def find_closing_time(now_s: float, age_s: float) -> float:
    """When a hub closes that knew everything `age_s` seconds ago, unless it catches up before."""
    return now_s - age_s + NEWS_LIFE_S
