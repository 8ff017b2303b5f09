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

from edge_agent.core.commands import State
from edge_agent.storage import accounts, ledger, outbox
from edge_agent.storage.database import Op, Trouble
from edge_agent.storage.ledger import Item
from edge_agent.uplink.envelope import channel_of
from edge_agent.uplink.services import Parts
from policies.model.reasons import Denied
from wire.errors import LocalError
from wire.ledger.chain import PROTOCOL, Form, Kind
from wire.protocol.messages import Ask, Hello, Level, UpNote
from wire.protocol.rollout import InstallReport
from wire.protocol.sealing import digest
from wire.protocol.topics import Channel

T = TypeVar("T")


class LedgeredSender:
    """Sends questions and notes, each with its entry in the egress ledger; used on the event loop only.

    `give_up(seq)`: called for a question that the link will never take. `by_rule`: bytes handed over since the start,
    by the policy rule that let them leave.
    """

    def __init__(self, parts: Parts, give_up: Callable[[int], None]) -> None:
        self._parts = parts
        self._give_up = give_up
        self.by_rule: Counter[str] = Counter()

    def recorded(self, seq: int) -> None:
        """The question's newest ledger entry is on disk, and its bytes have not left yet.

        If the question has ended meanwhile they never will, which gets an entry too.
        """
        if self._parts.pending.get(seq) is None:
            self._parts.database.write((self._withhold(seq),))
        else:
            self._parts.pending.keep_unsent((seq,))

    def withhold(self, seq: int) -> tuple[Op, ...]:
        """Database operations before a question is sealed again: a `withheld` entry if its bytes never left."""
        return (self._withhold(seq),) if self._parts.pending.discard_unsent(seq) else ()

    def end(self, seq: int) -> tuple[Op, ...]:
        """Forget an ended question. Returns the operations that record it if its bytes never left."""
        return (self._withhold(seq),) if self._parts.pending.end(seq) else ()

    def _withhold(self, seq: int) -> Op:
        return partial(ledger.withhold, seq=seq, at_ms=self._parts.clock.ms())

    def keep_unsent(self) -> None:
        """At the end of the process: store which ledger entries have no bytes yet, for the next process."""
        self._parts.database.write((partial(ledger.keep_unsent, seqs=self._parts.pending.unsent),))

    def question(self, seq: int) -> None:
        """Send a question from the outbox.

        At once if its newest ledger entry waits for its bytes, else after a new entry is on disk.
        """
        if self._parts.pending.is_unsent(seq):
            self._find(seq)
        else:
            op = partial(ledger.again, seq=seq, at_ms=self._parts.clock.ms())
            self._parts.database.write((op,), partial(self._recorded_again, seq))

    def note(self, note: UpNote, line: str = "") -> None:
        """Sign a note, charge and record it, then send it on this line.

        Dropped, and counted, if a budget does not allow it.
        """
        parts = self._parts
        try:
            frame = parts.envelopes.on(line).note(note, parts.clock.ms())
        except LocalError:
            parts.counts["unsendable"] += 1
            return
        charges = parts.core.ruling.note(channel_of(note).removeprefix("up/"), len(frame))
        if isinstance(charges, Denied):
            parts.counts["notes_over_budget"] += 1
            return
        item = Item(_kind(note), self._form(note, line), parts.clock.ms(), len(frame), digest(frame))
        ops: tuple[Op, ...] = (partial(accounts.charge, charges=charges), partial(ledger.append, item=item))
        parts.database.write(ops, partial(self._noted, (note, line), frame, item))

    def _noted(self, what: tuple[UpNote, str], frame: bytes, item: Item, trouble: Trouble | None) -> None:
        parts, (note, line) = self._parts, what
        if trouble is not None:
            parts.counts["notes_unrecorded"] += 1
            return
        try:
            sent = parts.connections.on(line).post(channel_of(note), frame)
        except LocalError:
            parts.counts["unsendable"] += 1
            sent = False
        if not sent:
            unsent = item._replace(kind=Kind.WITHHELD, at_ms=parts.clock.ms())
            parts.database.write((partial(ledger.append, item=unsent),))
            return
        self.by_rule[item.form.rule] += len(frame)
        if isinstance(note, Hello):
            parts.clock.said_hello()

    def _form(self, note: UpNote, line: str) -> Form:
        hubs = self._parts.envelopes.on(line).hubs.values()
        fields = {name: Level.P1.name for name in note.__struct_fields__ if getattr(note, name) is not None}
        names, regions = sorted({hub.name for hub in hubs}), sorted({hub.region for hub in hubs})
        rule, policy = self._rule(note)
        return Form(fields, {}, rule=rule, policy=policy, hub="+".join(names), region="+".join(regions))

    def _rule(self, note: UpNote) -> tuple[str, str]:
        """The rule and the policy that let a note leave: a policy for sums over samples, the protocol for all else."""
        policy = self._parts.core.policy
        if policy is None or not isinstance(note, InstallReport) or (note.quality is None and note.signals is None):
            return PROTOCOL, ""
        return policy.base.rule, policy.hash

    def _recorded_again(self, seq: int, trouble: Trouble | None) -> None:
        if trouble is not None:
            self._parts.counts["repeats_unrecorded"] += 1
            return
        self.recorded(seq)
        self._find(seq)

    def _find(self, seq: int) -> None:
        frame = self._parts.pending.frame(seq)
        if frame is not None:
            self._post(seq, frame)
        else:
            found = self._parts.database.read(partial(outbox.sealed, seq=seq))
            found.add_done_callback(partial(self._post_found, seq))

    def _post_found(self, seq: int, found: "asyncio.Future[bytes | None]") -> None:
        frame = result(found)
        if frame is not None:
            self._post(seq, frame)

    def _post(self, seq: int, frame: bytes) -> None:
        parts, question = self._parts, self._parts.core.open.get(seq)
        if question is None or question.state is not State.SENT or not parts.pending.is_unsent(seq):
            return  # ended or deferred meanwhile: the entry of a deferred one waits for the next try
        try:
            if not parts.connections.on(question.line).post(Channel.QUESTION, frame):
                return
        except LocalError:
            parts.counts["unsendable"] += 1
            self._give_up(seq)
            return
        parts.pending.discard_unsent(seq)
        parts.counts["sent"] += 1
        self.by_rule[question.egress.rule] += len(frame)


def _kind(note: UpNote) -> Kind:
    if isinstance(note, Hello):
        return Kind.HELLO
    return Kind.ASK if isinstance(note, Ask) else Kind.REPORT


def result(future: "asyncio.Future[T]") -> T | None:
    """What a database read found; None if it was cancelled or the database failed."""
    if future.cancelled() or isinstance(future.exception(), sqlite3.Error):
        return None
    return future.result()
