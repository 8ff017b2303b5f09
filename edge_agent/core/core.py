"""State machine of one device: decides for each sample, hub reply and timer what the edge agent does next.

Rule 1: every change of an open question is decided in this file and in `delivery`.
Rule 2: no I/O, no clock, no random numbers: events and `now` come in, a list of commands comes out.
Rule 3: a question lives until its outcome. Only the hub's signed reply or our own decision ends it, and it ends once.
"""

from collections.abc import Iterable  # noqa: I001 - one import in few lines
from math import inf

import msgspec

from edge_agent.core.commands import Answer, Command, Dice, Facts, Labels
from edge_agent.core.commands import Memory, Raise, Reseal, Rest, Setup, State, Store
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

ASK_ON_S = 5.0  # pause before the next Ask when the last one brought a verdict: see docs/adr/0011
MAX_RESEALS = 3
_SEAL_AGAIN = (Reason.KEY_EXPIRED, Reason.CREATED_AHEAD)


class EdgeCore:
    """The decision core of one device. Build it, then `restore` what was stored, then feed it events.

    Every `on_` method takes one event and returns the commands that follow from it, to be executed in their order.
    `now` and all other times are seconds on one monotonic clock. Methods of one core must not be called concurrently.
    """

    __slots__ = ("_delivery", "_next_seq", "epoch", "ruling")

    def __init__(self, setup: Setup, policy: Policy | None) -> None:
        self.ruling = Ruling(policy, setup)
        self._delivery = DeliveryQueue(self.ruling)
        self.epoch = -1  # until `restore` nothing can be recorded, so no question is asked
        self._next_seq = 1

    @property
    def open(self) -> Questions:
        """The open questions: counts and states, for others to read only."""
        return self._delivery.questions

    @property
    def policy(self) -> Policy | None:
        """The policy in force; None = there is none, and nothing may leave the device."""
        return self.ruling.policy

    @property
    def spend(self) -> Spend:
        """What the policy's accounts (bytes, cost, privacy) hold by now."""
        return self.ruling.purse.spend

    @property
    def link(self) -> Link:
        """All connections seen as one link: up if any of them is."""
        return self._delivery.lines.link

    @property
    def lines(self) -> Lines:
        """State of each hub connection, for others to read only."""
        return self._delivery.lines

    # Samples and their storage

    def on_prediction(self, local: Prediction, facts: Facts, dice: Dice, now: float) -> list[Command]:
        """A sample was classified here: answer it locally, or store a question for the hub.

        A stored question's caller waits for the hub's verdict if the policy's mode says so and the connection is open;
        otherwise it is answered with the local prediction once the question is on disk.
        """
        found = self.look(local, facts, dice, now)
        if isinstance(found, Answer):
            return [found]
        ruled, decision = found
        terms = ruled.terms
        self.ruling.advance_day(facts.day)
        ruling = self.ruling.committed() if decision.audit and facts.committed else self.ruling
        permit = self._permit(ruling, terms, facts, audit=decision.action is Action.AUDIT)
        if isinstance(permit, Denied):
            # the answer is confident; that its audit was denied is not the reason it is local
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
        """Evaluate the policy for one sample without changing anything.

        Returns the local `Answer` if no question is needed or allowed; otherwise the permissions of its data class and
        the escalation decision.
        """
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
        """A permit for a new question; `Denied` without a database, with a full outbox, or by the policy."""
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
        """Restore the state of the last process from agent.db; call it once, before any other event.

        Callers that waited then are gone: their local answer is recorded. Questions that were sent are sent again.
        """
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
        """Snapshot for `resume`, if the device is idle; None while a question is open or a reply is awaited."""
        ready = self.ruling.notice == 0 and self.ruling.purse.mirrored
        if len(self.open) or not (ready and self.lines.idle(now)):
            return None
        return Rest(self.epoch, self._next_seq, self.ruling.purse.spend, self.ruling.day)

    def resume(self, rest: Rest) -> None:
        """Continue as the device of this snapshot. This core must be idle too.

        Policy, policy context and connections must be the same for both: the snapshot does not hold them.
        """
        self.epoch, self._next_seq = rest.epoch, rest.next_seq
        self.ruling.resume(rest.spend, rest.day)
        self._delivery.reset()

    def on_stored(self, seq: int, digest: bytes, now: float) -> list[Command]:
        """The question is on disk with this SHA-256 of its sealed frame, for the first time or sealed again."""
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
        """The database took nothing: answer locally, and undo the charge.

        A row that only could not be sealed again stays in the outbox and is tried later.
        """
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
        """These questions' subject was erased: end them; callers that wait get the local answer."""
        ended = [self.open.get(seq) for seq in seqs]
        finish = self._delivery.finish
        gone = [command for each in ended if each for command in finish(each, Outcome.EXPIRED, Why.ERASED)]
        return self._delivery.send_after(gone, now)

    def on_unsendable(self, seq: int, why: Why, now: float) -> list[Command]:
        """The connection can never take this row (too big for the broker): end it with `why`."""
        question = self.open.get(seq)
        if question is None:
            return []
        return self._delivery.send_after(self._delivery.finish(question, Outcome.DENIED, why), now)

    # Connections and hub messages

    def on_link(self, up: bool, now: float, name: str = HOME) -> list[Command]:
        """A connection went up or down.

        What was sent on it without a receipt is sent again, there or on another connection. A new connection starts
        with a `Hello`.
        """
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
        """A verified message of a hub came on this connection: dispatch it by its type.

        One with another epoch speaks of another database's questions and is ignored.
        """
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
        """The hub has stored these questions and owes their outcomes: stop the fast retry."""
        return self._delivery.send_after(self._delivery.mark_receipted(seqs, now, line), now)

    def on_verdict(self, seq: int, verdict: Verdict, now: float) -> list[Command]:
        """The hub's verdict: the caller's answer, or the one correction if it was answered before.

        A repeated verdict finds no open question and is ignored.
        """
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
        """The hub refused a frame: seal it again, end the question, or retry later, by the reason given.

        A refusal counts only for the exact bytes it names (SHA-256), and not while these are being sealed again.
        """
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
        wish_s = refusal.retry_after_s if refusal.retry_after_s > 0 else 0.0  # not NaN
        pause_s = min(wish_s, self.ruling.setup.limits.quiet_cap_s)
        quiet = self.lines.get(line)
        quiet.quiet_until = max(quiet.quiet_until, now + pause_s)
        return self._delivery.defer(question, now + pause_s + question.pause_s(self.ruling.setup.limits), now)

    def on_statuses(self, statuses: Statuses, now: float, line: str = HOME) -> list[Command]:
        """Reply to an `Ask`. Questions `unknown` to the hub were never stored or were lost: send them again."""
        for seq in statuses.unknown:
            question = self.open.get(seq)
            if question is not None and question.line == line and question.state in (State.SENT, State.RECEIPTED):
                self.open.queue(question)
                self.open.arm(question)
        return self._delivery.send_after(self._delivery.mark_receipted(statuses.pending, now, line), now)

    # Configuration, policy and time

    def on_hubs(self, hubs: tuple[HubSite, ...], now: float) -> list[Command]:
        """The list of hubs, their prices or their keys changed."""
        self.on_model(msgspec.structs.replace(self.ruling.setup, hubs=hubs))
        return self._delivery.send_after([], now)

    def on_model(self, setup: Setup) -> None:
        """Another model answers from now on. Open questions stay as sealed, under the model they name."""
        self.ruling.model(setup)

    def on_trial(self, committed: Setup | None) -> None:
        """A candidate model answers, and audits compare it with the committed model.

        `committed`: setup of the committed model; None = no candidate is running any more.
        """
        self.ruling.on_trial(committed)

    def on_policy(self, policy: Policy | None, now: float) -> list[Command]:
        """The policy changed. Rows permitted under another one are checked again before each is next sent."""
        self.ruling.use(policy)
        return self._delivery.send_after([], now)

    def on_surroundings(self, around: Context, now: float) -> list[Command]:
        """The policy context (battery, link cost, local time, device attributes) was read again."""
        return self._delivery.send_after([], now) if self.ruling.surround(around) else []

    def on_notice(self, counter: int) -> bool:
        """A deny-all notice signed by a hub. True if it is newer than the last, and must be stored."""
        return self.ruling.notify(counter)

    def on_mirror(self, mirror: Mirror, now: float) -> list[Command]:
        """The hub reports the spending it remembers of us; totals are raised to it, never lowered."""
        raised = self.ruling.purse.mirror(mirror.spend, complete=mirror.complete)
        told: list[Command] = [Raise(raised)] if raised else []
        return self._delivery.send_after(told, now)

    def on_day(self, day: int) -> None:
        """A new day in hub time (whole days since 1970), for policies and budgets. It never goes back."""
        self.ruling.advance_day(day)

    def on_wake(self, now: float) -> list[Command]:
        """The timer fired: do whatever is due. Waking early, late or twice does no harm."""
        commands: list[Command] = []
        for question in self.open.due(now):
            commands += self._delivery.ring(question, now)
        return self._delivery.send_after(commands + self._delivery.greet_and_ask(now), now)
