"""vLLM, started by the hub: an unmodified `openai` client, the bill, a trace, wrong options, two ranks."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.live.engines.conversations import compare_bill
from tests.live.engines.hub import LlmHub, llm_hub
from tests.live.engines.vllm import BLOCK_TOKENS, CHECK, MODEL, EngineCounts, read_counts, vllm_command

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]
MESSAGES = [{"role": "user", "content": "one two three"}]
PROMPT_TOKENS = len("user: one two three\nassistant:")
NO_END = {"ignore_eos": True}  # of vLLM: as many tokens as were asked for
CHECK_TOKENS = len("user: 1\nassistant:")
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(scope="module")
def hub(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlmHub]:
    told = {"name": MODEL, "start": vllm_command(llama, "{port}"), "ready_s": 2.0, "check": CHECK}
    with llm_hub(tmp_path_factory.mktemp("hub"), told) as found:
        found.until(lambda: found.count_ready(MODEL) == 1)
        yield found


@pytest.fixture
def client(hub: LlmHub) -> Iterator[openai.OpenAI]:
    with hub.open_client() as found:
        yield found


def read_engine(hub: LlmHub) -> EngineCounts:
    (replica,) = hub.call("/v1/admin/language-models")["models"][0]["replicas"]
    return read_counts(replica["url"])


def test_a_chat_is_answered_whole_and_streamed(client):
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=7, extra_body=NO_END)
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (PROMPT_TOKENS, 7)
    assert whole.choices[0].finish_reason == "length"
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=7, temperature=0, stream=True, extra_body=NO_END,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    again = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=7, temperature=0, extra_body=NO_END
    )
    assert text == again.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 7


def test_a_completion_is_answered_and_the_model_is_listed(client):
    found = client.completions.create(model=MODEL, prompt="one two", max_tokens=5, extra_body=NO_END)
    assert (len(found.choices), found.usage.completion_tokens) == (1, 5)
    assert [each.id for each in client.models.list()] == [MODEL]


def test_what_vllm_refuses_is_told_in_its_words_and_costs_nobody_else_the_model(client):
    for _ in range(6):  # more than open a circuit breaker
        with pytest.raises(openai.InternalServerError, match="does not know the model"):
            client.embeddings.create(model=MODEL, input="one")  # this model makes none
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=1, temperature=-1)
    with pytest.raises(openai.BadRequestError, match="2048"):
        client.completions.create(model=MODEL, prompt="one " * 1000, max_tokens=1)
    assert client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=1).usage.completion_tokens == 1


def test_tokens_billed_are_those_that_vllm_counted(hub, client):
    for number in range(4):
        prompt = "the same beginning " * 40 + str(number)  # six blocks of the prefix cache
        client.completions.create(model=MODEL, prompt=prompt, max_tokens=20 + number, extra_body=NO_END)
    stream = client.completions.create(model=MODEL, prompt="streamed", max_tokens=50, stream=True, extra_body=NO_END)
    assert len(list(stream)) > 0

    def compare() -> set[EngineCounts]:
        engine = read_engine(hub)
        return {engine, compare_bill(hub.read_bill(MODEL), engine, CHECK_TOKENS)}

    hub.until(lambda: len(compare()) == 1, 60)
    assert read_engine(hub).hits >= 3 * 5 * BLOCK_TOKENS
    assert hub.read_bill(MODEL)["tokens_out"] >= 4 * 20 + 50


def test_the_trace_of_a_streamed_answer_shows_queue_prefill_and_decode(hub, client):
    headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=30, stream=True, extra_headers=headers, extra_body=NO_END
    )
    assert list(stream)
    hub.until(lambda: {each["name"] for each in hub.spans} >= {"skerry.queue", "skerry.prefill", "skerry.decode"}, 60)
    spans = {each["name"]: each for each in hub.spans if each["traceId"] == TRACE}
    queue, prefill, decode = (spans[f"skerry.{name}"] for name in ("queue", "prefill", "decode"))
    assert queue["endTimeUnixNano"] == prefill["startTimeUnixNano"]
    assert prefill["endTimeUnixNano"] == decode["startTimeUnixNano"]
    assert min(prefill["ms"], decode["ms"]) > 0
    assert decode["attributes"]["gen_ai.usage.output_tokens"] == 30


def test_vllm_ends_with_the_hub(hub):
    (replica,) = hub.call("/v1/admin/language-models")["models"][0]["replicas"]
    assert hub.end() == 0
    with pytest.raises(OSError, match="refused"):
        read_counts(replica["url"])


def test_wrong_options_are_one_line_and_the_hub_serves_on(llama: Path, tmp_path: Path, servers):
    wrong = {"name": "wrong", "start": vllm_command(llama, "{port}", "--tensor-paralel-size", "2")}
    with llm_hub(tmp_path, wrong, {"name": MODEL, "urls": [servers[0].url], "check": CHECK}) as hub:
        hub.until(lambda: hub.count_ready(MODEL) == 1)
        hub.until(lambda: "llm_engine_died" in hub.log)
        (died,) = [line for line in hub.log.splitlines() if "llm_engine_died" in line][:1]
        assert "unrecognized" in died
        assert "tensor-paralel-size" in died
        with hub.open_client() as client:
            assert client.completions.create(model=MODEL, prompt="one two", max_tokens=3, extra_body=NO_END).choices
            with pytest.raises(openai.InternalServerError, match="no engine of this model is ready"):
                client.completions.create(model="wrong", prompt="one two", max_tokens=3)


def test_two_tensor_parallel_ranks_answer(llama: Path, tmp_path: Path):
    # two ranks on two cores: vLLM would keep one of them for itself
    program = ["env", "VLLM_CPU_OMP_THREADS_BIND=nobind", *vllm_command(llama, "{port}", "--tensor-parallel-size", "2")]
    told = {"name": MODEL, "start": program, "check": CHECK}
    with llm_hub(tmp_path, told) as hub:
        hub.until(lambda: hub.count_ready(MODEL) == 1)
        with hub.open_client() as client:
            found = client.completions.create(model=MODEL, prompt="one two", max_tokens=9, extra_body=NO_END)
    assert found.usage is not None
    assert found.usage.completion_tokens == 9
