"""The hub's CPU for a streamed chunk beside that of litellm's proxy, before the same paced engine, by turns.

The proxy is measured where its environment was made: `python -m benchmarks.harness.environments litellm`.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from functools import partial
from math import nan
from pathlib import Path

import aiohttp

from benchmarks.harness.environments import LITELLM
from benchmarks.harness.figures import US, Figure, find_median
from benchmarks.llm.stage import Stage, open_stage, read_cpu_s
from simulations.processes import find_free_port

STREAMS, TOKENS, TOKENS_PER_S, ROUNDS = 16, 100, 20.0, 3
START_S = 240.0
NAME = "hub's CPU for a streamed chunk over litellm's proxy"
LIMIT = 0.2
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


async def run_benchmark(folder: Path, _bundle: Path) -> list[Figure]:
    """Return the ratio, NaN where litellm is not installed."""
    if not LITELLM.is_installed():
        how = "its environment is not there: python -m benchmarks.harness.environments litellm"
        return [Figure(NAME, nan, "x", LIMIT, terms=(how,))]
    async with open_stage(folder / "litellm", token_s=1 / TOKENS_PER_S) as stage, run_proxy(folder, stage) as proxy:
        spent: dict[str, list[float]] = {stage.hub: [], proxy.url: []}
        for url in spent:
            await _stream_all(stage, url)  # warm
        for _ in range(ROUNDS):
            for url, found in spent.items():
                read = partial(read_cpu_s, stage.process) if url == stage.hub else proxy.cpu_s
                before = read()
                chunks = await _stream_all(stage, url)
                found.append((read() - before) / chunks)
    hub, other = (find_median(each) * US for each in spent.values())
    package = LITELLM.packages[0].replace("==", " ")
    terms = (
        f"hub {hub:.0f} us, {package} {other:.0f} us",
        f"{STREAMS} streams of {TOKENS} tokens at {TOKENS_PER_S:g}/s, {ROUNDS} rounds each",
    )
    return [Figure(NAME, hub / other, "x", LIMIT, terms=terms)]


async def _stream_all(stage: Stage, url: str) -> int:
    """Return the chunks that came of all streams."""
    results = await asyncio.gather(*(stage.stream(url, TOKENS) for _ in range(STREAMS)))
    assert all(each.done for each in results), f"{url}: {results[0]}"
    return sum(each.events for each in results)


class Proxy:
    """litellm's proxy in a process group of its own."""

    def __init__(self, folder: Path, engine: str) -> None:
        port = find_free_port()
        self.url = f"http://127.0.0.1:{port}"
        told = {"model": "openai/echo", "api_base": f"{engine}/v1", "api_key": "none"}
        config = {"model_list": [{"model_name": "echo", "litellm_params": told}]}
        (folder / "litellm.yaml").write_text(json.dumps(config))  # JSON is YAML
        program = LITELLM.home / "bin" / "litellm"
        self._log = folder / "litellm.log"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SKERRY_")}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [str(program), "--config", str(folder / "litellm.yaml"), "--host", "127.0.0.1", "--port", str(port)],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**kept, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"},
            )  # fmt: skip

    def cpu_s(self) -> float:
        """CPU seconds of all processes of its group so far."""
        total = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = path.read_text().rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12]) if int(fields[2]) == self._process.pid else 0
        return total / _TICKS_PER_S

    async def wait_ready(self, client: aiohttp.ClientSession) -> None:
        """Wait until it says that it is alive."""
        async with asyncio.timeout(START_S):
            while not await self._is_alive(client):
                assert self._process.poll() is None, self._log.read_text()[-2000:]
                await asyncio.sleep(0.5)

    async def _is_alive(self, client: aiohttp.ClientSession) -> bool:
        try:
            async with client.get(f"{self.url}/health/liveliness") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    def end(self) -> None:
        """End every process of its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.asynccontextmanager
async def run_proxy(folder: Path, stage: Stage) -> AsyncIterator[Proxy]:
    """Yield the proxy before the stage's engine, once it answers."""
    proxy = Proxy(folder, stage.bare[0])
    try:
        await proxy.wait_ready(stage.client)
        yield proxy
    finally:
        proxy.end()
