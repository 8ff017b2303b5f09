"""The half of the core that sends: what goes out on which line and when, judged again each time; and how questions end.

Rules 1 to 3 of `core` hold here too. Pure.
"""

from edge_agent.again import denied_now, others_now
from edge_agent.commands import Command, Finish, Mark, Reseal, Setup, State, Transmit, WakeAt
from edge_agent.lines import Lines
from edge_agent.owing import asks, hellos, put_off
from edge_agent.questions import Question, Questions
from edge_agent.records import Outcome
from edge_agent.ruling import Ruling
from policies.policy import Policy
from policies.reasons import Denied, Why
from wire.messages import Reason, Seqs


class Sending:
    """What both halves share: the open questions, the lines, and what the policy says now."""

    __slots__ = ("_lines", "_open", "_setup", "ruling")

    def __init__(self, setup: Setup, policy: Policy | None) -> None:
        self.ruling = Ruling(policy, setup)
        self._setup = setup
        self._lines = Lines(setup.lines)
        self._open = Questions()

    def _due(self, question: Question, now: float) -> list[Command]:
        if now >= question.expires and question.state is not State.NEW:
            return self._finish(question, Outcome.EXPIRED, Why.EXPIRED)
        commands: list[Command] = []
        if now >= question.deadline and not question.answered:
            commands.append(question.say_local(Why.BUDGET_ELAPSED))
        if now >= question.at and question.state in (State.SEALED, State.SENT):
            self._lines.missed(question, now)
            self._open.queue(question)
        self._open.arm(question)
        return commands

    def _flow(self, now: float) -> list[Command]:
        """Send what is ready while the window, its line and its hub's wish for silence allow it."""
        if not self.ruling.ready:
            return []
        commands = self._move(now)
        for line in self._lines:
            if line.up and now < line.quiet_until:
                self._open.arm_tick(line.quiet_until)
            while line.open(now) and self._open.sent < self._setup.limits.window:
                question = self._open.next_ready(line.name)
                if question is None:
                    break
                commands += self._send(question, now)
        return commands

    def _move(self, now: float) -> list[Command]:
        """What waits for a line that is stuck goes to another hub that may have it: sealed anew, under the same id."""
        commands: list[Command] = []
        for line in self._lines.stuck(now, self._setup.limits.resend_base_s):
            for _ in range(self._setup.limits.window):
                question = self._open.next_ready(line.name)
                if question is None:
                    break
                commands += self._elsewhere(question, now)
        return commands

    def _elsewhere(self, question: Question, now: float) -> list[Command]:
        ruled = self.ruling.of(question.data_class)
        patience_s = 0.0 if isinstance(ruled, Denied) else ruled.terms.budget_s
        target = self._lines.first_open(others_now(question, self.ruling), patience_s, now)
        if target is None:
            self._open.hold(question, now + self._setup.limits.resend_cap_s)
            question.parked = True
            return []
        self._open.move(question, State.NEW)
        question.former = question.target
        self._lines.place(question, target)
        return [Reseal(question.seq, target)]

    def _send(self, question: Question, now: float) -> list[Command]:
        if now >= question.expires:
            return self._finish(question, Outcome.EXPIRED, Why.EXPIRED)
        denied = denied_now(question, self.ruling)
        if denied is not None:
            return self._finish(question, Outcome.DENIED, denied)
        self._open.move(question, State.SENT)
        question.sent_at, question.charges = now, ()
        question.at = now + self._setup.limits.resend_base_s + question.pause_s(self._setup.limits)
        question.attempts += 1
        self._open.arm(question)
        return [Transmit(question.seq, question.line)]

    def _say(self, now: float) -> list[Command]:
        """Hellos and Asks that are due."""
        every_s = self._setup.limits.ask_interval_s
        told = hellos(self._lines, self._open, now, every_s)
        return [*told, *asks(self._lines, self._open, now, every_s)]

    def _owed(self, seqs: Seqs, now: float, name: str) -> list[Command]:
        marks: list[Command] = []
        owed_before = self._open.receipted
        for seq in seqs:
            question = self._open.get(seq)
            if question is not None and question.line == name and question.state in (State.SEALED, State.SENT):
                self._lines.measure(question, now)
                self._open.move(question, State.RECEIPTED)
                marks.append(Mark(seq, State.RECEIPTED, 0.0, question.attempts))
        if marks and not owed_before:  # else steady receipts would put the next Ask off for ever
            line = self._lines.get(name)
            put_off(line, self._open, max(line.ask_at, now + self._setup.limits.ask_interval_s))
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
        unsent = question.charges if outcome is Outcome.DENIED else ()
        self.ruling.purse.undo(unsent)
        finish = Finish(question.seq, question.id, outcome, reason, unsent)
        if question.answered:
            return [finish]
        return [question.say_local(why or Why(reason)), finish]

    def _with_wake(self, commands: list[Command]) -> list[Command]:
        when = self._open.next_wake()
        return commands if when is None else [*commands, WakeAt(when)]
