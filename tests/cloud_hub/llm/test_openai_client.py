"""The unmodified `openai` client speaks with the hub as it does with any server of its kind."""

import openai
import pytest

from cloud_hub.llm.echo import EchoFault
from cloud_hub.registry.access import Scope

MESSAGES = [{"role": "user", "content": "one two three"}]


async def test_a_chat_is_answered_with_its_usage(site, client):
    answer = await client.chat.completions.create(model="echo", messages=MESSAGES, max_tokens=4)
    assert answer.choices[0].message.content == "one two three one"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 4)
    assert (site.records[0].caller.tenant, site.records[0].generated_tokens) == ("acme", 4)


async def test_a_streamed_chat_shows_its_usage_only_to_who_asked(site, client):
    plain = await client.chat.completions.create(model="echo", messages=MESSAGES, max_tokens=4, stream=True)
    chunks = [chunk async for chunk in plain]
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == "one two three one"
    assert all(chunk.usage is None for chunk in chunks)
    asked = await client.chat.completions.create(
        model="echo", messages=MESSAGES, max_tokens=4, stream=True, stream_options={"include_usage": True}
    )
    assert [chunk.usage.total_tokens async for chunk in asked if chunk.usage] == [7]
    assert [(each.prompt_tokens, each.generated_tokens) for each in site.records] == [(3, 4), (3, 4)]


async def test_completions_embeddings_and_models_are_served(client):
    text = await client.completions.create(model="echo", prompt="a b", max_tokens=3)
    assert text.choices[0].text == "a b a"
    stream = await client.completions.create(model="echo", prompt="a b", max_tokens=3, stream=True)
    assert [chunk.choices[0].text async for chunk in stream] == ["a ", "b ", "a"]
    found = await client.embeddings.create(model="echo", input=["abc", "d"], encoding_format="float")
    assert [each.embedding[0] for each in found.data] == [3.0, 1.0]
    listed = await client.models.list()
    assert [(model.id, model.model_extra["ready"]) for model in listed.data] == [("echo", True)]


async def test_errors_are_those_that_the_client_knows(site, client):
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="other", messages=MESSAGES)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        await client.chat.completions.create(model="echo", messages=MESSAGES, max_tokens=10**6)
    stranger = client.with_options(api_key=client.api_key[:-1] + "x")
    with pytest.raises(openai.AuthenticationError, match="this key is not valid"):
        await stranger.models.list()
    reader = site.api.key("acme", Scope.READ)["Authorization"].removeprefix("Bearer ")
    with pytest.raises(openai.PermissionDeniedError, match="lacks the scope"):
        await client.with_options(api_key=reader).models.list()


@pytest.mark.parametrize("key", ["EMPTY", "sk-no-key-required", "x"])
async def test_the_dummy_key_that_the_client_must_send_is_no_key_where_none_is_needed(site, client, key):
    stranger = client.with_options(api_key=key)
    answer = await stranger.chat.completions.create(model="echo", messages=MESSAGES, max_tokens=1)
    assert answer.choices[0].message.content == "one"
    assert site.records[0].caller.tenant == ""
    with pytest.raises(openai.AuthenticationError):  # a route that takes a key has it checked
        await stranger.get("/costs", cast_to=object)


async def test_a_stream_that_breaks_is_an_error_of_the_client_and_not_a_short_answer(site, client):
    site.engines[0].fault = EchoFault.DIES_LATER
    stream = await client.chat.completions.create(model="echo", messages=MESSAGES, max_tokens=9, stream=True)
    assert [(await anext(stream)).choices[0].delta.content for _ in range(2)] == ["one ", "two "]
    with pytest.raises(openai.APIError, match="ended in the middle"):
        await anext(stream)
