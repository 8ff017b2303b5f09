"""Waiting requests of one language model, in fair order and counted in tokens.

Rule: an engine is given no more at once than it takes (`LlmSettings.max_running`, `max_running_tokens`); the rest waits
here, where tenants take turns by the tokens they ask for, and not in the engine's own queue, which knows no tenants.
Rule: who has more than its share of what is computed takes no place that another needed a moment ago
(`policies.serving.running_shares`); it is passed over, and so is who can be computed nowhere now. While room is saved
for one whose turn it is, only tenants of which nothing is computed begin.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence

from cloud_hub.core.admission import AdmissionControl
from cloud_hub.llm.errors import LlmError
from cloud_hub.llm.replica import Replica
from cloud_hub.llm.settings import LlmSettings
from cloud_hub.system.settings import HubSettings
from policies.serving.admission import RefuseQuestion
from policies.serving.fair_queue import NORMAL, FairQueue, FlowKey
from policies.serving.running_shares import RunningShares
from wire.protocol.messages import RefusalReason

TOKENS_PER_WEIGHT = 1000.0
_WINDOW_S = 1.0
_SMOOTHING = 0.3
SAVED_AFTER = 1 / 6  # of `max_wait_s`: then room is saved for a request of more than its tenant's share, too
MOST_PLACED = 0.75  # of an engine's tokens that one request counts for, so that others can run beside it
_MESSAGES = {
    RefusalReason.RATE: "this tenant asks for more tokens than its share, ask again later",
    RefusalReason.BUSY: "the model is busy, ask again",
    RefusalReason.DRAINING: "the hub is stopping, ask again",
}


class QueueTicket:
    """A request in the queue: `tokens` it asks for, prompt and answer; `regions` where it may be computed, None = all.

    `placed`: tokens that it counts for where it is computed; `since`: when it came; `prefix`: hashes of its prompt's
    blocks; `replica`: the one that has been given it.
    """

    def __init__(self, tenant: str, flow: str, tokens: int, regions: frozenset[str] | None) -> None:
        self.tenant = tenant
        self.flow = flow
        self.tokens = tokens
        self.placed = tokens
        self.since = 0.0
        self.regions = regions
        self.prefix: Sequence[bytes] = ()
        self.replica: Replica | None = None
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class ThroughputMeter:
    """Measures the tokens that are finished each second, only while requests wait: else demand would be measured."""

    def __init__(self) -> None:
        self.per_s = 0.0
        self._began = 0.0
        self._tokens = 0

    def on_finished(self, tokens: int, now: float, *, saturated: bool) -> None:
        """Count a request that is finished. `saturated`: others wait for its place. `now` in seconds."""
        if not saturated:
            self._began = 0.0
            return
        if not self._began:
            self._began, self._tokens = now, 0
            return
        self._tokens += tokens
        elapsed = now - self._began
        if elapsed >= _WINDOW_S:
            rate = self._tokens / elapsed
            self.per_s = rate if not self.per_s else self.per_s + _SMOOTHING * (rate - self.per_s)
            self._began, self._tokens = now, 0


class TokenQueue:
    """Queue of one model. `find_replica`: the best one that takes a ticket now; `ready`: how many are ready.

    `is_served`: whether there is one that could take it, if it had room.

    Is the `OpenSamples` and the `OpenQuestions` of its own `AdmissionControl`, in tokens.
    """

    def __init__(
        self,
        settings: LlmSettings,
        find_replica: Callable[[QueueTicket], Replica | None],
        ready: Callable[[], int],
        now: Callable[[], float] = time.monotonic,
        is_served: Callable[[QueueTicket], bool] = lambda _ticket: True,
    ) -> None:
        self._settings = settings
        self._is_served = is_served
        self._requests, self._tokens = RunningShares(), RunningShares()
        self._saves_room = False  # for one whose turn it is
        self._find_replica = find_replica
        self._ready = ready
        self._now = now
        self._queue: FairQueue[QueueTicket] = FairQueue()
        self._waiting: Counter[str] = Counter()  # tokens, by tenant
        self._asking = 0  # tokens of the request that is being admitted
        self._meter = ThroughputMeter()
        limits = HubSettings(
            max_queued=settings.max_queued_tokens,
            max_wait_s=settings.max_wait_s,
            tenant_rate_per_s=settings.tenant_tokens_per_s,
            tenant_burst=settings.tenant_burst_tokens,
            held_back=0.0,  # all requests are of one band
        )
        self.admission = AdmissionControl(limits, _NoQuestions(), self)

    # -- what AdmissionControl asks

    @property
    def web_open(self) -> int:
        """Tokens that wait."""
        return self._waiting.total()

    @property
    def tenants(self) -> int:
        """Tenants with requests that wait."""
        return len(self._waiting)

    @property
    def served_per_s(self) -> float:
        """Tokens that the replicas finish each second: as measured under load, else as configured."""
        return self._meter.per_s or self._settings.tokens_per_s * max(1, self._ready())

    @property
    def pressed(self) -> int:
        """Whether requests wait."""
        return int(bool(self._waiting))

    def count_for_tenant(self, tenant: str) -> int:
        """Tokens of a tenant that wait."""
        return self._waiting[tenant]

    def count_ahead(self, _model: str, _band: int, tenant: str) -> float:
        """Tokens served before the request that asks: its tenant's own, of each other as many as with it at most."""
        own = self._waiting[tenant]
        most = own + self._asking
        return own + sum(min(each, most) for name, each in self._waiting.items() if name != tenant)

    # -- what the model asks

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return len(self._queue)

    def divide_rates(self, hubs: int) -> None:
        """Let each tenant have its rate at so many hubs together: here it has its share of it."""
        self.admission.divide_rates(hubs, self._now())

    @contextlib.asynccontextmanager
    async def turn(self, ticket: QueueTicket) -> AsyncIterator[None]:
        """Wait for the ticket's turn, and hold its place. LlmError(429 or 503) if it is refused."""
        ticket.placed = min(ticket.tokens, max(1, int(MOST_PLACED * self._settings.max_running_tokens)))
        self._admit(ticket)
        ticket.since = now = self._now()
        self._requests.on_waiting(ticket.tenant, 1, now)
        self._tokens.on_waiting(ticket.tenant, ticket.placed, now)
        self._queue.put(FlowKey(NORMAL, ticket.tenant, ticket.flow), ticket.tokens / TOKENS_PER_WEIGHT, ticket)
        self._waiting[ticket.tenant] += ticket.tokens
        self.dispatch()
        try:
            await self._wait_turn(ticket)
            yield
        finally:
            self._end(ticket)

    def dispatch(self) -> None:
        """Give their turn to as many waiting requests as the replicas take, in fair order."""
        self._saves_room = False
        while self._queue.has_next:
            ticket = self._queue.peek()
            if ticket.turn.done():  # its caller has gone
                self._queue.drop_next()
            elif self._may_begin(ticket) and self._assign(ticket):
                self._queue.take_next()
                self._leave(ticket)
                ticket.turn.set_result(None)
            else:
                self._saves_room |= self._is_owed(ticket)
                self._queue.pass_over()
        self._queue.recall()

    def _is_owed(self, ticket: QueueTicket) -> bool:
        """Whether room is saved for a ticket whose turn it is: one within its share, or one that waited for a while."""
        requests, tokens = self._count_places()
        within = self._requests.is_within(ticket.tenant, 1, requests)
        within = within and self._tokens.is_within(ticket.tenant, ticket.placed, tokens)
        return (within or self._has_waited(ticket)) and self._is_served(ticket)

    def _has_waited(self, ticket: QueueTicket) -> bool:
        return self._now() - ticket.since > SAVED_AFTER * self._settings.max_wait_s

    def _count_places(self) -> tuple[int, int]:
        """Return how many requests and tokens the replicas that are ready take at once."""
        ready = max(1, self._ready())
        return ready * self._settings.max_running, ready * self._settings.max_running_tokens

    def _may_begin(self, ticket: QueueTicket) -> bool:
        """Whether its tenant's share, or what others leave, has places for a ticket."""
        (requests, tokens), now = self._count_places(), self._now()
        if self._saves_room and self._requests.count_running(ticket.tenant):
            covered = self._requests.is_covered(ticket.tenant, 1, requests, now)
            return covered and self._tokens.is_covered(ticket.tenant, ticket.placed, tokens, now)
        kept = 1.0 - MOST_PLACED if self._has_waited(ticket) else 1.0
        began = self._requests.may_begin(ticket.tenant, 1, requests, now, kept)
        return began and self._tokens.may_begin(ticket.tenant, ticket.placed, tokens, now, kept)

    def _assign(self, ticket: QueueTicket) -> bool:
        """Give a ticket to a replica, if one takes it."""
        ticket.replica = self._find_replica(ticket)
        if ticket.replica is None:
            return False
        ticket.replica.occupy(ticket.placed)
        now = self._now()
        self._requests.on_begun(ticket.tenant, 1, now)
        self._tokens.on_begun(ticket.tenant, ticket.placed, now)
        return True

    def _admit(self, ticket: QueueTicket) -> None:
        """LlmError if the request is refused. One that is computed at once is judged by its tenant's rate alone."""
        self._asking = ticket.tokens
        at_once = self._may_begin(ticket) and self._find_replica(ticket) is not None
        now = self._now()
        if at_once:
            refused = self.admission.admit_at_once(ticket.tenant, ticket.tokens, now)
        else:
            place = self._settings.name, NORMAL
            refused = self.admission.admit_web(ticket.tenant, place, ticket.tokens, float("inf"), now)
        if refused is not None:
            raise describe_refusal(refused)

    async def _wait_turn(self, ticket: QueueTicket) -> None:
        try:
            async with asyncio.timeout(self._settings.max_wait_s):
                await ticket.turn
        except TimeoutError:
            raise LlmError(503, _MESSAGES[RefusalReason.BUSY], code="busy", retry_after_s=5.0) from None

    def _leave(self, ticket: QueueTicket) -> None:
        self._waiting[ticket.tenant] -= ticket.tokens
        if not self._waiting[ticket.tenant]:
            del self._waiting[ticket.tenant]
        self._requests.on_left(ticket.tenant, 1)
        self._tokens.on_left(ticket.tenant, ticket.placed)

    def _end(self, ticket: QueueTicket) -> None:
        if ticket.replica is not None:
            ticket.replica.release(ticket.placed)
            self._requests.on_ended(ticket.tenant, 1)
            self._tokens.on_ended(ticket.tenant, ticket.placed)
            self._meter.on_finished(ticket.tokens, self._now(), saturated=bool(self._waiting))
        else:
            ticket.turn.cancel()
            self._leave(ticket)
        self.dispatch()


class _NoQuestions:
    """The devices' questions of a queue that has none."""

    tenants = 0

    def __len__(self) -> int:
        return 0

    def count_for_device(self, _device: str) -> int:
        return 0

    def count_for_tenant(self, _tenant: str) -> int:
        return 0


def describe_refusal(refused: RefuseQuestion) -> LlmError:
    """Return a refusal in the form of OpenAI's interface: 429 over the tenant's share, else 503."""
    status = 429 if refused.reason is RefusalReason.RATE else 503
    code = "rate_limit_exceeded" if status == 429 else refused.reason.value
    return LlmError(status, _MESSAGES[refused.reason], code=code, retry_after_s=max(1.0, refused.retry_after_s))
