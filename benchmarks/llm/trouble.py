"""What is lost when an engine is killed under load; how fair an overloaded hub is; whether the bill is right."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.figures import Figure
from benchmarks.llm.stage import Stage, StreamResult, open_stage

STREAMS = 32
LONG_TOKENS = 100
TENANTS = 50
EACH = 8  # callers of one tenant
ASKED_TOKENS = 100
TOKEN_S = 0.002
RUNNING = 8
AGAIN_S = 0.6
LOAD_S = 50.0


async def run_killed(folder: Path, _bundle: Path) -> list[Figure]:
    """Two engines, one killed while all streams are under way and others are asked for."""
    async with open_stage(folder / "killed", engines=2, token_s=0.05) as stage:
        begun = [asyncio.create_task(stage.stream(stage.hub, LONG_TOKENS)) for _ in range(STREAMS)]
        await asyncio.sleep(LONG_TOKENS * 0.05 / 2)
        stage.engines[0].kill()
        after = [asyncio.create_task(stage.stream(stage.hub, 10)) for _ in range(STREAMS)]
        first, later = await asyncio.gather(asyncio.gather(*begun), asyncio.gather(*after))
    silent = [each for each in first if each.done == each.error]
    lost = [each for each in later if not each.done]
    broken = sum(each.error for each in first)
    return [
        Figure("engine killed: requests without a first byte that were lost", len(lost), "requests", 0.0),
        Figure(
            "engine killed: streams that neither end whole nor say so",
            len(silent),
            "streams",
            0.0,
            terms=(f"{broken} of {STREAMS} ended with the error event",),
        ),
    ]


async def run_overload(folder: Path, _bundle: Path) -> list[Figure]:
    """50 tenants ask for about ten times the tokens that the engine is given; afterwards the bill is compared."""
    limits: dict[str, Any] = {"max_running": RUNNING, "max_wait_s": 8.0, "tokens_per_s": RUNNING / TOKEN_S}
    async with open_stage(folder / "overload", token_s=TOKEN_S, **limits) as stage:
        keys = {f"t{number}": stage.key(f"t{number}") for number in range(TENANTS)}
        until = time.monotonic() + LOAD_S
        callers = [_ask_until(stage, tenant, key, until) for tenant, key in keys.items() for _ in range(EACH)]
        found = await asyncio.gather(*callers)
        billed = await _read_bill(stage)
    served: Counter[str] = Counter(dict.fromkeys(keys, 0))
    for tenant, results in found:
        served[tenant] += sum(each.events for each in results)
    results = [each for _, some in found for each in some]
    refused = [each for each in results if each.status != 200]
    untold = [each for each in refused if each.status not in (429, 503) or not each.retry_s]
    terms = (
        f"{len(results)} asked, {len(refused)} refused",
        f"{min(served.values())} to {max(served.values())} tokens",
    )
    return [
        Figure(
            "overload: fairness of 50 tenants in tokens (Jain)", _jain(list(served.values())), "", 0.95, True, terms
        ),
        Figure("overload: refusals without a time", len(untold), "refusals", 0.0),
        Figure("tokens billed, less those that the callers got", abs(billed - served.total()), "tokens", 0.0),
    ]


async def _ask_until(stage: Stage, tenant: str, key: str, until: float) -> tuple[str, list[StreamResult]]:
    """Ask without end; one that is refused asks again soon, whatever it was told."""
    results = []
    while time.monotonic() < until:
        results.append(await stage.ask(stage.hub, ASKED_TOKENS, key))
        if results[-1].status != 200:
            await asyncio.sleep(AGAIN_S)
    return tenant, results


async def _read_bill(stage: Stage) -> int:
    """Return the output tokens on the bill, once it no longer grows."""
    told = -1
    while True:
        lines = stage.call("GET", "/v1/costs?days=2")["costs"]
        now = sum(int(line["amounts"].get("tokens_out", 0)) for line in lines)
        if now == told:
            return now
        told = now
        await asyncio.sleep(0.5)


def _jain(values: Sequence[float]) -> float:
    """Return Jain's index of fairness (R. Jain et al., DEC TR-301, 1984): 1 = all the same."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0
