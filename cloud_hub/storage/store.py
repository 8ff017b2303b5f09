"""Durable store of questions and verdicts: sealed questions until they end, their endings for nine days at most.

Rule 1: nothing derived from a sample is stored in the clear: a question is stored as its frame came, a verdict as its
frame is sent. Rule 2: a row is unique by (device, epoch, seq) and ends once. Rule 3: only the writer's thread calls a
`Store`, and every `apply_jobs` is one transaction.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from cloud_hub.core.commands import QuestionEnding, QuestionKey, QuestionRow, StoredQuestion, Stream, Tombstone
from cloud_hub.database.arrays import KEY
from cloud_hub.database.connection import connect_part, open_sound, read_snapshot, sqlite_file
from cloud_hub.database.errors import (
    DamagedDatabaseError,
    describe_fault,
    is_defect,
    is_lost,
    is_unavailable,
    name_fault,
)
from cloud_hub.database.marks import find_mark
from cloud_hub.database.parts import QUESTIONS
from cloud_hub.database.rewriting import LogInUseError, rewrite_part
from cloud_hub.database.statements import change_rows, check_room, delete_rows, insert_missing, insert_rows
from cloud_hub.database.tables import effects, meta, sealed
from cloud_hub.storage.costs import DAY_MS, add_costs, purge_costs
from cloud_hub.storage.fence import find_lost_claims
from cloud_hub.storage.hot_path import HotWriter, UnexpectedStateError, choose_writer, is_hot, make_group
from cloud_hub.storage.jobs import FENCED, JobResult, StoreError, StoreJob
from cloud_hub.storage.retention import (
    LabelTally,
    count_verdicts,
    erase_subject_rows,
    match_shards,
    purge_expired,
    read_tallies,
    read_tombstones,
)
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import set_database_aside
from wire.protocol.messages import RefusalReason
from wire.protocol.topics import compute_shard

_CHUNK = 500  # keys per SELECT
_NUMBERS = meta[QUESTIONS.name]
_PROBE = _NUMBERS.update().values(value=_NUMBERS.c.value)
_UNFINISHED = "erasing"  # row of `meta`: something was erased that the files may still hold
_FIND_UNFINISHED = sa.select(_NUMBERS.c.key).where(_NUMBERS.c.key == _UNFINISHED)
_PRUNE_ROWS = 5000  # per transaction, so that a long overdue clean-up stalls nobody


class Store:
    """The questions' tables behind an SQLAlchemy URL. `open` migrates; a database of a newer version is refused.

    `damaged`: the name that an unusable file was renamed to when this one was begun, "" for none. `session`: of this
    process's leases; without leases there is nobody else who writes.
    """

    def __init__(self, engine: sa.Engine, damaged: str = "") -> None:
        self._engine = engine
        self._kept: sa.Connection | None = None
        self._hot: HotWriter | None = None
        self.damaged = damaged
        self.session = ""
        self._uncertain: set[QuestionKey] = set()  # of transactions whose COMMIT had no answer

    @classmethod
    def open(cls, url: str) -> "Store":
        """Open and migrate the database; a damaged file is set aside (`damaged` is its new name), a new one begun.

        ExitError(DATABASE) if it is newer than this program, ExitError(DISK) if it cannot be written.
        """
        try:
            return cls(open_sound(url, QUESTIONS))
        except DamagedDatabaseError:
            file = sqlite_file(url)
            assert file is not None  # in memory nothing is damaged
        try:
            find_mark(file).unlink(missing_ok=True)  # first: a start that is cut off here finds the damaged one again
            name = set_database_aside(file)
        except OSError as error:
            raise ExitError(ExitCode.DISK, f"{file} is damaged and cannot be renamed: {error.strerror}") from None
        return cls(open_sound(url, QUESTIONS), name)

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
        self._engine.dispose()

    def newest_ms(self) -> int:
        """The latest hub time (ms) in the store: the floor of the hub's clock."""
        with read_snapshot(self._engine) as connection:
            return _select_newest(connection)

    def read_unanswered(self) -> list[StoredQuestion]:
        """Every question without an ending, oldest first."""
        with read_snapshot(self._engine) as connection:
            return _select_unanswered(connection)

    def read_tombstones(self) -> list[Tombstone]:
        """Tombstones of erased subjects."""
        with read_snapshot(self._engine) as connection:
            return read_tombstones(connection)

    def apply_jobs(self, jobs: Sequence[StoreJob]) -> list[JobResult]:
        """Execute jobs in one transaction, durable when it returns.

        StoreError: none of them was executed, or nobody knows (`lost`). After that the same jobs may be given again:
        what is found written is not written, and not counted, twice.
        """
        dones = [JobResult(job) for job in jobs]
        try:
            if self._kept is None:
                self._kept = self._engine.connect()
            if not self._write_hot(self._kept, jobs):
                self._write_all(self._kept, dones)
        except sa.exc.SQLAlchemyError as error:
            lost = is_lost(error)
            self._uncertain |= _list_keys(jobs) if lost else set()
            named, reason, defect = name_fault(error), describe_fault(error), error if is_defect(error) else None
            raise StoreError(named, reason, lost=lost, unavailable=is_unavailable(error), defect=defect) from None
        if self._uncertain:
            self._uncertain -= _list_keys(jobs)
        return dones

    def rewrite(self) -> None:
        """Rewrite the database, so that no file of it holds what was erased until now. StoreError if that failed."""
        try:
            if self._kept is not None and self._kept.in_transaction():
                self._kept.rollback()
            rewrite_part(self._engine, QUESTIONS)
            with self._engine.begin() as connection:
                connection.execute(_NUMBERS.delete().where(_NUMBERS.c.key == _UNFINISHED))
        except LogInUseError:
            raise StoreError("LogInUse", "another process reads the database") from None
        except sa.exc.SQLAlchemyError as error:
            raise StoreError(name_fault(error), describe_fault(error)) from None

    def needs_rewrite(self) -> bool:
        """Whether something was erased since the database was rewritten, by this process or an earlier one."""
        with read_snapshot(self._engine) as connection:
            return connection.execute(_FIND_UNFINISHED).first() is not None

    def _write_hot(self, connection: sa.Connection, jobs: Sequence[StoreJob]) -> bool:
        """Write ordinary jobs by the driver alone; False if they are none, or the database is not as they expect it."""
        if self._uncertain or not all(map(is_hot, jobs)):
            return False
        self._hot = self._hot or choose_writer(self._engine, self.session)
        driver: Any = connection.connection.driver_connection
        try:
            self._hot.write(driver, make_group(jobs))
        except UnexpectedStateError:
            return False
        except self._engine.dialect.loaded_dbapi.Error as error:
            if not self._engine.dialect.is_disconnect(error, driver, None):
                return False
            connection.invalidate(error)
            raise sa.exc.OperationalError(None, None, error, connection_invalidated=True) from None
        return True

    def _write_all(self, connection: sa.Connection, dones: Sequence[JobResult]) -> None:
        jobs = [done.job for done in dones]
        with connection.begin():
            self._check_claims(connection, jobs)
            for part in _split_parts(dones):
                self._write_jobs(connection, part)
            for done in dones:
                self._read_finds(connection, done)
                done.found = [work.run(connection) for work in done.job.works]

    def _check_claims(self, connection: sa.Connection, jobs: Sequence[StoreJob]) -> None:
        """StoreError(FENCED) unless every claim holds; from then on it holds until the transaction ends."""
        claims = {claim for job in jobs for claim in job.claims}
        lost = find_lost_claims(connection, self.session, claims) if claims else frozenset()
        if lost:
            raise StoreError(FENCED, "another hub serves these devices", fenced=lost)

    def _write_jobs(self, connection: sa.Connection, dones: Sequence[JobResult]) -> None:
        forgets = [_key_parameters(key) for done in dones for key in done.job.forgets]
        for table in (effects, sealed):
            delete_rows(connection, table, forgets)
        keeps = [question for done in dones for question in done.job.keeps]
        endings = {
            ending.key: ending for done in reversed(dones) for ending in reversed(done.job.endings)
        }  # first wins
        if self._uncertain:
            keeps, endings = self._drop_written(connection, keeps, endings)
        if keeps:
            self._insert_questions(connection, keeps, endings)
        kept = {question.key for question in keeps}
        late = [ending for ending in endings.values() if ending.key not in kept]
        if late:
            self._write_endings(connection, late, dones)
        vanished = {key for done in dones for key in done.vanished}
        written = [ending for ending in endings.values() if ending.key not in vanished]
        count_verdicts(connection, written)
        add_costs(connection, written, (used for done in dones for used in done.job.used))
        for done in dones:
            if done.job.probe:
                connection.execute(_PROBE)
            if done.job.needs_room:
                check_room(connection)
            self._erase(connection, done)
            if done.job.purge_ms:
                purge_expired(connection, done.job.purge_ms, done.job.prune_shards)
                purge_costs(connection, done.job.purge_ms // DAY_MS)
            if done.job.prune_before_ms:
                done.more = self._prune_rows(connection, done.job)

    def _erase(self, connection: sa.Connection, done: JobResult) -> None:
        done.erased = [erase_subject_rows(connection, wish) for wish in done.job.erases]
        if done.erased:
            insert_missing(connection, _NUMBERS, {"key": _UNFINISHED, "value": "1"})

    def _insert_questions(
        self, connection: sa.Connection, keeps: list[StoredQuestion], endings: dict[QuestionKey, QuestionEnding]
    ) -> None:
        """Insert new questions; one that has ended already needs no sealed frame. An existing row is an error."""
        insert_rows(connection, effects, [_effect_values(question, endings.get(question.key)) for question in keeps])
        waiting = [
            {**_key_values(q.key), "frame": q.sealed, "shard": compute_shard(q.key.device)}
            for q in keeps
            if q.key not in endings
        ]
        insert_rows(connection, sealed, waiting)

    def _write_endings(
        self, connection: sa.Connection, endings: list[QuestionEnding], dones: Sequence[JobResult]
    ) -> None:
        written = change_rows(connection, effects, [_ending_values(ending) for ending in endings], "ended_ms")
        delete_rows(connection, sealed, [_key_parameters(ending.key) for ending in endings])
        if written != len(endings):
            self._find_vanished(connection, endings, dones)

    def _drop_written(
        self, connection: sa.Connection, keeps: list[StoredQuestion], endings: dict[QuestionKey, QuestionEnding]
    ) -> tuple[list[StoredQuestion], dict[QuestionKey, QuestionEnding]]:
        """Leave out what an earlier transaction wrote whose COMMIT had no answer."""
        asked = self._uncertain & ({question.key for question in keeps} | endings.keys())
        rows = _select_rows(connection, asked)
        questions = [q for q in keeps if q.key not in rows or rows[q.key].digest != q.digest]
        return questions, {
            e.key: e
            for e in endings.values()
            if e.key not in rows or _row_outcome(rows[e.key]) != (e.verdict, e.refusal)
        }

    def _find_vanished(
        self, connection: sa.Connection, endings: list[QuestionEnding], dones: Sequence[JobResult]
    ) -> None:
        """Mark endings without an open row as vanished, unless the row already holds the very same ending."""
        rows = _select_rows(connection, [ending.key for ending in endings])
        kept = {e.key for e in endings if e.key in rows and _row_outcome(rows[e.key]) == (e.verdict, e.refusal)}
        late = {ending.key for ending in endings}
        for done in dones:
            done.vanished = {e.key for e in done.job.endings if e.key in late and e.key not in kept}

    def _prune_rows(self, connection: sa.Connection, job: StoreJob) -> bool:
        old = sa.and_(effects.c.kept_ms < job.prune_before_ms, match_shards(effects, job.prune_shards))
        query = sa.select(*effects.primary_key).where(old).limit(_PRUNE_ROWS)
        keys = [_key_parameters(QuestionKey(row.device, row.epoch, row.seq)) for row in connection.execute(query)]
        for table in (effects, sealed):
            delete_rows(connection, table, keys)
        return len(keys) == _PRUNE_ROWS

    def _read_finds(self, connection: sa.Connection, done: JobResult) -> None:
        finds = done.job.finds
        if finds:
            done.rows = _select_rows(connection, [key for find in finds for key in find.keys])
            done.highest = _select_highest(connection, {stream for find in finds for stream in find.streams})


def read_newest_aside(url: str) -> int:
    """The latest hub time (ms) in a database that is not opened yet; 0 if there is none, or it cannot be read.

    A database that cannot be used is reported where it is opened.
    """
    file = sqlite_file(url)
    if file is not None and not file.exists():
        return 0
    engine = connect_part(url, QUESTIONS)
    try:
        with read_snapshot(engine) as connection:
            return _select_newest(connection)
    except sa.exc.DBAPIError:
        return 0
    finally:
        engine.dispose()


def read_owed_aside(url: str, shards: Collection[int]) -> list[StoredQuestion]:
    """Questions of these shards without an ending, oldest first, over a connection of its own."""
    engine = connect_part(url, QUESTIONS)
    try:
        with read_snapshot(engine) as connection:
            return _select_unanswered(connection, shards)
    finally:
        engine.dispose()


def read_tallies_aside(url: str) -> list[LabelTally]:
    """Daily counts over a connection of its own, so that a running commit does not delay them."""
    engine = connect_part(url, QUESTIONS)
    try:
        with read_snapshot(engine) as connection:
            return read_tallies(connection)
    finally:
        engine.dispose()


def _list_keys(jobs: Iterable[StoreJob]) -> set[QuestionKey]:
    """Keys of the questions and endings that jobs write."""
    questions = {question.key for job in jobs for question in job.keeps}
    return questions | {ending.key for job in jobs for ending in job.endings}


def _split_parts(dones: Sequence[JobResult]) -> list[list[JobResult]]:
    """Split jobs into parts whose writes may be merged.

    A job that deletes starts a part, since it must see earlier writes.
    """
    parts: list[list[JobResult]] = []
    for done in dones:
        if not parts or done.job.forgets:
            parts.append([])
        parts[-1].append(done)
    return parts


def _key_values(key: QuestionKey) -> dict[str, Any]:
    return {"device": key.device, "epoch": key.epoch, "seq": key.seq}


def _key_parameters(key: QuestionKey) -> dict[str, Any]:
    return {f"{KEY}device": key.device, f"{KEY}epoch": key.epoch, f"{KEY}seq": key.seq}


def _effect_values(question: StoredQuestion, ending: QuestionEnding | None) -> dict[str, Any]:
    return {
        **_key_values(question.key),
        "model": question.model,
        "policy": question.policy,
        "created_ms": question.created_ms,
        "kept_ms": question.kept_ms,
        "digest": question.digest,
        "fingerprint": question.fingerprint,
        "ended_ms": ending.ended_ms if ending else None,
        "refusal": _reason_text(ending.refusal) if ending else None,
        "verdict": ending.verdict if ending else None,
        "keep_until_ms": question.keep_until_ms,
        "subject": question.subject or None,
        "shard": compute_shard(question.key.device),
    }


def _ending_values(ending: QuestionEnding) -> dict[str, Any]:
    refusal = _reason_text(ending.refusal)
    return {
        **_key_parameters(ending.key),
        "ended_ms": ending.ended_ms,
        "refusal": refusal,
        "verdict": ending.verdict,
    }


def _reason_text(reason: RefusalReason | None) -> str | None:
    return reason.value if reason is not None else None


def _row_outcome(row: QuestionRow) -> tuple[bytes | None, RefusalReason | None]:
    return row.verdict, row.refusal


def _parse_question(row: Any) -> StoredQuestion:
    return StoredQuestion(
        key=QuestionKey(row.device, row.epoch, row.seq),
        model=row.model,
        policy=row.policy,
        created_ms=row.created_ms,
        kept_ms=row.kept_ms,
        digest=row.digest,
        fingerprint=row.fingerprint,
        sealed=row.frame,
        keep_until_ms=row.keep_until_ms,
        subject=row.subject or b"",
    )


def _select_rows(connection: sa.Connection, keys: Iterable[QuestionKey]) -> dict[QuestionKey, QuestionRow]:
    """Stored rows of these keys: point reads by the whole key, grouped by stream, since a shorter key would scan."""
    streams: dict[Stream, list[int]] = defaultdict(list)
    for key in keys:
        streams[key.device, key.epoch].append(key.seq)
    columns = (effects.c.seq, effects.c.digest, effects.c.fingerprint, effects.c.verdict, effects.c.refusal)
    found: dict[QuestionKey, QuestionRow] = {}
    for (device, epoch), seqs in streams.items():
        for at in range(0, len(seqs), _CHUNK):
            chunk = effects.c.seq.in_(seqs[at : at + _CHUNK])
            query = sa.select(*columns).where(effects.c.device == device, effects.c.epoch == epoch, chunk)
            for row in connection.execute(query):
                key = QuestionKey(device, epoch, row.seq)
                refusal = RefusalReason(row.refusal) if row.refusal is not None else None
                found[key] = QuestionRow(key, row.digest, row.fingerprint, row.verdict, refusal)
    return found


def _select_unanswered(connection: sa.Connection, shards: Collection[int] | None = None) -> list[StoredQuestion]:
    joined = sealed.join(effects, sa.and_(*(sealed.c[c.name] == c for c in effects.primary_key)))
    query = sa.select(effects, sealed.c.frame).select_from(joined).where(match_shards(sealed, shards))
    return [_parse_question(row) for row in connection.execute(query.order_by(effects.c.kept_ms))]


def _select_newest(connection: sa.Connection) -> int:
    return int(connection.execute(sa.select(sa.func.max(effects.c.kept_ms))).scalar() or 0)


def _select_highest(connection: sa.Connection, streams: Iterable[Stream]) -> dict[Stream, int]:
    """Greatest seq of each stream that has rows."""
    found: dict[Stream, int] = {}
    for device, epoch in streams:
        query = sa.select(sa.func.max(effects.c.seq)).where(effects.c.device == device, effects.c.epoch == epoch)
        highest = connection.execute(query).scalar()
        if highest is not None:
            found[device, epoch] = int(highest)
    return found
