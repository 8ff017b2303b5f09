"""An honest tenant beside ten hostile ones; and the bill of callers that hang up, against the engine's own counts."""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import numpy as np

from benchmarks.harness.figures import Figure
from benchmarks.llm.stage import Stage, open_stage

TOKEN_S = 0.02
HONEST_TOKENS = 15
HONEST_PER_S = 5.0
LOAD_S = 15.0
PAUSE_S = 0.5  # between two requests of a hostile tenant
FLOOD = 4  # requests at once of the tenant that asks for all it may
HANG_UPS = 1000  # of each kind
AT_ONCE = 25
FIRST_S, LAST_S = 0.5, 1.0  # when callers hang up
_ANSWERED = 44  # tokens of the one request that is answered


class HonestResult(NamedTuple):
    """What the honest tenant got: seconds of its answers, and how many were no answers."""

    seconds: list[float]
    refused: int


async def run_fairness(folder: Path, _bundle: Path) -> list[Figure]:
    """The honest tenant alone, beside ten hostile ones, and alone again."""
    async with open_stage(folder / "fairness", token_s=TOKEN_S) as stage:
        honest = stage.key("honest")
        before = await _ask_honestly(stage, honest)
        hostile = [asyncio.create_task(_repeat(attack, stage, stage.key(f"h{n}"))) for n, attack in enumerate(ATTACKS)]
        await asyncio.sleep(2.0)
        beside = await _ask_honestly(stage, honest)
        for task in hostile:
            task.cancel()
        await asyncio.wait(hostile)
        after = await _ask_honestly(stage, honest)
    alone = _p99([*before.seconds, *after.seconds])
    terms = (f"alone {1000 * alone:.0f} ms, beside {1000 * _p99(beside.seconds):.0f} ms", f"{len(ATTACKS)} hostile")
    return [
        Figure("honest tenant beside hostile ones: p99 over alone", _p99(beside.seconds) / alone, "", 1.1, terms=terms),
        Figure(
            "honest tenant beside hostile ones: refusals, less those alone",
            beside.refused - max(before.refused, after.refused),
            "refusals",
            0.0,
        ),
    ]


def _p99(seconds: list[float]) -> float:
    return float(np.quantile(seconds, 0.99)) if seconds else float("inf")


async def _ask_honestly(stage: Stage, key: str) -> HonestResult:
    """Ask at a steady pace, whatever comes back."""
    tasks: list[asyncio.Task[float]] = []
    until = time.monotonic() + LOAD_S
    while time.monotonic() < until:
        tasks.append(asyncio.create_task(_time_answer(stage, key)))
        await asyncio.sleep(1.0 / HONEST_PER_S)
    seconds = await asyncio.gather(*tasks)
    return HonestResult([each for each in seconds if each > 0], sum(each <= 0 for each in seconds))


async def _time_answer(stage: Stage, key: str) -> float:
    """Return the seconds of a streamed answer, 0 if there was none."""
    began = time.perf_counter()
    result = await _post(stage, key, _chat("an honest question", HONEST_TOKENS, stream=True))
    return time.perf_counter() - began if result.endswith(b"data: [DONE]\n\n") else 0.0


def _chat(words: str, tokens: int, *, stream: bool = False) -> dict[str, Any]:
    return {"model": "echo", "max_tokens": tokens, "stream": stream, "messages": [{"role": "user", "content": words}]}


async def _post(stage: Stage, key: str, body: Any) -> bytes:
    given = {"data": body} if isinstance(body, bytes) else {"json": body}
    headers = {"Authorization": f"Bearer {key}"}
    async with stage.client.post(f"{stage.hub}/v1/chat/completions", headers=headers, **given) as response:
        return await response.read()


# -- what hostile tenants do

Attack = Callable[[Stage, str], Awaitable[object]]


async def _repeat(attack: Attack, stage: Stage, key: str) -> None:
    while True:
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            await attack(stage, key)
        await asyncio.sleep(PAUSE_S)


async def _send_malformed(stage: Stage, key: str) -> None:
    for body in (b'{"model":', b'{"model":"echo","messages":[{}],"model":1}', b"[" * 5000, b"\xff\xfe"):
        await _post(stage, key, body)


async def _send_escapes(stage: Stage, key: str) -> None:
    await _post(stage, key, b'"' + b'\\"' * 40_000)


async def _send_huge(stage: Stage, key: str) -> None:
    await _post(stage, key, b'{"model":"echo","messages":[{"content":"' + b"x" * 3_000_000 + b'"}]}')


async def _hang_up(stage: Stage, key: str) -> None:
    async with asyncio.timeout(0.15):
        await _post(stage, key, _chat("one two", 200, stream=True))


async def _provoke_errors(stage: Stage, key: str) -> None:
    for word in ("poison", "crash", "broken"):
        await _post(stage, key, _chat(word, 10))


async def _provoke_stream_errors(stage: Stage, key: str) -> None:
    for word in ("poison", "crash", "broken"):
        await _post(stage, key, _chat(word, 10, stream=True))


async def _never_read(stage: Stage, key: str) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    body = _chat("word " * 100, 300, stream=True)
    async with stage.client.post(f"{stage.hub}/v1/chat/completions", headers=headers, json=body):
        await asyncio.sleep(5.0)


async def _send_slowly(stage: Stage, key: str) -> None:
    async def dribble() -> Any:
        for _ in range(20):
            yield b" "
            await asyncio.sleep(0.25)

    headers = {"Authorization": f"Bearer {key}"}
    async with stage.client.post(f"{stage.hub}/v1/chat/completions", headers=headers, data=dribble()) as response:
        await response.read()


async def _show_wrong_keys(stage: Stage, key: str) -> None:
    for number in range(5):
        await _post(stage, f"{key[:-4]}{number:04d}", _chat("one", 5))


async def _flood(stage: Stage, key: str) -> None:
    await asyncio.gather(*(_post(stage, key, _chat("one two three", 100)) for _ in range(FLOOD)))


ATTACKS: tuple[Attack, ...] = (
    _send_malformed,
    _send_escapes,
    _send_huge,
    _hang_up,
    _provoke_errors,
    _provoke_stream_errors,
    _never_read,
    _send_slowly,
    _show_wrong_keys,
    _flood,
)


# -- the bill


async def run_hang_ups(folder: Path, _bundle: Path) -> list[Figure]:
    """Callers that hang up in the middle of streamed answers, and of answers in one piece.

    First of an engine that tells the tokens so far with each event, then of one that does not: an estimate.
    """
    figures = []
    for told in (True, False):
        for stream in (True, False):
            bill, counted = await _bill_hang_ups(folder / f"hang-ups-{told}-{stream}", stream=stream, told=told)
            figures += _describe_bill(bill, counted, "streamed" if stream else "in one piece", told=told)
    return figures


async def _bill_hang_ups(folder: Path, *, stream: bool, told: bool) -> tuple[dict[str, int], int]:
    """Return the sums of the bill, and the tokens that the engine counted."""
    words = () if told else ("--no-each-usage",)
    async with open_stage(folder, token_s=TOKEN_S, engine_words=words) as stage:
        key, draw, gate = stage.key("acme"), random.Random(7), asyncio.Semaphore(AT_ONCE)
        await _post(stage, key, _chat("one two three four", 40))  # estimates learn from an answer
        calls = (_give_up(stage, key, draw.uniform(FIRST_S, LAST_S), gate, stream) for _ in range(HANG_UPS))
        await asyncio.gather(*calls)
        amounts = await _read_amounts(stage)
        async with stage.client.get(f"{stage.bare[0]}/metrics") as response:
            return amounts, _count_tokens(await response.text())


def _describe_bill(bill: dict[str, int], counted: int, kind: str, *, told: bool) -> list[Figure]:
    billed = sum(bill.get(name, 0) for name in ("tokens_in", "tokens_cached", "tokens_out"))
    estimated = bill.get("tokens_estimated", 0)
    terms: tuple[str, ...] = (f"{billed} tokens billed, {estimated} of them stated as an estimate; engine: {counted}",)
    name = f"{HANG_UPS} hang-ups {kind}, of an engine that {'tells' if told else 'does not tell'} each token"
    off = abs(billed / counted - 1.0)
    if told:
        return [Figure(f"{name}: bill over its count, distance from 1", off, "", 0.01, terms=terms)]
    unsaid = billed - estimated - _ANSWERED
    terms += (f"the estimate over what the engine counted: {estimated / (counted - _ANSWERED):.3f}",)
    return [Figure(f"{name}: tokens billed that are not stated as an estimate", unsaid, "", 0.0, terms=terms)]


async def _give_up(stage: Stage, key: str, after_s: float, gate: asyncio.Semaphore, stream: bool) -> None:
    async with gate:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(after_s):
                await _post(stage, key, _chat("one two three four", 400, stream=stream))


async def _read_amounts(stage: Stage) -> dict[str, int]:
    """Return the sums of the bill, once they no longer grow."""
    told: dict[str, int] = {}
    while True:
        await asyncio.sleep(1.0)
        now: dict[str, int] = {}
        for line in stage.call("GET", "/v1/costs?days=2")["costs"]:
            now |= {kind: now.get(kind, 0) + int(amount) for kind, amount in line["amounts"].items()}
        if now == told and now:
            return now
        told = now


def _count_tokens(metrics: str) -> int:
    """Return the tokens of prompts and answers that an engine says it computed."""
    counters = ("vllm:prompt_tokens_total ", "vllm:generation_tokens_total ")
    return sum(int(float(line.split()[-1])) for line in metrics.splitlines() if line.startswith(counters))
