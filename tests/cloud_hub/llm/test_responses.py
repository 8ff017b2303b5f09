"""The unmodified `openai` client asks by the Responses interface; what a chat cannot do is refused by name."""

import json

import openai
import pytest

from cloud_hub.llm.echo import EchoFault
from cloud_hub.llm.errors import LlmError
from cloud_hub.llm.responses import parse_response_request
from tests.growth import assert_linear


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
        ("input", [{"type": "function_call_output", "output": "x"}]),
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
