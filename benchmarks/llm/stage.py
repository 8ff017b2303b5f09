"""A hub process and engines' doubles in processes of their own, and a client that times streams."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from cloud_hub.system.client import ApiAddress, call_hub_api, read_running_address
from simulations.processes import find_free_port
from wire.process.files import PACKAGES_FOLDER

START_S = 120.0
WORD_FAULTS = ("poison=fails", "crash=dies_later", "broken=error_event")  # words that make an engine misbehave
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CONFIG = 'state = "state"\n[api]\nport = 0\n[broker]\nport = {broker}\n[[llm]]\nname = "echo"\nready_s = 0.5\n'


class StreamResult(NamedTuple):
    """One streamed request. `first_s`: until its first byte, NaN = none; `done`: complete; `error`: it says it broke.

    `retry_s` of a refusal, "" = none was told.
    """

    status: int
    first_s: float
    events: int
    done: bool
    error: bool
    retry_s: str


class PassThrough(NamedTuple):
    """A gateway that hands bytes on and does nothing else."""

    url: str
    process: subprocess.Popen[bytes]


def read_cpu_s(process: subprocess.Popen[bytes]) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


class Stage:
    """`bare`: URLs of the engines; `hub`: of the hub."""

    def __init__(self, folder: Path, engines: int, engine_words: Sequence[str], settings: Mapping[str, Any]) -> None:
        self._folder = folder
        ports = [find_free_port() for _ in range(engines)]
        self.bare = [f"http://127.0.0.1:{port}" for port in ports]
        faults = [f"--word-fault={word}" for word in WORD_FAULTS]
        echo = ("cloud_hub.llm.echo", *faults, *engine_words, "--port")
        self.engines = [self._start(*echo, str(port)) for port in ports]
        told = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        text = CONFIG.format(broker=find_free_port()) + f"urls = {json.dumps(self.bare)}\n{told}"
        (folder / "hub.toml").write_text(text)
        self.process = self._start("cloud_hub", "--config", str(folder / "hub.toml"))
        self.client: aiohttp.ClientSession

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        quiet = subprocess.DEVNULL
        program = [sys.executable, "-m", *words]
        return subprocess.Popen(program, cwd=PACKAGES_FOLDER, stdin=quiet, stdout=quiet, stderr=quiet)

    @property
    def address(self) -> ApiAddress | None:
        return read_running_address(self._folder / "state" / "api.json")

    @property
    def hub(self) -> str:
        """URL of the hub."""
        address = self.address
        assert address is not None
        return address.url

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call the hub's admin API."""
        address = self.address
        assert address is not None
        return call_hub_api(address, method, path, body)

    def key(self, tenant: str) -> str:
        """Return a new key of a tenant."""
        asked = {"name": "bench", "scopes": ["infer"], "tenant": tenant, "expires_s": 3600}
        return str(self.call("POST", "/v1/admin/keys", asked)["token"])

    def start_pass_through(self) -> "PassThrough":
        """Start the gateway that does nothing else, before the first engine."""
        port = find_free_port()
        words = ("benchmarks.llm.pass_through", "--port", str(port), "--engine", self.bare[0])
        self.engines.append(process := self._start(*words))
        return PassThrough(f"http://127.0.0.1:{port}", process)

    async def wait_ready(self) -> None:
        """Wait until every engine is ready."""
        async with asyncio.timeout(START_S):
            while self.address is None or self._count_ready() < len(self.bare):
                assert self.process.poll() is None, "the hub ended"
                await asyncio.sleep(0.1)

    def _count_ready(self) -> int:
        return int(self.call("GET", "/v1/admin/status")["language_models"]["echo"]["ready"])

    async def wait_listening(self, url: str) -> None:
        """Wait until something answers at a URL, whatever it says."""
        async with asyncio.timeout(START_S):
            while not await self._listens(url):
                await asyncio.sleep(0.1)

    async def _listens(self, url: str) -> bool:
        try:
            async with self.client.get(url):
                return True
        except aiohttp.ClientConnectorError:
            return False

    async def stream(self, url: str, tokens: int, key: str = "") -> StreamResult:
        """Stream one chat from the hub or from an engine."""
        body = {"model": "echo", "stream": True, "max_tokens": tokens, "messages": [{"content": "one two three"}]}
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        began, first_s, found = time.perf_counter(), float("nan"), b""
        async with self.client.post(url + "/v1/chat/completions", json=body, headers=headers) as response:
            async for part in response.content.iter_any():
                first_s = first_s if found else time.perf_counter() - began
                found += part
            retry_s = response.headers.get("Retry-After", "")
        error = b'"error"' in found
        return StreamResult(response.status, first_s, found.count(b'"delta"'), b"[DONE]" in found, error, retry_s)

    async def ask(self, url: str, tokens: int, key: str) -> StreamResult:
        """Ask for a whole answer; its tokens count as events."""
        body = {"model": "echo", "max_tokens": tokens, "prompt": "one two three"}
        headers = {"Authorization": f"Bearer {key}"}
        async with self.client.post(url + "/v1/completions", json=body, headers=headers) as response:
            told, retry_s = await response.json(), response.headers.get("Retry-After", "")
        got = told.get("usage", {}).get("completion_tokens", 0)
        return StreamResult(response.status, float("nan"), got, bool(got), "error" in told, retry_s)

    def end(self) -> None:
        """End every process."""
        for process in (self.process, *self.engines):
            if process.poll() is None:
                process.kill()
            process.wait()


@contextlib.asynccontextmanager
async def open_stage(
    folder: Path, engines: int = 1, token_s: float = 0.0, engine_words: Sequence[str] = (), **settings: Any
) -> AsyncIterator[Stage]:
    """Yield a stage whose engines are ready. `settings`: of the model in hub.toml; `engine_words`: of its engines."""
    folder.mkdir()
    stage = Stage(folder, engines, ("--token-s", str(token_s), *engine_words), settings)
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as stage.client:
            await stage.wait_ready()
            yield stage
    finally:
        stage.end()
