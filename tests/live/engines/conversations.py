"""Conversations whose prompts begin alike, and how often engines computed these beginnings, by their own counters."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import openai

from tests.live.engines.vllm import EngineCounts, read_counts


class Conversations(NamedTuple):
    """`number` conversations of `each` prompts. The beginning of each fills `blocks` whole blocks of an engine's cache.

    `word`: as many of it are as many tokens.
    """

    model: str
    block_tokens: int
    word: str
    number: int = 8
    each: int = 8
    blocks: int = 9

    def write(self, kind: str) -> list[list[str]]:
        """Return the prompts; those of another kind have other beginnings."""
        found = []
        for place in range(self.number):
            name = f"{kind}{place}" + (" " if self.word.endswith(" ") else "")
            own = 1 if self.word.endswith(" ") else len(name)
            beginning = name + self.word * (self.blocks * self.block_tokens - own)
            found.append([f"{beginning}question{n:03}" for n in range(self.each)])
        return found

    @property
    def rest_tokens(self) -> int:
        """Tokens of all prompts beyond their beginnings."""
        return self.number * self.each * (1 if self.word.endswith(" ") else len("question000"))


def add_counts(urls: Sequence[str]) -> EngineCounts:
    """Return what several engines counted, together."""
    return EngineCounts(*map(sum, zip(*map(read_counts, urls), strict=True)))


async def count_blocks(
    asked: Conversations, urls: Sequence[str], clients: Sequence[openai.AsyncOpenAI], kind: str
) -> float:
    """Return how often each whole block of the beginnings was computed, in the mean; 1 is the least there can be.

    Each prompt of a conversation goes to the next of `clients`, all conversations at once.
    """
    before = await asyncio.to_thread(add_counts, urls)
    async with asyncio.TaskGroup() as group:
        for number, prompts in enumerate(asked.write(kind)):
            group.create_task(_hold(asked.model, clients, prompts, number))
    after = await asyncio.to_thread(add_counts, urls)
    computed = after.prompt - after.hits - before.prompt + before.hits - asked.rest_tokens
    return computed / asked.block_tokens / (asked.number * asked.blocks)


async def _hold(model: str, clients: Sequence[openai.AsyncOpenAI], prompts: Sequence[str], first: int) -> None:
    for number, prompt in enumerate(prompts):
        client = clients[(first + number) % len(clients)]
        await client.completions.create(model=model, prompt=prompt, max_tokens=2)


def compare_bill(bill: dict[str, int], engine: EngineCounts, check_tokens: int) -> EngineCounts:
    """Return what the engines should have counted: the bill, and the hub's checks of `check_tokens` and one token."""
    checks = engine.requests - bill.get("requests", 0)
    cached = bill.get("tokens_cached", 0)
    prompt = bill.get("tokens_in", 0) + cached + checks * check_tokens
    return EngineCounts(bill.get("requests", 0) + checks, prompt, cached, bill.get("tokens_out", 0) + checks)
