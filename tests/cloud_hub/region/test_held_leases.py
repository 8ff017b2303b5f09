"""What a hub takes for its own: what a look shows, until a lease's life is over, under one term at a time."""

from cloud_hub.region.held_leases import HeldLeases, LeasePlan, plan_drain, plan_leases
from cloud_hub.region.leases import TASKS, Lease, LeaseId, LeaseKind, LeaseView, RegionTask
from policies.serving.shard_leases import SHARDS

LIFE_S = 6.0
OWN, OTHER = LeaseId(LeaseKind.HUB, 0), LeaseId(LeaseKind.HUB, 1)


def lease(each: LeaseId, session: str = "a", term: int = 1, until_ms: int = 6000) -> Lease:
    return Lease(each, {"a": "hub", "b": "hub-2"}.get(session, ""), session, term, 0, until_ms)


def shards(*numbers: int, term: int = 1) -> dict[LeaseId, Lease]:
    found = [lease(LeaseId(LeaseKind.SHARD, number), term=term) for number in numbers]
    return {each.id: each for each in found}


def test_a_hub_alone_wants_its_being_there_every_shard_and_every_task():
    free = [lease(LeaseId(LeaseKind.SHARD, number), "", 0, 0) for number in range(SHARDS)]
    tasks = [lease(LeaseId(LeaseKind.TASK, number), "", 0, 0) for number in range(len(TASKS))]
    plan = plan_leases(LeaseView(1, (*free, *tasks)), "hub", "a")
    assert plan == LeasePlan((OWN, *(each.id for each in free), *(each.id for each in tasks)))


def test_a_hub_that_has_more_than_its_share_gives_and_takes_nothing_but_its_own():
    mine = [lease(LeaseId(LeaseKind.SHARD, number)) for number in range(SHARDS)]
    plan = plan_leases(LeaseView(1, (lease(OWN), lease(OTHER, "b"), *mine)), "hub", "a")
    assert plan == LeasePlan((OWN,), tuple(each.id for each in mine[128:]))


def test_a_hub_that_has_more_than_its_share_of_the_tasks_gives_them_and_one_of_a_newer_release_is_nobodys():
    mine = [lease(LeaseId(LeaseKind.TASK, number)) for number in range(len(TASKS))]
    newer = lease(LeaseId(LeaseKind.TASK, len(TASKS)), "", 0, 0)
    plan = plan_leases(LeaseView(1, (lease(OWN), lease(OTHER, "b"), *mine, newer)), "hub", "a")
    assert plan == LeasePlan((OWN,), tuple(each.id for each in mine[(len(TASKS) + 1) // 2 :]))
    assert newer.id not in plan_leases(LeaseView(1, (newer,)), "hub", "a").take


def test_a_hub_that_leaves_gives_its_being_there_and_its_tasks_once():
    task = LeaseId(LeaseKind.TASK, 0)
    assert plan_drain({OWN: lease(OWN), task: lease(task), **shards(1)}) == LeasePlan(give=(OWN, task))
    assert plan_drain(shards(1)) == LeasePlan()


def test_what_a_look_shows_is_gained_once_and_what_it_shows_no_more_is_lost():
    held = HeldLeases(LIFE_S)
    assert held.accept(10.0, shards(1, 2, 3), ()) == frozenset()
    assert (held.gain(), held.gain(), held.shards) == ({1: 1, 2: 1, 3: 1}, {}, [1, 2, 3])
    assert held.accept(11.0, shards(1, 3), (LeaseId(LeaseKind.SHARD, 3),)) == {2, 3}
    assert held.shards == [1]


def test_a_shard_in_another_term_is_lost_before_it_is_gained_again():
    held = HeldLeases(LIFE_S)
    held.accept(10.0, shards(1), ())
    held.gain()
    assert held.accept(11.0, shards(1, term=3), ()) == {1}
    assert held.gain() == {1: 3}


def test_who_could_not_renew_for_a_life_has_lost_everything_tasks_too():
    held, task = HeldLeases(LIFE_S), LeaseId(LeaseKind.TASK, 0)
    held.accept(10.0, {**shards(1, 2), task: lease(task)}, ())
    held.gain()
    assert held.does(RegionTask.RETIREMENTS, 15.9)
    assert held.check_sure(15.9) == frozenset()
    assert not held.does(RegionTask.RETIREMENTS, 16.0)
    assert held.check_sure(16.0) == {1, 2}
    assert held.ids == ()


def test_a_lease_that_was_not_renewed_since_it_was_locked_ends_alone():
    held = HeldLeases(LIFE_S)
    held.accept(10.0, shards(1, 2), ())
    held.gain()
    two = LeaseId(LeaseKind.SHARD, 2)
    held.accept(12.0, {**shards(1), two: lease(two, until_ms=8000)}, ())
    assert held.check_sure(15.9) == frozenset()
    assert held.check_sure(16.0) == {1}
    assert held.check_sure(18.0) == {2}


def test_a_refused_write_is_a_loss_whatever_was_believed_and_the_next_look_decides():
    held = HeldLeases(LIFE_S)
    held.accept(10.0, shards(1, 2), ())
    held.gain()
    assert held.on_fenced([2, 9]) == {2}
    assert held.gain() == {}
    held.accept(11.0, shards(1, 2, term=2), ())
    assert held.gain() == {1: 2, 2: 2}


def test_what_could_not_be_read_is_gained_again_later():
    held = HeldLeases(LIFE_S)
    held.accept(10.0, shards(1), ())
    terms = held.gain()
    assert held.undo_gain(terms) == {1}
    assert held.gain() == terms
