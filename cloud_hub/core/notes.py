"""Signed notes of devices, and the detection of cloned devices. Pure.

The notes are `HelloNote`, `StatusRequest`, ledger heads and install reports.

A report is refused unless its numbers are plausible (`is_plausible_report`), a ledger head unless its ranges, lengths
and signature are right (`is_sound_head`). Plausible lies are not found here; the rollout's quality gate bounds their
effect.

Rule of clone detection (`detect_clone`): a boot id belongs to one process, an epoch to one database, and a device has
one of each at a time. Once another boot or epoch has followed, the old one is over; a message of it that was signed
later than its last one means that two machines hold the keys. A repeated or delayed message proves nothing, and a new
signing key (re-enrolment) starts a new history.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import StrEnum
from math import inf

import msgspec

from cloud_hub.core.commands import (
    Command,
    LogLedgerHead,
    LookUpQuestions,
    QuestionKey,
    QuestionRow,
    RecordInstallReport,
    ResendAssignments,
    SendFrame,
    SendNote,
    SuspendDevice,
)
from cloud_hub.core.context import CoreContext, refuse_question
from cloud_hub.core.verification import MAX_INT64, DroppedFrame, FrameVerifier, VerifiedFrame
from cloud_hub.registry.device_states import Device
from wire.errors import Fault, RemoteError
from wire.ledger.chain import LedgerHead, verify_head
from wire.ledger.merkle import HASH_BYTES
from wire.protocol.codec import Frame, decode_up_note, unpad_plaintext
from wire.protocol.messages import (
    CipherSuite,
    HelloNote,
    LedgerHeadReport,
    StatusReply,
    StatusRequest,
    UpNote,
    WelcomeNote,
)
from wire.protocol.rollout import (
    MAX_AUDIT_CELLS,
    AuditAgreement,
    AuditQuality,
    ClassSignals,
    DeviceSignals,
    InstallReport,
)
from wire.protocol.topics import TopicChannel, compute_shard

BIGGEST_COUNT = 2**53
MAX_WORD_CHARS = 120
MAX_DETAIL_CHARS = 400


def is_plausible_report(report: InstallReport) -> bool:
    """Whether an install report is plausible: bounded texts, counts in range, sums that fit their counts.

    NaN and infinity fail every comparison, so they fail here.
    """
    words = (report.rollout, report.family, report.running)
    named = all(len(word) <= MAX_WORD_CHARS for word in words) and len(report.detail) <= MAX_DETAIL_CHARS
    counted = _are_possible_counts((report.seq, report.counter, report.version, report.at_ms)) and report.seq > 0
    return named and counted and _is_plausible_quality(report.quality) and _are_plausible_signals(report.signals)


def _is_plausible_quality(quality: AuditQuality | None) -> bool:
    if quality is None:
        return True
    few = len(quality.cells) <= MAX_AUDIT_CELLS and len(quality.unaudited) <= MAX_AUDIT_CELLS
    named = all(len(word) <= MAX_WORD_CHARS for word in quality.unaudited)
    once = len({(cell.data_class, cell.share) for cell in quality.cells}) == len(quality.cells)
    return (
        few
        and named
        and once
        and _are_possible_counts((quality.dropped,))
        and all(map(_is_plausible_cell, quality.cells))
    )


def _is_plausible_cell(cell: AuditAgreement) -> bool:
    """Whether the counts of one class fit each other: no more agreements than audits, no more errors than feedback."""
    numbers = (cell.audited, cell.agreed, cell.worse, cell.better)
    told = (cell.told, cell.told_wrong, cell.told_worse, cell.told_better)
    drawn = 0 < cell.share <= 1 and len(cell.data_class) <= MAX_WORD_CHARS and _are_possible_counts((*numbers, *told))
    audits = cell.better <= cell.agreed and cell.agreed + cell.worse <= cell.audited
    people = cell.told_wrong <= cell.told and cell.told_worse <= cell.told_wrong
    return drawn and audits and people and cell.told_better <= cell.told - cell.told_wrong


def _are_plausible_signals(signals: DeviceSignals | None) -> bool:
    if signals is None:
        return True
    s = signals
    whole = (s.inferences, s.errors, s.escalated, s.p95_us, s.rss_bytes, s.crashes, s.starts)
    few = len(s.classes) <= MAX_AUDIT_CELLS and len({each.data_class for each in s.classes}) == len(s.classes)
    within = s.escalated <= s.inferences and _are_possible_sums(s.inferences, s.confidence, s.confidence_sq)
    return few and _are_possible_counts(whole) and within and all(map(_is_plausible_class, s.classes))


def _is_plausible_class(signals: ClassSignals) -> bool:
    named = len(signals.data_class) <= MAX_WORD_CHARS and _are_possible_counts((signals.answers, signals.escalated))
    return (
        named
        and signals.escalated <= signals.answers
        and _are_possible_sums(signals.answers, signals.confidence, signals.confidence_sq)
    )


def _are_possible_sums(count: int, total: float, squares: float) -> bool:
    """Whether sum and sum of squares are possible for `count` numbers of 0 to 1, with slack for float rounding."""
    slack = 1e-6 * (1 + count)
    return 0 <= total <= count + slack < inf and 0 <= squares <= total + slack


def _are_possible_counts(numbers: Iterable[int]) -> bool:
    return all(0 <= number <= BIGGEST_COUNT for number in numbers)


MAX_TOTALS = 1000
MAX_ACCOUNT_CHARS = 128


def is_sound_head(device: Device, key: bytes, heads: LedgerHeadReport) -> bool:
    """Whether a ledger head has sizes in range and the device's signature. `key`: its raw 32-byte Ed25519 key.

    An unsound head is dropped without an answer: the note was signed by the device, so the fault is its own.
    """
    numbers = (heads.epoch, heads.entries, heads.at_ms, heads.known)
    if not all(0 <= number <= MAX_INT64 for number in numbers) or len(heads.head) != HASH_BYTES:
        return False
    if len(heads.spend) > MAX_TOTALS or not all(_is_spend_total(*total) for total in heads.spend):
        return False
    head = LedgerHead(device.id, heads.epoch, heads.entries, heads.at_ms, heads.head)
    return verify_head(head, heads.signature, key)


def _is_spend_total(account: str, period: int, amount: int) -> bool:
    return len(account) <= MAX_ACCOUNT_CHARS and 0 <= period <= MAX_INT64 and 0 <= amount <= MAX_INT64


MAX_PAST = 64  # ended boots and epochs remembered; the oldest are dropped first


class HelloSighting(msgspec.Struct, frozen=True):
    """A verified `HelloNote` as seen by clone detection.

    `key`: id of the signing key it verified with; `created_ms`: device's time of signing.
    """

    boot: str
    epoch: int
    key: bytes
    created_ms: int


class CloneFinding(StrEnum):
    """Result of clone detection for one `HelloNote`."""

    FIRST = "first"  # nothing is known of this key
    SAME = "same"  # the same process as before
    RESTARTED = "restarted"  # a new process or a new database
    REPEATED = "repeated"  # an old message once more: proves nothing
    CLONE = "clone"


class DeviceHistory(msgspec.Struct, frozen=True):
    """History of one device under one signing key: its current boot and epoch, and those that have ended.

    `boots`: ended boot ids with the time (ms) of their last message; `epochs`: ended epochs.
    """

    key: bytes
    boot: str
    epoch: int
    last_ms: int
    boots: tuple[tuple[str, int], ...] = ()
    epochs: tuple[int, ...] = ()


def detect_clone(past: DeviceHistory | None, seen: HelloSighting) -> tuple[DeviceHistory, CloneFinding]:
    """Compare a `HelloNote` with the device's history; returns the new history and the finding."""
    if past is None or past.key != seen.key:
        return DeviceHistory(seen.key, seen.boot, seen.epoch, seen.created_ms), CloneFinding.FIRST
    ended = dict(past.boots).get(seen.boot)
    last_word_ms = past.last_ms if seen.boot == past.boot else ended
    if last_word_ms is not None and seen.created_ms <= last_word_ms:
        return past, CloneFinding.REPEATED
    if ended is not None or seen.epoch in past.epochs:
        return past, CloneFinding.CLONE
    if (seen.boot, seen.epoch) == (past.boot, past.epoch):
        return msgspec.structs.replace(past, last_ms=max(past.last_ms, seen.created_ms)), CloneFinding.SAME
    return _extend_history(past, seen), CloneFinding.RESTARTED


def _extend_history(past: DeviceHistory, seen: HelloSighting) -> DeviceHistory:
    """The history after a new boot, a new epoch, or both: the old one has ended."""
    same_boot, same_epoch = seen.boot == past.boot, seen.epoch == past.epoch
    boots = past.boots if same_boot else (*past.boots, (past.boot, past.last_ms))
    epochs = past.epochs if same_epoch else (*past.epochs, past.epoch)
    last_ms = max(past.last_ms, seen.created_ms) if same_boot else seen.created_ms
    return DeviceHistory(
        seen.key, seen.boot, seen.epoch, last_ms=last_ms, boots=boots[-MAX_PAST:], epochs=epochs[-MAX_PAST:]
    )


CONNECTS_PER_S = 15.0  # reconnects of a fleet are spread to this rate: 500 devices over half a minute
ASK_REPLIES = 1024  # verdicts sent for one Ask; the rest is reported as pending until the next


class _PendingAsk(msgspec.Struct, eq=False):
    """An `StatusRequest` whose store lookup is in progress."""

    device: Device
    epoch: int
    keys: tuple[QuestionKey, ...]
    pending: list[int]


class NoteHandler:
    """Handles signed notes of devices.

    Owns the Asks in progress, each device's last Hello, and its history for clone detection.
    """

    def __init__(self, context: CoreContext, gate: FrameVerifier) -> None:
        self.hellos: dict[str, HelloNote] = {}
        self._fresh: dict[str, HelloNote] = {}
        self._context = context
        self._gate = gate
        self._asked: dict[int, _PendingAsk] = {}
        self._pasts: dict[str, DeviceHistory] = {}
        self._tickets = 0

    def forget_shards(self, shards: AbstractSet[int]) -> None:
        """Forget the devices of these shards: another hub hears of them from now on."""
        for known in (self.hellos, self._fresh, self._pasts):
            for device in [device for device in known if compute_shard(device) in shards]:
                del known[device]
        self._asked = {
            ticket: asked for ticket, asked in self._asked.items() if compute_shard(asked.device.id) not in shards
        }

    def take_hellos(self) -> dict[str, HelloNote]:
        """The Hellos received since the last call, by device."""
        fresh, self._fresh = self._fresh, {}
        return fresh

    def on_note(
        self, device: str, payload: bytes, now: float, channel: TopicChannel = TopicChannel.ASK
    ) -> list[Command]:
        """Verify and handle one note.

        `LedgerHeadReport` and `InstallReport` (sealed) come on REPORT, `StatusRequest` and `HelloNote` on ASK.
        """
        passed = self._gate.verify_note(device, payload, now, channel)
        if isinstance(passed, DroppedFrame):
            return self._context.handle_drop(device, passed)
        try:
            note = self._decode_note(passed.frame, channel)
        except RemoteError as error:
            return self._context.count_drop(error.fault.value)
        self._context.counts["notes"] += 1
        if isinstance(note, StatusRequest):
            return self._on_ask(passed.device, note)
        if isinstance(note, LedgerHeadReport):
            return self._on_heads(passed.device, note)
        return self._on_report(device, note) if isinstance(note, InstallReport) else self._on_hello(passed, note)

    def _decode_note(self, frame: Frame, channel: TopicChannel) -> UpNote:
        """Decode a note. RemoteError unless it belongs on this channel and in this envelope (signed or sealed)."""
        sealed = frame.suite is CipherSuite.SEALED
        note = decode_up_note(unpad_plaintext(self._context.envelopes.open(frame, channel)) if sealed else frame.body)
        reported = isinstance(note, LedgerHeadReport | InstallReport) == (channel is TopicChannel.REPORT)
        if note.epoch != frame.header.epoch or not reported or isinstance(note, InstallReport) != sealed:
            raise RemoteError(Fault.MALFORMED, "not what this channel and this envelope are for")
        return note

    def _on_report(self, device: str, report: InstallReport) -> list[Command]:
        return (
            [RecordInstallReport(device, report)]
            if is_plausible_report(report)
            else self._context.count_drop("malformed")
        )

    def _on_heads(self, device: Device, heads: LedgerHeadReport) -> list[Command]:
        key = device.signing_key.public_bytes_raw()
        return (
            [LogLedgerHead(device.id, key, heads)]
            if is_sound_head(device, key, heads)
            else self._context.count_drop("malformed")
        )

    def _on_hello(self, passed: VerifiedFrame, hello: HelloNote) -> list[Command]:
        device, header = passed.device.id, passed.frame.header
        seen = HelloSighting(hello.boot, hello.epoch, header.key_id, header.created_ms)
        self._pasts[device], finding = detect_clone(self._pasts.get(device), seen)
        if finding is CloneFinding.CLONE:
            self._context.counts["clone_suspects"] += 1
            del self._pasts[device]  # an administrator resumes it after a check: its history starts anew
            return [SuspendDevice(device)]
        self.hellos[device] = self._fresh[device] = hello
        settings, spread_s = self._context.settings, len(self.hellos) / CONNECTS_PER_S
        notice = self._context.rules.notice_for(device)
        warned: list[Command] = [SendNote(device, notice.to_message())] if notice else []
        welcome = SendNote(device, WelcomeNote(hello.epoch, settings.name, settings.region, spread_s))
        return [welcome, *warned, ResendAssignments(device)]

    def _on_ask(self, device: Device, ask: StatusRequest) -> list[Command]:
        asked = _PendingAsk(device, ask.epoch, (), [])
        keys: list[QuestionKey] = []
        for seq in dict.fromkeys(ask.seqs):
            key = QuestionKey(device.id, ask.epoch, seq)
            if self._context.memory.find_open(key):
                asked.pending.append(seq)
            elif 0 <= seq <= MAX_INT64:
                keys.append(key)
        asked.keys = tuple(keys)
        if not keys:
            return self._answer_ask(asked, {})
        self._tickets += 1
        self._asked[self._tickets] = asked
        return [LookUpQuestions(self._tickets, asked.keys)]

    def _answer_ask(self, asked: _PendingAsk, rows: Mapping[QuestionKey, QuestionRow]) -> list[Command]:
        commands: list[Command] = []
        unknown: list[int] = []
        for key in asked.keys:
            row = rows.get(key)
            if self._context.memory.find_open(key) or (row and len(commands) >= ASK_REPLIES):
                asked.pending.append(key.seq)
            elif row is None or (row.verdict is None and row.refusal is None):
                unknown.append(key.seq)  # stored but lost from memory too: sent again, the same bytes reopen it
                # A device asks only for what was receipted: a missing row means that the store lost data.
                self._context.counts["gaps"] += row is None
            elif row.refusal is not None:
                commands.append(refuse_question(key, row.digest, row.refusal))
            elif row.verdict is not None and self._context.can_read_verdict(row.verdict, asked.device):
                commands.append(SendFrame(key.device, row.verdict))
            else:
                unknown.append(key.seq)
        if asked.pending or unknown:
            commands.append(SendNote(asked.device.id, StatusReply(asked.epoch, tuple(asked.pending), tuple(unknown))))
        return commands

    def on_found(self, ticket: int, rows: Mapping[QuestionKey, QuestionRow]) -> list[Command]:
        """Result of the lookup for an `StatusRequest`: answer it."""
        asked = self._asked.pop(ticket, None)
        return self._answer_ask(asked, rows) if asked else []

    def on_find_failed(self, ticket: int) -> None:
        """The lookup for an `StatusRequest` failed: it is not answered, and the device asks again."""
        self._asked.pop(ticket, None)
