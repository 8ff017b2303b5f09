"""By the engines' own counters: how often beginnings of prompts are computed, and whether the bill is right.

Before two doubles of an engine; and before two vLLM servers on this processor where its environment was made
(`python -m benchmarks.harness.environments vllm`), the bill of the same requests.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from math import nan
from pathlib import Path

import openai

from benchmarks.harness.environments import VLLM
from benchmarks.harness.figures import Figure
from cloud_hub.llm.echo import BLOCK_WORDS, EchoUpstream
from tests.live.engines.conversations import Conversations, add_counts, compare_bill, count_blocks
from tests.live.engines.hub import LlmHub, llm_hub
from tests.live.engines.llama import write_llama
from tests.live.engines.vllm import BLOCK_TOKENS, CHECK, MODEL, VllmServer

LIMIT = 1.1
SETTLE_TRIES = 100
ECHO = Conversations("echo", BLOCK_WORDS, "x ")
LLAMA = Conversations(MODEL, BLOCK_TOKENS, "x")
CHECK_TOKENS = {"echo": 0, MODEL: len("user: 1\nassistant:")}  # the double does not count the hub's checks


async def run_doubles(folder: Path, _bundle: Path) -> list[Figure]:
    """Two doubles of an engine."""
    engines = [EchoUpstream(), EchoUpstream()]
    urls = [await engine.start() for engine in engines]
    try:
        with _open_hub(folder, urls, "echo") as hub:
            return await _measure(hub, urls, ECHO, "two doubles")
    finally:
        for engine in engines:
            await engine.stop()


async def run_vllm(folder: Path, _bundle: Path) -> list[Figure]:
    """Two vLLM servers; NaN where vLLM is not installed."""
    if not VLLM.is_installed():
        how = ("its environment is not there: python -m benchmarks.harness.environments vllm",)
        return [Figure("two vLLM: whole blocks of beginnings computed, over once each", nan, "x", LIMIT, terms=how)]
    async with _run_servers(folder) as urls:
        with _open_hub(folder, urls, MODEL) as hub:
            return await _measure(hub, urls, LLAMA, f"two {VLLM.packages[0].replace('==', ' ')}")


@contextlib.asynccontextmanager
async def _run_servers(folder: Path) -> AsyncIterator[list[str]]:
    llama = write_llama(folder / "llama")
    servers = [VllmServer(llama, folder / f"{number}.log") for number in range(2)]
    try:
        for server in servers:
            await asyncio.to_thread(server.wait_ready)
        yield [server.url for server in servers]
    finally:
        for server in servers:
            server.kill()


@contextlib.contextmanager
def _open_hub(folder: Path, urls: Sequence[str], model: str) -> Iterator[LlmHub]:
    (folder / "hub").mkdir()
    told = {"name": model, "urls": list(urls), "ready_s": 2.0, "check": CHECK}
    with llm_hub(folder / "hub", told) as hub:
        yield hub


async def _measure(hub: LlmHub, urls: Sequence[str], asked: Conversations, engines: str) -> list[Figure]:
    """The same number of conversations through the hub, and to the engines by turns."""
    await asyncio.to_thread(hub.until, lambda: hub.count_ready(asked.model) == len(urls))
    async with hub.open_async_client() as client:
        routed = await count_blocks(asked, urls, [client], "routed")
    apart = await _compare_bill(hub, urls, asked.model)
    bare = [openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=300) for url in urls]
    by_turns = await count_blocks(asked, urls, bare, "turns")
    for each in bare:
        await each.close()
    terms = (
        f"by turns {by_turns:.2f} x",
        f"{asked.number} beginnings of {asked.blocks} blocks of {asked.block_tokens} tokens, {asked.each} prompts each",
    )
    return [
        Figure(f"{engines}: whole blocks of beginnings computed, over once each", routed, "x", LIMIT, terms=terms),
        Figure(f"{engines}: tokens billed, less those that the engines counted", apart, "tokens", 0.0),
    ]


async def _compare_bill(hub: LlmHub, urls: Sequence[str], model: str) -> float:
    """Return the difference of prompts, cached and generated tokens together, once the bill is written."""
    for _ in range(SETTLE_TRIES):
        counted, bill = await asyncio.to_thread(lambda: (add_counts(urls), hub.read_bill(model)))
        billed = compare_bill(bill, counted, CHECK_TOKENS[model])
        if billed == counted:
            break
        await asyncio.sleep(0.1)
    return float(sum(abs(one - other) for one, other in zip(billed, counted, strict=True)))
