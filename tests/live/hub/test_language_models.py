"""A whole hub process before two engines, in processes of their own: two tenants, a killed engine, an orderly stop."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from cloud_hub.system.client import ApiAddress, call_hub_api, read_running_address
from simulations.processes import find_free_port
from tests import ROOT

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]
CONFIG = """
state = "state"
[hub]
drain_s = 60.0
[api]
port = 0
[broker]
port = {broker}
[trace]
file = "trace.jsonl"
[[llm]]
name = "chat"
model = "echo"
urls = {urls}
ready_s = 0.2
"""
LONG = 5000  # tokens of an answer that takes longer than any wait here
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "one two three"}]}


def start(*words: str, folder: Path, log: str) -> subprocess.Popen[str]:
    with (folder / log).open("w") as file:
        program = [sys.executable, "-m", *words]
        return subprocess.Popen(program, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, text=True)


class Language:
    """A hub process and its engines. `url` of the API is known once the hub listens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = [find_free_port() for _ in range(2)]
        options = ("--token-s", "0.02")
        self.engines = [
            start("cloud_hub.llm.echo", "--port", str(port), *options, folder=folder, log=f"{port}.log")
            for port in ports
        ]
        urls = json.dumps([f"http://127.0.0.1:{port}" for port in ports])
        (folder / "hub.toml").write_text(CONFIG.format(broker=find_free_port(), urls=urls))
        self.hub = start("cloud_hub", "--config", str(folder / "hub.toml"), folder=folder, log="hub.log")
        self.client: aiohttp.ClientSession

    @property
    def address(self) -> ApiAddress:
        found = read_running_address(self.folder / "state" / "api.json")
        assert found is not None
        return found

    def said(self) -> str:
        return (self.folder / "hub.log").read_text()

    async def until(self, look: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not look():
                assert self.hub.poll() is None, self.said()
                await asyncio.sleep(0.05)

    def count_ready(self) -> int:
        with contextlib.suppress(AssertionError):
            status = call_hub_api(self.address, "GET", "/v1/admin/status")
            return int(status["language_models"]["chat"]["ready"])
        return 0

    def key(self, tenant: str) -> dict[str, str]:
        asked = {"name": "test", "scopes": ["infer"], "tenant": tenant, "expires_s": 3600}
        return {"Authorization": f"Bearer {call_hub_api(self.address, 'POST', '/v1/admin/keys', asked)['token']}"}

    async def stream(self, headers: dict[str, str], tokens: int, begun: list[None] | None = None) -> bytes:
        """Return what a streamed chat says; `begun` gets an item with its first byte."""
        body = {**CHAT, "stream": True, "max_tokens": tokens}
        url = self.address.url + "/v1/chat/completions"
        async with self.client.post(url, json=body, headers=headers) as response:
            first = await response.content.readany()
            if begun is not None:
                begun.append(None)
            return first + await response.read()

    def end(self) -> None:
        for process in (self.hub, *self.engines):
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Language]:
    found = Language(tmp_path)
    yield found
    found.end()


@pytest.fixture
async def language(started: Language) -> AsyncIterator[Language]:
    async with aiohttp.ClientSession() as started.client:
        await started.until(lambda: started.count_ready() == 2)
        yield started


async def test_two_tenants_are_served_an_engine_dies_under_load_and_the_hub_stops_in_order(language: Language):
    keys = [language.key("acme"), language.key("clinic")]
    first = await asyncio.gather(*(language.stream(key, 5) for key in keys))
    assert [(told.count(b'"content"'), told.count(b"[DONE]")) for told in first] == [(5, 1), (5, 1)]

    begun: list[None] = []  # one for each stream that has its first byte
    asked = [asyncio.create_task(language.stream(keys[n % 2], LONG, begun)) for n in range(8)]
    await language.until(lambda: len(begun) == len(asked))
    language.engines[0].kill()
    await language.until(lambda: sum(each.done() for each in asked) == len(asked) // 2)
    for ended in (each for each in asked if each.done()):  # half of them were the killed engine's
        assert (ended.result().count(b"[DONE]"), ended.result().count(b'"error"')) == (0, 1)
    for going in asked:
        going.cancel()
    after = await asyncio.gather(*(language.stream(key, 3) for key in keys * 2))
    assert all(text.count(b"[DONE]") == 1 for text in after)
    await language.until(lambda: language.count_ready() == 1)

    await language.until(lambda: count_running(language) == 0)  # who hung up has ended at the engine
    last = asyncio.create_task(language.stream(keys[0], 50, begun := []))
    await language.until(lambda: len(begun) == 1)
    language.hub.terminate()
    assert (await last).count(b"[DONE]") == 1
    assert await asyncio.to_thread(language.hub.wait, 60) == 0


def count_running(language: Language) -> int:
    status = call_hub_api(language.address, "GET", "/v1/admin/status")
    return int(status["language_models"]["chat"]["running"])
