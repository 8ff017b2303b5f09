"""Retention of verdicts: deletion at the end of their time, erasure of a subject, and daily counts without rare labels.

Rule: a deleted row leaves its key and hashes, so that it cannot be accepted as new, and nothing else. Only the store
calls this, inside its own transaction. Counts (`suppress_rare_labels`, pure): one below `MIN_SHOWN_COUNT` is never
published, nor one from which it could be derived: while all suppressed counts of a model and day sum to less, the
smallest published one is suppressed too. A day is published when it is over, so that nobody can watch a count pass the
limit.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from cloud_hub.core.commands import Erasure, ErasureRequest, QuestionEnding, QuestionKey, Tombstone
from cloud_hub.database.changes import Topic, record_change
from cloud_hub.database.statements import write_rows
from cloud_hub.database.tables import effects, sealed, tallies, tombstones
from cloud_hub.jobs.table import erase_jobs
from wire.protocol.messages import RefusalReason

MIN_SHOWN_COUNT = 10


class LabelTally(msgspec.Struct, frozen=True, order=True):
    """Count of verdicts of one label on one day. `day`: days since 1970, UTC; `model`: `name@version`."""

    day: int
    model: str
    label: int
    count: int


def suppress_rare_labels(counts: Mapping[int, int], k: int = MIN_SHOWN_COUNT) -> dict[int, int]:
    """Counts that may be published, by label, of one model and day; idempotent. `k`: smallest count."""
    kept = {label: count for label, count in counts.items() if count >= k}
    hidden = sum(counts.values()) - sum(kept.values())
    if kept and 0 < hidden < k:
        del kept[min(kept, key=lambda label: (kept[label], label))]
    return kept


def publish_tallies(tallies: Iterable[LabelTally], today: int, k: int = MIN_SHOWN_COUNT) -> list[LabelTally]:
    """Counts that may be published of all days before `today`, in order."""
    groups: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)
    for each in tallies:
        if each.day < today:
            groups[each.day, each.model][each.label] = each.count
    found = [
        LabelTally(*of, *pair) for of, counts in groups.items() for pair in suppress_rare_labels(counts, k).items()
    ]
    return sorted(found)


DAY_MS = 86_400_000
_ERASED_VALUES: dict[str, Any] = {"verdict": None, "refusal": RefusalReason.EXPIRED.value, "subject": None}


def match_shards(table: sa.Table, shards: Collection[int] | None) -> sa.ColumnElement[bool]:
    """Condition that a row is of one of these shards; None = of any."""
    return sa.true() if shards is None else table.c.shard.in_(sorted(shards))


def purge_expired(connection: sa.Connection, now_ms: int, shards: Collection[int] | None = None) -> None:
    """Delete verdicts of these shards whose retention has ended, and suppress rare counts of days that are over."""
    over = sa.and_(effects.c.keep_until_ms <= now_ms, match_shards(effects, shards))
    connection.execute(effects.update().where(over, effects.c.verdict.is_not(None)).values(_ERASED_VALUES))
    connection.execute(effects.update().where(over, effects.c.subject.is_not(None)).values(subject=None))
    _close_days(connection, now_ms // DAY_MS)


def _close_days(connection: sa.Connection, today: int) -> None:
    found = read_tallies(connection)
    kept = {(each.day, each.model, each.label) for each in publish_tallies(found, today)}
    for each in found:
        if each.day < today and (each.day, each.model, each.label) not in kept:
            connection.execute(tallies.delete().where(_match_tally(each.day, each.model, each.label)))


def count_verdicts(connection: sa.Connection, endings: Iterable[QuestionEnding]) -> None:
    """Add verdicts that were just written to the daily counts."""
    told = sum_tallies(endings)
    rows = ({"day": day, "model": model, "label": label, "count": more} for (day, model, label), more in told.items())
    write_rows(connection, tallies, rows, added=("count",))


def sum_tallies(endings: Iterable[QuestionEnding]) -> "Counter[tuple[int, str, int]]":
    """How many verdicts of each day, model and label are among these endings."""
    return Counter(
        (each.ended_ms // DAY_MS, each.model, each.label) for each in endings if each.verdict and each.label >= 0
    )


def erase_subject_rows(connection: sa.Connection, wish: ErasureRequest) -> Erasure:
    """Erase a subject's questions and those named beside it. Rows that hold nothing any more are not counted."""
    about = sa.and_(effects.c.subject == wish.subject, effects.c.kept_ms <= wish.before_ms)
    named: dict[int, list[int]] = defaultdict(list)
    for question in wish.questions:
        named[question.epoch].append(question.seq)
    wanted = (about, *(sa.and_(effects.c.epoch == epoch, effects.c.seq.in_(seqs)) for epoch, seqs in named.items()))
    holds = sa.or_(effects.c.ended_ms.is_(None), effects.c.verdict.is_not(None), effects.c.subject.is_not(None))
    rows: set[QuestionKey] = set()
    for which in wanted:  # one query each: by its own index
        query = sa.select(*effects.primary_key).where(effects.c.device == wish.device, which, holds)
        rows |= {QuestionKey(row.device, row.epoch, row.seq) for row in connection.execute(query)}
    keys = tuple(sorted(rows))
    for key in keys:
        ended = sa.func.coalesce(effects.c.ended_ms, wish.at_ms)
        connection.execute(
            effects.update().where(_match_key(effects, key)).values({**_ERASED_VALUES, "ended_ms": ended})
        )
        connection.execute(sealed.delete().where(_match_key(sealed, key)))
    handed_over = erase_jobs(connection, wish.device, wish.subject, wish.before_ms)
    return Erasure(keys, len(wish.questions), _write_tombstone(connection, wish, len(keys) + handed_over))


def _write_tombstone(connection: sa.Connection, wish: ErasureRequest, rows: int) -> Tombstone:
    """Write the tombstone of a subject.

    A repeated erasure adds its rows to the earlier one and takes the later time.
    """
    stone = Tombstone(wish.device, wish.mark, wish.before_ms, rows, wish.at_ms)
    write_rows(connection, tombstones, [msgspec.structs.asdict(stone)], raised=("before_ms",), added=("rows",))
    record_change(connection, Topic.ERASURES, (wish.mark.hex(),))
    mine = sa.select(*_select_columns(Tombstone, tombstones)).where(tombstones.c.mark == wish.mark)
    return Tombstone(*connection.execute(mine).one())


def read_tombstones(connection: sa.Connection, marks: Collection[str] | None = None) -> list[Tombstone]:
    """Tombstones of erased subjects with these marks (hex), or all of them."""
    query = sa.select(*_select_columns(Tombstone, tombstones))
    query = query if marks is None else query.where(tombstones.c.mark.in_([bytes.fromhex(mark) for mark in marks]))
    return [Tombstone(*row) for row in connection.execute(query)]


def read_tallies(connection: sa.Connection) -> list[LabelTally]:
    """All daily counts, unfiltered."""
    return [LabelTally(*row) for row in connection.execute(sa.select(*_select_columns(LabelTally, tallies)))]


def _select_columns(kind: type[msgspec.Struct], table: sa.Table) -> Sequence[sa.Column[Any]]:
    return [table.c[name] for name in kind.__struct_fields__]


def _match_tally(day: int, model: str, label: int) -> sa.ColumnElement[bool]:
    return sa.and_(tallies.c.day == day, tallies.c.model == model, tallies.c.label == label)


def _match_key(table: sa.Table, key: QuestionKey) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.device == key.device, table.c.epoch == key.epoch, table.c.seq == key.seq)
