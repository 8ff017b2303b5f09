"""The open questions of one device and its connections to hubs: their states and every change of them. Pure.

Rule: only this file writes a field of an `OpenQuestion` or of a `HubConnection`; others call a method that is named
after the event. Rule: `TRANSITIONS` is the whole state machine of a question: a pair of state and event that is not in
it is an error. No decisions here: `decide` chooses the event. Times are seconds on the core's clock.

A connection ("line") is one link to one broker. The home connection, named "", leads to the broker whose identity
folder is the agent's own; additional hubs have connections of their own.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from heapq import heappop, heappush
from math import inf
from types import MappingProxyType

from edge_agent.question.commands import Answer, Correction, OutboxState, RandomDraws, StoredQuestion
from edge_agent.question.limits import OutboxLimits
from edge_agent.question.records import AnswerSource
from policies.decisions.budget import AccountCharge, BudgetSpend
from policies.decisions.escalation import LinkState
from policies.decisions.permit import Permit
from policies.decisions.routing import HubSite, HubView, rank_hubs
from policies.model.reasons import DecisionReason
from policies.monitoring import backoff
from wire.protocol.messages import Prediction, Verdict

HOME = ""
_LATENCY_WEIGHT = 0.2  # weight of the newest measurement in the mean
_FRESH_S = 60.0  # an older latency measurement no longer counts, so that the connection is tried again
_GOLDEN_RATIO = 0.6180339887498949  # multiples of the golden ratio spread evenly over 0..1: one draw serves all retries
_CORE_ALARM = 0  # no question has this number: it marks an alarm of the core itself


class QuestionEvent(StrEnum):
    """What happens to an open question."""

    STORED = "stored"
    STORE_FAILED = "store failed"
    RESEAL_FAILED = "reseal failed"
    SENT = "sent"
    RECEIPT = "receipt"
    UNKNOWN_TO_HUB = "unknown to hub"
    RETRY_DUE = "retry due"
    CONNECTION_CHANGED = "connection changed"
    NO_HUB_REACHABLE = "no hub reachable"
    DEFERRED = "refused for now"
    RESEAL_REQUIRED = "reseal required"
    REROUTED = "other hub chosen"
    ENDED = "outcome"


FIRST_STATE = OutboxState.NEW
# State -> event -> next state; None = the question is no longer open. `docs/architecture.md` shows it as a diagram.
TRANSITIONS: Mapping[OutboxState, Mapping[QuestionEvent, OutboxState | None]] = MappingProxyType(
    {
        OutboxState.NEW: {
            QuestionEvent.STORED: OutboxState.SEALED,
            QuestionEvent.RESEAL_FAILED: OutboxState.SEALED,
            QuestionEvent.STORE_FAILED: None,
            QuestionEvent.ENDED: None,
        },
        OutboxState.SEALED: {
            QuestionEvent.SENT: OutboxState.SENT,
            QuestionEvent.RECEIPT: OutboxState.RECEIPTED,
            QuestionEvent.RETRY_DUE: OutboxState.SEALED,
            QuestionEvent.CONNECTION_CHANGED: OutboxState.SEALED,
            QuestionEvent.NO_HUB_REACHABLE: OutboxState.SEALED,
            QuestionEvent.DEFERRED: OutboxState.SEALED,
            QuestionEvent.RESEAL_REQUIRED: OutboxState.NEW,
            QuestionEvent.REROUTED: OutboxState.NEW,
            QuestionEvent.ENDED: None,
        },
        OutboxState.SENT: {
            QuestionEvent.RECEIPT: OutboxState.RECEIPTED,
            QuestionEvent.UNKNOWN_TO_HUB: OutboxState.SEALED,
            QuestionEvent.RETRY_DUE: OutboxState.SEALED,
            QuestionEvent.CONNECTION_CHANGED: OutboxState.SEALED,
            QuestionEvent.DEFERRED: OutboxState.SEALED,
            QuestionEvent.RESEAL_REQUIRED: OutboxState.NEW,
            QuestionEvent.ENDED: None,
        },
        OutboxState.RECEIPTED: {
            QuestionEvent.UNKNOWN_TO_HUB: OutboxState.SEALED,
            QuestionEvent.DEFERRED: OutboxState.SEALED,
            QuestionEvent.RESEAL_REQUIRED: OutboxState.NEW,
            QuestionEvent.ENDED: None,
        },
    }
)


class TransitionError(Exception):
    """An event that the state of its question does not allow: a defect of the caller."""


class OpenQuestion:
    """One open question, from its acceptance to its outcome.

    `at`: when to resend (SENT) or the earliest time to send (SEALED); `inf` = none. `deadline`: until when the caller
    waits. `line`: the connection of its `target`; `former`: the target before, while it is sealed again for another
    hub. `parked`: its connection is down and no other may carry it. `terms`: key of the terms that permitted it last.
    `charges`: refundable until it is sent for the first time. `early`: why the caller is answered locally as soon as
    the row is stored; None if the caller waits until `deadline`.
    """

    __slots__ = (
        "answered",
        "armed",
        "asked",
        "at",
        "attempts",
        "charges",
        "data_class",
        "deadline",
        "digest",
        "early",
        "egress",
        "expires",
        "former",
        "id",
        "jitter",
        "line",
        "local",
        "parked",
        "policy",
        "queued",
        "reseals",
        "sent_at",
        "seq",
        "size",
        "state",
        "target",
        "terms",
    )

    def __init__(
        self,
        seq: int,
        draws: RandomDraws,
        local: Prediction,
        permit: Permit,
        data_class: str,
        *,
        size: int,
        expires: float,
    ) -> None:
        self.seq = seq
        self.id = draws.id
        self.local = local
        self.state = OutboxState.NEW
        self.answered = False
        self.policy, self.terms = permit.policy, permit.terms
        self.data_class = data_class
        self.egress = permit.egress
        self.target = permit.targets[0]
        self.former: HubSite | None = None
        self.line = HOME
        self.parked = False
        self.sent_at = -inf
        self.charges: tuple[AccountCharge, ...] = permit.charges
        self.digest = b""
        self.size = size
        self.deadline = inf
        self.expires = expires
        self.early: DecisionReason | None = None
        self.at = inf
        self.attempts = 0
        self.jitter = draws.jitter
        self.reseals = 0
        self.asked = False  # a StatusRequest named it
        self.queued = False
        self.armed = inf

    @classmethod
    def from_stored(cls, row: StoredQuestion) -> "OpenQuestion":
        """Rebuild a question from its outbox row after a restart.

        SENT becomes SEALED: whether the frame arrived is known to the hub alone, which ignores a repeat.
        """
        permit = Permit(row.policy, (row.target,), row.egress, BudgetSpend(), terms=row.policy)
        draws = RandomDraws(row.id, 0.0, row.jitter)
        self = cls(row.seq, draws, row.local, permit, row.data_class, size=row.size, expires=row.expires)
        self.state = OutboxState.RECEIPTED if row.state is OutboxState.RECEIPTED else OutboxState.SEALED
        self.answered = row.answered
        self.digest = row.digest
        self.at, self.attempts = row.not_before, row.attempts
        return self

    def accepts(self, event: QuestionEvent) -> bool:
        """Whether its state allows this event."""
        return event in TRANSITIONS[self.state]

    def retry_pause_s(self, limits: OutboxLimits) -> float:
        """Seconds to wait before the next attempt: exponential backoff with jitter."""
        jitter = (self.jitter + self.attempts * _GOLDEN_RATIO) % 1.0
        return backoff.compute_delay(self.attempts, jitter, limits.resend_base_s, limits.resend_cap_s)

    def next_alarm(self) -> float:
        """The earliest time at which something is due for it: deadline, expiry or retry; inf if nothing is."""
        when = inf if self.answered else self.deadline
        if self.state is OutboxState.NEW:
            return when
        when = min(when, self.expires)
        return when if self.queued or self.state is OutboxState.RECEIPTED else min(when, self.at)

    # What its caller gets

    def wait_until(self, deadline: float) -> None:
        """The caller waits for the verdict until `deadline`."""
        self.deadline = deadline

    def answer_once_stored(self, why: DecisionReason) -> None:
        """The caller does not wait: the local answer follows as soon as the question is stored."""
        self.early = why

    def record_terms(self, key: str) -> None:
        """The terms with this key permit it, too."""
        self.terms = key

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


class HubConnection:
    """State of one connection.

    It is up or down, paused or not, and has a smoothed latency and the times of its next `HelloNote` and
    `StatusRequest`.

    `hello_at`: when to send the next `HelloNote`, inf once the hub has answered one. `ask_at`: earliest time of the
    next `StatusRequest`. `quiet_until`: end of the pause that the hub asked for. `latency_s`: exponentially weighted
    mean from sending to receipt.
    """

    __slots__ = ("ask_at", "hello_at", "latency_s", "measured_at", "name", "quiet_until", "up")

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = False
        self.quiet_until = 0.0
        self.hello_at = inf
        self.ask_at = 0.0
        self.latency_s = 0.0
        self.measured_at = -inf

    # Events

    def set_up(self, now: float, *, up: bool) -> None:
        """It went up or down; a connection that is up starts with a `HelloNote`."""
        self.up = up
        if up:
            self.hello_at = self.ask_at = now

    def record_hello(self, next_at: float) -> None:
        """A `HelloNote` was sent; the next one follows at `next_at` if the hub answers none."""
        self.hello_at = next_at

    def record_welcome(self) -> None:
        """The hub answered a `HelloNote`."""
        self.hello_at = inf

    def pause_until(self, until: float) -> None:
        """The hub asked for a pause. It never shortens one."""
        self.quiet_until = max(self.quiet_until, until)

    def schedule_ask(self, at: float) -> None:
        """Send no `StatusRequest` before the time `at`."""
        self.ask_at = at

    def reset_waits(self) -> None:
        """Forget its pause, its next `StatusRequest` and its measurement; it stays up or down."""
        self.quiet_until = self.ask_at = self.latency_s = 0.0
        self.measured_at = -inf

    # What follows

    def is_open(self, now: float) -> bool:
        """Whether a question may be sent on it: it is up and the hub asked for no pause."""
        return self.up and now >= self.quiet_until

    @property
    def unavailable_reason(self) -> DecisionReason:
        """Reason recorded with an answer that does not wait for this connection."""
        return DecisionReason.HUB_QUIET if self.up else DecisionReason.LINK_DOWN

    def is_idle(self, now: float, *, measured: bool) -> bool:
        """Whether nothing is awaited on it: no hello, no ask, no end of a pause.

        `measured`: whether its latency is used for routing; then a fresh measurement counts as awaited too.
        """
        if self.up and (self.hello_at < inf or self.ask_at > now):
            return False
        return self.quiet_until <= now and not (measured and now - self.measured_at < _FRESH_S)

    def record_latency(self, latency_s: float, now: float) -> None:
        """Update the smoothed latency with one measurement, in seconds.

        A measurement after a gap of 60 s replaces the mean instead of being averaged into it.
        """
        fresh = now - self.measured_at < _FRESH_S
        self.latency_s = self.latency_s * (1 - _LATENCY_WEIGHT) + latency_s * _LATENCY_WEIGHT if fresh else latency_s
        self.measured_at = now

    def routing_view(self, now: float) -> HubView:
        """What the routing policy sees of it; latency None if it was not measured within the last 60 s."""
        return HubView(self.is_open(now), self.latency_s if now - self.measured_at < _FRESH_S else None)


class HubConnections:
    """All connections of a device, the home connection first.

    `of_hub`: hub name to connection name; hubs that are not named use the home connection.
    """

    __slots__ = ("_by_name", "_of_hub", "_only")

    def __init__(self, of_hub: Mapping[str, str]) -> None:
        self._of_hub = of_hub
        self._by_name = {name: HubConnection(name) for name in (HOME, *of_hub.values())}
        self._only = self._by_name[HOME] if len(self._by_name) == 1 else None  # most devices have one

    def __iter__(self) -> Iterator[HubConnection]:
        return iter(self._by_name.values())

    def get(self, name: str) -> HubConnection:
        """The connection with this name. KeyError if there is none."""
        return self._by_name[name]

    def for_hub(self, hub: str) -> HubConnection:
        """The connection on which this hub is reached."""
        return self._by_name[self._of_hub.get(hub, HOME)]

    @property
    def link(self) -> LinkState:
        """All connections seen as one link: up if any is up, paused as long as all that are up are paused."""
        if self._only is not None:
            return LinkState(self._only.up, self._only.quiet_until)
        up = [each.quiet_until for each in self if each.up]
        return LinkState(bool(up), min(up or (each.quiet_until for each in self)))

    def stuck_connections(self, now: float, patience_s: float) -> list[HubConnection]:
        """Connections that will send nothing for longer than `patience_s` seconds, if another one would.

        Empty for a device with one connection, and if all are stuck: then there is nowhere to move questions to.
        """
        if self._only is not None:
            return []
        stuck = [each for each in self if not each.up or each.quiet_until > now + patience_s]
        return stuck if len(stuck) < len(self._by_name) else []

    def is_idle(self, now: float) -> bool:
        """Whether nothing is awaited on any connection and no latency measurement still counts."""
        return all(each.is_idle(now, measured=len(self._by_name) > 1) for each in self)

    def reset_waits(self) -> None:
        """Forget pauses, asks and measurements; connections that are up stay up."""
        for connection in self:
            connection.reset_waits()

    def first_reachable(self, targets: Iterable[HubSite], patience_s: float, now: float) -> HubSite | None:
        """The best of these hubs that can be reached now; None if none can."""
        ranked = self.rank_targets(targets, patience_s, now)
        return next((hub for hub in ranked if self.for_hub(hub.name).is_open(now)), None)

    def rank_targets(self, targets: Iterable[HubSite], patience_s: float, now: float) -> tuple[HubSite, ...]:
        """The same hubs, the one to ask first in front; `patience_s`: how long the caller waits, in seconds."""
        hubs = tuple(targets)
        if len(self._by_name) == 1:
            return hubs
        return rank_hubs(hubs, {hub.name: self.for_hub(hub.name).routing_view(now) for hub in hubs}, patience_s)


class OpenQuestions:
    """All open questions of one device by number, with the send queue of each connection and one heap of alarms.

    Every method that is named after an event of `TRANSITIONS` raises `TransitionError` where the state of the question
    does not allow it. `bytes`: their total size. `sent` and `receipted`: how many are in these states. The heaps are
    cleaned lazily: entries that no longer match their question are skipped when they come up.
    """

    __slots__ = ("_connections", "_heap", "_ready", "_rows", "_tick", "_wake", "bytes", "receipted", "sent")

    def __init__(self, connections: HubConnections) -> None:
        self._connections = connections
        self._rows: dict[int, OpenQuestion] = {}
        self._ready: dict[str, list[tuple[bool, int]]] = {}  # heaps by line: callers who wait first, then oldest first
        self._heap: list[tuple[float, int]] = []  # heap of alarms; stale entries are skipped
        self._tick = inf
        self._wake = inf
        self.bytes = 0
        self.sent = 0
        self.receipted = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[OpenQuestion]:
        return iter(self._rows.values())

    def get(self, seq: int) -> OpenQuestion | None:
        """The open question with this number; None if it has ended."""
        return self._rows.get(seq)

    def admit(self, question: OpenQuestion) -> None:
        """Add a question, on the connection of its target; count it and set its alarm."""
        self._rows[question.seq] = question
        question.line = self._connections.for_hub(question.target.name).name
        self.bytes += question.size
        self.receipted += question.state is OutboxState.RECEIPTED
        self.arm_alarm(question)

    # Events of one question

    def record_stored(self, question: OpenQuestion, digest: bytes) -> None:
        """It is on disk, sealed; `digest`: SHA-256 of its frame."""
        self._queue(question, QuestionEvent.STORED)
        question.digest, question.former = digest, None

    def record_reseal_failed(self, question: OpenQuestion) -> None:
        """It could not be sealed again: the frame on disk, and the hub that this is for, stay the ones they were."""
        self._move(question, QuestionEvent.RESEAL_FAILED)
        if question.former is None:
            question.reseals -= 1
            return
        self._assign(question, question.former)
        question.former = None

    def record_sent(self, question: OpenQuestion, now: float, limits: OutboxLimits) -> None:
        """It is transmitted now; the next attempt follows if no receipt comes."""
        self._move(question, QuestionEvent.SENT)
        question.sent_at, question.charges = now, ()
        question.at = now + limits.resend_base_s + question.retry_pause_s(limits)
        question.attempts += 1
        self.arm_alarm(question)

    def record_receipt(self, question: OpenQuestion, now: float) -> None:
        """The hub has stored it and owes its outcome."""
        self._measure_reply(question, now)
        self._move(question, QuestionEvent.RECEIPT)

    def record_unknown(self, question: OpenQuestion) -> None:
        """The hub does not know it: the same frame is sent again."""
        self._queue(question, QuestionEvent.UNKNOWN_TO_HUB)

    def record_retry_due(self, question: OpenQuestion, now: float) -> None:
        """Its pause is over, or no receipt came in time."""
        self._measure_timeout(question, now)
        self._queue(question, QuestionEvent.RETRY_DUE)

    def record_connection_change(self, question: OpenQuestion) -> None:
        """Its connection went up or down: it is sent again, there or elsewhere."""
        self._queue(question, QuestionEvent.CONNECTION_CHANGED)

    def park_until(self, question: OpenQuestion, until: float) -> None:
        """No hub that may have it can be reached: it waits until its connection changes, or until the time `until`."""
        self._hold(question, QuestionEvent.NO_HUB_REACHABLE, until)
        question.parked = True

    def defer_until(self, question: OpenQuestion, until: float) -> None:
        """It stays unsent until the time `until`."""
        self._hold(question, QuestionEvent.DEFERRED, until)

    def start_reseal(self, question: OpenQuestion) -> None:
        """Its plaintext is being sealed again for the same hub."""
        self._move(question, QuestionEvent.RESEAL_REQUIRED)
        question.reseals += 1

    def start_reroute(self, question: OpenQuestion, target: HubSite) -> None:
        """Its plaintext is being sealed again for another hub."""
        self._move(question, QuestionEvent.REROUTED)
        question.former = question.target
        self._assign(question, target)

    def drop_unstored(self, question: OpenQuestion) -> None:
        """The database took nothing of a new question."""
        self._end(question, QuestionEvent.STORE_FAILED)

    def record_verdict(self, question: OpenQuestion, now: float) -> None:
        """The hub has answered it; `end` follows."""
        self._measure_reply(question, now)

    def end(self, question: OpenQuestion) -> None:
        """It has its outcome."""
        self._end(question, QuestionEvent.ENDED)

    # What the events have in common

    def _move(self, question: OpenQuestion, event: QuestionEvent) -> None:
        """Change the state of a question. The only place that does: it leaves the send queue, the counts follow."""
        before = question.state
        events = TRANSITIONS[before]
        if event not in events:
            raise TransitionError(f"{event} in state {before.name}")
        after = events[event]
        self.sent += (after is OutboxState.SENT) - (before is OutboxState.SENT)
        self.receipted += (after is OutboxState.RECEIPTED) - (before is OutboxState.RECEIPTED)
        question.queued = question.parked = False
        if after is not None:
            question.state = after

    def _queue(self, question: OpenQuestion, event: QuestionEvent) -> None:
        """Make a question ready to send. Those whose caller still waits go first, then the oldest."""
        self._move(question, event)
        question.queued = True
        question.at = inf
        waits = not question.answered and question.deadline < inf
        heappush(self._ready.setdefault(question.line, []), (not waits, question.seq))
        self.arm_alarm(question)

    def _hold(self, question: OpenQuestion, event: QuestionEvent, until: float) -> None:
        """Keep a question SEALED and unsent until the time `until`."""
        self._move(question, event)
        question.at = until
        self.arm_alarm(question)

    def _end(self, question: OpenQuestion, event: QuestionEvent) -> None:
        self._move(question, event)
        del self._rows[question.seq]
        self.bytes -= question.size

    def _assign(self, question: OpenQuestion, target: HubSite) -> None:
        question.target, question.line = target, self._connections.for_hub(target.name).name

    def _measure_reply(self, question: OpenQuestion, now: float) -> None:
        """Record the latency of a question that the hub just replied to.

        Counts only for a question sent once: of several attempts it is unknown which was answered (Karn's rule).
        """
        if question.state is OutboxState.SENT and question.attempts == 1:
            self._connections.get(question.line).record_latency(now - question.sent_at, now)

    def _measure_timeout(self, question: OpenQuestion, now: float) -> None:
        """Record that no reply came in time: the latency is at least the time since sending.

        Without this, a connection slower than the retry interval would never get a measurement.
        """
        connection = self._connections.get(question.line)
        if question.state is OutboxState.SENT and connection.up:
            connection.record_latency(now - question.sent_at, now)

    # The send queue

    def next_ready(self, line: str = "") -> OpenQuestion | None:
        """Take the next ready question of this connection from its send queue; None if there is none."""
        ready = self._ready.get(line, [])
        while ready:
            question = self._rows.get(heappop(ready)[1])
            if question is not None and question.queued and question.line == line:
                question.queued = False
                return question
        return None

    def record_asked(self, seqs: list[int]) -> None:
        """A `StatusRequest` named these questions."""
        for seq in seqs:
            self._rows[seq].asked = True

    def waits_on(self, line: str) -> bool:
        """Whether a question was sent on this connection and no reply has come yet."""
        return self.sent > 0 and any(each.state is OutboxState.SENT and each.line == line for each in self)

    def unreceipted_on(self, line: str) -> list[OpenQuestion]:
        """Questions of this connection that were sent and not receipted, or held because it was down."""
        return [each for each in self if each.line == line and (each.state is OutboxState.SENT or each.parked)]

    # Alarms

    def arm_alarm(self, question: OpenQuestion) -> None:
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

    def pop_due(self, now: float) -> Iterator[OpenQuestion]:
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
