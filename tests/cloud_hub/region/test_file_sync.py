"""Folder and database become alike: nothing is lost that only one side changed, and the database decides the rest."""

from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.region.file_sync import plan_sync

digests = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.sampled_from([b"1", b"2", b"3"]))


@given(digests, digests, digests)
def test_after_a_plan_both_sides_are_alike(local, stored, alike):
    plan = plan_sync(local, stored, alike)
    folder = {**local, **{path: stored[path] for path in plan.fetch}}
    database = {**stored, **{path: local[path] for path in plan.store}}
    for path in plan.remove:
        del folder[path]
    for path in plan.withdraw:
        del database[path]
    assert folder == database
    assert plan_sync(folder, database, folder) == plan_sync({}, {}, {})


@given(digests, digests)
def test_what_one_side_alone_changed_stays_changed(before, after):
    ours, theirs = plan_sync(after, before, before), plan_sync(before, after, before)
    assert (ours.fetch, ours.remove, ours.conflicts) == ((), (), ())
    assert (theirs.store, theirs.withdraw, theirs.conflicts) == ((), (), ())


@given(digests, digests, digests)
def test_what_both_sides_changed_is_as_the_database_has_it_and_is_told(local, stored, alike):
    plan = plan_sync(local, stored, alike)
    both = {
        path
        for path in {*local, *stored}
        if local.get(path) != stored.get(path)
        and local.get(path) != alike.get(path)
        and stored.get(path) != alike.get(path)
    }
    assert set(plan.conflicts) == both <= {*plan.fetch, *plan.remove}
