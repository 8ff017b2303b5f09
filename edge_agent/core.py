"""What the edge does next.

Rule 1: every change of an open question is decided in this file.
Rule 2: no I/O, no clock, no dice here: events and `now` come in, commands go out.
Rule 3: a question lives until its outcome. Only the hub's signed word or our own judgement ends it, and it ends once.
"""

from math import inf  # noqa: I001 - one import in few lines

import msgspec

from edge_agent.again import denied_now
from edge_agent.commands import (
    Answer, Command, Dice, Facts, Finish, Mark, Memory, Reseal, SayHello, SendAsk, Setup, State, Store, Transmit,
    WakeAt,
)  # fmt: skip
from edge_agent.questions import Question, Questions
from edge_agent.records import Outcome, Source
from policies import escalation, leakage
from policies.budget import Spend
from policies.escalation import Action, Link
from policies.judge import Permit, Price, judge
from policies.locality import HubSite
from policies.policy import Mode, Policy
from policies.reasons import Denied, Why
from wire.messages import DownNote, Prediction, Reason, Receipt, Refusal, Seqs, Statuses, Verdict

ASK_AT_MOST = 64  # seqs in one Ask
ASK_ON_S = 5.0  # after an Ask that brought verdicts the rest is asked for this soon: see docs/adr/0011
MAX_RESEALS = 3
_SEAL_AGAIN = (Reason.KEY_EXPIRED, Reason.CREATED_AHEAD)


class EdgeCore:
    """One device. Times are seconds on one monotonic clock. Build it, then `restore` what was stored."""

    __slots__ = (
        "_ask_at", "_cleared", "_day", "_hello_at", "_next_seq", "_open", "_setup", "epoch", "link", "policy", "spend",
    )  # fmt: skip

    def __init__(self, setup: Setup, policy: Policy | None) -> None:
        self.epoch = -1  # until restored nothing can be put on record, so nothing is asked
        self.policy = policy
        self.spend = Spend(0, 0)
        self.link = Link(up=False)
        self._setup = setup
        self._cleared = leakage.clear(policy, setup.schema, setup.evidence)
        self._open = Questions()
        self._next_seq = 1
        self._day = 0
        self._ask_at = 0.0
        self._hello_at = inf  # when to say hello again; inf once the hub answered it

    @property
    def open(self) -> Questions:
        """For reading: counts and states."""
        return self._open

    # Samples, and the disk

    def on_prediction(self, local: Prediction, facts: Facts, dice: Dice, now: float) -> list[Command]:
        """Answer here, or store a question first (and then answer here at once, or wait for the hub)."""
        policy = self.policy
        if policy is None:
            return [Answer(dice.id, local, Source.LOCAL, Why.DENIED_POLICY_ERROR, "", facts.data_class)]
        decision = escalation.decide(local.confidence, self.link, policy, dice.audit, now)
        if decision.action is Action.KEEP:
            return [Answer(dice.id, local, Source.LOCAL, decision.why, policy.hash, facts.data_class)]
        self._day = max(self._day, facts.day)
        permit = self._permit(policy, facts, audit=decision.action is Action.AUDIT)
        if isinstance(permit, Denied):
            # A confident answer that lost its audit is simply a confident answer.
            why = Why.CONFIDENT if decision.action is Action.AUDIT else permit.why
            return [Answer(dice.id, local, Source.LOCAL, why, policy.hash, facts.data_class)]
        question = Question(self._next_seq, dice, local, permit, facts.data_class)
        if decision.action is Action.ASK and policy.mode is not Mode.ANSWER_NOW:
            question.deadline = now + policy.budget_s
        else:
            question.early = decision.why
        return self._store(question, permit, policy, now, audit=decision.audit)

    def _permit(self, policy: Policy, facts: Facts, *, audit: bool) -> Permit | Denied:
        if self.epoch < 0:
            return Denied(Why.NO_DISK)
        setup, limits = self._setup, self._setup.limits
        share = 2 if audit else 1
        rows, size = min(limits.max_rows, policy.max_open) / share, limits.max_bytes / share
        if len(self._open) + 1 > rows or self._open.bytes + setup.frame_bytes > size:
            return Denied(Why.OUTBOX_FULL)
        price = Price(self.spend, setup.frame_bytes, self._day)
        return judge(policy, setup.schema, setup.hubs, facts.data_class, price, self._cleared)

    def _store(self, question: Question, permit: Permit, policy: Policy, now: float, *, audit: bool) -> list[Command]:
        self._next_seq += 1
        self.spend = permit.spend
        question.size = self._setup.frame_bytes
        question.expires = now + self._setup.limits.max_age_s
        self._open.admit(question)
        q = question
        store = Store(q.seq, q.id, permit, q.size, q.local, q.data_class, policy.budget_s, audit, q.jitter)
        return self._with_wake([store])

    def restore(self, memory: Memory, now: float) -> list[Command]:
        """Take up where the last process stopped. Whoever waited then is gone: the local answer goes on record."""
        self.epoch = memory.epoch
        self._next_seq = max(self._next_seq, memory.next_seq)
        self.spend = memory.spend
        self._day = max(self._day, memory.spend.day)
        commands: list[Command] = []
        for row in memory.rows:
            question = Question.reopened(row)
            self._open.admit(question)
            if not row.answered:
                commands.append(question.say_local(Why.BUDGET_ELAPSED))
            if question.state is State.SEALED and row.not_before <= now:
                self._open.queue(question)
            self._open.arm(question)
        return self._with_wake(commands + self._flow(now))

    def on_stored(self, seq: int, digest: bytes, now: float) -> list[Command]:
        """The question is on disk under `digest` (SHA-256 of the sealed frame): accepted, or sealed anew."""
        question = self._open.get(seq)
        if question is None or question.state is not State.NEW:
            return []
        question.digest = digest
        commands: list[Command] = []
        if question.early is not None and not question.answered:
            commands.append(question.say_local(question.early))
        self._open.queue(question)
        self._open.arm(question)
        return self._with_wake(commands + self._flow(now))

    def on_store_failed(self, seq: int, why: Why, now: float) -> list[Command]:
        """Nothing is on record and nothing left: answer here. A row that only failed to be sealed anew stays."""
        question = self._open.get(seq)
        if question is None or question.state is not State.NEW:
            return []
        if question.digest:
            question.reseals -= 1
            return self._defer(question, now + self._setup.limits.ask_interval_s, now)
        self._open.drop(question)
        if question.charged_on == self.spend.day:
            self.spend = Spend(self.spend.day, max(0, self.spend.bytes - question.size))
        q = question
        return [] if q.answered else [Answer(q.id, q.local, Source.LOCAL, why, q.policy, q.data_class)]

    def on_unsendable(self, seq: int, why: Why, now: float) -> list[Command]:
        """The link will never take this row (too big for the broker): end it and let the next one flow."""
        question = self._open.get(seq)
        if question is None:
            return []
        return self._with_wake(self._finish(question, Outcome.DENIED, why) + self._flow(now))

    # The link

    def on_link(self, up: bool, now: float) -> list[Command]:
        """A new connection: what was sent and not receipted is sent again, what is owed is asked for."""
        self.link = Link(up, self.link.quiet_until)
        if not up:
            return []
        for question in self._open:
            if question.state is State.SENT:
                self._open.queue(question)
        self._hello_at = now
        return self._with_wake([*self._hello(now), *self._asks(now, forced=True), *self._flow(now)])

    def on_note(self, note: DownNote, now: float) -> list[Command]:
        """A signed note of the hub. One of another epoch speaks of another database's questions: ignored."""
        if note.epoch != self.epoch:
            return []
        if isinstance(note, Receipt):
            return self.on_receipt(note.seqs, now)
        if isinstance(note, Refusal):
            return self.on_refusal(note, now)
        if isinstance(note, Statuses):
            return self.on_statuses(note, now)
        self._hello_at = inf
        return []

    def on_receipt(self, seqs: Seqs, now: float) -> list[Command]:
        """The hub stored these and owes an outcome: stop the fast retry, nothing more."""
        return self._with_wake(self._owed(seqs, now) + self._flow(now))

    def on_verdict(self, seq: int, verdict: Verdict, now: float) -> list[Command]:
        """The caller's answer, or the one correction if it was answered before. A repeat finds nothing open."""
        question = self._open.get(seq)
        if question is None or not question.digest:
            return []
        if question.asked:
            self._ask_at = min(self._ask_at, now + ASK_ON_S)
            self._open.arm_tick(self._ask_at)
        said = question.say_verdict(verdict)
        return self._with_wake([said, *self._finish(question, Outcome.ANSWERED, Why.VERDICT), *self._flow(now)])

    def on_refusal(self, refusal: Refusal, now: float) -> list[Command]:
        """A refusal counts for exactly the bytes it names, and not while these are being sealed anew."""
        question = self._open.get(refusal.seq)
        if question is None or question.digest != refusal.digest or question.state is State.NEW:
            return []
        if refusal.reason in _SEAL_AGAIN and question.reseals < MAX_RESEALS:
            self._open.move(question, State.NEW)
            question.reseals += 1
            return self._with_wake([Reseal(question.seq), *self._flow(now)])
        if refusal.final:
            expired = refusal.reason is Reason.EXPIRED
            outcome, why = (Outcome.EXPIRED, Why.EXPIRED) if expired else (Outcome.REFUSED, Why.REFUSED)
            return self._with_wake(self._finish(question, outcome, refusal.reason, why) + self._flow(now))
        wish_s = refusal.retry_after_s if refusal.retry_after_s > 0 else 0.0  # NaN is no wish
        pause_s = min(wish_s, self._setup.limits.quiet_cap_s)
        self.link = Link(self.link.up, max(self.link.quiet_until, now + pause_s))
        return self._defer(question, now + pause_s + question.pause_s(self._setup.limits), now)

    def on_statuses(self, statuses: Statuses, now: float) -> list[Command]:
        """`unknown`: the hub never stored it, or lost it: the same bytes again."""
        for seq in statuses.unknown:
            question = self._open.get(seq)
            if question is not None and question.state in (State.SENT, State.RECEIPTED):
                self._open.queue(question)
                self._open.arm(question)
        return self._with_wake(self._owed(statuses.pending, now) + self._flow(now))

    # Time, and what people decide

    def on_hubs(self, hubs: tuple[HubSite, ...], now: float) -> list[Command]:
        """Other hubs, or other keys of the same ones."""
        self._setup = msgspec.structs.replace(self._setup, hubs=hubs)
        return self._with_wake(self._flow(now))

    def on_model(self, setup: Setup) -> None:
        """Another model answers from now on. What is open stays as it was sealed, under the model it names."""
        self._setup = setup
        self._cleared = leakage.clear(self.policy, setup.schema, setup.evidence)

    def on_policy(self, policy: Policy | None, now: float) -> list[Command]:
        """Rows judged under another policy are judged again before each is next sent."""
        self.policy = policy
        self._cleared = leakage.clear(policy, self._setup.schema, self._setup.evidence)
        return self._with_wake(self._flow(now))

    def on_day(self, day: int) -> None:
        """Hub time's day, for policies and budgets that end with a day. It never goes back."""
        self._day = max(self._day, day)

    def on_wake(self, now: float) -> list[Command]:
        """Whatever is due. Waking early, late or twice does no harm."""
        commands: list[Command] = []
        for question in self._open.due(now):
            commands += self._due(question, now)
        return self._with_wake(commands + self._hello(now) + self._asks(now) + self._flow(now))

    def _due(self, question: Question, now: float) -> list[Command]:
        if now >= question.expires and question.state is not State.NEW:
            return self._finish(question, Outcome.EXPIRED, Why.EXPIRED)
        commands: list[Command] = []
        if now >= question.deadline and not question.answered:
            commands.append(question.say_local(Why.BUDGET_ELAPSED))
        if now >= question.at and question.state in (State.SEALED, State.SENT):
            self._open.queue(question)
        self._open.arm(question)
        return commands

    # Sending

    def _flow(self, now: float) -> list[Command]:
        """Send what is ready while the window, the link and the hub's wish for silence allow it."""
        commands: list[Command] = []
        if not self.link.up:
            return commands
        if now < self.link.quiet_until:
            self._open.arm_tick(self.link.quiet_until)
            return commands
        while self._open.sent < self._setup.limits.window:
            question = self._open.next_ready()
            if question is None:
                break
            commands += self._send(question, now)
        return commands

    def _send(self, question: Question, now: float) -> list[Command]:
        if now >= question.expires:
            return self._finish(question, Outcome.EXPIRED, Why.EXPIRED)
        denied = denied_now(question, self.policy, self._setup, self._cleared, self._day)
        if denied is not None:
            return self._finish(question, Outcome.DENIED, denied)
        self._open.move(question, State.SENT)
        question.at = now + self._setup.limits.resend_base_s + question.pause_s(self._setup.limits)
        question.attempts += 1
        self._open.arm(question)
        return [Transmit(question.seq)]

    def _hello(self, now: float) -> list[Command]:
        """On connect, and again until the hub has answered: it may have been away just then."""
        if not self.link.up or self._hello_at == inf:
            return []
        due = now >= self._hello_at
        if due:
            self._hello_at = now + self._setup.limits.ask_interval_s
        self._open.arm_tick(self._hello_at)
        return [SayHello()] if due else []

    def _asks(self, now: float, *, forced: bool = False) -> list[Command]:
        """On connect, and at most once per interval while the hub owes us something."""
        if not self.link.up or not self._open.receipted:
            return []
        if now < self._ask_at and not forced:
            self._open.arm_tick(self._ask_at)
            return []
        self._ask_at = now + self._setup.limits.ask_interval_s
        self._open.arm_tick(self._ask_at)
        owed = [question.seq for question in self._open if question.state is State.RECEIPTED]
        self._open.asked(owed)
        return [SendAsk(tuple(owed[i : i + ASK_AT_MOST])) for i in range(0, len(owed), ASK_AT_MOST)]

    def _owed(self, seqs: Seqs, now: float) -> list[Command]:
        marks: list[Command] = []
        owed_before = self._open.receipted
        for seq in seqs:
            question = self._open.get(seq)
            if question is not None and question.state in (State.SEALED, State.SENT):
                self._open.move(question, State.RECEIPTED)
                marks.append(Mark(seq, State.RECEIPTED, 0.0, question.attempts))
        if marks and not owed_before:  # else steady receipts would put the next Ask off for ever
            self._ask_at = max(self._ask_at, now + self._setup.limits.ask_interval_s)
            self._open.arm_tick(self._ask_at)
        return marks

    def _defer(self, question: Question, until: float, now: float) -> list[Command]:
        """Not now. Who cannot be served in time gets the local answer at once."""
        commands: list[Command] = [Mark(question.seq, State.SEALED, until, question.attempts)]
        if not question.answered and until >= question.deadline:
            commands.append(question.say_local(Why.HUB_QUIET))
        self._open.hold(question, until)
        return self._with_wake(commands + self._flow(now))

    def _finish(
        self, question: Question, outcome: Outcome, reason: Why | Reason, why: Why | None = None
    ) -> list[Command]:
        """`why`: of the answer to a caller who still waits; by default the reason itself."""
        self._open.drop(question)
        finish = Finish(question.seq, question.id, outcome, reason)
        if question.answered:
            return [finish]
        return [question.say_local(why or Why(reason)), finish]

    def _with_wake(self, commands: list[Command]) -> list[Command]:
        when = self._open.next_wake()
        return commands if when is None else [*commands, WakeAt(when)]
