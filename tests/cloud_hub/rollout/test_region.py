"""Rollouts of several hubs over one database, which is SQLite or a real PostgreSQL: one decides, all of them hear."""

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from cloud_hub.database.changes import Topic, read_revisions
from cloud_hub.database.connection import open_part
from cloud_hub.database.parts import REGION
from cloud_hub.rollout.planning import build_plan, build_record
from cloud_hub.rollout.store import RolloutStore
from cloud_hub.rollout.types import TERMINAL, RolloutError, RolloutState
from tests.cloud_hub.doubles.rollout_bench import NEW, members
from tests.cloud_hub.doubles.rollout_site import ORDER, Site

S = RolloutState


@pytest.fixture
async def site(urls):
    made = Site(urls.rollouts)
    yield made
    await made.stop()


def is_even(device):
    return int(device[-1]) % 2 == 0


def is_odd(device):
    return not is_even(device)


class Task:
    """The region's task lease: which hub, by number, decides now."""

    def __init__(self) -> None:
        self.holder = 0

    def of(self, hub):
        return lambda: self.holder == hub


def two_hubs(site):
    """Hub 0, which decides, hears the even devices; hub 1 hears the odd ones."""
    task = Task()
    return task, site.hub(task.of(0), is_even), site.hub(task.of(1), is_odd)


async def test_devices_that_another_hub_hears_go_through_every_wave_and_are_acknowledged_there(site):
    _, one, two = two_hubs(site)
    await one.start(ORDER, "ann")
    done = await site.until(one, TERMINAL)
    assert (done.state, done.states) == (S.COMPLETED, {"succeeded": 20})
    await site.passes(10)
    assert two.view("r1").states == done.states
    assert site.tellers == {0}
    assert {device for device, _ in site.seen} == set(site.devices)


@pytest.mark.further
async def test_a_hub_that_does_not_decide_assigns_nothing_and_lets_nothing_time_out(site):
    task, one, two = two_hubs(site)
    task.holder = 7  # somebody who is not here
    await two.start(ORDER, "ann")
    await site.passes(300)
    assert (site.told, one.view("r1").state, two.view("r1").state) == ([], S.VALIDATING, S.VALIDATING)
    task.holder = 1
    await site.until(one, {S.RUNNING})
    await site.until(one, {S.SOAKING})
    assert site.tellers == {1}


async def test_what_a_hub_wrote_and_did_not_live_to_send_is_sent_by_the_next_one_that_decides(site):
    task, one, two = two_hubs(site)
    site.mute.add(0)
    await one.start(ORDER, "ann")
    while not two.views() or not two.view("r1").exposed:
        await site.passes(5)
    assert site.told == []
    site.tasks.pop(0).cancel()
    site.hubs.pop(0)
    two.serves = lambda _device: True
    task.holder = 1
    assert (await site.until(two, TERMINAL)).state is S.COMPLETED
    assert site.tellers == {1}
    for device in site.devices.values():  # a device checks that nothing else is said under a counter it knows
        assert len([word for word in device.contents.values() if word.digest == NEW.digest]) == 1


@pytest.mark.further
async def test_what_was_decided_and_got_lost_with_the_link_is_sent_again_when_the_same_hub_decides_again(site):
    task, one, two = two_hubs(site)
    site.mute.add(0)
    await one.start(ORDER, "ann")
    while not one.views() or not one.view("r1").exposed:
        await site.passes(5)
    assert site.told == []
    task.holder = 7  # it has no link
    await site.passes(60)
    site.mute.clear()
    task.holder = 0
    assert (await site.until(two, TERMINAL)).state is S.COMPLETED
    for device in site.devices.values():
        assert len([word for word in device.contents.values() if word.digest == NEW.digest]) == 1


async def test_the_task_changes_hands_in_every_step_and_each_step_is_made_once(site):
    task, one, two = two_hubs(site)
    await two.start(ORDER, "ann")
    for step in range(2000):
        await site.passes(5)
        task.holder = step % 2
        if one.views() and one.view("r1").state in TERMINAL:
            break
    assert one.view("r1").state is S.COMPLETED
    done = [entry.what for entry in await two.history("r1")]
    assert (done.count("soaking"), done.count("evaluating"), done.count("completed")) == (3, 3, 1)
    for device in site.devices.values():
        assert len([word for word in device.contents.values() if word.digest == NEW.digest]) == 1


@pytest.mark.further
async def test_people_command_at_any_hub_and_the_one_that_decides_obeys(site):
    _, one, two = two_hubs(site)
    await two.start(ORDER, "ann")
    await site.until(one, {S.SOAKING})
    assert (await two.pause("r1", "bob", "lunch")).state is S.PAUSED_MANUAL
    await site.passes(600)
    assert one.view("r1").state is S.PAUSED_MANUAL
    await two.resume("r1", "bob")
    await site.until(one, {S.SOAKING})
    await two.abort("r1", "bob", "smells")
    await site.until(one, {S.ABORTED})
    with pytest.raises(RolloutError, match="start another one"):
        await one.abort("r1", "ann", "late")
    assert [entry.by for entry in await one.history("r1") if entry.what in {"paused_manual", "aborting"}] == ["bob"] * 2


async def test_what_was_published_at_another_hub_is_waited_for_and_what_is_not_published_is_denied(site):
    _, one, two = two_hubs(site)
    site.wrong = "digits@2 is not published"
    await two.start(ORDER, "ann")
    await site.until(one, {S.VALIDATING})
    site.wrong = ""
    while one.view("r1").state is S.VALIDATING:  # before any more time passes
        await site.settled()
    await site.until(one, {S.RUNNING})
    await one.abort("r1", "ann", "once more")
    await site.until(two, {S.ABORTED})  # as it was written
    site.wrong = "digits@2 is not published"
    await two.start(replace(ORDER, id="r2"), "ann")
    await site.until(one, {S.DENIED}, rollout="r2")
    assert (one.view("r2").state, one.view("r2").why) == (S.DENIED, "digits@2 is not published")


async def test_a_change_is_read_when_it_is_told_of_and_before_the_next_look(site):
    _, one, two = two_hubs(site)
    await site.settled()
    await one.start(ORDER, "ann")
    await site.settled()  # no time passes
    assert two.views() == ()
    two.on_changed_elsewhere()
    await site.settled()
    assert two.view("r1").id == "r1"


def test_every_change_of_a_rollout_is_told_to_the_other_hubs(urls):
    with_server = bool(urls.server)
    store = RolloutStore.open(urls.rollouts)
    record, entry = build_record(build_plan(ORDER, members(3), "ann", 0))
    store.create_rollout(record, (entry,))
    store.close()
    if not with_server:
        alone = sa.create_engine(urls.rollouts)
        assert not sa.inspect(alone).has_table("changes")
        alone.dispose()
        return
    engine = open_part(urls.server, REGION)
    with engine.connect() as connection:
        assert read_revisions(connection)[Topic.ROLLOUTS] == 1
    engine.dispose()
