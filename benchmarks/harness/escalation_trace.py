"""Traces one escalation: files entered on both sides, and the share of calls that change file.

    python -m benchmarks.harness.escalation_trace [--json]

The real loops of an agent and of a hub, with their databases, threads and sealing, meet on a broker in memory; both
models are echoes. One escalation warms up, the next one is traced from the sample to a moment after its answer.

files    product modules in which at least one function ran
calls    pairs of product functions of which one called the other, each pair counted once, however often it ran
share    of these pairs, those whose functions stand in two files

Rule: the trace sees product files alone. What stands between two of them (asyncio, a comprehension) is no step, and a
function that the event loop or a thread called has no caller.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from benchmarks.harness.layout import PRODUCT
from benchmarks.harness.rig import POLICY
from cloud_hub.database.connection import IN_MEMORY
from cloud_hub.engine.base import EchoEngine
from cloud_hub.engine.types import make_model_card
from cloud_hub.runtime.hub import Hub
from cloud_hub.security.hub_keys import HubKeys as HubIdentity
from cloud_hub.security.hub_keys import generate_keys
from cloud_hub.storage.ledger_log import LedgerLog
from cloud_hub.storage.ledger_service import LedgerBackend, LedgerLogService
from cloud_hub.system.settings import HubSettings
from edge_agent.app.agent import Agent
from edge_agent.identity.identity import HubKeys, Identity, generate_payload_key
from edge_agent.question.records import AnswerSource, Sample
from edge_agent.system.settings import AgentSettings
from models.runtime.runner import EchoRunner, echo_manifest
from policies.language.document import parse_policy
from tests.cloud_hub.doubles.devices import Enrolled, MemoryRegistry
from wire.process.logging import JsonLog
from wire.transport.base import MemoryBroker, MemoryTransport

ROOT = Path(__file__).parents[2]
DEVICE = "demo--traced"
LABELS = 10
START_S = 10.0
REST_S = 0.1  # after the answer, for what it leaves to be written; upkeep comes later
PARTS = {"edge": ("edge_agent/",), "hub": ("cloud_hub/",), "shared": ("wire/", "policies/", "models/")}


@dataclass(frozen=True)
class EscalationTrace:
    """`share` is `changes / calls`; `files_by_part` splits `files` into edge, hub and what both sides use."""

    files: int
    calls: int
    changes: int
    share: float
    files_by_part: dict[str, int]
    entered: list[str]


class CallRecorder:
    """A profile function for every thread; keeps who called whom while `recording`."""

    def __init__(self) -> None:
        self.recording = False
        self._entered: set[str] = set()
        self._calls: set[tuple[CodeType, CodeType]] = set()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if not self.recording or event != "call" or not product_file(frame.f_code):
            return
        self._entered.add(product_file(frame.f_code))
        caller = _calling_function(frame)
        if caller is not None and _has_name(frame.f_code):
            self._calls.add((caller, frame.f_code))

    def trace(self) -> EscalationTrace:
        """What was recorded so far."""
        changes = sum(product_file(caller) != product_file(callee) for caller, callee in self._calls)
        by_part = {part: sum(name.startswith(folders) for name in self._entered) for part, folders in PARTS.items()}
        calls = len(self._calls)
        return EscalationTrace(
            files=len(self._entered),
            calls=calls,
            changes=changes,
            share=changes / max(calls, 1),
            files_by_part=by_part,
            entered=sorted(self._entered),
        )


def product_file(code: CodeType) -> str:
    """Relative to the checkout; empty if the code is not of the product."""
    return _relative_to_product(code.co_filename)


@cache
def _relative_to_product(name: str) -> str:
    path = Path(name)
    relative = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
    return relative if relative.startswith(tuple(f"{package}/" for package in PRODUCT)) else ""


def _calling_function(frame: FrameType) -> CodeType | None:
    """The nearest product function up the stack."""
    above = frame.f_back
    while above is not None and not (product_file(above.f_code) and _has_name(above.f_code)):
        above = above.f_back
    return above.f_code if above else None


def _has_name(code: CodeType) -> bool:
    """False for comprehensions and lambdas: they are part of the function that holds them."""
    return not code.co_name.startswith("<")


@asynccontextmanager
async def running_pair(folder: Path) -> AsyncIterator[Agent]:
    """An agent whose link to a hub in the same event loop is up."""
    broker, keys = MemoryBroker(), generate_keys()
    signing, hpke = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    trusted = HubKeys("hub-1", "local", keys.hpke_public, keys.signing_public)
    identity = Identity(
        DEVICE, "localhost", 1, (trusted,), int(time.time() * 1000), signing, hpke, generate_payload_key()
    )
    registry = MemoryRegistry([Enrolled(DEVICE, signing.public_key(), hpke.public_key())])

    async def connect() -> MemoryTransport:
        return broker.connect()

    engine = EchoEngine(make_model_card(echo_manifest(LABELS)))
    settings = HubSettings(database_url=f"sqlite:///{folder / 'hub.db'}", drain_s=0.0)
    hub = Hub(settings=settings, keys=keys, registry=registry, engines=[engine], connect=connect)
    policy = parse_policy(POLICY.format(mode="hub_first", threshold=0.9)).compile()
    agent = Agent(AgentSettings(state_dir=folder), identity, EchoRunner(LABELS), policy, connect)
    clerk = _ledger_clerk(hub, keys)
    hub.voice.attach_ledger(clerk)  # no device asks before a hub has told what it has spent
    async with asyncio.TaskGroup() as group:
        logging = group.create_task(clerk.run())
        group.create_task(hub.run())
        await _wait_until(lambda: bool(hub.status()["link_up"]))
        group.create_task(agent.run())
        await _wait_until(lambda: agent.status()["link"] == "up")
        try:
            yield agent
        finally:
            agent.stop()
            hub.stop()
            logging.cancel()


async def _wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(START_S):
        while not condition():
            await asyncio.sleep(0.01)


def _ledger_clerk(hub: Hub, keys: HubIdentity) -> LedgerLogService:
    log = LedgerLog.open(IN_MEMORY, 0)
    return LedgerLogService(
        log, LedgerBackend("hub-1", keys.signing, hub.voice.publish_note, lambda _device: 0, JsonLog())
    )


async def trace_escalation(folder: Path, recorder: CallRecorder) -> EscalationTrace:
    """Warm up with one escalation, record the next. RuntimeError if the hub did not answer."""
    async with running_pair(folder) as agent:
        await _escalate_once(agent)
        recorder.recording = True
        await _escalate_once(agent)
        recorder.recording = False
    return recorder.trace()


async def _escalate_once(agent: Agent) -> None:
    answer = await agent.infer(Sample(np.full(LABELS, 1 / LABELS, np.float32), "open"))
    if answer.source is not AnswerSource.HUB:
        raise RuntimeError(f"asked the hub, got {answer.source}: {answer.why}")
    await asyncio.sleep(REST_S)


def measure_trace() -> EscalationTrace:
    """In a folder of its own. Threads that run already are not traced: call it early in a process."""
    recorder = CallRecorder()
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    try:
        with tempfile.TemporaryDirectory(prefix="skerry-trace-") as folder:
            return asyncio.run(trace_escalation(Path(folder), recorder))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.harness.escalation_trace",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="the same with the names of the files, as a JSON object")
    asked = parser.parse_args(arguments)
    found = measure_trace()
    if asked.json:
        print(json.dumps(asdict(found), indent=2))
        return 0
    parts = ", ".join(f"{part} {count}" for part, count in found.files_by_part.items())
    print(f"files entered by one escalation: {found.files} ({parts})")
    print(f"calls between functions: {found.calls}; of these change file: {found.changes}, {found.share:.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
