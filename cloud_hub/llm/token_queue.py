"""Waiting requests of one language model, in fair order and counted in tokens.

Rule: an engine is given no more at once than it takes (`LlmSettings.max_running`, `max_running_tokens`); the rest waits
here, where tenants take turns by the tokens they ask for, and not in the engine's own queue, which knows no tenants.
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
from wire.protocol.messages import RefusalReason

TOKENS_PER_WEIGHT = 1000.0
_WINDOW_S = 1.0
_SMOOTHING = 0.3
_MESSAGES = {
    RefusalReason.RATE: "this tenant asks for more tokens than its share, ask again later",
    RefusalReason.BUSY: "the model is busy, ask again",
    RefusalReason.DRAINING: "the hub is stopping, ask again",
}


class QueueTicket:
    """A request in the queue: `tokens` it asks for, prompt and answer; `regions` where it may be computed, None = all.

    `prefix`: hashes of its prompt's blocks; `replica`: the one that has been given it.
    """

    def __init__(self, tenant: str, flow: str, tokens: int, regions: frozenset[str] | None) -> None:
        self.tenant = tenant
        self.flow = flow
        self.tokens = tokens
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

    Is the `OpenSamples` and the `OpenQuestions` of its own `AdmissionControl`, in tokens.
    """

    def __init__(
        self,
        settings: LlmSettings,
        find_replica: Callable[[QueueTicket], Replica | None],
        ready: Callable[[], int],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
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
        self._admit(ticket)
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
        while len(self._queue):
            ticket = self._queue.peek()
            if ticket.turn.done():  # its caller has gone
                self._queue.drop_next()
            elif self._assign(ticket):
                self._queue.take_next()
                self._leave(ticket)
                ticket.turn.set_result(None)
            else:
                return

    def _assign(self, ticket: QueueTicket) -> bool:
        """Give a ticket to a replica, if one takes it."""
        ticket.replica = self._find_replica(ticket)
        if ticket.replica is not None:
            ticket.replica.occupy(ticket.tokens)
        return ticket.replica is not None

    def _admit(self, ticket: QueueTicket) -> None:
        """LlmError if the request is refused. One that is computed at once is judged by its tenant's rate alone."""
        self._asking = ticket.tokens
        at_once = not len(self._queue) and self._find_replica(ticket) is not None
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

    def _end(self, ticket: QueueTicket) -> None:
        if ticket.replica is not None:
            ticket.replica.release(ticket.tokens)
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
