"""Whatever callers and engines do, each call is billed once, to its tenant, as the engine told or as an estimate."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from enum import Enum, auto
from typing import Any, NamedTuple

import msgspec
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_hub.llm.echo import EchoFault, EchoUpstream
from cloud_hub.llm.errors import LlmError
from cloud_hub.llm.model import LlmCaller, LlmRecord
from cloud_hub.llm.requests import LlmOperation
from cloud_hub.llm.service import LanguageModels
from cloud_hub.llm.settings import LlmSettings, ReplicaAddress
from cloud_hub.llm.telemetry import describe_usage
from cloud_hub.storage.costs import CostKind
from tests.cloud_hub.doubles.language_site import QUICK

TOKEN_S = 0.002
WORDS = 3  # of each prompt
BILLED = (CostKind.TOKENS_IN, CostKind.TOKENS_CACHED, CostKind.TOKENS_OUT)
# What an engine does with a prompt that holds the fault's name; those that never end are others' tests.
FAULTS = sorted(
    set(EchoFault)
    - {EchoFault.NOT_READY, EchoFault.STALLS_AT_ONCE, EchoFault.STALLS_LATER, EchoFault.HUGE_LINE}
    - {EchoFault.WRONG_KEY}
)


class Ending(Enum):
    """How a call ends, if the engine lets it: read to its end, or its caller hangs up after a while."""

    READ = auto()
    HANG_UP = auto()


class Call(NamedTuple):
    """One call. `after_s`: when its caller hangs up."""

    tenant: str
    fault: EchoFault
    stream: bool
    plain: bool  # without a field that keeps a whole answer from being asked for as a stream
    tokens: int
    ending: Ending
    after_s: float


class CountingEngine(EchoUpstream):
    """Counts by call, whose name is the first word of its prompt, what each try computed."""

    def __init__(self) -> None:
        super().__init__(token_s=TOKEN_S)
        self.tries: defaultdict[str, list[int]] = defaultdict(list)

    async def _compute(self, request: web.Request, asked: Any, fault: EchoFault, texts: Any) -> web.StreamResponse:
        words, said = texts
        self.tries[words[0]].append(len(words))
        if not asked.get("stream"):
            self.tries[words[0]][-1] += len(said)
        return await super()._compute(request, asked, fault, texts)

    async def _speak(self, request: web.Request, fault: EchoFault, said: list[str]) -> AsyncIterator[Any]:
        tries = self.tries[said[0]]
        async for chunk in super()._speak(request, fault, said):
            if isinstance(chunk, dict) and tries:
                tries[-1] += 1
            yield chunk


CALLS = st.lists(
    st.builds(
        Call,
        tenant=st.sampled_from(["acme", "clinic", "mill"]),
        fault=st.sampled_from([EchoFault.NONE] * len(FAULTS) + FAULTS),
        stream=st.booleans(),
        plain=st.booleans(),
        tokens=st.integers(2, 12),
        ending=st.sampled_from(Ending),
        after_s=st.floats(0.0, 0.04),
    ),
    min_size=1,
    max_size=16,
)


async def make_call(models: LanguageModels, number: int, call: Call) -> None:
    """Make one call; whatever becomes of it."""
    words = f"call-{number} {call.fault} end"
    body = {"model": "m", "stream": call.stream, "max_tokens": call.tokens, "messages": [{"content": words}]}
    encoded = msgspec.json.encode(body if call.plain else {**body, "odd": 1})

    async def write(_events: bytes) -> None:
        await asyncio.sleep(0)

    async def ask() -> None:
        async with models.answer(encoded, LlmOperation.CHAT, LlmCaller(call.tenant, f"call-{number}")) as answer:
            if answer.stream:
                await answer.send(write)

    asking = asyncio.create_task(ask())
    if call.ending is Ending.HANG_UP:
        await asyncio.wait({asking}, timeout=call.after_s)
        asking.cancel()
    await asyncio.wait({asking})
    if not asking.cancelled() and asking.exception() is not None:
        assert isinstance(asking.exception(), LlmError)


async def play(calls: list[Call]) -> tuple[list[LlmRecord], list[CountingEngine]]:
    """Make all calls at once, of a model on two engines; what was recorded, and what the engines counted."""
    engines, records = [CountingEngine(), CountingEngine()], list[LlmRecord]()
    for engine in engines:
        engine.word_faults = {str(fault): fault for fault in FAULTS}
    urls = tuple([ReplicaAddress(await engine.start()) for engine in engines])
    models = LanguageModels([msgspec.structs.replace(LlmSettings(name="m", model="echo", urls=urls), **QUICK)])
    models.add_sink(records.append)
    running = asyncio.create_task(models.run())
    try:
        async with asyncio.timeout(60):
            while not all(replica.ready for replica in models.models[0].replicas):
                await asyncio.sleep(0.002)
            await asyncio.gather(*(make_call(models, number, call) for number, call in enumerate(calls)))
    finally:
        running.cancel()
        await asyncio.wait({running})
        for engine in engines:
            await engine.stop()
    return records, engines


@pytest.mark.further
@settings(max_examples=20, deadline=None)
@given(CALLS)
def test_each_call_is_billed_once_to_its_tenant_as_the_engine_told_or_as_an_estimate(calls):
    records, engines = asyncio.run(play(calls))
    assert all(times == 1 for times in Counter(record.caller.flow for record in records).values())
    tenants = {f"call-{number}": call.tenant for number, call in enumerate(calls)}
    for record in records:
        amounts = describe_usage(record).amounts
        billed = sum(amounts[kind] for kind in BILLED)
        assert describe_usage(record).tenant == tenants[record.caller.flow]
        assert amounts[CostKind.TOKENS_ESTIMATED] in (0, billed)
        tries = [count for engine in engines for count in engine.tries[record.caller.flow]]
        if record.status != 200:
            assert billed == 0
        elif not record.estimated:
            # One token may have been computed whose event could no longer be sent to a caller that had gone.
            assert any(count - (not record.complete) <= billed <= count for count in tries), (record, tries)


@pytest.mark.further
@settings(max_examples=10, deadline=None)
@given(CALLS)
def test_of_engines_without_a_fault_the_bills_of_all_tenants_are_what_the_engines_counted(calls):
    calls = [call._replace(fault=EchoFault.NONE, plain=True) for call in calls]
    records, engines = asyncio.run(play(calls))
    told = {record.caller.flow: record for record in records if not record.estimated}
    billed = sum(record.prompt_tokens + record.generated_tokens for record in told.values())
    counted = sum(sum(tries) for engine in engines for name, tries in engine.tries.items() if name in told)
    gone = sum(not record.complete for record in told.values())
    assert counted - gone <= billed <= counted
    unsaid = {name for engine in engines for name, tries in engine.tries.items() if tries and name not in told}
    assert unsaid <= {record.caller.flow for record in records if record.estimated}
