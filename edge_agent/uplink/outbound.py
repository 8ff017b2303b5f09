"""Sender of everything that leaves the device: a frame's ledger entry is on disk before the frame is handed to MQTT.

Rule: each transmission has its own ledger entry: a question's first is written when it is stored, repeats and notes get
theirs here. An entry whose bytes did not leave after all is followed by one that says so (kind `withheld`), so that the
ledger's bytes by rule add up to what was sent.
"""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from edge_agent.question.commands import OutboxState
from edge_agent.question.seal import channel_for_note
from edge_agent.storage import accounts, ledger, outbox
from edge_agent.storage.database import DatabaseOperation, DatabaseTrouble
from edge_agent.storage.ledger import LedgerItem
from edge_agent.uplink.services import AgentServices
from policies.model.reasons import Denied
from wire.errors import LocalError
from wire.ledger.chain import PROTOCOL_RULE, EntryForm, EntryKind
from wire.protocol.codec import is_spoken
from wire.protocol.messages import HelloNote, SensitivityLevel, StatusRequest, UpNote
from wire.protocol.rollout import InstallReport
from wire.protocol.sealing import hash_frame
from wire.protocol.topics import TopicChannel

T = TypeVar("T")


class LedgeredSender:
    """Sends questions and notes, each with its entry in the egress ledger; used on the event loop only.

    `give_up(seq)`: called for a question that the link will never take. `seal_again(seq)`: for one whose stored frame
    is of a wire version that this release does not speak. `by_rule`: bytes handed over since the start, by the policy
    rule that let them leave.
    """

    def __init__(self, parts: AgentServices, give_up: Callable[[int], None], seal_again: Callable[[int], None]) -> None:
        self._parts = parts
        self._give_up = give_up
        self._seal_again = seal_again
        self.by_rule: Counter[str] = Counter()

    def on_recorded(self, seq: int) -> None:
        """The question's newest ledger entry is on disk, and its bytes have not left yet.

        If the question has ended meanwhile they never will, which gets an entry too.
        """
        if self._parts.pending.get(seq) is None:
            self._parts.database.write((self._withheld_entry(seq),))
        else:
            self._parts.pending.mark_unsent((seq,))

    def withhold_unsent(self, seq: int) -> tuple[DatabaseOperation, ...]:
        """Database operations before a question is sealed again: a `withheld` entry if its bytes never left."""
        return (self._withheld_entry(seq),) if self._parts.pending.discard_unsent(seq) else ()

    def end_question(self, seq: int) -> tuple[DatabaseOperation, ...]:
        """Forget an ended question. Returns the operations that record it if its bytes never left."""
        return (self._withheld_entry(seq),) if self._parts.pending.end(seq) else ()

    def _withheld_entry(self, seq: int) -> DatabaseOperation:
        return partial(ledger.append_withheld, seq=seq, at_ms=self._parts.clock.hub_ms())

    def save_unsent(self) -> None:
        """At the end of the process: store which ledger entries have no bytes yet, for the next process."""
        self._parts.database.write((partial(ledger.store_unsent, seqs=self._parts.pending.unsent),))

    def send_question(self, seq: int) -> None:
        """Send a question from the outbox.

        At once if its newest ledger entry waits for its bytes, else after a new entry is on disk.
        """
        if self._parts.pending.is_unsent(seq):
            self._find_frame(seq)
        else:
            op = partial(ledger.append_resend, seq=seq, at_ms=self._parts.clock.hub_ms())
            self._parts.database.write((op,), partial(self._on_repeat_recorded, seq))

    def send_note(self, note: UpNote, line: str = "") -> None:
        """Sign a note, charge and record it, then send it on this line.

        Dropped, and counted, if a budget does not allow it.
        """
        parts = self._parts
        try:
            frame = parts.envelopes.for_line(line).sign_note(note, parts.clock.hub_ms())
        except LocalError:
            parts.counts["unsendable"] += 1
            return
        charges = parts.core.permissions.charge_message(channel_for_note(note).removeprefix("up/"), len(frame))
        if isinstance(charges, Denied):
            parts.counts["notes_over_budget"] += 1
            return
        item = LedgerItem(
            _entry_kind(note), self._describe_note(note, line), parts.clock.hub_ms(), len(frame), hash_frame(frame)
        )
        ops: tuple[DatabaseOperation, ...] = (
            partial(accounts.add_charges, charges=charges),
            partial(ledger.append_item, item=item),
        )
        parts.database.write(ops, partial(self._send_recorded_note, (note, line), frame, item))

    def _send_recorded_note(
        self, what: tuple[UpNote, str], frame: bytes, item: LedgerItem, trouble: DatabaseTrouble | None
    ) -> None:
        parts, (note, line) = self._parts, what
        if trouble is not None:
            parts.counts["notes_unrecorded"] += 1
            return
        try:
            sent = parts.connections.connection_for(line).post(channel_for_note(note), frame)
        except LocalError:
            parts.counts["unsendable"] += 1
            sent = False
        if not sent:
            unsent = item._replace(kind=EntryKind.WITHHELD, at_ms=parts.clock.hub_ms())
            parts.database.write((partial(ledger.append_item, item=unsent),))
            return
        self.by_rule[item.form.rule] += len(frame)
        if isinstance(note, HelloNote):
            parts.clock.on_hello_sent()

    def _describe_note(self, note: UpNote, line: str) -> EntryForm:
        hubs = self._parts.envelopes.for_line(line).hubs.values()
        fields = {name: SensitivityLevel.P1.name for name in note.__struct_fields__ if getattr(note, name) is not None}
        names, regions = sorted({hub.name for hub in hubs}), sorted({hub.region for hub in hubs})
        rule, policy = self._rule_for_note(note)
        return EntryForm(fields, {}, rule=rule, policy=policy, hub="+".join(names), region="+".join(regions))

    def _rule_for_note(self, note: UpNote) -> tuple[str, str]:
        """The rule and the policy that let a note leave: a policy for sums over samples, the protocol for all else."""
        policy = self._parts.core.policy
        if policy is None or not isinstance(note, InstallReport) or (note.quality is None and note.signals is None):
            return PROTOCOL_RULE, ""
        return policy.base.rule, policy.hash

    def _on_repeat_recorded(self, seq: int, trouble: DatabaseTrouble | None) -> None:
        if trouble is not None:
            self._parts.counts["repeats_unrecorded"] += 1
            return
        self.on_recorded(seq)
        self._find_frame(seq)

    def _find_frame(self, seq: int) -> None:
        frame = self._parts.pending.cached_frame(seq)
        if frame is not None:
            self._post_frame(seq, frame)
        else:
            found = self._parts.database.read(partial(outbox.read_sealed, seq=seq))
            found.add_done_callback(partial(self._post_found_frame, seq))

    def _post_found_frame(self, seq: int, found: "asyncio.Future[bytes | None]") -> None:
        frame = read_result(found)
        if frame is not None:
            self._post_frame(seq, frame)

    def _post_frame(self, seq: int, frame: bytes) -> None:
        parts, question = self._parts, self._parts.core.open_questions.get(seq)
        if question is None or question.state is not OutboxState.SENT or not parts.pending.is_unsent(seq):
            return  # ended or deferred meanwhile: the entry of a deferred one waits for the next try
        if not is_spoken(frame):  # release 0.2 sealed it in a session
            parts.counts["frames_outdated"] += 1
            self._seal_again(seq)
            return
        try:
            if not parts.connections.connection_for(question.line).post(TopicChannel.QUESTION, frame):
                return
        except LocalError:
            parts.counts["unsendable"] += 1
            self._give_up(seq)
            return
        parts.pending.discard_unsent(seq)
        parts.counts["sent"] += 1
        self.by_rule[question.egress.rule] += len(frame)


def _entry_kind(note: UpNote) -> EntryKind:
    if isinstance(note, HelloNote):
        return EntryKind.HELLO
    return EntryKind.ASK if isinstance(note, StatusRequest) else EntryKind.REPORT


def read_result(future: "asyncio.Future[T]") -> T | None:
    """What a database read found; None if it was cancelled or the database failed."""
    if future.cancelled() or isinstance(future.exception(), sqlite3.Error):
        return None
    return future.result()
