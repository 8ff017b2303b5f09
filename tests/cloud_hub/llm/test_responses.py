"""The unmodified `openai` client asks by the Responses interface; what a chat cannot do is refused by name."""

import json
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.llm.echo import EchoFault
from cloud_hub.llm.errors import LlmError
from cloud_hub.llm.response_writer import ResponseWriter
from cloud_hub.llm.responses import parse_response_request
from tests.growth import assert_linear

TOWN = ["Leeds", "today"]


async def test_a_response_is_answered_with_its_text_and_usage(site, client):
    answer = await client.responses.create(model="echo", instructions="be short", input="one two", max_output_tokens=4)
    assert answer.output_text == "be short one two"
    assert (answer.status, answer.usage.input_tokens, answer.usage.output_tokens) == ("completed", 4, 4)
    assert (site.records[0].caller.tenant, site.records[0].generated_tokens) == ("acme", 4)


async def test_a_streamed_response_comes_as_the_events_that_the_client_knows(client):
    message = {"role": "user", "content": [{"type": "input_text", "text": "one two three"}]}
    async with client.responses.stream(model="echo", input=[message], max_output_tokens=3) as stream:
        kinds = [event.type async for event in stream]
        answer = await stream.get_final_response()
    assert kinds.count("response.output_text.delta") == 3
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert (answer.output_text, answer.usage.total_tokens) == ("one two three", 6)


async def test_a_response_that_breaks_says_that_it_failed(site, client):
    site.engines[0].fault = EchoFault.ERROR_EVENT
    stream = await client.responses.create(model="echo", input="one two three", stream=True)
    events = [event async for event in stream]
    assert events[-1].type == "response.failed"
    assert "out of memory" in events[-1].response.error.message


WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "of a town",
    "parameters": {"type": "object", "properties": {"words": {"type": "array"}}},
    "strict": False,
}


async def test_a_function_is_called_and_its_output_answered(site, client):
    asked = {"role": "user", "content": "Leeds today"}
    answer = await client.responses.create(model="echo", input=[asked], tools=[WEATHER], tool_choice="required")
    (call,) = answer.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"words": TOWN})
    assert answer.output_text == ""
    assert answer.tools[0].name == "get_weather"
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    told = await client.responses.create(
        model="echo", input=[asked, *answer.output, output], tools=[WEATHER], max_output_tokens=20
    )
    assert "rain" in told.output_text
    sent = next(json.loads(body) for body in reversed(site.engines[0].bodies) if b'"tools"' in body)
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "tool"]
    assert sent["messages"][1]["tool_calls"][0]["id"] == sent["messages"][2]["tool_call_id"] == call.call_id
    assert sent["tools"][0]["function"]["parameters"] == WEATHER["parameters"]


async def test_a_streamed_call_of_a_function_comes_as_the_events_that_the_client_knows(client):
    asked = {"model": "echo", "input": "Leeds today", "tools": [WEATHER]}
    async with client.responses.stream(**asked) as stream:
        kinds = [event.type async for event in stream]
        answer = await stream.get_final_response()
    (call,) = answer.output
    assert (call.name, json.loads(call.arguments), answer.status) == ("get_weather", {"words": TOWN}, "completed")
    assert kinds.count("response.function_call_arguments.delta") == 2
    assert "response.output_text.delta" not in kinds
    whole = await client.responses.create(**asked)
    assert (whole.output[0].name, whole.output[0].arguments) == (call.name, call.arguments)


CALLS = st.lists(
    st.tuples(st.text("abc_", min_size=1, max_size=8), st.lists(st.text(max_size=6), max_size=4)), max_size=3
)


@given(st.lists(st.text(min_size=1, max_size=8), max_size=4), CALLS, st.booleans())
def test_a_response_is_the_same_streamed_and_whole_whatever_text_and_calls_are_in_it(texts, calls, cut):
    request = parse_response_request(b'{"model":"m","input":"x"}', "resp_1")
    finish = "length" if cut else "stop"
    named: list[dict[str, Any]] = [
        {"id": f"call-{n}", "function": {"name": name, "arguments": "".join(parts)}}
        for n, (name, parts) in enumerate(calls)
    ]
    message = {"content": "".join(texts) or None, "tool_calls": named}
    body: dict[str, Any] = {"choices": [{"message": message, "finish_reason": finish}], "usage": {"prompt_tokens": 1}}
    whole = json.loads(ResponseWriter(request, 0).describe_answer(json.dumps(body).encode()))
    deltas: list[Any] = [{"content": text} for text in texts]
    for n, (call, (_, parts)) in enumerate(zip(named, calls, strict=True)):
        begun = {**call, "index": n, "function": {**call["function"], "arguments": ""}}
        deltas += [{"tool_calls": [begun]}]
        deltas += [{"tool_calls": [{"index": n, "function": {"arguments": part}}]} for part in parts]
    chunks: list[Any] = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks += [{"choices": [{"delta": {}, "finish_reason": finish}]}, {"choices": [], "usage": body["usage"]}]
    events = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
    told = [
        json.loads(line[6:]) for line in ResponseWriter(request, 0).translate(events).split(b"\n") if line[:1] == b"d"
    ]
    assert told[-1]["response"] == whole
    places = [event["output_index"] for event in told if event["type"] == "response.output_item.added"]
    assert places == list(range(len(whole["output"])))
    done = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    assert done == whole["output"]


async def test_one_model_is_shown_to_who_may_use_it(site, client):
    assert (await client.models.retrieve("echo")).id == "echo"
    with pytest.raises(openai.NotFoundError) as missing:
        await client.models.retrieve("other")
    assert missing.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("previous_response_id", "resp_1"),
        ("conversation", "c"),
        ("background", True),
        ("store", True),
        ("tools", [{"type": "web_search"}]),
        ("include", ["reasoning.encrypted_content"]),
        ("reasoning", {"effort": "low"}),
        ("odd", 1),
        ("tools", [{"type": "function"}]),
        ("tools", {"type": "function", "name": "f"}),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "name": "f"}),
        ("input", [{"type": "function_call_output", "output": "x"}]),
        ("input", [{"type": "function_call", "call_id": "c", "arguments": "{}"}]),
        ("input", [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]),
        ("text", {"format": {"type": "grammar"}}),
        ("input", 7),
        ("input", None),
    ],
)
def test_what_a_chat_completion_cannot_do_is_refused_by_the_name_of_its_field(field, value):
    body = {"model": "m", "input": "x", field: value}
    with pytest.raises(LlmError) as refused:
        parse_response_request(json.dumps(body).encode(), "resp_1")
    assert (refused.value.status, refused.value.param) == (400, field)


def test_fields_are_those_of_a_chat_and_a_picture_stays_one():
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AA"}
    body = {
        "model": "m",
        "input": [{"role": "developer", "content": "short"}, {"role": "user", "content": [picture]}],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
        "store": False,
        "tools": [],
        "top_p": 0.5,
    }
    chat = json.loads(parse_response_request(json.dumps(body).encode(), "resp_1").chat)
    assert chat["messages"] == [
        {"role": "system", "content": "short"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]},
    ]
    assert chat["response_format"] == {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}
    assert chat["top_p"] == 0.5


@pytest.mark.further
@pytest.mark.parametrize("unit", [b"word ", b'\\"'])
def test_a_response_request_is_read_in_linear_time(unit: bytes):
    def make(size: int) -> bytes:
        return b'{"model":"m","input":[{"role":"user","content":"' + unit * (size // len(unit)) + b'"}]}'

    def read(body: bytes) -> None:
        parse_response_request(body, "resp_1")

    assert_linear(read, make)
