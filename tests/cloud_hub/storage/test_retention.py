"""Retention at the hub: verdicts by their policy's days, erasure of a subject, suppression of rare labels."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from cryptography.exceptions import InvalidSignature
from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.api.routing import MAX_JSON_BYTES
from cloud_hub.core.commands import Erasure, ErasureRequest, QuestionEnding, QuestionKey, StoredQuestion
from cloud_hub.database.parts import DatabaseUrls
from cloud_hub.database.tables import effects, tallies
from cloud_hub.enrollment.erasure import EraseRequest, build_tombstone
from cloud_hub.storage.jobs import StoreJob
from cloud_hub.storage.retention import MIN_SHOWN_COUNT, LabelTally, publish_tallies, suppress_rare_labels
from cloud_hub.storage.store import Store
from tests.cloud_hub.doubles.bench import DAY_S, Bench
from tests.cloud_hub.doubles.devices import HUB, NOW_S, SimDevice
from wire.protocol.messages import Refusal, RefusalReason
from wire.protocol.sealing import (
    MAX_NAMED_QUESTIONS,
    STATEMENT_TAG,
    build_erase_text,
    hash_subject_mark,
    name_question,
)

DAY_MS = 86_400_000
NOW_MS = int(NOW_S * 1000)
SUBJECT = b"\x07" * 32


@pytest.fixture
def device() -> SimDevice:
    return SimDevice()


@pytest.fixture
def bench(device: SimDevice) -> Bench:
    return Bench(device)


def row(bench: Bench, seq: int):
    with bench.store._engine.connect() as connection:
        return connection.execute(effects.select().where(effects.c.seq == seq)).one()


# How long


def test_a_verdict_goes_after_the_days_its_policy_allows_and_its_row_stays(device: SimDevice, bench: Bench):
    frame = bench.ask(device, 1, keep_days=2)
    bench.ask(device, 2, keep_days=9)
    bench.settle()
    bench.verdicts(device)
    bench.wait(2 * DAY_S)
    bench.settle()
    bench.restart()
    assert row(bench, 1).verdict is None
    assert row(bench, 2).verdict is not None
    bench.say(device.up, frame)
    bench.settle()
    (refusal,) = bench.refusals(device)
    assert (refusal.seq, refusal.reason, refusal.final) == (1, RefusalReason.EXPIRED, True)


def test_a_question_that_may_be_kept_a_day_is_not_owed_for_seven(device: SimDevice, bench: Bench):
    bench.engine.broken = True
    bench.ask(device, 1, keep_days=1)
    bench.ask(device, 2, keep_days=7)
    bench.settle()
    bench.replies(device)
    bench.wait(DAY_S + 61)
    bench.settle()
    told = [r for r in bench.replies(device) if isinstance(r, Refusal)]
    assert [(r.seq, r.reason) for r in told] == [(1, RefusalReason.EXPIRED)]
    assert [kept.key.seq for kept in bench.store.read_unanswered()] == [2]


@pytest.mark.parametrize("change", [{"keep_days": 0}, {"keep_days": -1}, {"keep_days": 400}, {"subject": b"name"}])
def test_days_and_subjects_that_cannot_be_are_no_question(device: SimDevice, bench: Bench, change: dict[str, Any]):
    bench.ask(device, 1, **change)
    bench.settle()
    assert [r.reason for r in bench.refusals(device)] == [RefusalReason.SCHEMA]


def test_a_database_of_schema_1_is_brought_over_and_nothing_of_it_is_lost(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/hub.db"
    store = Store.open(url)
    store.apply_jobs([StoreJob(keeps=[question(1)], endings=[QuestionEnding(question(1).key, NOW_MS, verdict=b"v")])])
    with store._engine.begin() as connection:
        for statement in (
            "drop index effects_subject", "drop index effects_keep_until", "alter table effects drop column subject",
            "alter table effects drop column keep_until_ms", "drop table tallies", "drop table tombstones",
            "alter table effects drop column shard", "alter table sealed drop column shard",
            "update meta set value='1' where key='schema'",
        ):  # fmt: skip
            connection.exec_driver_sql(statement)
    store.close()
    store = Store.open(url)
    with store._engine.connect() as connection:
        (found,) = connection.execute(effects.select()).all()
    assert (found.verdict, found.keep_until_ms) == (b"v", NOW_MS + 9 * DAY_MS)
    store.close()


# Aggregates


def question(seq: int, subject: bytes = b"") -> StoredQuestion:
    key = QuestionKey("demo--d1", 7, seq)
    return StoredQuestion(key, "echo@1", "ab", NOW_MS, NOW_MS, b"d" * 32, b"f" * 32, b"s", NOW_MS + DAY_MS, subject)


def counted(store: Store, labels: list[int], day: int = NOW_MS // DAY_MS) -> None:
    at_ms = day * DAY_MS + 5
    ends = [
        QuestionEnding(question(seq).key, at_ms, b"v", label=label, model="echo@1") for seq, label in enumerate(labels)
    ]
    store.apply_jobs([StoreJob(keeps=[question(seq) for seq in range(len(labels))], endings=ends)])


def raw(store: Store) -> dict[int, int]:
    with store._engine.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(sa.select(tallies.c.label, tallies.c.count))}


@pytest.fixture
def store(urls: DatabaseUrls) -> Iterator[Store]:
    store = Store.open(urls.questions)
    yield store
    store.close()


def test_a_rare_label_is_in_no_aggregate_and_soon_not_on_the_disk_either(store: Store):
    today = NOW_MS // DAY_MS
    counted(store, [0] * 40 + [1] * 25 + [2] * 9 + [3] * 3)
    found = [LabelTally(today, "echo@1", label, count) for label, count in raw(store).items()]
    assert publish_tallies(found, today) == []  # a day is published only when it is over
    assert {each.label: each.count for each in publish_tallies(found, today + 1)} == {0: 40, 1: 25}
    store.apply_jobs([StoreJob(purge_ms=NOW_MS)])
    assert len(raw(store)) == 4
    store.apply_jobs([StoreJob(purge_ms=NOW_MS + DAY_MS)])
    assert raw(store) == {0: 40, 1: 25}


def test_one_member_of_a_rare_label_changes_nothing_that_is_shown():
    for rare in range(MIN_SHOWN_COUNT):
        with_one = suppress_rare_labels({0: 40, 1: 25, 2: rare})
        assert 2 not in with_one
        assert with_one in ({0: 40, 1: 25}, {0: 40})  # the second, since the total would reveal it


@given(st.dictionaries(st.integers(0, 9), st.integers(1, 60)), st.integers(1, 20))
def test_what_is_kept_back_is_nothing_or_at_least_k(counts: dict[int, int], k: int):
    told = suppress_rare_labels(counts, k)
    hidden = sum(counts.values()) - sum(told.values())
    assert all(count >= k for count in told.values())
    assert not told or hidden == 0 or hidden >= k
    assert suppress_rare_labels(told, k) == told


def test_a_verdict_that_was_not_written_is_not_counted(store: Store):
    counted(store, [0] * 3)
    again = QuestionEnding(question(1).key, NOW_MS, b"second", label=5, model="echo@1")
    store.apply_jobs([StoreJob(endings=[again])])
    assert raw(store) == {0: 3}


# A subject


def erased(bench: Bench, subject: bytes = SUBJECT, named: tuple[QuestionKey, ...] = ()) -> None:
    at_ms = int(bench.now * 1000)
    bench.job.erases.append(ErasureRequest("demo--d1", subject, at_ms, at_ms, named))
    bench.settle()


def erase_named(store: Store, *seqs: int) -> Erasure:
    """Erase questions that the device names, of a subject that the hub never heard of."""
    named = tuple(question(seq).key for seq in seqs)
    (done,) = store.apply_jobs([StoreJob(erases=[ErasureRequest("demo--d1", SUBJECT, NOW_MS, NOW_MS, named)])])
    return done.erased[0]


def test_erased_rows_hold_nothing_but_their_key_and_hashes(device: SimDevice, bench: Bench):
    frame = bench.ask(device, 1, subject=SUBJECT)
    bench.ask(device, 2, subject=b"\x08" * 32)
    bench.settle()
    bench.engine.broken = True
    bench.ask(device, 3, subject=SUBJECT)
    bench.commit()
    assert [kept.key.seq for kept in bench.store.read_unanswered()] == [3]
    erased(bench)
    for seq in (1, 3):
        gone = row(bench, seq)
        assert (gone.verdict, gone.subject, gone.refusal) == (None, None, "expired")
        assert gone.digest
        assert gone.fingerprint
    assert row(bench, 2).verdict is not None
    assert bench.store.read_unanswered() == []
    bench.replies(device)
    bench.say(device.up, frame)
    bench.settle()
    assert [(r.seq, r.reason) for r in bench.refusals(device)] == [(1, RefusalReason.EXPIRED)]


def test_what_was_asked_before_the_erasure_does_not_come_in_after_it(device: SimDevice, bench: Bench):
    erased(bench)
    bench.restart()
    for stone in bench.store.read_tombstones():
        bench.core.on_erased((), stone, bench.now)
    old, new = device.question(1, NOW_S - 60, subject=SUBJECT), device.question(2, NOW_S + 60, subject=SUBJECT)
    bench.say(device.up, old)
    bench.say(device.up, new)
    bench.settle()
    assert [(r.seq, r.reason) for r in bench.replies(device) if isinstance(r, Refusal)] == [(1, RefusalReason.EXPIRED)]
    assert row(bench, 2).verdict is not None


def test_the_tombstone_names_the_subject_to_nobody_who_does_not_know_it(device: SimDevice, bench: Bench):
    bench.ask(device, 1, subject=SUBJECT)
    bench.settle()
    erased(bench)
    erased(bench)
    (stone,) = bench.store.read_tombstones()
    assert (stone.rows, stone.mark) == (1, hash_subject_mark(device.id, SUBJECT))
    with bench.store._engine.connect() as connection:
        names = sa.inspect(connection).get_table_names()
        lines = [line for name in names for line in connection.exec_driver_sql(f"select * from {name}")]
    rows = [value for line in lines for value in line]
    assert SUBJECT not in rows


def test_no_device_erases_what_another_sent(device: SimDevice):
    other = SimDevice("demo--d2")
    bench = Bench(device, other)
    bench.ask(other, 1, subject=SUBJECT)
    bench.settle()
    erased(bench)
    assert row(bench, 1).verdict is not None


def test_what_a_device_names_is_erased_although_the_hub_never_had_the_subject(device: SimDevice, bench: Bench):
    frames = [bench.ask(device, seq) for seq in (1, 2)]
    bench.settle()
    bench.engine.broken = True
    bench.ask(device, 3)
    bench.commit()
    erased(bench, named=tuple(QuestionKey(device.id, device.epoch, seq) for seq in (1, 3, 77)))
    for seq in (1, 3):
        assert (row(bench, seq).verdict, row(bench, seq).refusal) == (None, "expired")
    assert row(bench, 2).verdict is not None
    assert bench.store.read_unanswered() == []
    (stone,) = bench.store.read_tombstones()
    assert stone.rows == 2
    bench.replies(device)
    bench.say(device.up, frames[0])
    bench.settle()
    assert [(r.seq, r.reason) for r in bench.refusals(device)] == [(1, RefusalReason.EXPIRED)]


def test_a_tombstone_counts_only_rows_that_still_held_something(store: Store):
    ends = [QuestionEnding(question(seq).key, NOW_MS, verdict=b"v") for seq in (1, 2)]
    refused = QuestionEnding(question(3).key, NOW_MS, refusal=RefusalReason.BUSY)
    keeps = [question(1), question(2, SUBJECT), question(3), question(4)]
    store.apply_jobs([StoreJob(keeps=keeps, endings=[*ends, refused])])
    first, again = erase_named(store, 1, 2, 3, 9), erase_named(store, 1, 2, 3, 4, 9)
    assert [key.seq for key in first.keys] == [1, 2], "a refusal holds nothing, and 9 was never asked"
    assert [key.seq for key in again.keys] == [4]
    assert again.stone.rows == 3
    told = json.loads(build_tombstone(again, "hub-1", "local"))
    assert (told["named"], told["found"], told["rows"]) == (5, 1, 3)


def test_what_a_device_names_is_its_own_whoever_else_has_the_same_numbers(device: SimDevice):
    other = SimDevice("demo--d2")
    bench = Bench(device, other)
    bench.ask(other, 1)
    bench.settle()
    erased(bench, named=(QuestionKey(device.id, other.epoch, 1),))
    assert row(bench, 1).verdict is not None


def test_the_names_of_questions_are_signed_and_bounded():
    text = build_erase_text("demo--d1", SUBJECT.hex(), NOW_MS, ["7-1"])
    assert text != build_erase_text("demo--d1", SUBJECT.hex(), NOW_MS, ["7-2"])
    assert text != build_erase_text("demo--d1", SUBJECT.hex(), NOW_MS)
    asked = {"device": "demo--d1", "subject": SUBJECT.hex(), "before_ms": 1, "proof": ""}
    most = [name_question(2**63 - 1, 10**18 - 1)] * MAX_NAMED_QUESTIONS
    body = msgspec.json.encode({**asked, "questions": most})
    assert len(body) <= MAX_JSON_BYTES
    assert len(msgspec.json.decode(body, type=EraseRequest).questions) == MAX_NAMED_QUESTIONS
    for wrong in ([*most, "1-1"], ["demo--d2/7-1"], ["8" * 16 + "-1"], ["7-" + "9" * 19], ["7"]):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(msgspec.json.encode({**asked, "questions": wrong}), type=EraseRequest)


def test_the_device_asks_with_its_own_signature(device: SimDevice):
    text = build_erase_text(device.id, SUBJECT.hex(), NOW_MS)
    assert text != build_erase_text(device.id, SUBJECT.hex(), NOW_MS + 1)
    assert text != build_erase_text("demo--d2", SUBJECT.hex(), NOW_MS)


def test_a_statement_of_the_hub_is_no_frame_and_no_frame_a_statement():
    stone = json.dumps({"device": "demo--d1"}).encode()
    signature = HUB.signing.sign(STATEMENT_TAG + stone)
    HUB.signing.public_key().verify(signature, STATEMENT_TAG + stone)
    with pytest.raises(InvalidSignature):
        HUB.signing.public_key().verify(signature, stone)
    assert base64.b64encode(signature)
