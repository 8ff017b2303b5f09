"""Callers that hang up are billed as the engine counted; what it did not say is an estimate, and named so."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from cloud_hub.llm.relay import LlmAnswer, open_answer
from cloud_hub.llm.replica import Replica, open_session
from cloud_hub.llm.requests import LlmOperation, parse_request
from cloud_hub.llm.settings import LlmSettings, ReplicaAddress
from cloud_hub.llm.telemetry import LlmOutcome, describe_usage, find_outcome
from cloud_hub.storage.costs import CostKind
from tests.cloud_hub.doubles.language_site import ASK, LanguageSite, language_site

PROMPT_TOKENS = 4


async def hang_up(site: LanguageSite, after_s: float, *, stream: bool, **fields: object) -> None:
    """Ask, and close the connection after so many seconds."""
    body = {**ASK, "stream": stream, "max_tokens": 400, **fields}
    try:
        async with asyncio.timeout(after_s):
            async with site.api.client.post(site.url + "/chat/completions", json=body) as response:
                await response.read()
    except TimeoutError:
        return


async def settle(site: LanguageSite, requests: int) -> None:
    async with asyncio.timeout(60):
        while len(site.records) < requests or site.engines[0].in_flight:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [True, False])
async def test_calls_that_hang_up_are_billed_as_the_engine_counted_them(tmp_path, stream):
    async with language_site(tmp_path, token_s=0.04) as site:
        draw = random.Random(7)
        await asyncio.gather(*(hang_up(site, draw.uniform(0.5, 1.0), stream=stream) for _ in range(8)))
        await settle(site, 8)
        (engine,) = site.engines
        billed = sum(record.prompt_tokens + record.generated_tokens for record in site.records)
        computed = engine.prompt_tokens + engine.generated_tokens
        assert 0.99 * computed <= billed <= computed
        assert {find_outcome(record) for record in site.records} == {LlmOutcome.HUNG_UP}
        assert not any(record.estimated for record in site.records)


async def test_a_call_that_hangs_up_before_the_engine_says_anything_is_billed_as_an_estimate(tmp_path):
    async with language_site(tmp_path, settle_s=0.1) as site:
        site.engines[0].first_s = 600.0
        await hang_up(site, 0.3, stream=False)
        await settle(site, 1)
        (record,) = site.records
        assert (record.estimated, record.complete, find_outcome(record)) == (True, False, LlmOutcome.HUNG_UP)
        assert record.prompt_tokens == record.estimated_tokens > 0
        assert describe_usage(record).amounts[CostKind.TOKENS_ESTIMATED] == record.prompt_tokens
        assert site.models.meters["echo"].estimated == record.prompt_tokens
        assert site.models.counters()["llm.usage_estimated"] == 1


async def test_of_an_engine_that_does_not_count_each_event_the_time_says_about_what_was_computed(tmp_path):
    async with language_site(tmp_path) as site:
        (engine,) = site.engines
        engine.counts_each = False
        site.model.replicas[0].counts_each = False
        engine.token_s = 0.01
        await site.ask(max_tokens=30)
        await hang_up(site, 0.5, stream=False)
        await settle(site, 2)
        cut = site.records[1]
        assert cut.estimated
        assert 0.5 <= cut.generated_tokens / (engine.generated_tokens - 30) <= 2.0


async def test_an_engine_that_refuses_to_count_each_event_is_asked_as_before(tmp_path):
    async with language_site(tmp_path) as site:
        (replica,) = site.model.replicas
        site.engines[0].counts_each = False
        replica.ready = False  # it is asked what it can do when it gets ready
        await site.ready()
        assert not replica.counts_each
        told = await site.stream(max_tokens=3)
        assert told.count(b'"content"') == 3
        status, answer = await site.ask(max_tokens=3)
        assert (status, answer["usage"]["completion_tokens"]) == (200, 3)


async def test_an_answer_is_the_same_in_one_piece_whether_the_engine_streamed_it_or_not(tmp_path):
    async with language_site(tmp_path) as site:
        (replica,) = site.model.replicas
        for path, asked in (("chat/completions", {}), ("completions", {"prompt": "a b c"})):
            answers = []
            for replica.counts_each in (True, False):
                answers.append((await site.ask(path, max_tokens=5, **asked))[1])
            streamed, whole = answers
            assert streamed["choices"] == whole["choices"]
            assert {**streamed["usage"], "prompt_tokens_details": 0} == {**whole["usage"], "prompt_tokens_details": 0}
            assert streamed["object"] == whole["object"]


async def test_what_an_engine_might_answer_otherwise_in_a_stream_is_asked_for_in_one_piece(tmp_path):
    async with language_site(tmp_path) as site:
        for extra in ({"tools": [{"type": "function"}]}, {"logprobs": True}, {"odd": 1}):
            await site.ask(max_tokens=2, **extra)
            assert b'"stream"' not in site.engines[0].bodies[-1]
        await site.ask(max_tokens=2, temperature=0.5)
        assert any(b"continuous_usage_stats" in body and b"temperature" in body for body in site.engines[0].bodies)


async def test_a_caller_sees_the_usage_of_each_event_only_where_it_asked_for_it(tmp_path):
    async with language_site(tmp_path) as site:
        assert b"completion_tokens" not in await site.stream()
        assert (await site.stream(stream_options={"include_usage": True})).count(b"completion_tokens") == 1
        each = {"include_usage": True, "continuous_usage_stats": True}
        assert (await site.stream(stream_options=each)).count(b"completion_tokens") == 6


# -- what the engine sends until it sees that its caller has gone

_EVENT = (
    b'data: {"choices":[{"index":0,"delta":{"content":"w "}}],"usage":{"prompt_tokens":4,"completion_tokens":%d}}\n\n'
)
BUSY_S = 0.05  # what the engine takes to see it


class BusyEngine:
    """Sends `first` tokens of a stream, and `more` of them after its caller has closed the connection towards it.

    With `late_head` nothing is sent before that, not even the head.
    """

    def __init__(self, first: int, more: int, *, late_head: bool = False) -> None:
        self.first, self.more, self.late_head = first, more, late_head
        self.asked, self.port = asyncio.Event(), 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        events = [_EVENT % number for number in range(1, self.first + self.more + 1)]
        if not self.late_head:
            writer.write(head + b"".join(events[: self.first]))
        self.asked.set()
        await reader.read()
        if self.late_head:
            writer.write(head + b"".join(events[: self.first]))
        await asyncio.sleep(BUSY_S)
        writer.write(b"".join(events[self.first :]))
        writer.close()


@asynccontextmanager
async def busy_engine(first: int, more: int, **shape: bool) -> AsyncIterator[BusyEngine]:
    engine = BusyEngine(first, more, **shape)
    server = await asyncio.start_server(engine.answer, "127.0.0.1", 0)
    async with server:
        engine.port = server.sockets[0].getsockname()[1]
        yield engine


async def leave(engine: BusyEngine, *, stream: bool, notices: int) -> LlmAnswer:
    """Ask an engine and go once it was asked; the hub notices that so many times."""
    told = LlmSettings(name="m", urls=(ReplicaAddress(f"http://127.0.0.1:{engine.port}"),))
    replica = Replica(told.urls[0], told)
    replica.counts_each = True
    body = b'{"model":"m","stream":%s,"messages":[{}]}' % (b"true" if stream else b"false")
    answer = LlmAnswer(parse_request(body, LlmOperation.CHAT), told, replica)

    async def ask(session: aiohttp.ClientSession) -> None:
        async with open_answer(session, answer):
            await asyncio.sleep(3600)

    async with open_session("") as session:
        asking = asyncio.create_task(ask(session))
        await engine.asked.wait()
        for _ in range(notices):
            await asyncio.sleep(BUSY_S / 4)
            asking.cancel()
        await asyncio.wait({asking})
    return answer


# A caller is sent nothing before the head, so that its leaving is noticed once.
@pytest.mark.parametrize(("late_head", "notices"), [(False, 1), (False, 2), (True, 1)])
@pytest.mark.parametrize("stream", [True, False])
async def test_what_an_engine_computed_until_it_saw_that_its_caller_had_gone_is_billed(stream, notices, late_head):
    async with busy_engine(3, 4, late_head=late_head) as engine:
        answer = await leave(engine, stream=stream, notices=notices)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.generated) == (4, 7)
