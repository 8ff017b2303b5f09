"""The hot transaction writes exactly what the long way writes, and leaves to it whatever is unexpected."""

import sqlite3
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloud_hub.core.commands import LookUpQuestions, QuestionEnding, QuestionKey, StoredQuestion
from cloud_hub.database.tables import costs, effects, sealed, tallies
from cloud_hub.storage.costs import CostKind, Usage
from cloud_hub.storage.hot_path import is_hot
from cloud_hub.storage.jobs import StoreError, StoreJob
from cloud_hub.storage.store import Store
from wire.protocol.messages import RefusalReason, TextUsage

DAY_MS = 86_400_000
DEVICES = ("demo--a", "demo--b", "acme--c")


def key(seq: int, device: str = "demo--a") -> QuestionKey:
    return QuestionKey(device, 7, seq)


def question(name: QuestionKey) -> StoredQuestion:
    return StoredQuestion(name, "echo@1", "ab", 900, 1000, b"d" * 32, b"f" * 32, b"sealed", subject=b"s" * 32)


def read_all(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    with store._engine.connect() as connection:
        return {
            table.name: sorted(tuple(row) for row in connection.execute(sa.select(table)))
            for table in (effects, sealed, tallies, costs)
        }


usages = st.none() | st.builds(
    TextUsage, model=st.just("llm"), prompt_tokens=st.integers(5, 9), cached_tokens=st.integers(0, 5),
    generated_tokens=st.integers(0, 9),
)  # fmt: skip
keys = st.builds(key, st.integers(1, 6), st.sampled_from(DEVICES))
verdicts = st.builds(
    QuestionEnding, keys, st.integers(0, 3 * DAY_MS), verdict=st.binary(min_size=1, max_size=9),
    label=st.integers(-1, 2), model=st.sampled_from(("echo@1", "other@2")), region=st.sampled_from(("local", "eu")),
    engine_us=st.integers(0, 50), question_bytes=st.integers(0, 999), usage=usages,
)  # fmt: skip
refusals = st.builds(QuestionEnding, keys, st.integers(0, DAY_MS), refusal=st.sampled_from(RefusalReason))
other_usage = st.builds(
    Usage, st.integers(0, 2), st.sampled_from(("", "demo")), st.just("web@1"), st.just("local"),
    st.dictionaries(st.sampled_from(CostKind), st.integers(0, 9), max_size=3),
)  # fmt: skip
jobs = st.builds(
    lambda asked, ended, used: StoreJob(keeps=list(map(question, asked)), endings=ended, used=used),
    st.lists(keys, max_size=4, unique=True),
    st.lists(verdicts | refusals, max_size=4),
    st.lists(other_usage, max_size=2),
)  # fmt: skip
groups = st.lists(st.lists(jobs, min_size=1, max_size=3), min_size=1, max_size=4)


class LongWay(Store):
    """A store that never takes the hot path."""

    def _write_hot(self, *_: object) -> bool:
        return False


def apply(store: Store, group: list[StoreJob]) -> list[Any]:
    try:
        return [(done.vanished, done.error) for done in store.apply_jobs(group)]
    except StoreError as error:
        return [str(error)]


@pytest.mark.further
@given(groups)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_ways_write_the_same_and_report_the_same(given_groups):
    quick, slow = Store.open("sqlite://"), LongWay.open("sqlite://")
    try:
        for group in given_groups:
            assert apply(quick, group) == apply(slow, group)
            assert read_all(quick) == read_all(slow)
    finally:
        quick.close()
        slow.close()


def test_the_same_groups_on_each_database_end_in_the_same_rows(urls):
    quick, slow = Store.open(urls.questions), LongWay.open("sqlite://")
    endings = [
        QuestionEnding(key(seq), DAY_MS + seq, verdict=b"v", label=seq % 2, model="echo@1", region="eu", engine_us=seq)
        for seq in range(1, 9)
    ]
    for group in (
        [StoreJob(keeps=[question(key(seq)) for seq in range(1, 9)], endings=endings[:2])],
        [StoreJob(endings=endings[2:4]), StoreJob(endings=endings[3:6])],
        [StoreJob(endings=[endings[5]])],  # again, the very same
        [StoreJob(keeps=[question(key(1, "demo--b"))], used=[Usage(1, "", "web@1", "eu", {CostKind.REQUESTS: 3})])],
    ):
        assert apply(quick, group) == apply(slow, group)
    assert read_all(quick) == read_all(slow)
    quick.close()
    slow.close()


def test_an_ending_without_its_question_is_reported_as_vanished_and_nothing_is_counted():
    store = Store.open("sqlite://")
    (done,) = store.apply_jobs([StoreJob(endings=[QuestionEnding(key(1), 2000, verdict=b"v", label=1, model="m")])])
    assert done.vanished == {key(1)}
    assert read_all(store) == {"effects": [], "sealed": [], "tallies": [], "costs": []}
    store.close()


def test_a_group_with_a_row_that_is_there_already_is_written_by_neither_way():
    store = Store.open("sqlite://")
    store.apply_jobs([StoreJob(keeps=[question(key(1))])])
    before = read_all(store)
    with pytest.raises(StoreError, match=r"IntegrityError|SQLITE_CONSTRAINT"):
        store.apply_jobs([StoreJob(keeps=[question(key(2))]), StoreJob(keeps=[question(key(1))])])
    assert read_all(store) == before
    store.close()


def test_a_database_that_refuses_is_told_in_the_same_words_and_works_again_afterwards(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path}/hub.db")
    store.apply_jobs([StoreJob(keeps=[question(key(1))])])
    driver: Any = store._engine.raw_connection().driver_connection
    driver.execute("pragma query_only=1")
    with pytest.raises(StoreError) as caught:
        store.apply_jobs([StoreJob(keeps=[question(key(2))])])
    assert caught.value.reason == "the database is read-only"
    driver.execute("pragma query_only=0")
    store.apply_jobs([StoreJob(keeps=[question(key(2))])])
    assert [owed.key.seq for owed in store.read_unanswered()] == [1, 2]
    store.close()


def test_a_writer_that_dies_within_the_transaction_leaves_nothing_of_it(tmp_path, monkeypatch):
    store = Store.open(f"sqlite:///{tmp_path}/hub.db")
    store.apply_jobs([StoreJob(keeps=[question(key(1))])])

    def die(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("cloud_hub.storage.hot_path.build_row_delete", die)
    with pytest.raises(MemoryError):
        store.apply_jobs([StoreJob(endings=[QuestionEnding(key(1), 2000, verdict=b"v")])])
    monkeypatch.undo()
    other = sqlite3.connect(tmp_path / "hub.db")
    assert other.execute("select ended_ms from effects").fetchall() == [(None,)]
    other.execute("begin immediate")  # no lock is left behind
    other.rollback()
    other.close()
    store.apply_jobs([StoreJob(endings=[QuestionEnding(key(1), 2000, verdict=b"v")])])
    assert store.read_unanswered() == []
    store.close()


@pytest.mark.parametrize(
    "job",
    [
        StoreJob(forgets=[key(1)]),
        StoreJob(finds=[LookUpQuestions(1, (key(1),), ())]),
        StoreJob(prune_before_ms=1),
        StoreJob(purge_ms=1),
        StoreJob(probe=True),
    ],
)
def test_whatever_else_a_job_does_goes_the_long_way(job):
    assert not is_hot(job)
    assert is_hot(StoreJob(keeps=[question(key(1))], endings=[QuestionEnding(key(1), 1, verdict=b"v")]))
