"""What any hub of a region says of all: who is there, drains, is late or gone, and what each holds."""

from typing import Any

from cloud_hub.region.leases import TASKS, LeaseKind, RegionTask
from cloud_hub.region.overview import (
    LATE_MS,
    HeldTask,
    HubEntry,
    HubPresence,
    describe_alone,
    describe_hubs,
    join_ranges,
)

NOW_MS = 1_000_000
LIFE_MS = 6000


def lease(kind: LeaseKind, number: int, hub: str = "hub", renewed_ms: int = NOW_MS) -> dict[str, Any]:
    until = {"until_ms": renewed_ms + LIFE_MS, "renewed_ms": renewed_ms, "now_ms": NOW_MS}
    return {"kind": kind.value, "number": number, "hub": hub, "term": 2, "since_ms": 5, **until}


def row(name: str, seen_ms: int = NOW_MS) -> dict[str, Any]:
    return {"name": name, "since_ms": 4, "seen_ms": seen_ms, "release": "0.2.0", "now_ms": NOW_MS}


def states(*leases: dict[str, Any], names: tuple[dict[str, Any], ...] = ()) -> dict[str, HubPresence]:
    return {each.member: each.state for each in describe_hubs(leases, names)}


def test_a_hub_is_told_with_its_shards_and_tasks_and_since_when():
    shards = [lease(LeaseKind.SHARD, number) for number in (0, 1, 2, 7, 255)]
    task = lease(LeaseKind.TASK, TASKS.index(RegionTask.KEEPER))
    (entry,) = describe_hubs([lease(LeaseKind.HUB, 0), *shards, task], [row("hub")])
    ranges, tasks = ((0, 2), (7, 7), (255, 255)), (HeldTask("keeper", 5, 2),)
    assert entry == HubEntry("hub", HubPresence.ALIVE, 5, NOW_MS, 0, 5, ranges, tasks, "0.2.0")


def test_who_renews_late_is_late_and_who_ended_without_a_word_is_gone_with_nothing_left():
    late = lease(LeaseKind.HUB, 0, renewed_ms=NOW_MS - LATE_MS - 1000)
    dead = [lease(kind, 1, "hub-2", NOW_MS - LIFE_MS) for kind in (LeaseKind.HUB, LeaseKind.SHARD, LeaseKind.TASK)]
    first, second = describe_hubs([late, *dead], [row("hub"), row("hub-2", NOW_MS - LIFE_MS - 100)])
    assert first.state is HubPresence.LATE
    assert first.late_ms > LATE_MS
    assert (second.state, second.shards, second.ranges, second.tasks) == (HubPresence.GONE, 0, (), ())
    assert second.seen_ms == NOW_MS - LIFE_MS


def test_who_gave_its_being_there_away_and_still_serves_drains():
    assert states(lease(LeaseKind.SHARD, 3), names=(row("hub"),)) == {"hub": HubPresence.DRAINING}


def test_who_has_its_name_and_nothing_else_starts():
    assert states(names=(row("hub-2"),)) == {"hub-2": HubPresence.STARTING}


def test_a_task_of_a_newer_release_is_not_named():
    (entry,) = describe_hubs([lease(LeaseKind.HUB, 0), lease(LeaseKind.TASK, len(TASKS))], [])
    assert (entry.tasks, entry.release) == ((), "")


def test_a_hub_that_is_alone_has_everything_and_is_never_late():
    entry = describe_alone("hub", 1, 2, "1.0", draining=False)
    assert (entry.shards, entry.ranges, entry.late_ms) == (256, ((0, 255),), 0)
    assert [each.task for each in entry.tasks] == [task.value for task in RegionTask]


def test_ranges_of_nothing_are_none():
    assert join_ranges(()) == ()
