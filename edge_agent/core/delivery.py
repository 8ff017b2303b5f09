"""Delivery of stored questions: sending, retrying, re-routing and finishing them, on all hub connections. Pure.

Each question's permission is checked again every time it is sent. Rules 1 to 3 of `core` hold here too.
"""

from edge_agent.core.commands import (
    Command,
    Finish,
    MarkState,
    OutboxState,
    Reseal,
    SendAsk,
    SendHello,
    Transmit,
    WakeAt,
)
from edge_agent.core.limits import OutboxLimits
from edge_agent.core.permissions import ClassPermissions, PermissionCache
from edge_agent.core.questions import HubConnection, HubConnections, OpenQuestion, OpenQuestions, QuestionEvent
from edge_agent.core.records import Outcome
from policies.decisions.permit import Permit, expired_or_denied, permits_at_least
from policies.decisions.routing import HubSite
from policies.model.reasons import DecisionReason, Denied
from wire.protocol.messages import RefusalReason, Seqs

ASK_AT_MOST = 64  # seqs in one Ask
ASK_AGAIN_S = 5.0  # pause before the next Ask when the last one brought a verdict: see docs/adr/0011


class DeliveryQueue:
    """Send queue of one device: its open questions and the connections they leave on.

    At most `OutboxLimits.window` questions are sent and not receipted at a time. `ruling` is asked before each
    transmission whether the question may still leave.
    """

    __slots__ = ("_ruling", "lines", "questions")

    def __init__(self, ruling: PermissionCache) -> None:
        self._ruling = ruling
        self.lines = HubConnections(ruling.setup.lines)
        self.questions = OpenQuestions(self.lines)

    @property
    def _limits(self) -> OutboxLimits:
        return self._ruling.setup.limits

    def reset(self) -> None:
        """Drop all questions and awaited replies; connections that are up stay up."""
        self.lines.reset_waits()
        self.questions = OpenQuestions(self.lines)

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
        if not self._ruling.may_send:
            return []
        commands = self._reroute(now)
        questions, window = self.questions, self._limits.window
        for line in self.lines:
            if line.up and now < line.quiet_until:
                questions.arm_tick(line.quiet_until)
            while line.is_open(now) and questions.sent < window:
                question = questions.next_ready(line.name)
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
        for line in self.lines.stuck_connections(now, limits.resend_base_s):
            for _ in range(limits.window):
                question = self.questions.next_ready(line.name)
                if question is None:
                    break
                commands += self._send_to_other_hub(question, now)
        return commands

    def _send_to_other_hub(self, question: OpenQuestion, now: float) -> list[Command]:
        """Move one question to another hub that is reachable now, or park it until its own is."""
        ruled = self._ruling.for_class(question.data_class)
        patience_s = 0.0 if isinstance(ruled, Denied) else ruled.terms.budget_s
        target = self.lines.first_reachable(alternative_hubs(question, self._ruling), patience_s, now)
        if target is None:
            self.questions.park_until(question, now + self._limits.resend_cap_s)
            return []
        self.questions.start_reroute(question, target)
        return [Reseal(question.seq, target)]

    def _send_question(self, question: OpenQuestion, now: float) -> list[Command]:
        """Transmit one question, or finish it if it has expired or is no longer permitted."""
        if now >= question.expires:
            return self.finish(question, Outcome.EXPIRED, DecisionReason.EXPIRED)
        denied = recheck_permission(question, self._ruling)
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
        self._ruling.purse.refund_charges(unsent)
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
        for line in self.lines:  # repeated, as the hub may have been away when the connection came up
            if line.up:
                if now >= line.hello_at:
                    line.record_hello(now + every_s)
                    commands.append(SendHello(line.name))
                self.questions.arm_tick(line.hello_at)
        if self.questions.receipted:
            for line in self.lines:
                if line.up:
                    commands += self._ask_hub(line, now, every_s)
        return commands

    def _ask_hub(self, line: HubConnection, now: float, every_s: float) -> list[Command]:
        """Asks for all receipted questions of one connection, if its interval is over."""
        if now < line.ask_at:
            self.questions.arm_tick(line.ask_at)
            return []
        owed = [each.seq for each in self.questions if each.state is OutboxState.RECEIPTED and each.line == line.name]
        if not owed:
            return []
        self.schedule_ask(line, now + every_s)
        self.questions.record_asked(owed)
        return [SendAsk(tuple(owed[i : i + ASK_AT_MOST]), line.name) for i in range(0, len(owed), ASK_AT_MOST)]

    def schedule_ask(self, line: HubConnection, at: float) -> None:
        """Send no `StatusRequest` on this connection before the time `at`."""
        line.schedule_ask(at)
        self.questions.arm_tick(at)

    def ask_again_soon(self, line: HubConnection, now: float) -> None:
        """The last `StatusRequest` brought a verdict: send the next one early."""
        self.schedule_ask(line, min(line.ask_at, now + ASK_AGAIN_S))

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
            line = self.lines.get(name)
            self.schedule_ask(line, max(line.ask_at, now + self._limits.ask_interval_s))
        return marks


def recheck_permission(question: OpenQuestion, ruling: PermissionCache) -> DecisionReason | None:
    """Check a stored question's permission again before it is sent: None if it may leave, else the reason.

    It was charged when it was stored and is not charged again. Policy, context, day and accounts may all have changed
    since then.
    """
    ruled = ruling.for_class(question.data_class)
    if isinstance(ruled, Denied) or ruled.denied:
        return (
            ruled.denied.why
            if isinstance(ruled, ClassPermissions) and ruled.denied
            else DecisionReason.DENIED_POLICY_CHANGED
        )
    over = expired_or_denied(ruled.terms, ruling.day)
    if over is not None and over.why is DecisionReason.DENIED_POLICY_EXPIRED:
        return over.why
    if ruling.purse.is_overspent(question.charges):
        return DecisionReason.DENIED_BUDGET
    if ruled.terms.key == question.terms:
        return None
    permit = _permit_again(question, ruling)
    here = (question.target.name, question.target.region)  # not the whole site: its price may have changed
    if permit is None or here not in {(hub.name, hub.region) for hub in permit.targets}:
        return DecisionReason.DENIED_POLICY_CHANGED
    question.record_terms(permit.terms)
    return None


def alternative_hubs(question: OpenQuestion, ruling: PermissionCache) -> tuple[HubSite, ...]:
    """Every other hub that this question may be sent to now, best first by price and region.

    Computed from a new permit alone: empty if the policy does not permit the question any more.
    """
    permit = _permit_again(question, ruling)
    return tuple(hub for hub in permit.targets if hub.name != question.target.name) if permit else ()


def _permit_again(question: OpenQuestion, ruling: PermissionCache) -> Permit | None:
    """A new permit for a stored question; None if it would send less than the fields already sealed."""
    permit = ruling.permit_resend(question.data_class)
    return permit if isinstance(permit, Permit) and permits_at_least(permit.egress, question.egress) else None
