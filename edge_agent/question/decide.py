"""What one device does next for each sample, hub reply and timer: the state machine, and the delivery of its questions.

Rule 1: every change of an open question is decided in this file, and written by `questions` alone.
Rule 2: no I/O, no clock, no random numbers: events and `now` come in, a list of commands comes out.
Rule 3: a question lives until its outcome. Only the hub's signed reply or our own decision ends it, and it ends once.
Rule 4: each question's permission is checked again every time it is sent.
"""

from collections.abc import Iterable

import msgspec

from edge_agent.question.commands import (
    Answer,
    Command,
    CoreSetup,
    CoreSnapshot,
    Finish,
    IdleSnapshot,
    MarkState,
    OutboxState,
    QuestionLabels,
    RaiseSpend,
    RandomDraws,
    Reseal,
    SampleAttributes,
    SendAsk,
    SendHello,
    Store,
    Transmit,
    WakeAt,
)
from edge_agent.question.limits import OutboxLimits
from edge_agent.question.permissions import ClassPermissions, PermissionCache
from edge_agent.question.questions import (
    HOME,
    HubConnection,
    HubConnections,
    OpenQuestion,
    OpenQuestions,
    QuestionEvent,
)
from edge_agent.question.records import AnswerSource, Outcome
from policies.decisions import escalation
from policies.decisions.budget import BudgetSpend
from policies.decisions.escalation import EscalationAction, EscalationDecision, LinkState
from policies.decisions.permit import Permit, expired_or_denied, permits_at_least
from policies.decisions.routing import HubSite
from policies.model.context import DecisionContext
from policies.model.policy import EscalationMode, NoveltyAction, Policy, Terms
from policies.model.reasons import DecisionReason, Denied
from wire.protocol.messages import (
    DownNote,
    Prediction,
    Receipt,
    Refusal,
    RefusalReason,
    Seqs,
    SpendMirror,
    StatusReply,
    Verdict,
)

MAX_RESEALS = 3
ASK_AT_MOST = 64  # seqs in one Ask
ASK_AGAIN_S = 5.0  # pause before the next Ask when the last one brought a verdict: see docs/adr/0011
_RESEAL_REASONS = (RefusalReason.KEY_EXPIRED, RefusalReason.CREATED_AHEAD)


class EdgeCore:
    """The decision core of one device. Build it, then `restore` what was stored, then feed it events.

    Every `on_` method takes one event and returns the commands that follow from it, to be executed in their order.
    `now` and all other times are seconds on one monotonic clock. Methods of one core must not be called concurrently.
    """

    __slots__ = ("_delivery", "_next_seq", "epoch", "permissions")

    def __init__(self, setup: CoreSetup, policy: Policy | None) -> None:
        self.permissions = PermissionCache(policy, setup)
        self._delivery = DeliveryQueue(self.permissions)
        self.epoch = -1  # until `restore` nothing can be recorded, so no question is asked
        self._next_seq = 1

    @property
    def open_questions(self) -> OpenQuestions:
        """The open questions: counts and states, for others to read only."""
        return self._delivery.questions

    @property
    def policy(self) -> Policy | None:
        """The policy in force; None = there is none, and nothing may leave the device."""
        return self.permissions.policy

    @property
    def spend(self) -> BudgetSpend:
        """What the policy's accounts (bytes, cost, privacy) hold by now."""
        return self.permissions.spend.current

    @property
    def link(self) -> LinkState:
        """All connections seen as one link: up if any of them is."""
        return self._delivery.connections.link

    @property
    def connections(self) -> HubConnections:
        """State of each hub connection, for others to read only."""
        return self._delivery.connections

    # Samples and their storage

    def on_prediction(
        self, local: Prediction, attributes: SampleAttributes, draws: RandomDraws, now: float
    ) -> list[Command]:
        """A sample was classified here: answer it locally, or store a question for the hub.

        A stored question's caller waits for the hub's verdict if the policy's mode says so and the connection is open;
        otherwise it is answered with the local prediction once the question is on disk.
        """
        found = self.evaluate_sample(local, attributes, draws, now)
        if isinstance(found, Answer):
            return [found]
        class_permissions, decision = found
        terms = class_permissions.terms
        self.permissions.advance_day(attributes.day)
        permissions = (
            self.permissions.for_committed_model() if decision.audit and attributes.committed else self.permissions
        )
        permit = self._permit_question(permissions, terms, attributes, audit=decision.action is EscalationAction.AUDIT)
        if isinstance(permit, Denied):
            # the answer is confident; that its audit was denied is not the reason it is local
            why = DecisionReason.CONFIDENT if decision.action is EscalationAction.AUDIT else permit.why
            answer = Answer(
                id=draws.id, prediction=local, source=AnswerSource.LOCAL, why=why, policy=terms.hash,
                data_class=attributes.data_class,
            )  # fmt: skip
            return [answer]
        permit = msgspec.structs.replace(
            permit, targets=self.connections.rank_targets(permit.targets, terms.budget_s, now)
        )
        connection = self.connections.for_hub(permit.targets[0].name)
        question = OpenQuestion(
            self._next_seq,
            draws,
            local,
            permit,
            attributes.data_class,
            size=permissions.frame_bytes,
            expires=now + self.permissions.setup.limits.max_age_s,
        )
        waits = decision.action is EscalationAction.ASK and terms.mode is not EscalationMode.ANSWER_NOW
        if waits and connection.is_open(now):
            question.wait_until(now + terms.budget_s)
        else:
            question.answer_once_stored(connection.unavailable_reason if waits else decision.why)
        return self._store_question(question, permit, permissions, audit=decision.audit)

    def evaluate_sample(
        self, local: Prediction, attributes: SampleAttributes, draws: RandomDraws, now: float
    ) -> Answer | tuple[ClassPermissions, EscalationDecision]:
        """Evaluate the policy for one sample without changing anything.

        Returns the local `Answer` if no question is needed or allowed; otherwise the permissions of its data class and
        the escalation decision.
        """
        class_permissions = self.permissions.for_class(attributes.data_class)
        if isinstance(class_permissions, Denied):
            held = self.policy.hash if self.policy else ""
            return Answer(
                id=draws.id, prediction=local, source=AnswerSource.LOCAL, why=class_permissions.why, policy=held,
                data_class=attributes.data_class,
            )  # fmt: skip
        terms = class_permissions.terms
        decision = escalation.decide_escalation(
            local.confidence, self.link, terms, draws.audit, now, in_domain=local.in_domain
        )
        if decision.action is EscalationAction.KEEP:
            # by position: every confident sample passes here
            return Answer(draws.id, local, AnswerSource.LOCAL, decision.why, terms.hash, attributes.data_class)
        return class_permissions, decision

    def _permit_question(
        self, permissions: PermissionCache, terms: Terms, attributes: SampleAttributes, *, audit: bool
    ) -> Permit | Denied:
        """A permit for a new question; `Denied` without a database, with a full outbox, or by the policy."""
        if self.epoch < 0:
            return Denied(DecisionReason.NO_DISK)
        limits = self.permissions.setup.limits
        share = 2 if audit else 1
        rows, size = min(limits.max_rows, terms.max_open) / share, limits.max_bytes / share
        held = self.open_questions
        if len(held) + 1 > rows or held.bytes + permissions.frame_bytes > size:
            return Denied(DecisionReason.OUTBOX_FULL)
        return permissions.permit_question(attributes.data_class, audit=audit, subject=attributes.subject)

    def _store_question(
        self, question: OpenQuestion, permit: Permit, permissions: PermissionCache, *, audit: bool
    ) -> list[Command]:
        self._next_seq += 1
        self.permissions.spend.set_spend(permit.spend)
        self.open_questions.admit(question)
        q = question
        class_permissions = permissions.for_class(q.data_class)
        budget_s, labels = (
            (class_permissions.terms.budget_s, class_permissions.labels)
            if isinstance(class_permissions, ClassPermissions)
            else (0.0, QuestionLabels())
        )
        store = Store(
            seq=q.seq, id=q.id, permit=permit, charge_bytes=q.size, local=q.local, data_class=q.data_class,
            budget_s=budget_s, audit=audit, jitter=q.jitter, labels=labels,
        )  # fmt: skip
        return self._delivery.wake_after([store])

    def restore(self, memory: CoreSnapshot, now: float) -> list[Command]:
        """Restore the state of the last process from agent.db; call it once, before any other event.

        Callers that waited then are gone: their local answer is recorded. Questions that were sent are sent again.
        """
        self.epoch = memory.epoch
        self._next_seq = max(self._next_seq, memory.next_seq)
        self.permissions.spend.load_spend(memory.spend, mirrored=memory.mirrored)
        self.permissions.accept_notice(memory.notice)
        self.on_day(memory.spend.day)
        commands: list[Command] = []
        for row in memory.rows:
            question = OpenQuestion.from_stored(row)
            self.open_questions.admit(question)
            if not row.answered:
                commands.append(question.answer_locally(DecisionReason.BUDGET_ELAPSED))
            if question.state is OutboxState.SEALED and row.not_before <= now:
                self.open_questions.record_retry_due(question, now)
        return self._delivery.send_after(commands, now)

    def idle_snapshot(self, now: float) -> IdleSnapshot | None:
        """Snapshot for `resume_from`, if the device is idle; None while a question is open or a reply is awaited."""
        ready = self.permissions.notice == 0 and self.permissions.spend.mirrored
        if len(self.open_questions) or not (ready and self.connections.is_idle(now)):
            return None
        return IdleSnapshot(self.epoch, self._next_seq, self.permissions.spend.current, self.permissions.day)

    def resume_from(self, rest: IdleSnapshot) -> None:
        """Continue as the device of this snapshot. This core must be idle too.

        Policy, policy context and connections must be the same for both: the snapshot does not hold them.
        """
        self.epoch, self._next_seq = rest.epoch, rest.next_seq
        self.permissions.resume_device(rest.spend, rest.day)
        self._delivery.reset()

    def on_stored(self, seq: int, digest: bytes, now: float) -> list[Command]:
        """The question is on disk with this SHA-256 of its sealed frame, for the first time or sealed again."""
        question = self.open_questions.get(seq)
        if question is None or not question.accepts(QuestionEvent.STORED):
            return []
        commands: list[Command] = []
        if question.early is not None and not question.answered:
            commands.append(question.answer_locally(question.early))
        self.open_questions.record_stored(question, digest)
        return self._delivery.send_after(commands, now)

    def on_store_failed(self, seq: int, why: DecisionReason, now: float) -> list[Command]:
        """The database took nothing: answer locally, and undo the charge.

        A row that only could not be sealed again stays in the outbox and is tried later.
        """
        question = self.open_questions.get(seq)
        if question is None or not question.accepts(QuestionEvent.STORE_FAILED):
            return []
        if question.digest:
            self.open_questions.record_reseal_failed(question)
            return self._delivery.defer(question, now + self.permissions.setup.limits.ask_interval_s, now)
        self.open_questions.drop_unstored(question)
        self.permissions.spend.refund_charges(question.charges)
        if question.answered:
            return []
        answer = question.answer_locally(why)
        return [msgspec.structs.replace(answer, seq=None)]  # no question of it is on record

    def on_erased(self, seqs: Iterable[int], now: float) -> list[Command]:
        """These questions' subject was erased: end them; callers that wait get the local answer."""
        ended = [self.open_questions.get(seq) for seq in seqs]
        finish = self._delivery.finish
        gone = [command for each in ended if each for command in finish(each, Outcome.EXPIRED, DecisionReason.ERASED)]
        return self._delivery.send_after(gone, now)

    def on_unsendable(self, seq: int, why: DecisionReason, now: float) -> list[Command]:
        """The connection can never take this row (too big for the broker): end it with `why`."""
        question = self.open_questions.get(seq)
        if question is None:
            return []
        return self._delivery.send_after(self._delivery.finish(question, Outcome.DENIED, why), now)

    # Connections and hub messages

    def on_link(self, up: bool, now: float, name: str = HOME) -> list[Command]:
        """A connection went up or down.

        What was sent on it without a receipt is sent again, there or on another connection. A new connection starts
        with a `HelloNote`.
        """
        self.connections.get(name).set_up(now, up=up)
        self.permissions.set_link(up=self.link.up)
        for question in self.open_questions.unreceipted_on(name):
            self.open_questions.record_connection_change(question)
        if not up:
            return self._delivery.send_after([], now)
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
        if isinstance(note, StatusReply):
            return self.on_statuses(note, now, line)
        self.connections.get(line).record_welcome()
        return []

    def on_receipt(self, seqs: Seqs, now: float, line: str = HOME) -> list[Command]:
        """The hub has stored these questions and owes their outcomes: stop the fast retry."""
        return self._delivery.send_after(self._delivery.mark_receipted(seqs, now, line), now)

    def on_verdict(self, seq: int, verdict: Verdict, now: float) -> list[Command]:
        """The hub's verdict: the caller's answer, or the one correction if it was answered before.

        A repeated verdict finds no open question and is ignored.
        """
        question = self.open_questions.get(seq)
        if question is None or not question.digest:
            return []
        if question.asked:
            self._delivery.ask_again_soon(self.connections.get(question.line), now)
        self.open_questions.record_verdict(question, now)
        class_permissions = self.permissions.for_class(question.data_class)
        rejects = (
            isinstance(class_permissions, ClassPermissions) and class_permissions.terms.novel is NoveltyAction.REJECT
        )
        answer = question.answer_with_verdict(verdict, rejects=rejects)
        ended = self._delivery.finish(question, Outcome.ANSWERED, DecisionReason.VERDICT)
        return self._delivery.send_after([answer, *ended], now)

    def on_refusal(self, refusal: Refusal, now: float, line: str = HOME) -> list[Command]:
        """The hub refused a frame: seal it again, end the question, or retry later, by the reason given.

        A refusal counts only for the exact bytes it names (SHA-256), and not while these are being sealed again.
        """
        question = self.open_questions.get(refusal.seq)
        if question is None or (question.line, question.digest) != (line, refusal.digest):
            return []
        if not question.accepts(QuestionEvent.DEFERRED):
            return []
        if refusal.reason in _RESEAL_REASONS and question.reseals < MAX_RESEALS:
            self.open_questions.start_reseal(question)
            return self._delivery.send_after([Reseal(question.seq)], now)
        if refusal.final:
            expired = refusal.reason is RefusalReason.EXPIRED
            outcome = Outcome.EXPIRED if expired else Outcome.REFUSED
            why = DecisionReason.EXPIRED if expired else DecisionReason.REFUSED
            return self._delivery.send_after(self._delivery.finish(question, outcome, refusal.reason, why), now)
        asked_s = refusal.retry_after_s if refusal.retry_after_s > 0 else 0.0  # not NaN
        pause_s = min(asked_s, self.permissions.setup.limits.quiet_cap_s)
        self.connections.get(line).pause_until(now + pause_s)
        return self._delivery.defer(
            question, now + pause_s + question.retry_pause_s(self.permissions.setup.limits), now
        )

    def on_outdated_frame(self, seq: int, now: float) -> list[Command]:
        """The stored frame is of a wire version that is not spoken any more: seal the question again."""
        question = self.open_questions.get(seq)
        if question is None or not question.accepts(QuestionEvent.RESEAL_REQUIRED):
            return []
        self.open_questions.start_reseal(question)
        return self._delivery.send_after([Reseal(seq)], now)

    def on_statuses(self, statuses: StatusReply, now: float, line: str = HOME) -> list[Command]:
        """Reply to a `StatusRequest`: questions `unknown` to the hub were never stored, or lost: send them again."""
        for seq in statuses.unknown:
            question = self.open_questions.get(seq)
            if question is not None and question.line == line and question.accepts(QuestionEvent.UNKNOWN_TO_HUB):
                self.open_questions.record_unknown(question)
        return self._delivery.send_after(self._delivery.mark_receipted(statuses.pending, now, line), now)

    # Configuration, policy and time

    def on_hubs(self, hubs: tuple[HubSite, ...], now: float) -> list[Command]:
        """The list of hubs, their prices or their keys changed."""
        self.on_model(msgspec.structs.replace(self.permissions.setup, hubs=hubs))
        return self._delivery.send_after([], now)

    def on_model(self, setup: CoreSetup) -> None:
        """Another model answers from now on. Open questions stay as sealed, under the model they name."""
        self.permissions.set_model(setup)

    def on_candidate(self, committed: CoreSetup | None) -> None:
        """A candidate model answers, and audits compare it with the committed model.

        `committed`: setup of the committed model; None = no candidate is running any more.
        """
        self.permissions.set_committed_setup(committed)

    def on_policy(self, policy: Policy | None, now: float) -> list[Command]:
        """The policy changed. Rows permitted under another one are checked again before each is next sent."""
        self.permissions.set_policy(policy)
        return self._delivery.send_after([], now)

    def on_context(self, context: DecisionContext, now: float) -> list[Command]:
        """The policy context (battery, link cost, local time, device attributes) was read again."""
        return self._delivery.send_after([], now) if self.permissions.set_context(context) else []

    def on_notice(self, counter: int) -> bool:
        """A deny-all notice signed by a hub. True if it is newer than the last, and must be stored."""
        return self.permissions.accept_notice(counter)

    def on_mirror(self, mirror: SpendMirror, now: float) -> list[Command]:
        """The hub reports the spending it remembers of us; totals are raised to it, never lowered."""
        raised = self.permissions.spend.merge_hub_totals(mirror.spend, complete=mirror.complete)
        commands: list[Command] = [RaiseSpend(raised)] if raised else []
        return self._delivery.send_after(commands, now)

    def on_day(self, day: int) -> None:
        """A new day in hub time (whole days since 1970), for policies and budgets. It never goes back."""
        self.permissions.advance_day(day)

    def on_wake(self, now: float) -> list[Command]:
        """The timer fired: do whatever is due. Waking early, late or twice does no harm."""
        commands: list[Command] = []
        for question in self.open_questions.pop_due(now):
            commands += self._delivery.on_alarm(question, now)
        return self._delivery.send_after(commands + self._delivery.greet_and_ask(now), now)


class DeliveryQueue:
    """Send queue of one device: its open questions and the connections they leave on.

    At most `OutboxLimits.window` questions are sent and not receipted at a time. `permissions` is asked before each
    transmission whether the question may still leave.
    """

    __slots__ = ("_permissions", "connections", "questions")

    def __init__(self, permissions: PermissionCache) -> None:
        self._permissions = permissions
        self.connections = HubConnections(permissions.setup.lines)
        self.questions = OpenQuestions(self.connections)

    @property
    def _limits(self) -> OutboxLimits:
        return self._permissions.setup.limits

    def reset(self) -> None:
        """Drop all questions and awaited replies; connections that are up stay up."""
        self.connections.reset_waits()
        self.questions = OpenQuestions(self.connections)

    def wake_after(self, commands: list[Command]) -> list[Command]:
        """Append a `WakeAt` if the next alarm is earlier than the one returned last."""
        when = self.questions.next_wake()
        return commands if when is None else [*commands, WakeAt(when)]

    # Sending

    def send_after(self, commands: list[Command], now: float) -> list[Command]:
        """These commands, then transmissions of whatever may be sent now, then the next `WakeAt`."""
        return self.wake_after(commands + self._send_ready(now))

    def _send_ready(self, now: float) -> list[Command]:
        """Send ready questions while the window, the connection and the hub's requested pause allow it."""
        if not self._permissions.may_send:
            return []
        commands = self._reroute(now)
        questions, window = self.questions, self._limits.window
        for connection in self.connections:
            if connection.up and now < connection.quiet_until:
                questions.arm_tick(connection.quiet_until)
            while connection.is_open(now) and questions.sent < window:
                question = questions.next_ready(connection.name)
                if question is None:
                    break
                commands += self._send_question(question, now)
        return commands

    def _reroute(self, now: float) -> list[Command]:
        """Seal the questions of stuck connections again for other hubs that may have them, under the same id.

        At most one window per call, so that a long queue does not block the event loop.
        """
        commands: list[Command] = []
        limits = self._limits
        for connection in self.connections.stuck_connections(now, limits.resend_base_s):
            for _ in range(limits.window):
                question = self.questions.next_ready(connection.name)
                if question is None:
                    break
                commands += self._send_to_other_hub(question, now)
        return commands

    def _send_to_other_hub(self, question: OpenQuestion, now: float) -> list[Command]:
        """Move one question to another hub that is reachable now, or park it until its own is."""
        class_permissions = self._permissions.for_class(question.data_class)
        patience_s = 0.0 if isinstance(class_permissions, Denied) else class_permissions.terms.budget_s
        target = self.connections.first_reachable(alternative_hubs(question, self._permissions), patience_s, now)
        if target is None:
            self.questions.park_until(question, now + self._limits.resend_cap_s)
            return []
        self.questions.start_reroute(question, target)
        return [Reseal(question.seq, target)]

    def _send_question(self, question: OpenQuestion, now: float) -> list[Command]:
        """Transmit one question, or finish it if it has expired or is no longer permitted."""
        if now >= question.expires:
            return self.finish(question, Outcome.EXPIRED, DecisionReason.EXPIRED)
        denied = recheck_permission(question, self._permissions)
        if denied is not None:
            return self.finish(question, Outcome.DENIED, denied)
        self.questions.record_sent(question, now, self._limits)
        return [Transmit(question.seq, question.line)]

    def on_alarm(self, question: OpenQuestion, now: float) -> list[Command]:
        """Handle a question's alarm: it expired, its caller waited long enough, or a retry is due."""
        if now >= question.expires and question.state is not OutboxState.NEW:
            return self.finish(question, Outcome.EXPIRED, DecisionReason.EXPIRED)
        commands: list[Command] = []
        if now >= question.deadline and not question.answered:
            commands.append(question.answer_locally(DecisionReason.BUDGET_ELAPSED))
        if now >= question.at and question.accepts(QuestionEvent.RETRY_DUE):
            self.questions.record_retry_due(question, now)
        self.questions.arm_alarm(question)
        return commands

    def defer(self, question: OpenQuestion, until: float, now: float) -> list[Command]:
        """Retry not before `until`. A caller whose deadline is earlier gets the local answer at once."""
        commands: list[Command] = [MarkState(question.seq, OutboxState.SEALED, until, question.attempts)]
        if not question.answered and until >= question.deadline:
            commands.append(question.answer_locally(DecisionReason.HUB_QUIET))
        self.questions.defer_until(question, until)
        return self.send_after(commands, now)

    def finish(
        self,
        question: OpenQuestion,
        outcome: Outcome,
        reason: DecisionReason | RefusalReason,
        why: DecisionReason | None = None,
    ) -> list[Command]:
        """End a question with its outcome; a caller who still waits gets the local answer.

        `reason`: recorded with the outcome. `why`: the reason given with that answer, by default `reason`. If the
        question is denied and was never sent, its charges are refunded.
        """
        self.questions.end(question)
        unsent = question.charges if outcome is Outcome.DENIED else ()
        self._permissions.spend.refund_charges(unsent)
        finish = Finish(question.seq, question.id, outcome, reason, unsent)
        if question.answered:
            return [finish]
        return [question.answer_locally(why or DecisionReason(reason)), finish]

    # Hellos and asks

    def greet_and_ask(self, now: float) -> list[Command]:
        """The hellos and asks that are due on any connection.

        A `HelloNote` is repeated until the hub answers it; an `StatusRequest` requests the state of questions whose
        verdict is overdue.
        """
        commands: list[Command] = []
        every_s = self._limits.ask_interval_s
        for connection in self.connections:  # repeated, as the hub may have been away when the connection came up
            if connection.up:
                if now >= connection.hello_at:
                    connection.record_hello(now + every_s)
                    commands.append(SendHello(connection.name))
                self.questions.arm_tick(connection.hello_at)
        if self.questions.receipted:
            for connection in self.connections:
                if connection.up:
                    commands += self._ask_hub(connection, now, every_s)
        return commands

    def _ask_hub(self, connection: HubConnection, now: float, every_s: float) -> list[Command]:
        """Asks for all receipted questions of one connection, if its interval is over."""
        if now < connection.ask_at:
            self.questions.arm_tick(connection.ask_at)
            return []
        owed = [
            each.seq for each in self.questions if each.state is OutboxState.RECEIPTED and each.line == connection.name
        ]
        if not owed:
            return []
        self.schedule_ask(connection, now + every_s)
        self.questions.record_asked(owed)
        return [SendAsk(tuple(owed[i : i + ASK_AT_MOST]), connection.name) for i in range(0, len(owed), ASK_AT_MOST)]

    def schedule_ask(self, connection: HubConnection, at: float) -> None:
        """Send no `StatusRequest` on this connection before the time `at`."""
        connection.schedule_ask(at)
        self.questions.arm_tick(at)

    def ask_again_soon(self, connection: HubConnection, now: float) -> None:
        """The last `StatusRequest` brought a verdict: send the next one early."""
        self.schedule_ask(connection, min(connection.ask_at, now + ASK_AGAIN_S))

    def mark_receipted(self, seqs: Seqs, now: float, name: str) -> list[Command]:
        """The hub on connection `name` has stored these questions and owes their outcomes."""
        marks: list[Command] = []
        owed_before = self.questions.receipted
        for seq in seqs:
            question = self.questions.get(seq)
            if question is not None and question.line == name and question.accepts(QuestionEvent.RECEIPT):
                self.questions.record_receipt(question, now)
                marks.append(MarkState(seq, OutboxState.RECEIPTED, 0.0, question.attempts))
        if marks and not owed_before:  # otherwise steady receipts would postpone the next Ask for ever
            connection = self.connections.get(name)
            self.schedule_ask(connection, max(connection.ask_at, now + self._limits.ask_interval_s))
        return marks


def recheck_permission(question: OpenQuestion, permissions: PermissionCache) -> DecisionReason | None:
    """Check a stored question's permission again before it is sent: None if it may leave, else the reason.

    It was charged when it was stored and is not charged again. Policy, context, day and accounts may all have changed
    since then.
    """
    class_permissions = permissions.for_class(question.data_class)
    if isinstance(class_permissions, Denied) or class_permissions.denied:
        return (
            class_permissions.denied.why
            if isinstance(class_permissions, ClassPermissions) and class_permissions.denied
            else DecisionReason.DENIED_POLICY_CHANGED
        )
    over = expired_or_denied(class_permissions.terms, permissions.day)
    if over is not None and over.why is DecisionReason.DENIED_POLICY_EXPIRED:
        return over.why
    if permissions.spend.is_overspent(question.charges):
        return DecisionReason.DENIED_BUDGET
    if class_permissions.terms.key == question.terms:
        return None
    permit = _permit_again(question, permissions)
    here = (question.target.name, question.target.region)  # not the whole site: its price may have changed
    if permit is None or here not in {(hub.name, hub.region) for hub in permit.targets}:
        return DecisionReason.DENIED_POLICY_CHANGED
    question.record_terms(permit.terms)
    return None


def alternative_hubs(question: OpenQuestion, permissions: PermissionCache) -> tuple[HubSite, ...]:
    """Every other hub that this question may be sent to now, best first by price and region.

    Computed from a new permit alone: empty if the policy does not permit the question any more.
    """
    permit = _permit_again(question, permissions)
    return tuple(hub for hub in permit.targets if hub.name != question.target.name) if permit else ()


def _permit_again(question: OpenQuestion, permissions: PermissionCache) -> Permit | None:
    """A new permit for a stored question; None if it would send less than the fields already sealed."""
    permit = permissions.permit_resend(question.data_class)
    return permit if isinstance(permit, Permit) and permits_at_least(permit.egress, question.egress) else None
