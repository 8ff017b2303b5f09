"""What became of one device's questions, for people: the newest ones, and counts by period, outcome and model.

Rule: read over a connection of its own, beside the store's writer; nothing of a sample or an answer is in it, as the
hub keeps none in the clear.
"""

from enum import StrEnum
from typing import Any

import msgspec
import sqlalchemy as sa

from cloud_hub.database.connection import connect_part, read_snapshot
from cloud_hub.database.parts import QUESTIONS
from cloud_hub.database.tables import effects

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
MAX_QUESTIONS = 200
_COLUMNS = [
    effects.c[name]
    for name in ("device", "epoch", "seq", "model", "policy", "created_ms", "kept_ms", "ended_ms", "refusal", "digest")
]


class QuestionOutcome(StrEnum):
    """How a question stands."""

    OPEN = "open"
    ANSWERED = "answered"
    REFUSED = "refused"


class QuestionRecord(msgspec.Struct, frozen=True):
    """One question of `device`. `epoch`, `seq`: its number among the device's; `reason`: of a refusal, "" for none.

    `created_ms`: by the device's clock, hub time; `kept_ms`: stored here; `ended_ms`: 0 while it is open.
    `policy`: hash of the policy that let it leave; `digest`: SHA-256 of its frame, hex.
    """

    device: str
    epoch: str
    seq: int
    model: str
    policy: str
    created_ms: int
    kept_ms: int
    ended_ms: int
    outcome: QuestionOutcome
    reason: str
    digest: str = ""


class PeriodCount(msgspec.Struct, frozen=True):
    """Questions of one period with the same outcome, reason and model. `begin_ms`: of the period, ms since 1970."""

    begin_ms: int
    outcome: QuestionOutcome
    reason: str
    model: str
    count: int


class QuestionHistory(msgspec.Struct, frozen=True):
    """The newest questions of a device, newest first, and counts by periods of `period_ms`."""

    questions: list[QuestionRecord]
    counts: list[PeriodCount]
    period_ms: int = HOUR_MS


def read_history_aside(url: str, device: str, since_ms: int, period_ms: int = HOUR_MS) -> QuestionHistory:
    """Read what became of a device's questions since a time, over a connection of its own."""
    engine = connect_part(url, QUESTIONS)
    try:
        with read_snapshot(engine) as connection:
            return QuestionHistory(
                _select_newest(connection, device, since_ms), _count(connection, device, since_ms, period_ms), period_ms
            )
    finally:
        engine.dispose()


def read_newest_aside(url: str, limit: int) -> list[QuestionRecord]:
    """Read the newest questions of all devices, newest first, over a connection of its own."""
    engine = connect_part(url, QUESTIONS)
    try:
        with read_snapshot(engine) as connection:
            query = sa.select(*_COLUMNS).order_by(effects.c.kept_ms.desc()).limit(limit)
            return [_parse_question(row) for row in connection.execute(query)]
    finally:
        engine.dispose()


def _select_newest(connection: sa.Connection, device: str, since_ms: int) -> list[QuestionRecord]:
    query = (
        sa.select(*_COLUMNS)
        .where(effects.c.device == device, effects.c.kept_ms >= since_ms)
        .order_by(effects.c.kept_ms.desc(), effects.c.seq.desc())
        .limit(MAX_QUESTIONS)
    )
    return [_parse_question(row) for row in connection.execute(query)]


def _count(connection: sa.Connection, device: str, since_ms: int, period_ms: int) -> list[PeriodCount]:
    begin = (effects.c.kept_ms - effects.c.kept_ms % period_ms).label("begin_ms")
    ended = effects.c.ended_ms.is_not(None).label("ended")
    parts = (begin, ended, effects.c.refusal, effects.c.model)
    query = (
        sa.select(*parts, sa.func.count().label("questions"))
        .where(effects.c.device == device, effects.c.kept_ms >= since_ms)
        .group_by(*parts)
        .order_by(begin)
    )
    return [
        PeriodCount(
            int(row.begin_ms), _name_outcome(row.ended, row.refusal), row.refusal or "", row.model, int(row.questions)
        )
        for row in connection.execute(query)
    ]


def _parse_question(row: sa.Row[Any]) -> QuestionRecord:
    return QuestionRecord(
        device=row.device,
        epoch=f"{row.epoch:x}",
        seq=row.seq,
        model=row.model,
        policy=row.policy,
        created_ms=row.created_ms,
        kept_ms=row.kept_ms,
        ended_ms=row.ended_ms or 0,
        outcome=_name_outcome(row.ended_ms is not None, row.refusal),
        reason=row.refusal or "",
        digest=bytes(row.digest).hex(),
    )


def _name_outcome(ended: object, refusal: str | None) -> QuestionOutcome:
    if not ended:
        return QuestionOutcome.OPEN
    return QuestionOutcome.REFUSED if refusal else QuestionOutcome.ANSWERED
