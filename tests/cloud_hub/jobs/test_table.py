"""Rows of jobs on both databases: every move is compare-and-set, and what is done twice is done once."""

import msgspec
import pytest
import sqlalchemy as sa

from cloud_hub.core.commands import ErasureRequest
from cloud_hub.database.parts import DatabaseUrls
from cloud_hub.database.tables import job_bodies
from cloud_hub.jobs import reading as r
from cloud_hub.jobs import table as t
from cloud_hub.jobs.held import ClaimPlan
from cloud_hub.jobs.states import Job, JobMove, JobState
from cloud_hub.storage.jobs import StoreJob
from cloud_hub.storage.store import Store
from tests.cloud_hub.jobs.making import NOW_MS, job

DAY_MS = 86_400_000


class Rows:
    """The table behind a store, a transaction for each piece of work."""

    def __init__(self, urls: DatabaseUrls) -> None:
        self.store = Store.open(urls.questions)

    def do(self, work):
        (done,) = self.store.apply_jobs([StoreJob(works=[work])])
        return done.found[0]

    def add(self, *jobs: Job):
        return self.do(t.AddJobs([t.NewJob(each, b"body of " + each.id.encode()) for each in jobs]))

    def claim(self, now_ms: int = NOW_MS, window: int = 10, **plan):
        held, full, suspects = plan.pop("held", {}), plan.pop("full", frozenset()), plan.pop("suspects", 1)
        return self.do(t.ClaimJobs(ClaimPlan(now_ms, None, window, held, full, suspects)))

    def find(self, job_id: str, tenant: str = "") -> Job | None:
        with self.store._engine.connect() as connection:
            return r.read_job(connection, job_id, tenant)

    def state(self, job_id: str) -> JobState | None:
        found = self.find(job_id)
        return found.state if found else None


@pytest.fixture
def rows(urls):
    rows = Rows(urls)
    yield rows
    rows.store.close()


def read_bodies(connection) -> dict[str, bytes]:
    """Bodies that are there, by the ids of their jobs."""
    rows = connection.execute(sa.select(job_bodies.c.id, job_bodies.c.body))
    return {row.id: bytes(row.body) for row in rows if row.body is not None}


def end(running: Job, state: JobState = JobState.ANSWERED, **changes) -> JobMove:
    answer = b"answer" if state is JobState.ANSWERED else None
    values = {"at_ms": NOW_MS + 5, "timer_ms": NOW_MS + DAY_MS, "tries": 1, "answer": answer, **changes}
    return JobMove(job=running, state=state, **values)


def test_a_job_is_begun_once_and_ends_once(rows):
    rows.add(job("a"), job("b", not_before_ms=NOW_MS + 1_000))
    (claimed,), _ = rows.claim()
    assert (claimed.job.id, claimed.job.claims, claimed.body) == ("a", 1, b"body of a")
    assert rows.claim() == ([], NOW_MS + 1_000)
    assert rows.do(t.EndJobs([end(claimed.job)])) == {"a"}
    assert rows.do(t.EndJobs([end(claimed.job, JobState.DEAD, why="late", at_ms=NOW_MS + 9)])) == frozenset()
    found = rows.find("a")
    assert (found.state, found.ended_ms, found.tries) == (JobState.ANSWERED, NOW_MS + 5, 1)
    with rows.store._engine.connect() as connection:
        assert r.read_answer(connection, "a") == b"answer"
        assert read_bodies(connection) == {"b": b"body of b"}


def test_a_commit_whose_answer_was_lost_may_be_given_again(rows):
    new = [t.NewJob(job("a"), b"body"), t.NewJob(job("k", known_by=b"k" * 32), b"body")]
    assert rows.do(t.AddJobs(new)) == rows.do(t.AddJobs(new)) == {}
    claimed, _ = rows.claim()
    work = t.EndJobs([end(each.job) for each in claimed])
    assert rows.do(work) == rows.do(work) == {"a", "k"}


def test_a_key_is_one_job_whoever_asks_first(rows):
    first, second = job("a", known_by=b"k" * 32), job("b", known_by=b"k" * 32)
    assert rows.add(first) == {}
    assert rows.add(second) == {"b": first}
    assert rows.find("b") is None


def test_what_an_earlier_claim_says_counts_no_more(rows):
    rows.add(job("a"))
    (first,), _ = rows.claim()
    assert rows.do(t.GiveBackJobs(None, frozenset(), NOW_MS, DAY_MS)) == (1, 0)
    (second,), _ = rows.claim()
    assert (second.job.claims, second.job.crashes) == (2, 1)
    assert rows.do(t.EndJobs([end(first.job)])) == frozenset()
    assert rows.state("a") is JobState.RUNNING
    assert rows.do(t.EndJobs([end(second.job)])) == {"a"}


def test_what_is_in_hand_is_not_given_back(rows):
    rows.add(job("a"))
    rows.claim()
    assert rows.do(t.GiveBackJobs(None, frozenset({"a"}), NOW_MS, DAY_MS)) == (0, 0)
    assert rows.state("a") is JobState.RUNNING


def test_a_job_that_ends_its_hub_again_and_again_lies_dead_with_a_reason(rows):
    rows.add(job("a"))
    for _ in range(3):
        assert len(rows.claim()[0]) == 1
        assert rows.do(t.GiveBackJobs(None, frozenset(), NOW_MS, DAY_MS)) == (1, 0)
    rows.claim()
    assert rows.do(t.GiveBackJobs(None, frozenset(), NOW_MS, DAY_MS)) == (0, 1)
    found = rows.find("a")
    reason = "its hub ended, or lost it to another one, 4 times while it had this job in hand"
    assert (found.state, found.why) == (JobState.DEAD, reason)
    rows.do(t.RequeueJob("a", "acme", NOW_MS + 7))
    again = rows.find("a")
    assert (again.state, again.crashes, again.ended_ms) == (JobState.QUEUED, 0, None)
    (claimed,), _ = rows.claim(NOW_MS + 8)
    assert claimed.body == b"body of a"


def test_suspects_are_begun_one_at_a_time_beside_the_others(rows):
    rows.add(job("s1", crashes=2), job("s2", crashes=3), job("b"))
    begun, _ = rows.claim()
    assert {each.job.id for each in begun} == {"b", "s1"}
    assert rows.claim(suspects=0)[0] == []


def test_tenants_share_what_is_begun_and_the_oldest_goes_first(rows):
    rows.add(
        *(job(f"a{n}", not_before_ms=NOW_MS - n) for n in range(8)), job("b", tenant="clinic"), job("c", tenant="")
    )
    begun, _ = rows.claim(window=6)
    assert [each.job.id for each in begun] == ["a7", "a6", "b", "c"]


def test_a_model_whose_place_others_fill_takes_no_more_than_a_tenants_own_places(rows):
    rows.add(
        *(job(f"f{n}", model="filled") for n in range(8)),
        *(job(f"h{n}", tenant="hostile", model="filled") for n in range(8)),
        *(job(f"o{n}", tenant="other", model="filled") for n in range(3)), job("p", tenant="other"),
    )  # fmt: skip
    begun, _ = rows.claim(window=32, full=frozenset({"filled"}), held={"hostile": 32})
    assert [each.job.id for each in begun] == ["f0", "f1", "o0", "p"], "two of each tenant are its own"


def test_jobs_of_one_large_batch_are_begun_without_sorting_all_that_wait(tmp_path):
    rows = Rows(DatabaseUrls(tmp_path))
    rows.add(*(job(f"{number:03}") for number in range(50)))  # all due at once, as the lines of a file are
    statements: list[tuple[str, tuple[object, ...]]] = []

    def note(_connection, _cursor, statement, parameters, *_):
        statements.append((statement, parameters))

    sa.event.listen(rows.store._engine, "before_cursor_execute", note)
    assert [each.job.id for each in rows.claim()[0]] == [f"{number:03}" for number in range(10)]
    plans = []
    with rows.store._engine.connect() as connection:
        for statement, parameters in [each for each in statements if "ORDER BY" in each[0]]:
            plans.append(str(connection.exec_driver_sql(f"explain query plan {statement}", parameters).all()))
    assert len(plans) == 2
    assert not [plan for plan in plans if "TEMP B-TREE" in plan]
    rows.store.close()


def test_a_shard_that_is_not_served_is_left_alone(rows):
    rows.add(job("a", shard=1), job("b", shard=2))
    work = t.ClaimJobs(ClaimPlan(NOW_MS, frozenset({1, 2}), 10, {}, frozenset({"other"}), 1))
    work.leave_out(frozenset({2}))
    begun, _ = rows.do(work)
    assert [each.job.id for each in begun] == ["a"]
    ends = t.EndJobs([end(begun[0].job)])
    ends.leave_out(frozenset({1}))
    assert rows.do(ends) == frozenset()
    assert rows.state("a") is JobState.RUNNING


def test_a_cancelled_job_is_gone_for_whoever_runs_it_and_an_ended_one_stays(rows):
    rows.add(job("a"), job("b"))
    begun, _ = rows.claim()
    assert rows.do(t.CancelJob("a", "acme", NOW_MS, DAY_MS)).state is JobState.RUNNING
    assert rows.state("a") is JobState.CANCELLED
    assert rows.do(t.EndJobs([end(each.job) for each in begun])) == {"b"}
    assert rows.do(t.CancelJob("b", "acme", NOW_MS, DAY_MS)).state is JobState.ANSWERED
    assert rows.state("b") is JobState.ANSWERED


def test_another_tenants_job_is_none(rows):
    rows.add(job("a"))
    assert rows.do(t.CancelJob("a", "clinic", NOW_MS, DAY_MS)) is None
    assert rows.do(t.RequeueJob("a", "clinic", NOW_MS)) is None
    assert rows.find("a", "clinic") is None
    assert rows.find("a", "acme").state is JobState.QUEUED


def test_only_the_dead_are_queued_again(rows):
    rows.add(job("a"))
    assert rows.do(t.RequeueJob("a", "acme", NOW_MS)).state is JobState.QUEUED
    (claimed,), _ = rows.claim()
    rows.do(t.EndJobs([end(claimed.job)]))
    assert rows.do(t.RequeueJob("a", "acme", NOW_MS)).state is JobState.ANSWERED
    assert rows.state("a") is JobState.ANSWERED


def test_time_ends_open_jobs_and_takes_ended_ones_with_their_bodies(rows):
    rows.add(job("a", timer_ms=NOW_MS + 10), job("b", timer_ms=NOW_MS + 20))
    found = rows.do(t.SweepJobs(NOW_MS + 10, 1_000))
    assert (found.expired, found.deleted, found.next_ms) == (1, 0, NOW_MS + 20)
    expired = rows.find("a")
    assert (expired.state, expired.why) == (JobState.EXPIRED, "its own time of 60 s was over before it was computed")
    found = rows.do(t.SweepJobs(NOW_MS + 2_000, 1_000))
    assert (found.expired, found.deleted) == (1, 1)
    assert rows.find("a") is None
    with rows.store._engine.connect() as connection:
        assert read_bodies(connection) == {}
    assert rows.do(t.SweepJobs(NOW_MS + 9_000, 1_000)).next_ms is None


def test_an_erasure_reaches_waiting_and_running_and_answered_jobs_of_that_subject_alone(rows):
    about = {"device": "acme--cam", "subject": b"s" * 32}
    other = {"device": "acme--cam", "subject": b"o" * 32}
    rows.add(job("a", **about), job("b", **about), job("c", **other), job("later", made_ms=NOW_MS + 9, **about))
    begun, _ = rows.claim()
    by_id = {each.job.id: each.job for each in begun}
    rows.do(t.EndJobs([end(by_id["a"])]))
    wish = ErasureRequest("acme--cam", b"s" * 32, NOW_MS, NOW_MS)
    (done,) = rows.store.apply_jobs([StoreJob(erases=[wish])])
    assert done.erased[0].stone.rows == 2
    assert [rows.find(name) is None for name in ("a", "b", "c", "later")] == [True, True, False, False]
    assert rows.do(t.EndJobs([end(by_id["b"])])) == frozenset(), "nothing is written of what was erased"


def test_lists_are_of_a_tenant_and_of_states_in_pages(rows):
    rows.add(*(job(f"a{n}") for n in range(5)), job("z", tenant="clinic"))
    with rows.store._engine.connect() as connection:
        first = r.list_jobs(connection, "acme", [], limit=3)
        rest = r.list_jobs(connection, "acme", [JobState.QUEUED], after=first[-1].id)
        assert [each.id for each in first + rest] == [f"a{n}" for n in range(5)]
        assert r.list_jobs(connection, "", [JobState.DEAD]) == []
        assert r.count_states(connection) == {JobState.QUEUED: 6}


def test_a_job_is_read_as_it_was_written(rows):
    whole = job("a", known_by=b"k" * 32, subject=b"s" * 32, device="acme--cam", hook=b"h", batch="b", line=3, why="w")
    rows.add(whole)
    assert rows.find("a") == whole
    assert msgspec.structs.asdict(rows.find("a"))["hook"] == b"h"
