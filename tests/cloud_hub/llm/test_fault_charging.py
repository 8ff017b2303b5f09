"""Whose fault a failure is: what an engine says of one request costs nobody else the engine, and reaches its caller."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.llm.echo import EchoFault
from cloud_hub.llm.engine_errors import (
    RETRY_S,
    EngineFault,
    ReplicaFailedError,
    describe_failure,
    is_callers_fault,
    parse_retry_after,
    read_report,
)
from cloud_hub.llm.errors import LlmError
from cloud_hub.llm.events import (
    StreamReader,
    UpstreamBrokenError,
    extract_payload,
    read_usage_field,
    read_whole,
)
from cloud_hub.llm.requests import LlmOperation, LlmRequest, parse_request
from policies.serving.replicas import BREAKER_FAULTS
from tests.cloud_hub.doubles.language_site import ASK, LanguageSite, language_site
from tests.growth import assert_linear

POISON = {"messages": [{"role": "user", "content": "poison one two"}]}
NOW = datetime(2026, 11, 28, 6, 0, tzinfo=UTC)
# Everything an engine can answer to one request that it does not answer to others.
SHAPED = sorted(
    set(EchoFault) - {EchoFault.NONE, EchoFault.NOT_READY, EchoFault.WRONG_KEY} - {EchoFault.STALLS_AT_ONCE}
)


def chat(**fields: Any) -> LlmRequest:
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}], **fields}
    return parse_request(json.dumps(body).encode(), LlmOperation.CHAT)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fault", SHAPED)
async def test_whatever_one_tenants_requests_provoke_others_are_answered_at_once(tmp_path, fault, stream):
    async with language_site(tmp_path, stall_s=0.2, first_s=5.0, answer_s=5.0) as site:
        site.engines[0].word_faults["poison"] = fault
        for _ in range(BREAKER_FAULTS + 1):
            await site.stream(**POISON, stream=stream, max_tokens=4)
        assert site.model.replicas[0].admits()
        assert (await site.ask())[0] == 200
        await asyncio.sleep(0.2)  # it has been checked since
        assert (await site.ask())[0] == 200


async def test_an_engine_whose_check_fails_gets_no_requests_until_it_passes(tmp_path):
    async with language_site(tmp_path, ready_s=600.0) as site:
        site.engines[0].fault = EchoFault.NOT_READY
        assert (await site.ask())[0] == 503
        await site.ready(0)  # at once, and not after ten minutes
        status, told = await site.ask()
        assert (status, told["error"]["code"]) == (503, "not_ready")


@pytest.mark.parametrize(
    ("fault", "status", "message"),
    [
        (EchoFault.REFUSES, 400, "the prompt is too long"),
        (EchoFault.REFUSES_LATER, 400, "the role is not known"),
        (EchoFault.FAILS, 500, "the engine failed: no"),
        (EchoFault.BUSY, 429, "no"),
        (EchoFault.UNKNOWN, 404, "no"),
        (EchoFault.EMPTY, 502, "the engine's answer holds neither choices nor data"),
        (EchoFault.HTML, 502, "the engine's answer is no JSON object"),
        (EchoFault.NO_UTF8, 502, "the engine's answer is no JSON object"),
        (EchoFault.ERROR_EVENT, 500, "the engine failed: out of memory"),
    ],
)
async def test_what_the_engine_says_and_its_status_reach_the_caller_and_nothing_is_billed(
    tmp_path, fault, status, message
):
    async with language_site(tmp_path) as site:
        (engine,) = site.engines
        engine.word_faults["poison"] = fault
        await stop_counting(site)
        async with site.api.client.post(site.url + "/chat/completions", json={**ASK, **POISON}) as response:
            told = json.loads(await response.read())
            assert (response.status, told["error"]["message"]) == (status, message)
            assert response.headers.get("Retry-After") == ("47" if fault is EchoFault.BUSY else None)
        assert not any(record.prompt_tokens or record.generated_tokens for record in site.records)


async def stop_counting(site: LanguageSite) -> None:
    """Have whole answers asked for in one piece, as of engines that do not count each event."""
    site.model.replicas[0].counts_each = False


@pytest.mark.parametrize("fault", [EchoFault.HTML, EchoFault.REFUSES_LATER, EchoFault.EMPTY])
async def test_what_is_no_answer_is_a_status_and_not_a_stream_that_has_begun(tmp_path, fault):
    async with language_site(tmp_path) as site:
        site.engines[0].fault = fault
        async with site.api.client.post(site.url + "/chat/completions", json={**ASK, "stream": True}) as response:
            assert (response.status, response.content_type) == (
                400 if fault is EchoFault.REFUSES_LATER else 502,
                "application/json",
            )
            assert b"<html>" not in await response.read()


@pytest.mark.parametrize("fault", [EchoFault.NO_DONE, EchoFault.NO_BLANK_LINE, EchoFault.ODD_NUMBERS])
async def test_a_stream_that_ends_in_order_is_complete_however_the_engine_writes_it(tmp_path, fault):
    async with language_site(tmp_path) as site:
        site.engines[0].fault = fault
        told = await site.stream(max_tokens=3)
        assert told.endswith(b"data: [DONE]\n\n")
        assert told.count(b'"content"') == 3
        (record,) = site.records
        assert (record.complete, record.prompt_tokens, record.generated_tokens, record.estimated) == (True, 4, 3, False)


async def test_an_error_in_the_middle_says_what_the_engine_said(tmp_path):
    async with language_site(tmp_path) as site:
        site.engines[0].fault = EchoFault.ERROR_EVENT
        last = json.loads((await site.stream()).split(b"\n\n")[-2].removeprefix(b"data: "))
        assert last["error"]["message"] == "the engine failed: out of memory"


async def test_the_log_has_the_engines_status_and_message(tmp_path, capsys):
    async with language_site(tmp_path) as site:
        site.engines[0].fault = EchoFault.FAILS
        await site.ask()
    line = next(json.loads(each) for each in capsys.readouterr().err.splitlines() if "llm_failed" in each)
    assert (line["status"], line["why"]) == (500, "the engine failed: no")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "m", "type": "t", "param": None, "code": 400}}, "m"),  # vLLM
        ({"object": "error", "message": "m", "type": "t", "param": None, "code": 400}, "m"),  # vLLM before 0.10
        ({"error": "m", "error_type": "validation"}, "m"),  # TGI
        ({"detail": "m"}, "m"),  # FastAPI
        ({"detail": [{"loc": ["body"], "msg": "a"}, {"msg": "b"}]}, "a; b"),
        ({"error": {"code": 500, "message": "two\nlines\x00", "type": "server_error"}}, "two lines"),  # llama.cpp
        ({"error": {}}, ""),
        ({}, ""),
        ([1], ""),
    ],
)
def test_an_error_is_read_in_every_form_that_engines_write(body, message):
    assert read_report(json.dumps(body).encode()).message == message


@given(st.binary(max_size=300) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_an_error_of_any_form_is_a_line_of_text(body):
    report = read_report(body.encode() if isinstance(body, str) else body)
    assert report.message.isprintable()


@given(st.integers(300, 999))
def test_every_status_is_the_callers_fault_or_a_failure_and_only_failures_have_the_engine_checked(status):
    if is_callers_fault(status):
        return
    failure = describe_failure(status, read_report(b"<html>"), "", NOW)
    assert 400 <= failure.describe().status <= 599
    assert (failure.fault is EngineFault.REQUEST) == (status in (404, 429))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("47", 47.0),
        (" 0 ", 1.0),
        ("999999", 3600.0),
        ("Sat, 28 Nov 2026 06:01:30 GMT", 90.0),
        ("Sat, 28 Nov 2026 05:00:00 GMT", 1.0),
        ("soon", RETRY_S),
        ("", RETRY_S),
        ("-5", RETRY_S),
        ("9" * 5000, RETRY_S),
        ("Sat, 99 Nov 2026 06:01:30 GMT", RETRY_S),
    ],
)
def test_when_to_ask_again_is_read_as_seconds_and_as_a_date(header, seconds):
    assert parse_retry_after(header, NOW) == seconds


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 12.0, "completion_tokens": 3}, (12, 3)),
        ({"prompt_tokens": 12, "completion_tokens": None}, (12, 0)),
        ({"prompt_tokens": None, "completion_tokens": 3}, None),
        ({"prompt_tokens": 12.5}, None),
        ({"prompt_tokens": -1}, None),
        ({"prompt_tokens": True}, None),
        ({"prompt_tokens": 1e300}, None),
        ({"prompt_tokens": "12"}, None),
        ([], None),
    ],
)
def test_a_usage_is_read_where_it_can_be_and_else_counts_as_not_told(usage, counts):
    found = read_usage_field(_raw(usage))
    assert (found and (found.prompt_tokens, found.generated)) == counts


def _raw(value: object) -> Any:
    return msgspec.Raw(json.dumps(value).encode())


def test_errors_in_an_event_are_told_apart_by_their_code_and_null_is_none():
    reader = StreamReader(chat())
    assert reader.read(b'data: {"error":null,"choices":[{"delta":{}}]}\n\n')
    for code, fault in ((400, EngineFault.REQUEST), (500, EngineFault.UNCLEAR), ("x", EngineFault.UNCLEAR)):
        with pytest.raises(ReplicaFailedError) as failed:
            StreamReader(chat()).read(b'data: {"error":{"message":"x","code":%b}}\n\n' % json.dumps(code).encode())
        assert failed.value.fault is fault


EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}\n\n'


@given(st.lists(st.integers(1, 40), max_size=40), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_events_are_the_same_wherever_the_stream_is_cut_and_however_its_lines_end(cuts, end):
    stream = (EVENT * 3).replace(b"\n", end)
    reader, passed, at = StreamReader(chat()), b"", 0
    for cut in [*cuts, len(stream)]:
        passed += reader.read(stream[at : at + cut])
        at += cut
    # A last line feed may belong to a carriage return: it is known at the end.
    assert passed == EVENT * 3 or (end == b"\r" and passed == EVENT * 2)


@pytest.mark.parametrize("junk", [b"<html>\n\n", b"data: {}\njunk\n\n", b"data: \xff\n\n", b"dat: {}\n\n", b"{}\n\n"])
def test_what_is_no_event_is_never_passed_on(junk):
    with pytest.raises((UpstreamBrokenError, ReplicaFailedError)):
        StreamReader(chat()).read(junk)


def feed(cut: int) -> Any:
    def read(stream: bytes) -> None:
        reader = StreamReader(chat(), max_event_bytes=10_000_000)
        for at in range(0, len(stream), cut):
            reader.read(stream[at : at + cut])

    return read


@pytest.mark.further
@pytest.mark.parametrize("cut", [100, 65_536])
@pytest.mark.parametrize(
    "unit", [EVENT, b"data: x", b": c\n\n", b"\n", b"\r\n", b"\r", b'data: {"choices":[1]}\n\n', b"data: 1\ndata: 2\n"]
)
def test_a_stream_of_any_shape_and_cut_is_read_in_linear_time(unit, cut):
    assert_linear(feed(cut), lambda size: b": begins\n" + unit * (size // len(unit)))


@pytest.mark.further
@pytest.mark.parametrize("unit", [b"1,", b"{},", b'"\\"",', b"[1],"])
@pytest.mark.parametrize("field", [b"choices", b"usage", b"error", b"data", b"x"])
def test_a_whole_answer_of_any_shape_is_read_in_linear_time(unit, field):
    head = b'{"model":"m","choices":[{}],"' + field + b'":['
    assert_linear(read_whole, lambda size: head + unit * (size // len(unit)) + b"0]}")


def test_an_events_data_may_come_in_several_lines():
    assert extract_payload(b"event: x\ndata: {\ndata: }\n\n") == b"{\n}"


def test_a_refusal_of_the_engine_says_when_to_ask_again_in_whole_seconds():
    assert LlmError(429, "busy", retry_after_s=46.2).headers == {"Retry-After": "47"}
