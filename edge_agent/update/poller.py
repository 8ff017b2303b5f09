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
from edge_agent.system.policy_layers import Documents, Standing
from edge_agent.update.installed import Installed, Names, keep, look
from edge_agent.update.worker_protocol import Report, UpdateJob
from models.runtime.runner import Runner
from models.update.slots import Slot
from models.update.trust import Refusal
from policies.model.policy import Policy, PolicyError
from policies.serving.admission import Bucket, take
from wire.process.exit_codes import ExitError
from wire.process.files import PACKAGES_FOLDER
from wire.process.logging import Log, fault, name
from wire.protocol.rollout import Failure

EVERY_S = 1800.0
SPREAD = 0.2  # of the interval, earlier or later
HINTS_PER_S = 1 / 30
HINTS_AT_ONCE = 4.0
MAX_REPORT_BYTES = 1 << 20
DEADLINE_S = 25 * 3600.0  # of one worker; its own limits are tighter
_HARMLESS = frozenset(
    {Failure.NETWORK, Failure.SLOW_RETRIEVAL, Failure.DISK, Failure.FREEZE}
)  # reported by counters and alarms of their own


class Taker(Protocol):
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

    def count(self, kind: str) -> None:
        """Add one to the counter `kind`."""
        ...


class Updates:
    """The update task of a running agent, and a provider of its status.

    `job`: makes a worker's job as of now. `start`: what was installed when the process began, and serves already.
    """

    def __init__(  # noqa: PLR0917 - its store, its sources of change, and its log
        self, folder: Path, names: Names, job: Callable[[], UpdateJob], start: Installed, log: Log, standing: Standing
    ) -> None:
        self._folder = folder
        self._names = names
        self._job = job
        self._log = log
        self._now = start
        self._standing = standing
        self._report = Report()
        self._refreshed_ms = 0
        self._polls = 0
        self._safe = False
        self._bucket = Bucket(HINTS_AT_ONCE, time.monotonic())
        self.busy = asyncio.Lock()  # held by whoever has the store

    @property
    def slot(self) -> Slot | None:
        """The slot that serves; None for none."""
        return self._now.slot

    def took(self, slot: Slot | None) -> None:
        """The installer has made this slot serve."""
        self._now = msgspec.structs.replace(self._now, slot=slot, runner=None, committed=None)

    async def run(self, agent: Taker, every_s: float = EVERY_S) -> None:
        """Poll about every `every_s` seconds (+-20 %) and on hints, until cancelled."""
        hinted = asyncio.Event()
        agent.on_hint(hinted.set)
        while True:
            hinted.clear()
            await self.once(agent)
            lot = random.random()  # noqa: S311 - jitter keeps no secret
            await self._wait(hinted, every_s * (1 + SPREAD * (2 * lot - 1)))

    async def once(self, agent: Taker) -> None:
        """Run one worker and apply what it brought."""
        async with self.busy:
            await self._once(agent)
        self._polls += 1
        agent.count("updates_polls")

    async def _once(self, agent: Taker) -> None:
        try:
            self._report = await errand(self._job())
        except ExitError as stop:  # a file of our identity
            self._report = _failed(str(stop))
        if self._report.refreshed:
            self._refreshed_ms = time.time_ns() // 1_000_000
        self._tell(agent, self._report.refusals)
        if self._report.left:
            agent.count("updates_left")
            self._log.error("model_revoked", path=name(self._report.left))
        if self._changed():
            await self._take(agent)
        self._safe = self._now.slot is None and (self._safe or bool(self._report.left))

    def facts(self) -> dict[str, Any]:
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
        refused = any(refusal.failure not in _HARMLESS for refusal in self._report.refusals)
        missing = self._names.family and self._now.slot is None
        found = {"freeze": self._report.alarm, "update_refused": refused, "safe_mode": self._safe, "no_model": missing}
        return {alarm for alarm, rings in found.items() if rings}

    def _changed(self) -> bool:
        ours = self._names.family and self._report.looked and self._report.current != self._now.slot
        return bool(ours or self._report.documents)

    async def _take(self, agent: Taker) -> None:
        """Read the store and hand what is new to the agent."""
        try:
            found = await asyncio.to_thread(look, self._folder, self._names, self._now.slot)
        except (ExitError, OSError, sqlite3.Error) as error:
            self._log.error("updates_unreadable", error=fault(error))
            agent.count("updates_failure_disk")
            return
        before, self._now = self._now, found
        self._tell(agent, found.refusals)
        self._take_policies(agent, found.policies)
        if found.hubs and found.hubs != before.hubs:
            agent.use_hubs(found.hubs)
            self._log.info("hub_keys_taken", hubs=len(found.hubs))
        if self._names.family and found.slot != before.slot:
            await self._serve(agent, found)

    async def _serve(self, agent: Taker, found: Installed) -> None:
        await agent.use_bundle(found.runner)
        agent.count("updates_models")
        if found.slot is None:
            self._log.error("no_model")
            return
        self._log.info("model_taken", path=name(found.slot.path), version=found.slot.version)
        try:
            await asyncio.to_thread(keep, self._folder, found.slot)
        except sqlite3.Error as error:
            self._log.error("floor_not_kept", error=fault(error))

    def _take_policies(self, agent: Taker, documents: Documents | None) -> None:
        try:
            policy = self._standing.take_published(documents) if self._names.policies else None
        except PolicyError as error:  # layers that do not go together: what is in force stays
            self._log.error("policy_refused", error=fault(error))
            agent.count("updates_failure_policy")
            return
        if policy is not None:
            agent.use_policy(policy)
            self._log.info("policy_taken", policy=name(policy.hash), version=policy.version)

    def _tell(self, agent: Taker, refusals: tuple[Refusal, ...]) -> None:
        for refusal in refusals:
            agent.count(f"updates_failure_{refusal.failure}")
            self._log.warning("update_failed", failure=refusal.failure)

    async def _wait(self, hinted: asyncio.Event, seconds: float) -> None:
        """Wait for a hint or the time. Hints beyond the rate limit are delayed and merged."""
        try:
            async with asyncio.timeout(seconds):
                await hinted.wait()
                left = take(self._bucket, HINTS_PER_S, HINTS_AT_ONCE, time.monotonic())
                if left is None:
                    await asyncio.sleep(1 / HINTS_PER_S)
                self._bucket = left or Bucket(0.0, time.monotonic())
        except TimeoutError:
            return


async def errand(job: UpdateJob) -> Report:
    """Run one update worker in a process of its own.

    Never raises: a worker without a report is a failure like any other.
    """
    words = (sys.executable, "-m", "edge_agent.update.worker")
    pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        child = await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, stderr=nowhere, cwd=PACKAGES_FOLDER, limit=MAX_REPORT_BYTES
        )
    except OSError as error:
        return _failed(f"no process: {error.strerror}")
    try:
        async with asyncio.timeout(DEADLINE_S):
            return await _talk(child, job)
    except TimeoutError:
        return _failed("the update worker did not end in time")
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def _talk(child: asyncio.subprocess.Process, job: UpdateJob) -> Report:
    """Send the job and read the report. The worker's stdin stays open meanwhile: the worker exits when we do."""
    if child.stdin is None or child.stdout is None:
        raise RuntimeError("the worker's stdin and stdout must be pipes")
    try:
        child.stdin.write(msgspec.json.encode(job) + b"\n")
        await child.stdin.drain()
        return msgspec.json.decode(await child.stdout.readline(), type=Report)
    except (ValueError, ConnectionError):  # nothing, no JSON, or a line without an end
        return _failed(f"the update worker ended with {await child.wait()}")
    finally:
        child.stdin.close()


def _failed(detail: str) -> Report:
    return Report(refusals=(Refusal(Failure.INTERNAL, detail),))
