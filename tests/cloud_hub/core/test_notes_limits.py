"""What a device may report: each number and text at its limit is taken, and one beyond it is refused."""

from math import inf, nan

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud_hub.core.notes import (
    ASK_REPLIES,
    BIGGEST_COUNT,
    MAX_ACCOUNT_CHARS,
    MAX_DETAIL_CHARS,
    MAX_PAST,
    MAX_TOTALS,
    MAX_WORD_CHARS,
    CloneFinding,
    HelloSighting,
    detect_clone,
    is_plausible_report,
    is_sound_head,
)
from cloud_hub.core.verification import MAX_INT64
from tests.cloud_hub.doubles.devices import SimDevice
from wire.ledger.chain import LedgerHead, encode_head_text
from wire.protocol.messages import LedgerHeadReport
from wire.protocol.rollout import (
    MAX_AUDIT_CELLS,
    AuditAgreement,
    AuditQuality,
    ClassSignals,
    DeviceSignals,
    InstallReport,
    InstallState,
)

CELL = AuditAgreement("open", 0.05, 100, 90, 10, 2, 10, 3, 3, 7)
CLASS = ClassSignals("open", 480, 480, 480.0, 480.0)
SIGNALS = DeviceSignals(500, 1, 500, 500.0, 500.0, 900, 1 << 26, 0, 1, (CLASS,))
QUALITY = AuditQuality((CELL,), ("closed",), 1)
REPORT = InstallReport(
    77, 9, 5, "r1", "digits", InstallState.PROBATION, None, 2, "2" * 64, 1, quality=QUALITY, signals=SIGNALS
)


def of_report(name: str, value: object) -> InstallReport:
    return msgspec.structs.replace(REPORT, **{name: value})


def of_quality(name: str, value: object) -> InstallReport:
    return of_report("quality", msgspec.structs.replace(QUALITY, **{name: value}))


def of_cell(name: str, value: object) -> InstallReport:
    return of_quality("cells", (msgspec.structs.replace(CELL, **{name: value}),))


def of_signals(name: str, value: object) -> InstallReport:
    return of_report("signals", msgspec.structs.replace(SIGNALS, **{name: value}))


def of_class(name: str, value: object) -> InstallReport:
    return of_signals("classes", (msgspec.structs.replace(CLASS, **{name: value}),))


def cells(count: int) -> tuple[AuditAgreement, ...]:
    return tuple(msgspec.structs.replace(CELL, data_class=f"c{number}") for number in range(count))


def classes(count: int) -> tuple[ClassSignals, ...]:
    return tuple(msgspec.structs.replace(CLASS, data_class=f"c{number}") for number in range(count))


WORD, LONG_WORD = "w" * MAX_WORD_CHARS, "w" * (MAX_WORD_CHARS + 1)
# (where, field, the values at its limits, those just beyond)
LIMITS = [
    *((of_report, word, (WORD, ""), (LONG_WORD,)) for word in ("rollout", "family", "running")),
    (of_report, "detail", ("d" * MAX_DETAIL_CHARS,), ("d" * (MAX_DETAIL_CHARS + 1),)),
    (of_report, "seq", (1, BIGGEST_COUNT), (0, -1, BIGGEST_COUNT + 1)),
    *((of_report, count, (0, BIGGEST_COUNT), (-1, BIGGEST_COUNT + 1)) for count in ("counter", "version", "at_ms")),
    (of_quality, "cells", (cells(MAX_AUDIT_CELLS), ()), (cells(MAX_AUDIT_CELLS + 1), (CELL, CELL))),
    (of_quality, "unaudited", (("u",) * MAX_AUDIT_CELLS, (WORD,)), (("u",) * (MAX_AUDIT_CELLS + 1), (LONG_WORD,))),
    (of_quality, "dropped", (0, BIGGEST_COUNT), (-1, BIGGEST_COUNT + 1)),
    (of_cell, "data_class", (WORD, ""), (LONG_WORD,)),
    (of_cell, "share", (1.0, 1e-9), (0.0, -0.1, 1.0000001, nan, inf)),
    (of_cell, "audited", (100, BIGGEST_COUNT), (99, BIGGEST_COUNT + 1)),
    (of_cell, "agreed", (90, 2), (91, 1)),
    (of_cell, "worse", (0, 10), (-1, 11)),
    (of_cell, "better", (0, 90), (-1, 91)),
    (of_cell, "told", (10, BIGGEST_COUNT), (9, BIGGEST_COUNT + 1)),
    (of_cell, "told_wrong", (3,), (2, 4, 11)),
    (of_cell, "told_worse", (0, 3), (-1, 4)),
    (of_cell, "told_better", (0, 7), (-1, 8)),
    (of_signals, "inferences", (500, BIGGEST_COUNT), (499, BIGGEST_COUNT + 1)),
    (of_signals, "escalated", (0, 500), (-1, 501)),
    *(
        (of_signals, count, (0, BIGGEST_COUNT), (-1, BIGGEST_COUNT + 1))
        for count in ("errors", "p95_us", "rss_bytes", "crashes", "starts")
    ),
    (of_signals, "confidence", (500.0, 500.0004), (499.0, -0.1, 501.0, 500.0006, nan, inf)),
    (of_signals, "confidence_sq", (0.0, 500.0004), (-0.1, 501.0, 500.0006, nan, inf)),
    (of_signals, "classes", (classes(MAX_AUDIT_CELLS), ()), (classes(MAX_AUDIT_CELLS + 1), (CLASS, CLASS))),
    (of_class, "data_class", (WORD, ""), (LONG_WORD,)),
    (of_class, "answers", (480, BIGGEST_COUNT), (479, BIGGEST_COUNT + 1)),
    (of_class, "escalated", (0, 480), (-1, 481)),
    (of_class, "confidence", (480.0,), (479.0, -0.1, 481.0, nan, inf)),
    (of_class, "confidence_sq", (0.0, 480.0), (-0.1, 481.0, nan, inf)),
]
AT_LIMIT = [(where, field, value) for where, field, within, _ in LIMITS for value in within]
BEYOND = [(where, field, value) for where, field, _, beyond in LIMITS for value in beyond]


def test_every_field_of_a_report_at_its_limit_is_plausible():
    assert is_plausible_report(REPORT)
    refused = [
        (where.__name__, field, value)
        for where, field, value in AT_LIMIT
        if not is_plausible_report(where(field, value))
    ]
    assert not refused


def test_every_field_of_a_report_beyond_its_limit_is_refused_for_that_alone():
    taken = [
        (where.__name__, field, value) for where, field, value in BEYOND if is_plausible_report(where(field, value))
    ]
    assert not taken


def test_a_report_without_quality_and_signals_is_plausible_and_one_class_may_have_two_audit_shares():
    assert is_plausible_report(msgspec.structs.replace(REPORT, quality=None, signals=None))
    assert is_plausible_report(of_quality("cells", (CELL, msgspec.structs.replace(CELL, share=0.5))))


def test_every_number_and_text_of_a_report_has_a_limit():
    """A field that is added to a report has to be bounded, so it has to stand in the table."""
    named = {(where, field) for where, field, _, _ in LIMITS}
    for where, struct in ((of_cell, CELL), (of_signals, SIGNALS), (of_class, CLASS), (of_quality, QUALITY)):
        assert {field for field in struct.__struct_fields__ if (where, field) not in named} == set()
    bounded_by_type = {"epoch", "state", "failure", "cohort", "quality", "signals", "trial_passed"}
    assert {field for field in REPORT.__struct_fields__ if (of_report, field) not in named} == bounded_by_type


def head(**changes: object) -> bool:
    """Whether a head with these changes, signed as it is, is sound."""
    key, device = Ed25519PrivateKey.generate(), SimDevice().enrolled()
    values: dict[str, object] = {"epoch": 7, "entries": 3, "at_ms": 5, "head": b"h" * 32, "known": 1, "spend": ()}
    values |= changes
    signed = LedgerHead(device.id, values["epoch"], values["entries"], values["at_ms"], values["head"])  # type: ignore[arg-type]
    signature = key.sign(encode_head_text(signed))
    return is_sound_head(device, key.public_key().public_bytes_raw(), LedgerHeadReport(**values, signature=signature))  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["epoch", "entries", "at_ms", "known"])
def test_a_ledger_head_has_numbers_that_a_database_column_holds(field):
    assert head(**{field: 0})
    assert head(**{field: MAX_INT64})
    assert not head(**{field: -1})
    assert not head(**{field: MAX_INT64 + 1})


def test_a_ledger_head_has_spending_totals_within_their_limits():
    good = ("a" * MAX_ACCOUNT_CHARS, MAX_INT64, MAX_INT64)
    assert head(spend=(good,) * MAX_TOTALS)
    assert head(spend=(("", 0, 0),))
    assert not head(spend=(good,) * (MAX_TOTALS + 1))
    for bad in (
        ("a" * (MAX_ACCOUNT_CHARS + 1), 0, 0),
        ("a", -1, 0),
        ("a", MAX_INT64 + 1, 0),
        ("a", 0, -1),
        ("a", 0, MAX_INT64 + 1),
    ):
        assert not head(spend=(good, bad))


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_ledger_head_of_another_length_than_a_hash_is_refused(length):
    assert not head(head=b"h" * length)


def sight(boot: str, epoch: int, created_ms: int) -> HelloSighting:
    return HelloSighting(boot, epoch, b"key", created_ms)


def test_of_ended_boots_and_epochs_the_last_sixty_four_are_remembered():
    past, found = detect_clone(None, sight("boot0", 0, 0))
    assert found is CloneFinding.FIRST
    for number in range(1, MAX_PAST + 2):
        past, found = detect_clone(past, sight(f"boot{number}", number, number))
        assert found is CloneFinding.RESTARTED
    assert MAX_PAST == 64
    assert past.boots == tuple((f"boot{number}", number) for number in range(1, MAX_PAST + 1))
    assert past.epochs == tuple(range(1, MAX_PAST + 1))
    assert detect_clone(past, sight("boot1", MAX_PAST + 1, 1000))[1] is CloneFinding.CLONE
    assert detect_clone(past, sight("new", 1, 1000))[1] is CloneFinding.CLONE
    assert detect_clone(past, sight("boot0", 0, 1000))[1] is CloneFinding.RESTARTED  # too long ago to be known


def test_a_message_as_old_as_the_last_one_is_a_repetition_and_a_later_one_of_an_ended_boot_a_clone():
    past, _ = detect_clone(None, sight("a", 1, 10))
    assert detect_clone(past, sight("a", 1, 10)) == (past, CloneFinding.REPEATED)
    later, found = detect_clone(past, sight("a", 1, 11))
    assert (later.last_ms, found) == (11, CloneFinding.SAME)
    past, _ = detect_clone(later, sight("b", 1, 5))  # another clock after the restart
    assert (past.boots, past.last_ms, past.epochs) == ((("a", 11),), 5, ())
    assert detect_clone(past, sight("a", 1, 11))[1] is CloneFinding.REPEATED
    assert detect_clone(past, sight("a", 1, 12))[1] is CloneFinding.CLONE
    same_boot, found = detect_clone(past, sight("b", 2, 6))
    assert (same_boot.boots, same_boot.epochs, found) == ((("a", 11),), (1,), CloneFinding.RESTARTED)
    assert detect_clone(past, HelloSighting("a", 1, b"other", 12))[1] is CloneFinding.FIRST


def test_the_limits_are_those_that_the_format_promises():
    assert (BIGGEST_COUNT, MAX_AUDIT_CELLS, ASK_REPLIES) == (2**53, 32, 1024)
