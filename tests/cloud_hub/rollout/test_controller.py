"""The rollout controller over a real database: one or two hubs, defects, clocks, and assignments that are repeated."""

import contextlib
import sqlite3

import pytest
from msgspec.structs import replace

from cloud_hub.rollout.types import TERMINAL, RolloutError, RolloutState
from tests.cloud_hub.doubles.rollout_bench import NEW, Device, members
from tests.cloud_hub.doubles.rollout_site import ORDER, Site
from wire.protocol.rollout import Assignment, InstallState

S = RolloutState


def refuse_writes(hub, refused):
    hub.store._engine.raw_connection().execute(f"pragma query_only={refused}")


@pytest.fixture
async def site(tmp_path):
    made = Site(tmp_path / "rollouts.db")
    yield made
    await made.stop()


async def test_a_rollout_from_its_start_to_its_end(site):
    hub = site.hub()
    begun = await hub.start(ORDER, "ann")
    assert begun.state in {S.DRAFT, S.VALIDATING}
    done = await site.until(hub, TERMINAL)
    assert done.state is S.COMPLETED
    assert all(device.runs == NEW for device in site.devices.values())
    assert [entry.by for entry in await hub.history("r1")][:2] == ["ann", "hub"]
    assert {each.state for each in hub.devices("r1")} == {"succeeded"}
    assert sorted({device for device, _ in site.seen}) == sorted(site.devices)


@pytest.mark.further
async def test_a_device_that_is_revoked_in_its_wave_is_left_out_and_not_waited_for(site):
    hub = site.hub()
    await hub.start(ORDER, "ann")
    view = await site.until(hub, {S.RUNNING})
    site.fleet = [each for each in site.fleet if each.device not in site.last(3)]
    for device in site.last(3):
        site.devices[device].online = False
    done = await site.until(hub, TERMINAL)
    assert (done.state, done.states) == (S.COMPLETED, {"succeeded": 17, "left": 3})
    assert view.next_step


async def test_what_is_not_published_is_denied_and_says_why(site):
    hub = site.hub()
    site.wrong = "digits@2 is not published"
    await hub.start(ORDER, "ann")
    seen = await site.until(hub, {S.DENIED})
    assert seen.why == "digits@2 is not published"
    assert site.told == []


@pytest.mark.parametrize("name", ["pause", "resume", "abort", "approve"])
async def test_a_wish_for_a_rollout_that_is_none_is_refused(site, name):
    hub = site.hub()
    with pytest.raises(RolloutError, match="no rollout") as refused:
        await getattr(hub, name)("nothing", "ann", *(["x"] if name != "resume" else []))
    assert refused.value.code == "not_found"


async def test_a_device_that_says_hello_is_told_again_until_it_has_answered(site):
    hub = site.hub()
    await hub.start(ORDER, "ann")
    await site.until(hub, {S.RUNNING})
    await site.passes(15)
    word = site.candidates()[0]
    device = site.devices[word.device]
    device.online = False
    assert hub.assignments_for(word.device) == (word,)
    device.online = True
    device.hear(word, site.machine.runs_s)
    await site.passes(60)
    assert hub.assignments_for(word.device) == ()
    assert hub.assignments_for("acme--stranger") == ()


async def test_a_report_is_acknowledged_once_it_is_on_disk_and_not_before(site):
    hub = site.hub()
    await hub.start(ORDER, "ann")
    await site.until(hub, {S.RUNNING})
    await site.passes(15)
    word = site.candidates()[0]
    device = site.devices[word.device]
    refuse_writes(hub, 1)  # as a disk that takes nothing any more
    report = device.report(InstallState.VERIFYING)
    before = list(site.seen)
    hub.on_report(word.device, report)
    await site.settled()
    assert site.seen == before
    refuse_writes(hub, 0)
    hub.on_report(word.device, report)
    await site.settled()
    assert site.seen[-1] == (word.device, report.seq)
    with contextlib.closing(sqlite3.connect(site.path)) as db, db:
        assert b"in_progress" in db.execute("select facts from devices where device=?", (word.device,)).fetchone()[0]


async def test_nobody_is_told_what_could_not_be_written(site):
    hub = site.hub()
    await hub.start(ORDER, "ann")
    await site.until(hub, {S.READY, S.RUNNING})
    await site.settled()  # until that is written
    refuse_writes(hub, 1)
    await site.settled()
    told = len(site.told)
    await site.passes(100)
    assert len(site.told) == told
    with pytest.raises(RolloutError, match="disk"):
        await hub.pause("r1", "ann", "")
    with pytest.raises(RolloutError, match="disk"):
        await hub.start(replace(ORDER, family="other", id="r2"), "ann")
    refuse_writes(hub, 0)
    assert (await site.until(hub, TERMINAL)).state is S.COMPLETED


async def test_reports_of_rollouts_that_are_not_known_are_acknowledged_so_that_they_end(site):
    hub = site.hub()
    await site.settled()
    device = site.devices[site.fleet[0].device]
    device.holds = _word(device.name)
    hub.on_report(device.name, device.report("committed"))
    await site.settled()
    assert site.seen == [(device.name, 1)]


def _word(device):
    return Assignment(0, device, 1, 0, 0, "gone", "digits", NEW.path, 2, NEW.digest)


async def test_a_defect_costs_a_moment_and_the_rollouts_go_on(site):
    hub = site.hub()
    site.wrong = "defect"
    await hub.start(ORDER, "ann")
    assert (await site.until(hub, TERMINAL)).state is S.COMPLETED


async def test_a_hub_that_is_replaced_in_the_middle_goes_on(site):
    first = site.hub()
    await first.start(ORDER, "ann")
    await site.until(first, {S.SOAKING})
    site.tasks.pop().cancel()
    site.hubs.clear()
    second = site.hub()
    assert (await site.until(second, TERMINAL)).state is S.COMPLETED
    for device in site.devices.values():
        assert len([word for word in device.contents.values() if word.digest == NEW.digest]) == 1


async def test_two_hubs_at_work_make_each_transition_once(site):
    one, two = site.hub(), site.hub()
    await one.start(ORDER, "ann")
    assert (await site.until(one, TERMINAL)).state is S.COMPLETED
    await site.passes(20)
    assert two.view("r1").state is S.COMPLETED
    states = [entry.what for entry in await two.history("r1")]
    assert states.count("soaking") == states.count("evaluating") == 3
    assert states.count("completed") == 1
    for device in site.devices.values():
        assert len([word for word in device.contents.values() if word.digest == NEW.digest]) == 1


@pytest.mark.further
async def test_an_abort_at_one_hub_stops_the_other_within_five_seconds(tmp_path, site):
    site.fleet = members(300)
    site.devices = {each.device: Device(each.device) for each in site.fleet}
    one, two = site.hub(), site.hub()
    await one.start(replace(ORDER, rules={**ORDER.rules, "waves": ["3", "100%"], "per_minute": 10}), "ann")
    with contextlib.suppress(RolloutError):
        await one.approve("r1", "bob", one.view("r1").plan)
    await site.until(one, {S.SOAKING})
    await site.until(one, {S.RUNNING})
    await site.passes(10)
    await two.abort("r1", "ann", "smells")
    await site.passes(5)
    told = len(site.candidates())
    await site.passes(300)
    assert len(site.candidates()) == told < 300
    assert one.view("r1").state in {S.ABORTING, S.ABORTED}


@pytest.mark.further
async def test_setting_the_clock_while_it_runs_frees_no_place(site):
    site.fleet = members(90)
    site.devices = {each.device: Device(each.device) for each in site.fleet}
    hub = site.hub()
    await hub.start(replace(ORDER, rules={**ORDER.rules, "per_minute": 5}), "ann")
    await site.until(hub, {S.SOAKING})
    for jump in (3600.0, -1800.0, 86_400.0, 59.0, 61.0) * 12:
        site.machine.wall_s += jump
        await site.passes(20, 20)
    times = [at for at, _, word in site.told if word.digest == NEW.digest]
    assert len(times) > 20
    assert all(later - first >= 60.0 for first, later in zip(times, times[5:], strict=False))
