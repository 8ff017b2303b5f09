"""A whole hub process before language models, its bill, and an unmodified `openai` client."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import openai

from cloud_hub.system.client import ApiAddress, call_hub_api, read_running_address
from simulations.processes import find_free_port
from tests import ROOT
from tests.live.engines.vllm import START_S, describe_environment

CONFIG = 'state = "state"\n[api]\nport = 0\n[broker]\nport = {broker}\n[trace]\nfile = "trace.jsonl"\n'
IMPATIENT: dict[str, Any] = {"timeout": 300.0, "max_retries": 0}


class LlmHub:
    """`models`: the [[llm]] tables. `log`, `spans`: what it said and traced."""

    def __init__(self, folder: Path, models: list[Mapping[str, Any]]) -> None:
        self._folder = folder
        tables = [
            "[[llm]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in model.items())
            for model in models
        ]
        (folder / "hub.toml").write_text(CONFIG.format(broker=find_free_port()) + "".join(tables))
        with (folder / "hub.log").open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cloud_hub", "--config", str(folder / "hub.toml")],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=describe_environment(),
            )  # fmt: skip

    @property
    def log(self) -> str:
        return (self._folder / "hub.log").read_text()

    @property
    def spans(self) -> list[dict[str, Any]]:
        path = self._folder / "trace.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def address(self) -> ApiAddress:
        found = read_running_address(self._folder / "state" / "api.json")
        assert found is not None, self.log
        return found

    def call(self, path: str) -> dict[str, Any]:
        return call_hub_api(self.address, "GET", path)

    def open_client(self, **options: Any) -> openai.OpenAI:
        """A client of OpenAI, with a key of its own."""
        return openai.OpenAI(base_url=f"{self.address.url}/v1", api_key=self.create_key(), **IMPATIENT, **options)

    def open_async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.address.url}/v1", api_key=self.create_key(), **IMPATIENT)

    def create_key(self) -> str:
        asked = {"name": "test", "scopes": ["infer"], "tenant": "acme", "expires_s": 3600}
        return str(call_hub_api(self.address, "POST", "/v1/admin/keys", asked)["token"])

    def count_ready(self, model: str) -> int:
        with contextlib.suppress(AssertionError):
            return int(self.call("/v1/admin/status")["language_models"][model]["ready"])
        return 0

    def read_bill(self, model: str) -> dict[str, int]:
        """Return what `GET /v1/costs` says of a model, all lines added up."""
        sums: dict[str, int] = {}
        for line in self.call("/v1/costs?days=2")["costs"]:
            if line["model"] == model:
                for kind, amount in line["amounts"].items():
                    sums[kind] = sums.get(kind, 0) + amount
        return sums

    def until(self, look: Callable[[], bool], within_s: float = START_S) -> None:
        deadline = time.monotonic() + within_s
        while not look():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.2)

    def end(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(60)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()


@contextlib.contextmanager
def llm_hub(folder: Path, *models: Mapping[str, Any]) -> Iterator[LlmHub]:
    """A hub, listening."""
    hub = LlmHub(folder, list(models))
    try:
        hub.until(lambda: read_running_address(folder / "state" / "api.json") is not None, 120)
        yield hub
    finally:
        hub.end()
