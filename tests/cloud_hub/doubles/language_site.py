"""A hub's web API before `EchoUpstream` engines, on free local ports, and an unmodified `openai` client's settings."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from cloud_hub.llm.echo import EchoUpstream
from cloud_hub.llm.model import LanguageModel, LlmRecord
from cloud_hub.llm.service import LanguageModels
from cloud_hub.llm.settings import LlmSettings, ReplicaAddress
from cloud_hub.llm.telemetry import trace_records
from cloud_hub.serving.telemetry import InferenceObserver, SpanSink
from tests.cloud_hub.doubles.api_site import Site

# A test that is about one of these times makes it short; all others are never waited for.
QUICK: dict[str, Any] = {
    "ready_s": 0.05,
    "check_s": 30.0,
    "connect_s": 30.0,
    "first_s": 60.0,
    "stall_s": 60.0,
    "answer_s": 120.0,
}
ASK = {"model": "echo", "messages": [{"role": "user", "content": "one two three four"}]}


class LanguageSite:
    """`engines` behind the model `echo`; `records` are the records of all requests. `spans` takes their spans."""

    def __init__(
        self, folder: Path, engines: list[EchoUpstream], settings: LlmSettings, spans: SpanSink | None = None
    ) -> None:
        self.engines = engines
        self.records: list[LlmRecord] = []
        sinks = [self.records.append, *([trace_records(spans)] if spans else [])]
        self.models = LanguageModels([settings], {settings.name: "engine-key"}, sinks)
        self.api = Site(folder, max_body_bytes=1 << 20, language_models=self.models, observer=InferenceObserver(spans))

    @property
    def model(self) -> LanguageModel:
        return self.models.list_models("")[0]

    @property
    def url(self) -> str:
        return self.api.url + "/v1"

    async def ask(self, path: str = "chat/completions", **fields: Any) -> tuple[int, Any]:
        return await self.api.ask("POST", f"/v1/{path}", json={**ASK, **fields})

    async def stream(self, **fields: Any) -> bytes:
        """The whole body of a streamed chat."""
        body = {**ASK, "stream": True, "max_tokens": 5, **fields}
        async with self.api.client.post(self.url + "/chat/completions", json=body) as response:
            return await response.read()

    async def ready(self, replicas: int | None = None) -> None:
        """Wait until so many replicas are ready, all by default."""
        wanted = len(self.engines) if replicas is None else replicas
        async with asyncio.timeout(60):
            while sum(replica.ready for replica in self.model.replicas) != wanted:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def language_site(
    folder: Path, engines: int = 1, *, spans: SpanSink | None = None, token_s: float = 0.0, **settings: Any
) -> AsyncIterator[LanguageSite]:
    """A site whose engines are all ready."""
    found = [EchoUpstream(key="engine-key", token_s=token_s) for _ in range(engines)]
    urls = tuple([ReplicaAddress(await engine.start()) for engine in found])
    told = msgspec.structs.replace(LlmSettings(name="echo", urls=urls, **QUICK), **settings)
    site = LanguageSite(folder, found, told, spans)
    running = asyncio.create_task(site.models.run())
    await site.api.open()
    try:
        await site.ready()
        yield site
    finally:
        await site.api.close()
        running.cancel()
        await asyncio.wait({running})
        for engine in found:
            await engine.stop()
