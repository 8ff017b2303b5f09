"""One language model of the hub: its replicas, their checks, its queue, and the way of a request through them."""

import asyncio
import contextlib
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator

import aiohttp
import msgspec

from cloud_hub.llm.engine_errors import EngineFault, ReplicaFailedError
from cloud_hub.llm.engine_process import EngineProcess
from cloud_hub.llm.errors import LlmError
from cloud_hub.llm.events import TokenUsage
from cloud_hub.llm.relay import LlmAnswer, open_answer
from cloud_hub.llm.replica import Replica, open_session
from cloud_hub.llm.requests import LlmOperation, LlmRequest
from cloud_hub.llm.settings import LlmSettings, ReplicaAddress
from cloud_hub.llm.token_estimate import BYTES_PER_TOKEN, TokenEstimate
from cloud_hub.llm.token_queue import QueueTicket, TokenQueue
from policies.serving.replicas import PrefixTable, filter_regions, hash_prefix, rank_replicas
from wire.process.logging import JsonLog, safe_name, safe_text

MAX_TRIES = 3
MAX_UNCLEAR_TRIES = 2  # of a failure that may be the request's own fault
LEAST_CHECK_S = 1.0  # between two checks of a replica, however many requests fail there


class LlmCaller(msgspec.Struct, frozen=True):
    """Who asks: its tenant ("" = the whole hub), its key within the tenant, and its traceparent ("" = not traced).

    `question`: a device's question, which is billed in the commit that stores its answer and nowhere else.
    """

    tenant: str = ""
    flow: str = ""
    trace: str = ""
    question: bool = False


class LlmRecord(msgspec.Struct, frozen=True):
    """What became of a request, for the bill, the metrics and its trace. Times in seconds since 1970; 0 = not reached.

    `estimated`: the engine told no usage, or the caller hung up before it: the tokens are the hub's own count.
    `broken`: the engine ended the answer in the middle. `replica`: URL of the one that answered.
    """

    caller: LlmCaller
    model: str
    region: str
    operation: LlmOperation
    status: int
    complete: bool
    arrived_at: float
    begun_at: float
    first_at: float
    ended_at: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    request_bytes: int = 0
    estimated: bool = False
    stream: bool = False
    broken: bool = False
    replica: str = ""

    @property
    def estimated_tokens(self) -> int:
        """Tokens of it that no engine counted."""
        return (self.prompt_tokens + self.generated_tokens) * self.estimated


class LanguageModel:
    """One language model. `key`: bearer token of its engines; `on_ended` takes the record of every request."""

    def __init__(self, settings: LlmSettings, key: str, on_ended: Callable[[LlmRecord], None], log: JsonLog) -> None:
        self.settings = settings
        self.engine = EngineProcess(settings, key, lambda: self.ready, log) if settings.command else None
        urls = (ReplicaAddress(f"http://127.0.0.1:{self.engine.port}"),) if self.engine else settings.urls
        self.replicas = [Replica(address, settings) for address in urls]
        self.counts = {"failovers": 0, "broken": 0, "lost": 0}
        self.queue = TokenQueue(settings, self._find_free, self._count_ready, is_served=self._is_served)
        self._key = key
        self._on_ended = on_ended
        self._log = log
        self._estimate = TokenEstimate()
        self._prefixes = PrefixTable()
        self._computing: Counter[float] = Counter()  # requests, by when their turn came
        self._session: aiohttp.ClientSession | None = None

    # -- life

    async def run(self) -> None:
        """Start the engine, if it is ours, open the connections and check the replicas until cancelled."""
        self._session = open_session(self._key)
        try:
            async with asyncio.TaskGroup() as group:
                if self.engine:
                    group.create_task(self.engine.run(), name=f"llm-engine-{self.settings.name}")
                for replica in self.replicas:
                    group.create_task(self._check_for_ever(replica, self._session), name=f"llm-check-{replica.name}")
        finally:
            await self._session.close()

    async def _check(self, replica: Replica, session: aiohttp.ClientSession) -> None:
        was = replica.ready
        await replica.check(session)
        if replica.ready != was:
            self._on_change(replica)
        self.queue.dispatch()

    async def _check_for_ever(self, replica: Replica, session: aiohttp.ClientSession) -> None:
        """Check a replica at its times, and at once after a request failed there."""
        least_s = min(LEAST_CHECK_S, self.settings.ready_s)
        while True:
            await self._check(replica, session)
            await asyncio.sleep(least_s)
            wait_s = self.settings.ready_s * (0.9 + 0.2 * random.random()) - least_s  # noqa: S311 - jitter
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, wait_s)):
                    await replica.suspicion.wait()

    def _on_change(self, replica: Replica) -> None:
        told = {"model": safe_name(self.settings.name), "url": safe_text(replica.name)}
        if replica.ready:
            self._log.info("llm_ready", **told)
        else:
            self._prefixes.forget(replica.name)  # it may have been started anew, with an empty cache
            self._log.warning("llm_not_ready", **told, why=safe_text(replica.why))

    async def check_now(self) -> str:
        """Let every replica complete a token: what is wrong if none does, "" = one did."""
        if self._session is None:
            return "not started yet"
        await asyncio.gather(*(self._check(replica, self._session) for replica in self.replicas))
        return "" if self.ready else next((replica.why for replica in self.replicas), "")

    # -- what it can do

    @property
    def ready(self) -> bool:
        """Whether a replica is ready."""
        return any(replica.ready for replica in self.replicas)

    @property
    def oldest_begun_at(self) -> float:
        """When the turn came of the oldest request that is being answered, seconds since 1970; inf = there is none."""
        return min(self._computing, default=math.inf)

    @property
    def context_tokens(self) -> int:
        """Most tokens of prompt and answer together, 0 = not known."""
        told = self.settings.context_tokens
        return told or min((each.context_tokens for each in self.replicas if each.context_tokens), default=0)

    def is_visible(self, tenant: str) -> bool:
        """Whether a tenant may use the model. The whole hub's keys may use every one."""
        return not tenant or not self.settings.tenants or tenant in self.settings.tenants

    # -- a request

    @contextlib.asynccontextmanager
    async def answer(self, request: LlmRequest, body_bytes: int, caller: LlmCaller) -> AsyncIterator[LlmAnswer]:
        """Let a request wait for its turn; yields its answer once it has begun. LlmError if there is none."""
        tokens = self._weigh(request, caller.tenant)
        ticket = QueueTicket(caller.tenant, caller.flow, tokens, self._find_regions(caller.tenant))
        ticket.prefix = self._hash_prompt(request)
        self._require_replica(ticket)
        arrived_at = time.time()
        async with self.queue.turn(ticket):
            begun_at = time.time()
            tries = _Tries(request, ticket)
            try:
                async with contextlib.AsyncExitStack() as stack:
                    stack.enter_context(self._count_computing(begun_at))
                    yield await self._try_replicas(stack, tries)
            finally:
                if tries.answer is not None:  # it has begun, or its caller hung up before it did
                    times = (arrived_at, begun_at, tries.answer.first_at, time.time())
                    self._record(tries.answer, caller, (body_bytes, times))

    @contextlib.contextmanager
    def _count_computing(self, begun_at: float) -> Iterator[None]:
        self._computing[begun_at] += 1
        try:
            yield
        finally:
            self._computing[begun_at] -= 1
            if not self._computing[begun_at]:
                del self._computing[begun_at]

    def _weigh(self, request: LlmRequest, tenant: str) -> int:
        """Return the tokens that a request may take. LlmError(400) if it asks for more than the model has."""
        prompt, most = self._estimate.estimate(request, tenant), self.context_tokens
        if most and request.max_tokens > most:
            said = f"'max_tokens' is more than the model's {most} tokens"
            raise LlmError(400, said, param="max_tokens", code="context_length_exceeded")
        if most and request.prompt_tokens > most * request.choices:
            raise LlmError(400, f"the prompt has more than the model's {most} tokens", code="context_length_exceeded")
        prompt = min(prompt, most) if most else prompt
        if request.operation is LlmOperation.EMBEDDING:
            return prompt
        answer = request.max_tokens or min(self.settings.assumed_tokens, most or self.settings.assumed_tokens)
        return prompt + answer * request.choices

    def _find_regions(self, tenant: str) -> frozenset[str] | None:
        return self.settings.residency.get(tenant)

    def _hash_prompt(self, request: LlmRequest) -> list[bytes]:
        if len(self.replicas) < 2:
            return []
        return hash_prefix(request.prefix, self._hashed_bytes)

    @property
    def _hashed_bytes(self) -> int:
        """Bytes of a prompt under one hash: of one cache block, by the first guess, so that hashes stay comparable."""
        return int(max(replica.block_tokens for replica in self.replicas) * BYTES_PER_TOKEN)

    def _count_held_blocks(self, replica: Replica, ticket: QueueTicket) -> int:
        """Return how many whole cache blocks of a prompt a replica holds, by the learnt bytes of a token."""
        held_bytes = (
            self._prefixes.count_blocks(replica.name, ticket.prefix) * self._hashed_bytes if ticket.prefix else 0
        )
        return int(self._estimate.convert_bytes(held_bytes, ticket.tenant) / replica.block_tokens)

    def _require_replica(self, ticket: QueueTicket) -> None:
        """LlmError(403 or 503) unless there is a replica where the request may be computed."""
        allowed = [each for each in self.replicas if self._is_allowed(each, ticket)]
        if not allowed:
            said = "no engine of this model stands where this tenant's requests may be computed"
            raise LlmError(403, said, code="residency")
        if not any(each.ready for each in allowed):
            raise LlmError(
                503, "no engine of this model is ready", code="not_ready", retry_after_s=self.settings.ready_s
            )

    def _is_allowed(self, replica: Replica, ticket: QueueTicket) -> bool:
        return bool(filter_regions([replica.measure_load()], ticket.regions))

    def _is_served(self, ticket: QueueTicket) -> bool:
        """Whether a replica takes requests now where the ticket may be computed."""
        return any(each.admits() and self._is_allowed(each, ticket) for each in self.replicas)

    def _find_free(self, ticket: QueueTicket) -> Replica | None:
        """Return the best replica that has room for a ticket now."""
        free = [each for each in self.replicas if each.admits() and each.has_room(ticket.placed)]
        return self._rank_good(free, ticket)

    def _rank_good(self, replicas: list[Replica], ticket: QueueTicket) -> Replica | None:
        """Return the best replica; one that is a last resort only where there is no other."""
        good = [each for each in replicas if not each.is_last_resort()]
        return self._rank(good, ticket) or self._rank(replicas, ticket)

    def _rank(self, replicas: list[Replica], ticket: QueueTicket) -> Replica | None:
        known = {each.name: each for each in replicas}
        loads = [each.measure_load(self._count_held_blocks(each, ticket)) for each in replicas]
        dice = random.random(), random.random()  # noqa: S311 - ties, and two choices
        ranked = rank_replicas(filter_regions(loads, ticket.regions), dice)
        return known[ranked[0]] if ranked else None

    def _count_ready(self) -> int:
        return sum(replica.ready for replica in self.replicas)

    async def _try_replicas(self, stack: contextlib.AsyncExitStack, tries: "_Tries") -> LlmAnswer:
        """Try one replica after the other until one begins to answer. LlmError if none does."""
        ticket = tries.ticket
        while True:
            assert ticket.replica is not None
            assert self._session is not None
            replica = ticket.replica
            tries.replicas.append(replica)
            self._prefixes.add(replica.name, ticket.prefix)
            tries.answer = LlmAnswer(tries.request, self.settings, replica, ticket.tenant)
            try:
                return await stack.enter_async_context(open_answer(self._session, tries.answer))
            except ReplicaFailedError as error:
                tries.answer = None
                self._on_failed(ticket, replica, error)
                if not self._move(tries, error):
                    raise error.describe() from None

    def _on_failed(self, ticket: QueueTicket, replica: Replica, error: ReplicaFailedError) -> None:
        if error.fault is not EngineFault.REQUEST:
            replica.on_fault(ticket.tenant)
        told = {"model": safe_name(self.settings.name), "url": safe_text(replica.name)}
        self._log.warning("llm_failed", **told, status=error.status, why=safe_text(str(error)))

    def _move(self, tries: "_Tries", error: ReplicaFailedError) -> bool:
        """Give a ticket to another replica; to the same once more if the connection was lost. False = no more tries."""
        ticket, tried = tries.ticket, tries.replicas
        if len(tried) >= (MAX_UNCLEAR_TRIES if error.fault is EngineFault.UNCLEAR else MAX_TRIES):
            return False
        others = [each for each in self.replicas if each not in tried and each.admits()]
        found = self._rank_good(others, ticket) or (tried[0] if error.lost and len(tried) == 1 else None)
        if found is None or ticket.replica is None:
            return False
        self.counts["failovers"] += 1
        ticket.replica.release(ticket.placed)
        found.occupy(ticket.placed)
        ticket.replica = found
        return True

    def _record(
        self, answer: LlmAnswer, caller: LlmCaller, facts: tuple[int, tuple[float, float, float, float]]
    ) -> None:
        """Hand out the record of a request that has begun to be answered, or whose caller hung up while it was."""
        request, usage, refused = answer.request, answer.usage, answer.status != 200
        self.counts["lost"] += not answer.complete and not refused
        begun_at, ended_at = facts[1][1], facts[1][3]
        if usage is not None:
            self._estimate.learn(request, caller.tenant, usage.prompt_tokens)
        if usage is not None and answer.complete and not answer.stream:
            self._estimate.learn_pace(caller.tenant, usage.generated / request.choices, ended_at - begun_at)
        elapsed_s = (answer.left_at or ended_at) - begun_at
        found = usage or TokenUsage() if refused else usage or self._estimate_usage(answer, caller, elapsed_s)
        self._on_ended(
            LlmRecord(
                caller,
                self.settings.name,
                answer.replica.region,
                request.operation,
                answer.status,
                answer.complete,
                *facts[1],
                prompt_tokens=found.prompt_tokens,
                cached_tokens=found.cached,
                generated_tokens=found.generated,
                request_bytes=facts[0],
                estimated=usage is None and not refused,
                stream=answer.stream,
                broken=answer.broken,
                replica=answer.replica.name,
            )
        )

    def _estimate_usage(self, answer: LlmAnswer, caller: LlmCaller, elapsed_s: float) -> TokenUsage:
        """Return what an answer took whose engine did not say: its events, or what is generated in such a time."""
        request = answer.request
        prompt = self._estimate.estimate(request, caller.tenant)
        if answer.streamed or answer.complete or request.operation is LlmOperation.EMBEDDING:
            return TokenUsage(prompt, answer.generated)
        most = request.max_tokens or self.settings.assumed_tokens
        return TokenUsage(prompt, request.choices * min(most, self._estimate.estimate_answer(caller.tenant, elapsed_s)))


class _Tries:
    """The tries of one request: the replicas so far, and the answer of the last one, None if it failed."""

    def __init__(self, request: LlmRequest, ticket: QueueTicket) -> None:
        self.request = request
        self.ticket = ticket
        self.replicas: list[Replica] = []
        self.answer: LlmAnswer | None = None
