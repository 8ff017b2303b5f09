"""What the edge does next.

Rule 1: every change of an open question is decided in this file and in `sending`.
Rule 2: no I/O, no clock, no dice here: events and `now` come in, commands go out.
Rule 3: a question lives until its outcome. Only the hub's signed word or our own judgement ends it, and it ends once.
"""

from collections.abc import Iterable  # noqa: I001 - one import in few lines
from math import inf

import msgspec

from edge_agent.core.commands import (
    Answer,
    Command,
    Dice,
    Facts,
    Labels,
    Memory,
    Raise,
    Reseal,
    Rest,
    Setup,
    State,
    Store,
)
from edge_agent.core.hubs import HOME, Lines
from edge_agent.core.pending import Question, Questions
from edge_agent.core.records import Outcome, Source
from edge_agent.core.permissions import Ruled, Ruling
from edge_agent.core.delivery import DeliveryQueue
from policies.decisions import escalation
from policies.decisions.budget import Spend
from policies.model.context import Context
from policies.decisions.escalation import Action, Decision, Link
from policies.decisions.permit import Permit
from policies.decisions.routing import HubSite
from policies.model.policy import Mode, Policy, Terms
from policies.model.reasons import Denied, Why
from wire.protocol.messages import DownNote, Mirror, Prediction, Reason, Receipt, Refusal, Seqs, Statuses, Verdict

ASK_ON_S = 5.0  # after an Ask that brought verdicts the rest is asked for this soon: see docs/adr/0011
MAX_RESEALS = 3
_SEAL_AGAIN = (Reason.KEY_EXPIRED, Reason.CREATED_AHEAD)


class EdgeCore:
    """One device. Times are seconds on one monotonic clock. Build it, then `restore` what was stored."""

    __slots__ = ("_delivery", "_next_seq", "epoch", "ruling")

    def __init__(self, setup: Setup, policy: Policy | None) -> None:
        self.ruling = Ruling(policy, setup)
        self._delivery = DeliveryQueue(self.ruling)
        self.epoch = -1  # until restored nothing can be put on record, so nothing is asked
        self._next_seq = 1

    @property
    def open(self) -> Questions:
        """Counts and states; for others to read."""
        return self._delivery.questions

    @property
    def policy(self) -> Policy | None:
        return self.ruling.policy

    @property
    def spend(self) -> Spend:
        return self.ruling.purse.spend

    @property
    def link(self) -> Link:
        """All lines as one: up if any is."""
        return self._delivery.lines.link

    @property
    def lines(self) -> Lines:
        """For others to read."""
        return self._delivery.lines

    # Samples, and the disk

    def on_prediction(self, local: Prediction, facts: Facts, dice: Dice, now: float) -> list[Command]:
        """Answer here, or store a question first (and then answer here at once, or wait for the hub)."""
        found = self.look(local, facts, dice, now)
        if isinstance(found, Answer):
            return [found]
        ruled, decision = found
        terms = ruled.terms
        self.ruling.advance_day(facts.day)
        ruling = self.ruling.committed() if decision.audit and facts.committed else self.ruling
        permit = self._permit(ruling, terms, facts, audit=decision.action is Action.AUDIT)
        if isinstance(permit, Denied):
            # A confident answer that lost its audit is simply a confident answer.
            why = Why.CONFIDENT if decision.action is Action.AUDIT else permit.why
            answer = Answer(
                id=dice.id, prediction=local, source=Source.LOCAL, why=why, policy=terms.hash,
                data_class=facts.data_class,
            )  # fmt: skip
            return [answer]
        lines = self.lines
        permit = msgspec.structs.replace(permit, targets=lines.ranked(permit.targets, terms.budget_s, now))
        question = Question(self._next_seq, dice, local, permit, facts.data_class)
        line = lines.place(question, permit.targets[0])
        waits = decision.action is Action.ASK and terms.mode is not Mode.ANSWER_NOW
        if waits and line.open(now):
            question.deadline = now + terms.budget_s
        else:
            question.early = decision.why if line.open(now) or not waits else line.why
        return self._store(question, permit, ruling, now, audit=decision.audit)

    def look(self, local: Prediction, facts: Facts, dice: Dice, now: float) -> Answer | tuple[Ruled, Decision]:
        """The answer of one that need not be asked about; else by which terms and why it would be. Changes nothing."""
        ruled = self.ruling.of(facts.data_class)
        if isinstance(ruled, Denied):
            held = self.policy.hash if self.policy else ""
            return Answer(
                id=dice.id, prediction=local, source=Source.LOCAL, why=ruled.why, policy=held,
                data_class=facts.data_class,
            )  # fmt: skip
        terms = ruled.terms
        decision = escalation.decide(local.confidence, self.link, terms, dice.audit, now)
        if decision.action is Action.KEEP:
            return Answer(
                id=dice.id, prediction=local, source=Source.LOCAL, why=decision.why, policy=terms.hash,
                data_class=facts.data_class,
            )  # fmt: skip
        return ruled, decision

    def _permit(self, ruling: Ruling, terms: Terms, facts: Facts, *, audit: bool) -> Permit | Denied:
        if self.epoch < 0:
            return Denied(Why.NO_DISK)
        limits = self.ruling.setup.limits
        share = 2 if audit else 1
        rows, size = min(limits.max_rows, terms.max_open) / share, limits.max_bytes / share
        held = self.open
        if len(held) + 1 > rows or held.bytes + ruling.frame_bytes > size:
            return Denied(Why.OUTBOX_FULL)
        return ruling.permit(facts.data_class, audit=audit, subject=facts.subject)

    def _store(self, question: Question, permit: Permit, ruling: Ruling, now: float, *, audit: bool) -> list[Command]:
        self._next_seq += 1
        self.ruling.purse.take(permit.spend)
        question.size = ruling.frame_bytes
        question.expires = now + self.ruling.setup.limits.max_age_s
        self.open.admit(question)
        q = question
        ruled = ruling.of(q.data_class)
        budget_s, labels = (ruled.terms.budget_s, ruled.labels) if isinstance(ruled, Ruled) else (0.0, Labels())
        store = Store(
            seq=q.seq, id=q.id, permit=permit, charge_bytes=q.size, local=q.local, data_class=q.data_class,
            budget_s=budget_s, audit=audit, jitter=q.jitter, labels=labels,
        )  # fmt: skip
        return self._delivery.wake_after([store])

    def restore(self, memory: Memory, now: float) -> list[Command]:
        """Take up where the last process stopped. Whoever waited then is gone: the local answer goes on record."""
        self.epoch = memory.epoch
        self._next_seq = max(self._next_seq, memory.next_seq)
        self.ruling.purse.open(memory.spend, mirrored=memory.mirrored)
        self.ruling.notify(memory.notice)
        self.on_day(memory.spend.day)
        commands: list[Command] = []
        for row in memory.rows:
            question = Question.reopened(row)
            self.lines.place(question, row.target)
            self.open.admit(question)
            if not row.answered:
                commands.append(question.say_local(Why.BUDGET_ELAPSED))
            if question.state is State.SEALED and row.not_before <= now:
                self.open.queue(question)
            self.open.arm(question)
        return self._delivery.send_after(commands, now)

    def rest(self, now: float) -> Rest | None:
        """All that this core would have to remember; None while anything is open or awaited. `resume` takes it up."""
        ready = self.ruling.notice == 0 and self.ruling.purse.mirrored
        if len(self.open) or not (ready and self.lines.idle(now)):
            return None
        return Rest(self.epoch, self._next_seq, self.ruling.purse.spend, self.ruling.day)

    def resume(self, rest: Rest) -> None:
        """Be the device that rested so. This core rests too; policy, surroundings and links of both are the same."""
        self.epoch, self._next_seq = rest.epoch, rest.next_seq
        self.ruling.resume(rest.spend, rest.day)
        self._delivery.reset()

    def on_stored(self, seq: int, digest: bytes, now: float) -> list[Command]:
        """The question is on disk under `digest` (SHA-256 of the sealed frame): accepted, or sealed anew."""
        question = self.open.get(seq)
        if question is None or question.state is not State.NEW:
            return []
        question.digest, question.former = digest, None
        commands: list[Command] = []
        if question.early is not None and not question.answered:
            commands.append(question.say_local(question.early))
        self.open.queue(question)
        self.open.arm(question)
        return self._delivery.send_after(commands, now)

    def on_store_failed(self, seq: int, why: Why, now: float) -> list[Command]:
        """Nothing is on record and nothing left: answer here. A row that only failed to be sealed anew stays."""
        question = self.open.get(seq)
        if question is None or question.state is not State.NEW:
            return []
        if question.digest:
            if question.former is not None:
                self.lines.place(question, question.former)
                question.former = None
            else:
                question.reseals -= 1
            return self._delivery.defer(question, now + self.ruling.setup.limits.ask_interval_s, now)
        self.open.drop(question)
        self.ruling.purse.undo(question.charges)
        if question.answered:
            return []
        said = question.say_local(why)
        return [msgspec.structs.replace(said, seq=None)]  # no question of it is on record

    def on_erased(self, seqs: Iterable[int], now: float) -> list[Command]:
        """Whom these are about is forgotten here: they end, and whoever waits has the local answer."""
        ended = [self.open.get(seq) for seq in seqs]
        finish = self._delivery.finish
        gone = [command for each in ended if each for command in finish(each, Outcome.EXPIRED, Why.ERASED)]
        return self._delivery.send_after(gone, now)

    def on_unsendable(self, seq: int, why: Why, now: float) -> list[Command]:
        """The link will never take this row (too big for the broker): end it and let the next one flow."""
        question = self.open.get(seq)
        if question is None:
            return []
        return self._delivery.send_after(self._delivery.finish(question, Outcome.DENIED, why), now)

    # The link

    def on_link(self, up: bool, now: float, name: str = HOME) -> list[Command]:
        """A connection came or went: what was sent on it and not receipted is sent again, there or on another line."""
        line = self.lines.get(name)
        line.up = up
        self.ruling.link(up=self.link.up)
        for question in self.open.unreceipted(name):
            self.open.queue(question)
        if not up:
            return self._delivery.send_after([], now)
        line.hello_at = line.ask_at = now
        return self._delivery.send_after(self._delivery.greet_and_ask(now), now)

    def on_note(self, note: DownNote, now: float, line: str = HOME) -> list[Command]:
        """A signed note of a hub on this line. One of another epoch speaks of another database's questions: ignored."""
        if note.epoch != self.epoch:
            return []
        if isinstance(note, Receipt):
            return self.on_receipt(note.seqs, now, line)
        if isinstance(note, Refusal):
            return self.on_refusal(note, now, line)
        if isinstance(note, Statuses):
            return self.on_statuses(note, now, line)
        self.lines.get(line).hello_at = inf
        return []

    def on_receipt(self, seqs: Seqs, now: float, line: str = HOME) -> list[Command]:
        """The hub stored these and owes an outcome: stop the fast retry, nothing more."""
        return self._delivery.send_after(self._delivery.mark_receipted(seqs, now, line), now)

    def on_verdict(self, seq: int, verdict: Verdict, now: float) -> list[Command]:
        """The caller's answer, or the one correction if it was answered before. A repeat finds nothing open."""
        question = self.open.get(seq)
        if question is None or not question.digest:
            return []
        if question.asked:
            line = self.lines.get(question.line)
            self._delivery.schedule_ask(line, min(line.ask_at, now + ASK_ON_S))
        self.lines.measure(question, now)
        said = question.say_verdict(verdict)
        return self._delivery.send_after([said, *self._delivery.finish(question, Outcome.ANSWERED, Why.VERDICT)], now)

    def on_refusal(self, refusal: Refusal, now: float, line: str = HOME) -> list[Command]:
        """A refusal counts for exactly the bytes it names, and not while these are being sealed anew."""
        question = self.open.get(refusal.seq)
        if question is None or (question.line, question.digest) != (line, refusal.digest):
            return []
        if question.state is State.NEW:
            return []
        if refusal.reason in _SEAL_AGAIN and question.reseals < MAX_RESEALS:
            self.open.move(question, State.NEW)
            question.reseals += 1
            return self._delivery.send_after([Reseal(question.seq)], now)
        if refusal.final:
            expired = refusal.reason is Reason.EXPIRED
            outcome, why = (Outcome.EXPIRED, Why.EXPIRED) if expired else (Outcome.REFUSED, Why.REFUSED)
            return self._delivery.send_after(self._delivery.finish(question, outcome, refusal.reason, why), now)
        wish_s = refusal.retry_after_s if refusal.retry_after_s > 0 else 0.0  # NaN is no wish
        pause_s = min(wish_s, self.ruling.setup.limits.quiet_cap_s)
        quiet = self.lines.get(line)
        quiet.quiet_until = max(quiet.quiet_until, now + pause_s)
        return self._delivery.defer(question, now + pause_s + question.pause_s(self.ruling.setup.limits), now)

    def on_statuses(self, statuses: Statuses, now: float, line: str = HOME) -> list[Command]:
        """`unknown`: the hub never stored it, or lost it: the same bytes again."""
        for seq in statuses.unknown:
            question = self.open.get(seq)
            if question is not None and question.line == line and question.state in (State.SENT, State.RECEIPTED):
                self.open.queue(question)
                self.open.arm(question)
        return self._delivery.send_after(self._delivery.mark_receipted(statuses.pending, now, line), now)

    # Time, and what people decide

    def on_hubs(self, hubs: tuple[HubSite, ...], now: float) -> list[Command]:
        """Other hubs, or other keys of the same ones."""
        self.on_model(msgspec.structs.replace(self.ruling.setup, hubs=hubs))
        return self._delivery.send_after([], now)

    def on_model(self, setup: Setup) -> None:
        """Another model answers from now on. What is open stays as it was sealed, under the model it names."""
        self.ruling.model(setup)

    def on_trial(self, committed: Setup | None) -> None:
        """What answers is on trial: its audits are of the committed model. None: no more."""
        self.ruling.on_trial(committed)

    def on_policy(self, policy: Policy | None, now: float) -> list[Command]:
        """Rows judged under another policy are judged again before each is next sent."""
        self.ruling.use(policy)
        return self._delivery.send_after([], now)

    def on_surroundings(self, around: Context, now: float) -> list[Command]:
        """What rules ask of the device and its moment, seen anew."""
        return self._delivery.send_after([], now) if self.ruling.surround(around) else []

    def on_notice(self, counter: int) -> bool:
        """A deny-all notice, signed by a hub. True if it is news, which must be remembered."""
        return self.ruling.notify(counter)

    def on_mirror(self, mirror: Mirror, now: float) -> list[Command]:
        """What the hub remembers of our spending: it can only be more than we knew."""
        raised = self.ruling.purse.mirror(mirror.spend, complete=mirror.complete)
        told: list[Command] = [Raise(raised)] if raised else []
        return self._delivery.send_after(told, now)

    def on_day(self, day: int) -> None:
        """Hub time's day, for policies and budgets that end with a day. It never goes back."""
        self.ruling.advance_day(day)

    def on_wake(self, now: float) -> list[Command]:
        """Whatever is due. Waking early, late or twice does no harm."""
        commands: list[Command] = []
        for question in self.open.due(now):
            commands += self._delivery.ring(question, now)
        return self._delivery.send_after(commands + self._delivery.greet_and_ask(now), now)
