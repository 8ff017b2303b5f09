"""A file of chats, handed over as one batch, is answered line by line, by the names that its caller gave them."""

import asyncio
import json
from pathlib import Path
from typing import Any, Self

import msgspec

from cloud_hub.database.parts import DatabaseUrls
from cloud_hub.jobs.decisions import JobSettings
from cloud_hub.llm.echo import EchoFault, EchoUpstream
from cloud_hub.llm.model import LlmRecord
from cloud_hub.llm.service import LanguageModels
from cloud_hub.llm.settings import LlmSettings, ReplicaAddress
from cloud_hub.registry.access import Scope
from cloud_hub.runtime.hub import Hub
from cloud_hub.runtime.services import HubServices
from tests.cloud_hub.doubles.job_site import JobHub, JobSite
from tests.cloud_hub.doubles.language_site import QUICK
from wire.process.logging import JsonLog


class LanguageHub(JobHub):
    """A hub whose jobs may name the language model `chat`."""

    models: LanguageModels

    def make_hub(self) -> Hub:
        return self.build_hub(HubServices(JsonLog(self.log), jobs=self._jobs, language_models=self.models))


class LanguageJobSite:
    """The hub, its API, an engine; `records` of its requests."""

    def __init__(self, folder: Path, urls: DatabaseUrls) -> None:
        self.engine = EchoUpstream()
        self.records: list[LlmRecord] = []
        self.jobs = JobSite(folder, urls, JobSettings())
        self._hub = LanguageHub(folder, urls, JobSettings())
        self.jobs.site = self._hub

    async def __aenter__(self) -> Self:
        told = LlmSettings(name="chat", model="echo", urls=(ReplicaAddress(await self.engine.start()),))
        told = msgspec.structs.replace(told, **QUICK)
        self._hub.models = LanguageModels([told], sinks=[self.records.append])
        await self.jobs.open()
        async with asyncio.timeout(60):
            while not self._hub.models.models[0].ready:
                await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.jobs.close()
        await self.engine.stop()

    async def submit(self, *lines: dict[str, Any]) -> tuple[int, Any]:
        file = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        return await self.jobs.ask("POST", "/v1/batches", data=file)

    async def ended(self, batch: str) -> dict[str, Any]:
        async with asyncio.timeout(60):
            while True:
                _, told = await self.jobs.ask("GET", f"/v1/batches/{batch}")
                if told["state"] == "ended":
                    return dict(told)
                await asyncio.sleep(0.02)

    async def answers(self, batch: str) -> dict[str, Any]:
        """The answers of a batch, by the names of their lines."""
        _, text = await self.jobs.ask("GET", f"/v1/batches/{batch}/answers")
        found = [json.loads(line) for line in text.splitlines()]
        return {each["custom_id"]: each["answer"] for each in found}


def chat(name: str, words: str, **fields: Any) -> dict[str, Any]:
    request = {"messages": [{"role": "user", "content": words}], "max_tokens": 3, **fields}
    return {"model": "chat", "custom_id": name, "request": request}


async def test_a_batch_of_chats_is_answered_by_the_names_of_its_lines(tmp_path, urls):
    async with LanguageJobSite(tmp_path, urls) as site:
        site.engine.word_faults["poison"] = EchoFault.REFUSES
        lines = [chat(f"line-{n}", f"say {n}") for n in range(20)]
        status, told = await site.submit(
            *lines, chat("bad", "poison"), {**chat("text", ""), "request": {"prompt": "a b"}}
        )
        assert status == 202, told
        found = await site.ended(told["id"])
        assert (found["jobs"]["answered"], found["ended"]) == (21, 22)
        answers = await site.answers(told["id"])
        contents = {name: each["choices"][0].get("message", {}).get("content") for name, each in answers.items()}
        assert contents == {f"line-{n}": f"say {n} say" for n in range(20)} | {"text": None}
        assert answers["text"]["choices"][0]["text"].startswith("a b")
        billed = [record.prompt_tokens + record.generated_tokens for record in site.records if record.status == 200]
        assert sum(billed) == site.engine.prompt_tokens + site.engine.generated_tokens
        assert {record.caller.tenant for record in site.records} == {"acme"}
        _, listed = await site.jobs.ask("GET", "/v1/jobs?limit=100")
        refused = next(job for job in listed["jobs"] if job["custom_id"] == "bad")
        assert "the prompt is too long" in json.dumps(refused)


async def test_another_tenant_sees_nothing_of_a_batch_of_chats(tmp_path, urls):
    async with LanguageJobSite(tmp_path, urls) as site:
        _, told = await site.submit(chat("mine", "a b"))
        await site.ended(told["id"])
        other = site.jobs.api.key("other", Scope.INFER)
        for path in (f"/v1/batches/{told['id']}", f"/v1/batches/{told['id']}/answers"):
            assert (await site.jobs.ask("GET", path, other))[0] == 404


async def test_a_line_that_is_no_chat_is_named_and_nothing_of_its_file_is_computed(tmp_path, urls):
    async with LanguageJobSite(tmp_path, urls) as site:
        status, told = await site.submit(chat("a", "one"), chat("b", "two", stream=True))
        assert (status, told["error"]) == (400, "line 2: a job is answered in one piece: leave out 'stream'")
        assert site.engine.requests == 0
