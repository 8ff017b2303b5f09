"""Two vLLM servers of one model: prompts that begin alike go where the beginning is cached; one of them is killed."""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.live.engines.conversations import Conversations, count_blocks
from tests.live.engines.hub import LlmHub, llm_hub
from tests.live.engines.vllm import BLOCK_TOKENS, CHECK, MODEL, VllmServer

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]
ASKED = Conversations(MODEL, BLOCK_TOKENS, "x")
NO_END = {"ignore_eos": True}


@pytest.fixture(scope="module")
def hub(servers: list[VllmServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlmHub]:
    told = {"name": MODEL, "urls": [server.url for server in servers], "ready_s": 2.0, "stall_s": 60.0, "check": CHECK}
    with llm_hub(tmp_path_factory.mktemp("hub"), told) as found:
        found.until(lambda: found.count_ready(MODEL) == len(servers))
        yield found


async def test_beginnings_are_computed_once_where_round_robin_computes_them_on_every_server(hub, servers):
    urls = [server.url for server in servers]
    async with hub.open_async_client() as client:
        routed = await count_blocks(ASKED, urls, [client], "routed")
    bare = [openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=300) for url in urls]
    by_turns = await count_blocks(ASKED, urls, bare, "turns")
    for client in bare:
        await client.close()
    print(
        f"\nwhole blocks of {ASKED.number} beginnings computed: {routed:.3f} x once each; round robin {by_turns:.3f} x"
    )
    assert routed <= 1.1
    assert by_turns >= 1.9


async def test_a_server_killed_under_load_loses_nothing_that_had_no_first_byte(hub, servers):
    """Half of the streams that had begun end with the error event, the others whole; who had no byte is answered."""
    begun: list[None] = []
    long: dict[str, Any] = {"model": MODEL, "max_tokens": 1500, "stream": True, "extra_body": NO_END}

    async def stream(client: openai.AsyncOpenAI, number: int) -> bool:
        """Whether it came to its end; False if it ended with the error event."""
        chunks = 0
        try:
            async for _ in await client.completions.create(prompt=f"{number} begins", **long):
                chunks += 1
                if chunks == 1:
                    begun.append(None)
        except openai.APIError as error:
            if "the engine ended in the middle" not in str(error):
                raise
            return False
        return True

    async def ask(client: openai.AsyncOpenAI, number: int) -> int:
        found = await client.completions.create(model=MODEL, prompt=f"{number} after", max_tokens=8, extra_body=NO_END)
        return found.usage.completion_tokens if found.usage else 0

    async with hub.open_async_client() as client:
        streams = [asyncio.create_task(stream(client, number)) for number in range(12)]
        async with asyncio.timeout(300):
            while len(begun) < len(streams):
                await asyncio.sleep(0.02)
        waiting = [asyncio.create_task(ask(client, number)) for number in range(12)]
        servers[1].kill()
        waiting += [asyncio.create_task(ask(client, number)) for number in range(12, 24)]
        assert await asyncio.gather(*waiting) == [8] * 24
        ended = await asyncio.gather(*streams)
    print(f"\n{ended.count(False)} of {len(ended)} streams ended with the error event, 24 of 24 others answered")
    assert ended.count(True) >= 1
    assert ended.count(False) >= 1
    hub.until(lambda: hub.count_ready(MODEL) == 1)
