"""A device that installs what is assigned to it: real store, real workers, real hub notes, in one event loop."""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edge_agent.system.policy_layers import PolicyStack
from edge_agent.update.actions import InstallDependencies, StepHook, ignore_step
from edge_agent.update.installed import read_installed
from edge_agent.update.installer import Installer
from edge_agent.update.machine import InstallMachine
from edge_agent.update.poller import Updates
from edge_agent.update.recovery import InstallTable, recover_install
from edge_agent.update.types import InstallLimits
from edge_agent.update.worker_protocol import FollowMode
from policies.language.document import parse_policy
from policies.model.policy import Policy
from tests.edge_agent.doubles.hub_double import DEFAULTS, DEVICE, POLICY, AgentRig, HubDouble, sample, until
from tests.edge_agent.doubles.updates_bench import FAMILY, NAMES, UpdateBench, bundle_path
from wire.process.logging import JsonLog
from wire.protocol.rollout import Assignment, AuditAgreement, InstallReport, InstallState

X = np.linspace(0.0, 0.9, 10, dtype=np.float32)
QUICK = InstallLimits(interval_s=0.0, retry_s=0.2)
FIGURES = """[[egress.field]]
name = "quality"
level = "P1"
[[egress.field]]
name = "signals"
level = "P1"
[egress.data_class]"""
RULES = POLICY.replace("[egress.data_class]", FIGURES)
PATIENCE_S = 60.0


class InstallRig:
    """One process of a device, with its bench, its agent and hub double, its installer and its updates."""

    def __init__(self, bench: UpdateBench, rig: AgentRig, install: Installer, updates: Updates) -> None:
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

    def send_assignment(self, counter: int, version: int, **changes: Any) -> Assignment:
        """The hub signs an assignment and sends it to the device."""
        order = make_assignment(self.bench, counter, version, now_ms=self.rig.agent._clock.hub_ms(), **changes)
        self.send_order(order)
        return order

    def send_order(self, order: Assignment) -> None:
        self.rig.hub.send_order(self.rig.hub.sign_order(order))

    async def answer_samples(self, count: int = 1) -> str:
        for _ in range(count):
            said = await self.rig.agent.infer(sample(X))
        return said.prediction.model

    async def wait_for_state(self, *states: InstallState) -> None:
        await until(lambda: self.state in states, PATIENCE_S)

    async def answers_until(self, condition: Callable[[], object]) -> None:
        """Answer a sample now and then until the condition holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await self.answer_samples()
                await asyncio.sleep(0.002)

    def newest_cell(self, state: InstallState) -> AuditAgreement:
        """The agreement in the newest report of this state; an empty one if it has none."""
        told = self.reports_in_state(state)
        quality = told[-1].quality if told else None
        return quality.cells[0] if quality and quality.cells else AuditAgreement("", 0.0)

    def reports_in_state(self, state: InstallState) -> list[InstallReport]:
        return [report for report in self.reports if report.state is state]


def make_assignment(bench: UpdateBench, counter: int, version: int, *, now_ms: int, **changes: Any) -> Assignment:
    info = bench.repo.targets("models-echo").targets.get(bundle_path(version))
    facts: dict[str, Any] = {
        "epoch": 0, "device": DEVICE, "counter": counter, "issued_ms": now_ms, "expires_ms": now_ms + 3_600_000,
        "rollout": f"r{counter}", "family": FAMILY, "path": bundle_path(version), "version": version,
        "digest": info.hashes["sha256"] if info else "0" * 64, "audit_share": 1.0, "soak_s": 0.2,
        "min_inferences": 20, "max_soak_s": 60.0, "report_s": 0.1,
    }  # fmt: skip
    return Assignment(**{**facts, **changes})


def audited_policy(share: float = 1.0, **changes: object) -> Policy:
    """A policy that lets the figures of a rollout leave."""
    return parse_policy(RULES.format(**{**DEFAULTS, "audit": share, **changes})).compile()


@asynccontextmanager
async def run_device(
    bench: UpdateBench, folder: Path, hub: HubDouble | None = None, rules: Policy | None = None,
    *, limits: InstallLimits = QUICK, step: StepHook = ignore_step, tick_s: float = 0.02,
) -> AsyncIterator[InstallRig]:  # fmt: skip
    """One process of a device, from its start to its clean end. The newest model is taken where there is none."""
    folder.mkdir(exist_ok=True)
    core = InstallMachine(DEVICE, InstallTable(bench.store).read_row(), limits)
    shun = recover_install(bench.store, NAMES, core, HubDouble.now_ms)
    found = read_installed(bench.store, NAMES, shun=shun)
    async with AgentRig(folder, rules or audited_policy(), hub) as rig:
        await rig.agent.use_bundle(found.runner)
        if found.committed:
            rig.agent.answering.restore_trial(found.committed)
        log = JsonLog(io.StringIO())
        updates = Updates(
            bench.store,
            NAMES,
            lambda: bench.make_job(follow=FollowMode.ASSIGNMENTS, documents=()),
            found,
            log,
            PolicyStack(),
        )
        tools = InstallDependencies(bench.store, NAMES, bench.make_job, updates.busy, log, tick_s=tick_s, step=step)
        install = Installer(core, tools, updates)
        rig.agent.add_status_provider(updates)
        rig.agent.attach_installer(install)
        if found.slot is None and core.row.state is InstallState.IDLE:
            await updates.poll_once(rig.agent)
        task = asyncio.create_task(install.run())
        try:
            yield InstallRig(bench, rig, install, updates)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
