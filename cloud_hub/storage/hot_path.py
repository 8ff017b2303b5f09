"""The hot transaction: questions, endings and their counts in one commit, by the driver's own prepared statements.

It writes what `Store` would write through SQLAlchemy at several times the cost. Rule: it decides nothing. Whatever is
not as expected (a row that is there already, an ending without an open row, a claim that does not hold, any error of
the database but a lost connection) is rolled back whole, and the caller goes the long way with the same jobs.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa

from cloud_hub.core.commands import QuestionEnding, QuestionKey, StoredQuestion
from cloud_hub.database.arrays import (
    KEY,
    build_array_delete,
    build_array_insert,
    build_array_update,
    build_array_upsert,
)
from cloud_hub.database.prepared import build_row_delete, build_row_insert, build_row_update, build_row_upsert
from cloud_hub.database.tables import costs, effects, sealed, tallies
from cloud_hub.storage.costs import sum_costs
from cloud_hub.storage.fence import HELD, describe_claims, pick_lost
from cloud_hub.storage.jobs import ShardClaim, StoreJob
from cloud_hub.storage.retention import sum_tallies
from wire.protocol.topics import compute_shard

Values = tuple[Any, ...]
_KEY = ("device", "epoch", "seq")
_ENDING = ("ended_ms", "refusal", "verdict")
_EFFECT = (
    *_KEY, "model", "policy", "created_ms", "kept_ms", "digest", "fingerprint", *_ENDING, "keep_until_ms", "subject",
    "shard",
)  # fmt: skip
_SEALED = (*_KEY, "frame", "shard")
_TALLY = ("day", "model", "label", "count")
_COST = ("day", "tenant", "model", "region", "kind", "amount")


class UnexpectedStateError(Exception):
    """The database is not as the hot path expects it: nothing was written."""


class HotGroup(NamedTuple):
    """Rows of one transaction, in the order of the columns above.

    `late`: endings of questions that an earlier transaction stored, with the key last; `keys`: those questions.
    """

    effects: list[Values]
    sealed: list[Values]
    late: list[Values]
    keys: list[QuestionKey]
    tallies: list[Values]
    costs: list[Values]
    claims: frozenset[ShardClaim]


def is_hot(job: StoreJob) -> bool:
    """Whether a job holds nothing but questions, endings and usage."""
    further = (job.forgets, job.finds, job.erases, job.works, job.prune_before_ms, job.purge_ms, job.probe, job.rewrite)
    return not any(further)


def make_group(jobs: Sequence[StoreJob]) -> HotGroup:
    """Rows of these jobs. Of two endings of one question the first counts."""
    endings: dict[QuestionKey, QuestionEnding] = {}
    for job in jobs:
        for ending in job.endings:
            endings.setdefault(ending.key, ending)
    keeps = [question for job in jobs for question in job.keeps]
    kept = {question.key for question in keeps}
    late = [ending for ending in endings.values() if ending.key not in kept]
    return HotGroup(
        effects=[_effect_row(question, endings.get(question.key)) for question in keeps],
        sealed=[(*q.key, q.sealed, compute_shard(q.key.device)) for q in keeps if q.key not in endings],
        late=[(*_outcome(ending), *ending.key) for ending in late],
        keys=[ending.key for ending in late],
        tallies=sorted((*key, count) for key, count in sum_tallies(endings.values()).items()),
        costs=sorted(sum_costs(endings.values(), (used for job in jobs for used in job.used))),
        claims=frozenset(claim for job in jobs for claim in job.claims),
    )


def _outcome(ending: QuestionEnding) -> Values:
    return ending.ended_ms, ending.refusal.value if ending.refusal is not None else None, ending.verdict


def _effect_row(question: StoredQuestion, ending: QuestionEnding | None) -> Values:
    return (
        *question.key, question.model, question.policy, question.created_ms, question.kept_ms, question.digest,
        question.fingerprint, *(_outcome(ending) if ending else (None, None, None)), question.keep_until_ms,
        question.subject or None, compute_shard(question.key.device),
    )  # fmt: skip


class HotWriter(Protocol):
    """Writes groups over one database's driver."""

    def write(self, driver: Any, group: HotGroup) -> None:
        """Write a group; durable when it returns. UnexpectedStateError, or the driver's error: nothing was written.

        After a lost connection nobody knows.
        """


class SqliteWriter:
    """Over a `sqlite3.Connection` in autocommit mode."""

    def write(self, driver: sqlite3.Connection, group: HotGroup) -> None:
        driver.execute("begin immediate")
        try:
            self._write_rows(driver, group)
            driver.execute("commit")
        except BaseException:
            if driver.in_transaction:
                driver.execute("rollback")
            raise

    def _write_rows(self, driver: sqlite3.Connection, group: HotGroup) -> None:
        if group.effects:
            driver.executemany(build_row_insert(effects, _EFFECT), group.effects)
        if group.sealed:
            driver.executemany(build_row_insert(sealed, _SEALED), group.sealed)
        if group.late:
            written = driver.executemany(build_row_update(effects, _ENDING, "ended_ms"), group.late).rowcount
            _check(written == len(group.late))
            driver.executemany(build_row_delete(sealed), group.keys)
        if group.tallies:
            driver.executemany(build_row_upsert(tallies, _TALLY, "count"), group.tallies)
        if group.costs:
            driver.executemany(build_row_upsert(costs, _COST, "amount"), group.costs)


class PostgresWriter:
    """Over a `psycopg.Connection` and the leases of `session`: the statements of a group travel together."""

    def __init__(self, session: str) -> None:
        self._session = session

    def write(self, driver: Any, group: HotGroup) -> None:
        try:
            held, changed = driver.cursor(), driver.cursor()
            with driver.pipeline():
                if group.claims:
                    held.execute(HELD, describe_claims(self._session, group.claims))
                self._write_rows(driver.cursor(), group)
                if group.late:
                    names = (*_ENDING, *_KEYS)
                    changed.execute(build_array_update(effects, names, "ended_ms"), _transpose(names, group.late))
            _check(not group.claims or not pick_lost(group.claims, held.fetchall()))
            _check(not group.late or changed.rowcount == len(group.late))
            driver.commit()
        except BaseException:
            if not driver.closed:
                driver.rollback()
            raise

    def _write_rows(self, cursor: Any, group: HotGroup) -> None:
        if group.effects:
            cursor.execute(build_array_insert(effects, _EFFECT), _transpose(_EFFECT, group.effects))
        if group.sealed:
            cursor.execute(build_array_insert(sealed, _SEALED), _transpose(_SEALED, group.sealed))
        if group.keys:
            cursor.execute(build_array_delete(sealed, _KEYS), _transpose(_KEYS, group.keys))
        if group.tallies:
            upsert = build_array_upsert(tallies, _TALLY, added=frozenset(("count",)))
            cursor.execute(upsert, _transpose(_TALLY, group.tallies))
        if group.costs:
            upsert = build_array_upsert(costs, _COST, added=frozenset(("amount",)))
            cursor.execute(upsert, _transpose(_COST, group.costs))


def _check(as_expected: bool) -> None:
    if not as_expected:
        raise UnexpectedStateError


_KEYS = tuple(f"{KEY}{name}" for name in _KEY)


def _transpose(names: tuple[str, ...], rows: Iterable[Values]) -> dict[str, list[Any]]:
    """Values of each column, in the order of `names`."""
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def choose_writer(engine: sa.Engine, session: str) -> HotWriter:
    """The writer of this engine's database."""
    return SqliteWriter() if engine.dialect.name == "sqlite" else PostgresWriter(session)
