"""HTTP client of the agents' local APIs for the demo, and the digits it sends.

Digits are held out of training, some damaged, each with what either model says of it alone.
"""

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt

from models.bundle.bundle import Bundle
from models.bundle.manifest import Manifest
from models.forge.data.digits import CORRUPTED, corrupt_pictures, load_heldout
from models.runtime.onnx_runner import OnnxRunner
from simulations.demo.results import AnswerTally, ClientAnswer, DigitTruth
from simulations.processes import AgentHandle, ProcessHarness
from wire.process.exit_codes import ExitCode, ExitError

_RECONNECT_S = 0.2
_BATCH = 32


@dataclass(frozen=True)
class Digit:
    """One held-out sample `[1, 8, 8]` float32 in 0..1, what is true of it, and the device's confidence in it."""

    x: npt.NDArray[np.float32]
    truth: DigitTruth
    confidence: float


@dataclass
class DemoClient:
    """Client of the agents that records what it got. `began`: the demo's start (monotonic seconds)."""

    session: aiohttp.ClientSession
    tally: AnswerTally
    manifest: Manifest
    began: float

    async def ask(self, agent: AgentHandle, digit: Digit, data_class: str = "open") -> tuple[str, ClientAnswer]:
        """Request one inference by the Open Inference Protocol; returns (answer id, answer)."""
        tensor = _build_tensor(self.manifest, digit.x[np.newaxis])
        body = {"inputs": [tensor], "parameters": {"data_class": data_class}}
        before = time.perf_counter()
        reply = await self._post_json(f"{agent.url}/v2/models/{self.manifest.name}/infer", body)
        took_ms = (time.perf_counter() - before) * 1e3
        facts = reply["parameters"]
        label = int(next(o["data"][0] for o in reply["outputs"] if o["name"] == "label"))
        seen = ClientAnswer(
            agent=agent.name,
            truth=digit.truth,
            label=label,
            source=facts["source"],
            why=facts["reason"],
            latency_ms=took_ms,
            escalation=facts["escalation_id"],
        )
        self.tally.add_answer(facts["answer_id"], seen, time.monotonic() - self.began)
        return str(facts["answer_id"]), seen

    async def _post_json(self, url: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self.session.post(url, json=body) as response:
            reply: dict[str, Any] = await response.json()
            if response.status != 200:
                raise ExitError(ExitCode.INTERNAL, f"{url}: {response.status} {reply.get('error', '')}")
            return reply

    async def follow_events(self, agent: AgentHandle) -> None:
        """Read the agent's event stream for ever, resuming after the last event seen.

        Each correction is recorded once.
        """
        seen = {"0"}
        while True:
            with contextlib.suppress(aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, asyncio.TimeoutError):
                await self._listen_once(agent, seen)
            await asyncio.sleep(_RECONNECT_S)

    async def _listen_once(self, agent: AgentHandle, seen: set[str]) -> None:
        """Read one connection's events.

        `seen`: ids of the events recorded so far; the server sends those after the newest.
        """
        headers = {"Last-Event-ID": max(seen, key=int)}
        forever = aiohttp.ClientTimeout(total=None)
        async with self.session.get(f"{agent.url}/v1/events", headers=headers, timeout=forever) as response:
            async for event, data in _read_events(response.content):
                if event not in seen:
                    self._record_event(data)
                seen.add(event)

    def _record_event(self, data: dict[str, Any]) -> None:
        if data["kind"] == "correction":
            self.tally.add_correction(data["answer_id"], int(data["label"]))


async def _read_events(stream: aiohttp.StreamReader) -> Any:
    """Parse server-sent events into (id, data)."""
    event = ""
    async for raw in stream:
        line = raw.decode().rstrip("\n")
        if line.startswith("id: "):
            event = line[4:]
        elif line.startswith("data: "):
            yield event, json.loads(line[6:])


async def ask_hub_labels(
    session: aiohttp.ClientSession, url: str, manifest: Manifest, batch: npt.NDArray[np.float32]
) -> list[int]:
    """Labels of the hub's whole model for raw samples `[n, 1, 8, 8]`, by the hub's own web API ("hub alone")."""
    labels: list[int] = []
    for start in range(0, len(batch), _BATCH):
        body = {"inputs": [_build_tensor(manifest, batch[start : start + _BATCH])]}
        async with session.post(f"{url}/v2/models/{manifest.name}/infer", json=body) as response:
            reply = await response.json()
            if response.status != 200:
                raise ExitError(ExitCode.HUB, f"hub: {response.status} {reply.get('error', '')}")
        labels += [int(v) for v in next(o["data"] for o in reply["outputs"] if o["name"] == "label")]
    return labels


def _build_tensor(manifest: Manifest, batch: npt.NDArray[np.float32]) -> dict[str, Any]:
    spec = manifest.input
    return {"name": spec.name, "shape": list(batch.shape), "datatype": spec.dtype, "data": batch.ravel().tolist()}


SEED = 11


async def load_digits(stage: ProcessHarness, bundle: Bundle) -> list[Digit]:
    """Load the demo's digits.

    The hub is asked for whole samples over its own web API: that is the reference, not the way of the demo.
    """
    x, y = load_heldout()
    x = corrupt_pictures(x, np.random.default_rng(SEED), CORRUPTED)
    runner = OnnxRunner(bundle)
    edge = [inference.prediction for inference in runner.infer(x)]
    runner.close()
    hub = await ask_hub_labels(stage.session, stage.hub.url if stage.hub else "", bundle.manifest, x)
    return [
        Digit(sample, DigitTruth(int(label), alone.label, hub_label, sample.nbytes), alone.confidence)
        for sample, label, alone, hub_label in zip(x, y, edge, hub, strict=True)
    ]
