"""A device that installs what is assigned to it: real store, real workers, real hub notes, in one event loop."""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edge_agent.system.policy_layers import Standing
from edge_agent.update.actions import InstallDependencies, Step, silent
from edge_agent.update.installed import look
from edge_agent.update.installer import Install
from edge_agent.update.machine import InstallMachine
from edge_agent.update.poller import Updates
from edge_agent.update.recovery import InstallTable, recover_install
from edge_agent.update.types import Limits
from edge_agent.update.worker_protocol import Follow
from policies.language.document import parse
from policies.model.policy import Policy
from tests.edge_agent.doubles.hub_double import DEFAULTS, DEVICE, POLICY, HubDouble, Rig, sample, until
from tests.edge_agent.doubles.updates_bench import FAMILY, NAMES, Bench, path
from wire.process.logging import Log
from wire.protocol import codec, sealing
from wire.protocol.messages import Header
from wire.protocol.rollout import Agreement, Assignment, InstallReport, InstallState
from wire.protocol.topics import Channel, shard_of, topic
from wire.transport.base import Incoming

X = np.linspace(0.0, 0.9, 10, dtype=np.float32)
QUICK = Limits(interval_s=0.0, retry_s=0.2)
FIGURES = """[[egress.field]]
name = "quality"
level = "P1"
[[egress.field]]
name = "signals"
level = "P1"
[egress.data_class]"""
RULES = POLICY.replace("[egress.data_class]", FIGURES)
PATIENCE_S = 60.0


class Device:
    """One process of a device, with its bench, its agent and hub double, its installer and its updates."""

    def __init__(self, bench: Bench, rig: Rig, install: Install, updates: Updates) -> None:
        self.bench, self.rig, self.install, self.updates = bench, rig, install, updates
        self.log = io.StringIO()

    @property
    def state(self) -> InstallState:
        return self.install.machine.row.state

    @property
    def version(self) -> int:
        """Version of the bundle that answers; 0 for none."""
        manifest = self.rig.agent.manifest
        return manifest.version if manifest else 0

    @property
    def reports(self) -> list[InstallReport]:
        return self.rig.hub.reports

    def assign(self, counter: int, version: int, **changes: Any) -> Assignment:
        """The hub signs an assignment and sends it to the device."""
        order = assignment(self.bench, counter, version, now_ms=self.rig.agent._clock.ms(), **changes)
        self.send(order)
        return order

    def send(self, order: Assignment) -> None:
        hub = self.rig.hub
        key_id = sealing.key_id(hub.signing.public_key().public_bytes_raw())
        header = Header(shard_of(DEVICE), DEVICE, 0, 0, hub.now_ms, key_id)
        data = sealing.sign(header, codec.encode(order), by=hub.signing, channel=Channel.DESIRED)
        hub.broker.publish(Incoming(topic(DEVICE, Channel.DESIRED), data))

    async def answer(self, count: int = 1) -> str:
        for _ in range(count):
            said = await self.rig.agent.infer(sample(X))
        return said.prediction.model

    async def reaches(self, *states: InstallState) -> None:
        await until(lambda: self.state in states, PATIENCE_S)

    async def answers_until(self, condition: Callable[[], object]) -> None:
        """Answer a sample now and then until the condition holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await self.answer()
                await asyncio.sleep(0.002)

    def cell(self, state: InstallState) -> Agreement:
        """The agreement in the newest report of this state; an empty one if it has none."""
        told = self.told(state)
        quality = told[-1].quality if told else None
        return quality.cells[0] if quality and quality.cells else Agreement("", 0.0)

    def told(self, state: InstallState) -> list[InstallReport]:
        return [report for report in self.reports if report.state is state]


def assignment(bench: Bench, counter: int, version: int, *, now_ms: int, **changes: Any) -> Assignment:
    info = bench.repo.targets("models-echo").targets.get(path(version))
    facts: dict[str, Any] = {
        "epoch": 0, "device": DEVICE, "counter": counter, "issued_ms": now_ms, "expires_ms": now_ms + 3_600_000,
        "rollout": f"r{counter}", "family": FAMILY, "path": path(version), "version": version,
        "digest": info.hashes["sha256"] if info else "0" * 64, "audit_share": 1.0, "soak_s": 0.2,
        "min_inferences": 20, "max_soak_s": 60.0, "report_s": 0.1,
    }  # fmt: skip
    return Assignment(**{**facts, **changes})


def audited(share: float = 1.0, **changes: object) -> Policy:
    """A policy that lets the figures of a rollout leave."""
    return parse(RULES.format(**{**DEFAULTS, "audit": share, **changes})).compile()


@asynccontextmanager
async def living(
    bench: Bench, folder: Path, hub: HubDouble | None = None, rules: Policy | None = None,
    *, limits: Limits = QUICK, step: Step = silent, tick_s: float = 0.02,
) -> AsyncIterator[Device]:  # fmt: skip
    """One process of a device, from its start to its clean end. The newest model is taken where there is none."""
    folder.mkdir(exist_ok=True)
    core = InstallMachine(DEVICE, InstallTable(bench.store).read(), limits)
    shun = recover_install(bench.store, NAMES, core, HubDouble.now_ms)
    found = look(bench.store, NAMES, shun=shun)
    async with Rig(folder, rules or audited(), hub) as rig:
        await rig.agent.use_bundle(found.runner)
        if found.committed:
            rig.agent.answering.beside(found.committed)
        log = Log(io.StringIO())
        updates = Updates(
            bench.store, NAMES, lambda: bench.job(follow=Follow.ASSIGNMENTS, documents=()), found, log, Standing()
        )
        tools = InstallDependencies(bench.store, NAMES, bench.job, updates.busy, log, tick_s=tick_s, step=step)
        install = Install(core, tools, updates)
        rig.agent.add_side(updates)
        rig.agent.assign(install)
        if found.slot is None and core.row.state is InstallState.IDLE:
            await updates.once(rig.agent)
        task = asyncio.create_task(install.run())
        try:
            yield Device(bench, rig, install, updates)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
