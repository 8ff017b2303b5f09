"""A bench for outputs: the memory agent answers, one output hands on, and the policy is what the test says."""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edge_agent.outputs.delivery import DeliveryError, OutputDelivery, OutputMessage
from edge_agent.outputs.settings import OutputSection
from edge_agent.question.records import AnswerRecord, Sample
from policies.model.reasons import DecisionReason, Denied
from tests.edge_agent.doubles.api_double import MemoryAgent
from wire.process.logging import JsonLog

SURE, UNSURE = [1.0, 0.0, 0.0], [0.4, 0.3, 0.3]


class BenchAgent(MemoryAgent):
    """`denied`: why nothing may leave; `now_ms`: the time."""

    denied: DecisionReason | None = None
    now_ms = 0
    epoch = "e1"

    def check_output(self, data_class: str) -> Denied | None:
        return Denied(self.denied) if self.denied and data_class != "open" else None

    def hub_ms(self) -> int:
        return self.now_ms

    def status(self) -> dict[str, Any]:
        return {**super().status(), "epoch": self.epoch, "device": "demo--a"}

    async def answer(self, x: list[float] = SURE, data_class: str = "open") -> AnswerRecord:
        return await self.infer(Sample(np.array([x], "float32").reshape(self.runner.manifest.input.shape), data_class))


class MemoryTarget:
    """Takes what it is sent, or fails as it is told."""

    def __init__(self) -> None:
        self.trouble = ""
        self.taken: list[dict[str, Any]] = []
        self.fails: list[DeliveryError] = []
        self.refuses: dict[str, int] = {}
        self.asked = 0

    async def run(self) -> None:
        return

    async def send(self, batch: Sequence[OutputMessage]) -> Mapping[str, int]:
        self.asked += 1
        if self.fails:
            raise self.fails.pop(0)
        self.taken += [message.content for message in batch]
        return self.refuses


def section(**keys: Any) -> OutputSection:
    usual = {} if "kind" in keys else {"kind": "lines", "path": "/nowhere"}
    return msgspec.convert({"name": "out", **usual, **keys}, OutputSection)


@contextlib.asynccontextmanager
async def delivering(agent: BenchAgent, target: Any, state: Path, **keys: Any) -> AsyncIterator[OutputDelivery]:
    log = JsonLog(io.StringIO())
    delivery = OutputDelivery(section(**keys), agent, agent, target, state, log=log)
    running = asyncio.create_task(delivery.run())
    await asyncio.sleep(0.02)  # so that it begins at what is new
    try:
        yield delivery
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.01)
