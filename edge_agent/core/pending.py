"""Table of the open questions of one device: send queue, retry alarms, window and byte counts. Pure.

Rule: no decisions here, only bookkeeping; each invariant (window, bytes, alarms) is kept in one place. Times are
seconds on the core's clock.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf

from edge_agent.core.commands import Answer, Correction, OutboxState, RandomDraws, StoredQuestion
from edge_agent.core.limits import OutboxLimits
from edge_agent.core.records import AnswerSource
from policies.decisions.budget import AccountCharge, BudgetSpend
from policies.decisions.permit import Permit
from policies.decisions.routing import HubSite
from policies.model.reasons import DecisionReason
from policies.monitoring import backoff
from wire.protocol.messages import Prediction, Verdict

_GOLDEN_RATIO = 0.6180339887498949  # multiples of the golden ratio spread evenly over 0..1: one draw serves all retries
_CORE_ALARM = 0  # no question has this number: it marks an alarm of the core itself


class PendingQuestion:
    """One open question, from its acceptance to its outcome.

    `at`: when to resend (SENT) or the earliest time to send (SEALED); `inf` = none. `deadline`: until when the caller
    waits. `line`: the connection of its `target`; `former`: the target before, while it is sealed again for another
    hub. `parked`: its connection is down and no other may carry it. `charges`: refundable until it is sent for the
    first time. `early`: why the caller is answered locally as soon as the row is stored; None if the caller waits until
    `deadline`.
    """

    __slots__ = (
        "answered", "armed", "asked", "at", "attempts", "charges", "data_class", "deadline", "digest", "early",
        "egress", "expires", "former", "id", "jitter", "judged", "line", "local", "parked", "policy", "queued",
        "reseals", "sent_at", "seq", "size", "state", "target",
    )  # fmt: skip

    def __init__(self, seq: int, dice: RandomDraws, local: Prediction, permit: Permit, data_class: str) -> None:
        self.seq = seq
        self.id = dice.id
        self.local = local
        self.state = OutboxState.NEW
        self.answered = False
        self.policy, self.judged = permit.policy, permit.terms
        self.data_class = data_class
        self.egress = permit.egress
        self.target = permit.targets[0]
        self.former: HubSite | None = None
        self.line = ""
        self.parked = False
        self.sent_at = -inf
        self.charges: tuple[AccountCharge, ...] = permit.charges
        self.digest = b""
        self.size = 0
        self.deadline = inf
        self.expires = inf
        self.early: DecisionReason | None = None
        self.at = inf
        self.attempts = 0
        self.jitter = dice.jitter
        self.reseals = 0
        self.asked = False  # an Ask named it
        self.queued = False
        self.armed = inf

    @classmethod
    def from_stored(cls, row: StoredQuestion) -> "PendingQuestion":
        """Rebuild a question from its outbox row after a restart.

        SENT becomes SEALED: whether the frame arrived is known to the hub alone, which ignores a repeat.
        """
        permit = Permit(row.policy, (row.target,), row.egress, BudgetSpend(), terms=row.policy)
        self = cls(row.seq, RandomDraws(row.id, 0.0, row.jitter), row.local, permit, row.data_class)
        self.state = OutboxState.RECEIPTED if row.state is OutboxState.RECEIPTED else OutboxState.SEALED
        self.answered = row.answered
        self.digest, self.size = row.digest, row.size
        self.expires, self.at, self.attempts = row.expires, row.not_before, row.attempts
        return self

    def retry_pause_s(self, limits: OutboxLimits) -> float:
        """Seconds to wait before the next attempt: exponential backoff with jitter."""
        jitter = (self.jitter + self.attempts * _GOLDEN_RATIO) % 1.0
        return backoff.compute_delay(self.attempts, jitter, limits.resend_base_s, limits.resend_cap_s)

    def answer_locally(self, why: DecisionReason) -> Answer:
        """Mark it answered and return the answer with the device's own prediction."""
        self.answered = True
        return Answer(
            id=self.id, prediction=self.local, source=AnswerSource.LOCAL, why=why, policy=self.policy,
            data_class=self.data_class, seq=self.seq,
        )  # fmt: skip

    def answer_with_verdict(self, verdict: Verdict, *, rejects: bool = False) -> Answer | Correction:
        """The hub's verdict as the answer, or as the correction if the question was answered before.

        `rejects`: the policy rejects what is out of domain, so that a verdict which says so is a rejection.
        """
        v, policy, data_class = verdict, self.policy, self.data_class
        why = DecisionReason.OUT_OF_DOMAIN if rejects and v.prediction.in_domain is False else DecisionReason.VERDICT
        if self.answered:
            return Correction(
                id=self.id, prediction=v.prediction, policy=policy, data_class=data_class, seq=self.seq,
                queue_s=v.queue_s, compute_s=v.compute_s, why=why,
            )  # fmt: skip
        self.answered = True
        return Answer(
            id=self.id, prediction=v.prediction, source=AnswerSource.HUB, why=why, policy=policy,
            data_class=data_class, seq=self.seq, queue_s=v.queue_s, compute_s=v.compute_s,
        )  # fmt: skip

    def next_alarm(self) -> float:
        """The earliest time at which something is due for it: deadline, expiry or retry; inf if nothing is."""
        when = inf if self.answered else self.deadline
        if self.state is OutboxState.NEW:
            return when
        when = min(when, self.expires)
        return when if self.queued or self.state is OutboxState.RECEIPTED else min(when, self.at)


class PendingQuestions:
    """All open questions of one device by number, with the send queue of each connection and one heap of alarms.

    `bytes`: their total size. `sent` and `receipted`: how many are in these states. The heaps are cleaned lazily:
    entries that no longer match their question are skipped when they come up.
    """

    __slots__ = ("_heap", "_ready", "_rows", "_tick", "_wake", "bytes", "receipted", "sent")

    def __init__(self) -> None:
        self._rows: dict[int, PendingQuestion] = {}
        self._ready: dict[str, list[tuple[bool, int]]] = {}  # heaps by line: callers who wait first, then oldest first
        self._heap: list[tuple[float, int]] = []  # heap of alarms; stale entries are skipped
        self._tick = inf
        self._wake = inf
        self.bytes = 0
        self.sent = 0
        self.receipted = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[PendingQuestion]:
        return iter(self._rows.values())

    def get(self, seq: int) -> PendingQuestion | None:
        """The open question with this number; None if it has ended."""
        return self._rows.get(seq)

    def admit(self, question: PendingQuestion) -> None:
        """Add a question, count it and set its alarm."""
        self._rows[question.seq] = question
        self.bytes += question.size
        self.receipted += question.state is OutboxState.RECEIPTED
        self.arm_alarm(question)

    def remove(self, question: PendingQuestion) -> None:
        """Remove a question and take it out of the counts."""
        self.set_state(question, OutboxState.NEW)
        del self._rows[question.seq]
        self.bytes -= question.size

    def set_state(self, question: PendingQuestion, state: OutboxState) -> None:
        """Change the state of a question. The only place that does: it leaves the send queue, the counts follow."""
        self.sent += (state is OutboxState.SENT) - (question.state is OutboxState.SENT)
        self.receipted += (state is OutboxState.RECEIPTED) - (question.state is OutboxState.RECEIPTED)
        question.state = state
        question.queued = False

    def queue_ready(self, question: PendingQuestion) -> None:
        """Make a question ready to send. Those whose caller still waits go first, then the oldest."""
        self.set_state(question, OutboxState.SEALED)
        question.queued = True
        question.at = inf
        waits = not question.answered and question.deadline < inf
        question.parked = False
        heappush(self._ready.setdefault(question.line, []), (not waits, question.seq))

    def hold_until(self, question: PendingQuestion, until: float) -> None:
        """Keep a question SEALED and unsent until the time `until`."""
        self.set_state(question, OutboxState.SEALED)
        question.at = until
        self.arm_alarm(question)

    def next_ready(self, line: str = "") -> PendingQuestion | None:
        """Take the next ready question of this connection from its send queue; None if there is none."""
        ready = self._ready.get(line, [])
        while ready:
            question = self._rows.get(heappop(ready)[1])
            if question is not None and question.queued and question.line == line:
                question.queued = False
                return question
        return None

    def mark_asked(self, seqs: list[int]) -> None:
        """Note that an `StatusRequest` named these questions."""
        for seq in seqs:
            self._rows[seq].asked = True

    def waits_on(self, line: str) -> bool:
        """Whether a question was sent on this connection and no reply has come yet."""
        return self.sent > 0 and any(each.state is OutboxState.SENT and each.line == line for each in self)

    def unreceipted_on(self, line: str) -> list[PendingQuestion]:
        """Questions of this connection that were sent and not receipted, or held because it was down."""
        return [each for each in self if each.line == line and (each.state is OutboxState.SENT or each.parked)]

    # Alarms

    def arm_alarm(self, question: PendingQuestion) -> None:
        """Set the alarm of a question to its next due time, if that is earlier than the alarm it has."""
        when = question.next_alarm()
        if when < question.armed:
            question.armed = when
            heappush(self._heap, (when, question.seq))

    def arm_tick(self, when: float) -> None:
        """Set an alarm that belongs to no question: `on_wake` then checks hellos and asks."""
        if when < self._tick:
            self._tick = when
            heappush(self._heap, (when, _CORE_ALARM))

    def pop_due(self, now: float) -> Iterator[PendingQuestion]:
        """Pop every alarm that is due and yield its question; the caller must arm each of them again."""
        self._wake = inf
        while self._heap and self._heap[0][0] <= now:
            when, seq = heappop(self._heap)
            question = self._rows.get(seq)
            if seq == _CORE_ALARM:
                self._tick = inf if when == self._tick else self._tick
            elif question is not None and question.armed == when:
                question.armed = inf
                yield question

    def _is_stale(self, when: float, seq: int) -> bool:
        """Whether an alarm belongs to nothing any more: its question has ended, or was armed anew."""
        if seq == _CORE_ALARM:
            return when != self._tick
        question = self._rows.get(seq)
        return question is None or question.armed != when

    def next_wake(self) -> float | None:
        """The next alarm if it is earlier than the one returned last; None otherwise.

        Alarms of questions that have ended are dropped here: nobody has to wake for them.
        """
        while self._heap and self._is_stale(*self._heap[0]):
            heappop(self._heap)
        if self._heap and self._heap[0][0] < self._wake:
            self._wake = self._heap[0][0]
            return self._wake
        return None
