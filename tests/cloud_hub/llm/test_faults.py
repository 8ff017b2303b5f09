"""Engines that die, stall and send nonsense: another replica before the first byte, one error event after it."""

import asyncio
import io
import json
from typing import Any

import pytest

from cloud_hub.llm.echo import EchoFault
from cloud_hub.registry.access import Scope
from tests.cloud_hub.doubles.language_site import ASK, language_site
from tests.examples import mark_further

BEFORE = (EchoFault.DIES_AT_ONCE, EchoFault.FAILS, EchoFault.WRONG_KEY, EchoFault.BUSY, EchoFault.STALLS_AT_ONCE)
AFTER = (
    EchoFault.DIES_LATER,
    EchoFault.HALF_EVENT,
    EchoFault.BROKEN_JSON,
    EchoFault.HUGE_LINE,
    EchoFault.ERROR_EVENT,
    EchoFault.STALLS_LATER,
    EchoFault.NO_END,
    EchoFault.NO_UTF8,
)


@pytest.mark.parametrize("fault", mark_further(BEFORE, [EchoFault.STALLS_AT_ONCE, EchoFault.BUSY]))
async def test_a_replica_that_fails_before_the_first_byte_is_replaced_and_nothing_is_told_twice(tmp_path, fault):
    patience: dict[str, Any] = {"first_s": 0.2} if fault is EchoFault.STALLS_AT_ONCE else {}
    async with language_site(tmp_path, engines=2, **patience) as site:
        site.engines[0].fault = fault
        for _ in range(4):
            told = await site.stream()
            assert told.count(b"[DONE]") == 1
            assert told.count(b'"content"') == 5


@pytest.mark.parametrize("fault", AFTER)
async def test_a_stream_that_breaks_ends_with_one_error_event_and_no_done(tmp_path, fault):
    patience: dict[str, Any] = {"stall_s": 0.3} if fault is EchoFault.STALLS_LATER else {}
    async with language_site(tmp_path, **patience) as site:
        site.engines[0].fault = fault
        told = await site.stream()
        assert told.endswith(b"}}\n\n")
        assert told.count(b'"error"') == 1
        assert b"[DONE]" not in told
        assert len(told) < 10_000
        assert not site.records[0].complete


async def test_without_any_replica_the_caller_is_told_when_to_ask_again(tmp_path):
    async with language_site(tmp_path) as site:
        site.engines[0].fault = EchoFault.NOT_READY
        await site.ready(0)
        async with site.api.client.post(site.url + "/chat/completions", json=ASK) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (503, "not_ready")
            assert int(response.headers["Retry-After"]) >= 1


async def test_what_the_engine_says_of_a_wrong_request_is_passed_on(tmp_path):
    async with language_site(tmp_path) as site:
        site.engines[0].fault = EchoFault.REFUSES
        status, told = await site.ask(max_tokens=3, stream=True)
        assert (status, told["error"]["message"]) == (400, "the prompt is too long")


async def test_a_caller_that_hangs_up_ends_the_request_at_the_engine(tmp_path):
    async with language_site(tmp_path) as site:
        site.engines[0].token_s = 0.02
        body = {**ASK, "stream": True, "max_tokens": 200}
        async with site.api.client.post(site.url + "/chat/completions", json=body) as response:
            await response.content.readany()
            response.close()
        async with asyncio.timeout(60):
            while not site.engines[0].hung_up or site.model.replicas[0].in_flight:
                await asyncio.sleep(0.01)


WRONG = [
    (b"{", "invalid_json"),
    (b"[" * 100_000, "invalid_json"),
    (b'{"model":"echo","model":"echo","messages":[{}]}', "invalid_json"),
    (b'{"model":"echo","messages":[{}],"stream":"yes"}', "invalid_value"),
    (b'{"model":"echo","messages":[{}],"n":1000}', "invalid_value"),
    (b'{"model":"echo","messages":[{}],"max_tokens":-1}', "invalid_value"),
    (b'{"model":"echo","messages":[{}],"max_tokens":true}', "invalid_value"),
    (b'{"model":"echo","messages":[]}', "invalid_value"),
    (b'{"model":"echo","messages":[{}],"max_tokens":99999999}', "context_length_exceeded"),
]


async def test_wrong_requests_are_refused_in_openais_form_and_reach_no_engine(tmp_path):
    async with language_site(tmp_path) as site:
        for body, code in WRONG:
            status, told = await site.api.ask("POST", "/v1/chat/completions", data=body)
            assert (status, told["error"]["code"]) == (400, code), body[:80]
        huge = b'{"model":"echo","messages":[{"content":"' + b"x" * 10_000_000 + b'"}]}'
        status, told = await site.api.ask("POST", "/v1/chat/completions", data=io.BytesIO(huge))
        assert (status, told["error"]["type"]) == (413, "invalid_request_error")
        assert site.engines[0].requests == 0


async def test_a_request_reaches_the_engine_as_the_bytes_that_came(tmp_path):
    async with language_site(tmp_path) as site:
        body = (
            b'{"model":"echo","messages":[{"role":"user","content":"h\\u00e9 a b"}],"temperature":1.50e0,"odd": [1 ,2]}'
        )
        status, _ = await site.api.ask("POST", "/v1/chat/completions", data=body)
        assert status == 200
        sent = next(each for each in site.engines[0].bodies if b"temperature" in each)
        assert b'"h\\u00e9 a b"' in sent
        assert b'"temperature":1.50e0' in sent
        assert b"[1 ,2]" in sent


async def test_a_model_of_another_tenant_looks_as_if_there_were_none(tmp_path):
    async with language_site(tmp_path, tenants=frozenset({"acme"})) as site:
        for tenant, status in (("acme", 200), ("clinic", 404)):
            key = site.api.key(tenant, Scope.INFER)
            asked = await site.api.ask("POST", "/v1/chat/completions", json=ASK, headers=key)
            listed = await site.api.ask("GET", "/v1/models", headers=key)
            assert (asked[0], len(listed[1]["data"])) == (status, int(status == 200))


async def test_a_tenants_requests_are_computed_in_its_regions_or_not_at_all(tmp_path):
    async with language_site(tmp_path, residency={"clinic": frozenset({"eu"})}, region="us") as site:
        key = site.api.key("clinic", Scope.INFER)
        status, told = await site.api.ask("POST", "/v1/chat/completions", json=ASK, headers=key)
        assert (status, told["error"]["code"]) == (403, "residency")
        assert site.engines[0].requests == 0


@pytest.mark.further
async def test_a_caller_that_does_not_read_is_cut_off_and_its_engine_freed(tmp_path):
    async with language_site(tmp_path, send_s=0.3) as site:
        words = "w" * 50_000
        body = {**ASK, "messages": [{"role": "user", "content": words}], "stream": True, "max_tokens": 1000}
        told = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(site.api.url.rpartition(":")[2]))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(told)}\r\n\r\n"
        writer.write(head.encode() + told)
        async with asyncio.timeout(60):
            while not site.records:  # 50 MB are on their way, and nobody reads them
                await asyncio.sleep(0.02)
            while site.engines[0].in_flight or site.model.replicas[0].in_flight:
                await asyncio.sleep(0.02)
        (record,) = site.records
        assert (record.complete, record.broken) == (False, False)
        assert site.engines[0].generated_tokens < 1000  # it was not read to its end into the hub's memory
        writer.close()
        del reader


async def test_a_caller_that_vanishes_while_it_waits_leaves_the_queue(tmp_path):
    async with language_site(tmp_path, max_running=1) as site:
        site.engines[0].first_s = 3600.0
        url = site.url + "/chat/completions"
        first = asyncio.create_task(site.api.client.post(url, json=ASK))
        async with asyncio.timeout(60):
            while not site.engines[0].in_flight:
                await asyncio.sleep(0.01)
            second = asyncio.create_task(site.api.client.post(url, json=ASK))
            while not site.model.queue.waiting:
                await asyncio.sleep(0.01)
            second.cancel()
            while site.model.queue.web_open:
                await asyncio.sleep(0.01)
            first.cancel()
            while site.models.open_requests:
                await asyncio.sleep(0.01)
        assert site.model.replicas[0].tokens_in_flight == 0
