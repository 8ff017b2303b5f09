"""Update poller: looks for a newer model, policy and hub keys at start, periodically and on a hint, for the agent.

Rule: nothing is trusted here but what a worker left in the store, and no failure is more than a value: whatever goes
wrong, the agent goes on with what it has. A hint carries no trust, and too many of them cost nothing.
"""

import asyncio
import random
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from edge_agent.identity.identity import HubKeys
from edge_agent.system.policy_layers import PolicyDocuments, PolicyStack
from edge_agent.update.installed import InstalledUpdates, RepositoryNames, commit_slot, read_installed
from edge_agent.update.worker_protocol import PollReport, UpdateJob
from models.runtime.runner import Runner
from models.update.slots import Slot
from models.update.trust import Refusal
from policies.model.policy import Policy, PolicyError
from policies.serving.admission import TokenBucket, take_token
from wire.process.exit_codes import ExitError
from wire.process.files import PACKAGES_FOLDER
from wire.process.logging import JsonLog, describe_error, safe_name
from wire.protocol.rollout import InstallFailure

POLL_INTERVAL_S = 1800.0
JITTER_SHARE = 0.2  # of the interval, earlier or later
HINTS_PER_S = 1 / 30
HINT_BURST = 4.0
MAX_REPORT_BYTES = 1 << 20
WORKER_TIMEOUT_S = 25 * 3600.0  # of one worker; its own limits are tighter
_EXPECTED_FAILURES = frozenset(
    {InstallFailure.NETWORK, InstallFailure.SLOW_RETRIEVAL, InstallFailure.DISK, InstallFailure.FREEZE}
)  # reported by counters and alarms of their own


class UpdateConsumer(Protocol):
    """The agent, as updates see it."""

    def on_hint(self, hint: Callable[[], None]) -> None:
        """From now on calling `hint` triggers a look for updates."""
        ...

    async def use_bundle(self, runner: Runner | None) -> None:
        """Serve this model, or none."""
        ...

    def use_policy(self, policy: Policy | None) -> None:
        """Decide by this policy; None: nothing may leave."""
        ...

    def use_hubs(self, hubs: tuple[HubKeys, ...]) -> None:
        """Seal to, and accept messages of, these hubs."""
        ...

    def count_event(self, kind: str) -> None:
        """Add one to the counter `kind`."""
        ...


class Updates:
    """The update task of a running agent, and a provider of its status.

    `job`: makes a worker's job as of now. `start`: what was installed when the process began, and serves already.
    """

    def __init__(  # noqa: PLR0917 - its store, its sources of change, and its log
        self,
        folder: Path,
        names: RepositoryNames,
        job: Callable[[], UpdateJob],
        start: InstalledUpdates,
        log: JsonLog,
        standing: PolicyStack,
    ) -> None:
        self._folder = folder
        self._names = names
        self._job = job
        self._log = log
        self._now = start
        self._standing = standing
        self._report = PollReport()
        self._refreshed_ms = 0
        self._polls = 0
        self._safe = False
        self._bucket = TokenBucket(HINT_BURST, time.monotonic())
        self.busy = asyncio.Lock()  # held by whoever has the store

    @property
    def slot(self) -> Slot | None:
        """The slot that serves; None for none."""
        return self._now.slot

    def set_serving(self, slot: Slot | None) -> None:
        """The installer has made this slot serve."""
        self._now = msgspec.structs.replace(self._now, slot=slot, runner=None, committed=None)

    async def run(self, agent: UpdateConsumer, every_s: float = POLL_INTERVAL_S) -> None:
        """Poll about every `every_s` seconds (+-20 %) and on hints, until cancelled."""
        hinted = asyncio.Event()
        agent.on_hint(hinted.set)
        while True:
            hinted.clear()
            await self.poll_once(agent)
            lot = random.random()  # noqa: S311 - jitter keeps no secret
            await self._wait_for_hint(hinted, every_s * (1 + JITTER_SHARE * (2 * lot - 1)))

    async def poll_once(self, agent: UpdateConsumer) -> None:
        """Run one worker and apply what it brought."""
        async with self.busy:
            await self._poll_locked(agent)
        self._polls += 1
        agent.count_event("updates_polls")

    async def run_worker(self, job: UpdateJob) -> PollReport:
        """Carry out one job, in a process of its own. Never raises."""
        return await run_update_worker(job)

    async def _poll_locked(self, agent: UpdateConsumer) -> None:
        try:
            self._report = await self.run_worker(self._job())
        except ExitError as stop:  # a file of our identity
            self._report = _failed_report(str(stop))
        if self._report.refreshed:
            self._refreshed_ms = time.time_ns() // 1_000_000
        self._log_refusals(agent, self._report.refusals)
        if self._report.left:
            agent.count_event("updates_left")
            self._log.error("model_revoked", path=safe_name(self._report.left))
        if self._has_changed():
            await self._apply_installed(agent)
        self._safe = self._now.slot is None and (self._safe or bool(self._report.left))

    def status_fields(self) -> dict[str, Any]:
        """JSON-able fields of the agent's status: `updates` with what serves, and how the last poll went."""
        slot, refusals = self._now.slot, self._report.refusals
        found = {
            "model": f"{slot.path.split('/')[1]}@{slot.version}" if slot else "",
            "versions": self._now.versions,
            "refreshed_ms": self._refreshed_ms,
            "polls": self._polls,
            "failures": [f"{refusal.failure}: {refusal.detail}" for refusal in refusals],
        }
        return {"updates": found}

    def alarms(self) -> set[str]:
        """`freeze`, `update_refused`, `safe_mode` (our model was revoked and nothing may serve), `no_model`."""
        refused = any(refusal.failure not in _EXPECTED_FAILURES for refusal in self._report.refusals)
        missing = self._names.family and self._now.slot is None
        found = {"freeze": self._report.alarm, "update_refused": refused, "safe_mode": self._safe, "no_model": missing}
        return {alarm for alarm, rings in found.items() if rings}

    def _has_changed(self) -> bool:
        ours = self._names.family and self._report.looked and self._report.current != self._now.slot
        return bool(ours or self._report.documents)

    async def _apply_installed(self, agent: UpdateConsumer) -> None:
        """Read the store and hand what is new to the agent."""
        try:
            found = await asyncio.to_thread(read_installed, self._folder, self._names, self._now.slot)
        except (ExitError, OSError, sqlite3.Error) as error:
            self._log.error("updates_unreadable", error=describe_error(error))
            agent.count_event("updates_failure_disk")
            return
        before, self._now = self._now, found
        self._log_refusals(agent, found.refusals)
        self._apply_policies(agent, found.policies)
        if found.hubs and found.hubs != before.hubs:
            agent.use_hubs(found.hubs)
            self._log.info("hub_keys_taken", hubs=len(found.hubs))
        if self._names.family and found.slot != before.slot:
            await self._serve_bundle(agent, found)

    async def _serve_bundle(self, agent: UpdateConsumer, found: InstalledUpdates) -> None:
        await agent.use_bundle(found.runner)
        agent.count_event("updates_models")
        if found.slot is None:
            self._log.error("no_model")
            return
        self._log.info("model_taken", path=safe_name(found.slot.path), version=found.slot.version)
        try:
            await asyncio.to_thread(commit_slot, self._folder, found.slot)
        except sqlite3.Error as error:
            self._log.error("floor_not_kept", error=describe_error(error))

    def _apply_policies(self, agent: UpdateConsumer, documents: PolicyDocuments | None) -> None:
        try:
            policy = self._standing.replace_published(documents) if self._names.policies else None
        except PolicyError as error:  # layers that do not go together: what is in force stays
            self._log.error("policy_refused", error=describe_error(error))
            agent.count_event("updates_failure_policy")
            return
        if policy is not None:
            agent.use_policy(policy)
            self._log.info("policy_taken", policy=safe_name(policy.hash), version=policy.version)

    def _log_refusals(self, agent: UpdateConsumer, refusals: tuple[Refusal, ...]) -> None:
        for refusal in refusals:
            agent.count_event(f"updates_failure_{refusal.failure}")
            self._log.warning("update_failed", failure=refusal.failure)

    async def _wait_for_hint(self, hinted: asyncio.Event, seconds: float) -> None:
        """Wait for a hint or the time. Hints beyond the rate limit are delayed and merged."""
        try:
            async with asyncio.timeout(seconds):
                await hinted.wait()
                left = take_token(self._bucket, HINTS_PER_S, HINT_BURST, time.monotonic())
                if left is None:
                    await asyncio.sleep(1 / HINTS_PER_S)
                self._bucket = left or TokenBucket(0.0, time.monotonic())
        except TimeoutError:
            return


async def run_update_worker(job: UpdateJob) -> PollReport:
    """Run one update worker in a process of its own.

    Never raises: a worker without a report is a failure like any other.
    """
    words = (sys.executable, "-P", "-m", "edge_agent.update.worker")
    pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        child = await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, stderr=nowhere, cwd=PACKAGES_FOLDER, limit=MAX_REPORT_BYTES
        )
    except OSError as error:
        return _failed_report(f"no process: {error.strerror}")
    try:
        async with asyncio.timeout(WORKER_TIMEOUT_S):
            return await _exchange_job(child, job)
    except TimeoutError:
        return _failed_report("the update worker did not end in time")
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def _exchange_job(child: asyncio.subprocess.Process, job: UpdateJob) -> PollReport:
    """Send the job and read the report. The worker's stdin stays open meanwhile: the worker exits when we do."""
    if child.stdin is None or child.stdout is None:
        raise RuntimeError("the worker's stdin and stdout must be pipes")
    try:
        child.stdin.write(msgspec.json.encode(job) + b"\n")
        await child.stdin.drain()
        return msgspec.json.decode(await child.stdout.readline(), type=PollReport)
    except (ValueError, ConnectionError):  # nothing, no JSON, or a line without an end
        return _failed_report(f"the update worker ended with {await child.wait()}")
    finally:
        child.stdin.close()


def _failed_report(detail: str) -> PollReport:
    return PollReport(refusals=(Refusal(InstallFailure.INTERNAL, detail),))
