"""Rollout controller: the task that feeds reports and time to each `RolloutCore`, stores changes and sends assignments.

Rule: one task owns all cores, and every step is on disk before anything is sent. What the disk does not take, or
another hub was faster to decide, did not happen: the rollout is read anew and the event judged again. A defect costs
the rollouts a few seconds, the hub nothing.
Rule: of several hubs that share a database each writes down what its own devices report and what people tell it, and
one at a time decides what follows: assignments, gates, timeouts. A hub that comes to decide sends again whatever is
unanswered, since the one before may have died before it had.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from cloud_hub.database.errors import log_fault
from cloud_hub.rollout.dependencies import RolloutDependencies, SteadyClock
from cloud_hub.rollout.looks import GateLook, GateLooks
from cloud_hub.rollout.machine import RolloutCore
from cloud_hub.rollout.planning import RolloutOrder, build_plan, build_record
from cloud_hub.rollout.store import RolloutStore
from cloud_hub.rollout.types import (
    OPEN,
    PAUSED,
    TERMINAL,
    TIMED_OUT_STATES,
    UNDER_WAY,
    Approval,
    Assign,
    DeviceGoal,
    HistoryEntry,
    NotifyOperator,
    RolloutChanges,
    RolloutCommand,
    RolloutError,
    RolloutPlan,
)
from cloud_hub.rollout.view import RolloutDeviceView, RolloutView, build_device_view, build_view
from policies.rollout_rules.gate import evaluate_gate
from policies.rollout_rules.plan import DeviceSelector
from wire.process.logging import describe_error, safe_name
from wire.protocol.rollout import Assignment, InstallReport

T = TypeVar("T")
TICK_S = 1.0
REFRESH_INTERVAL_S = 4.0  # how often the store is asked whether another hub has changed something
MEMBERS_INTERVAL_S = 30.0  # how often the fleet is asked who is still in it
RETRY_INTERVAL_S = 5.0  # after a defect
FILES_WAIT_S = 10.0  # until what was published at another hub of the region has reached this one
TRIES = 5
REPEATED_MS = 40 * 86_400_000  # the last assignments of an ended rollout are repeated for so long
_DISK_FULL = "it could not be written: the disk is full or damaged"
CoreEvent = Callable[[RolloutCore, float], list[RolloutCommand]]


class _PendingRequest(NamedTuple):
    rollout: str
    act: CoreEvent
    done: "asyncio.Future[RolloutView]"


class RolloutController:
    """All rollouts of a hub. Every method is called on its event loop; the store is used in one thread of its own.

    `alarms` counts by rollout how often a person should have looked.
    """

    def __init__(self, store: RolloutStore, desk: RolloutDependencies, clock: SteadyClock | None = None) -> None:
        self.alarms: Counter[str] = Counter()  # by rollout: how often a person was notified
        self._store = store
        self._desk = desk
        self._clock = clock or SteadyClock(store.newest_ms() / 1000)
        self._cores: dict[str, RolloutCore] = {}
        self._said: dict[str, dict[str, Assignment]] = {}  # by rollout and device: written to disk, so they may be sent
        self._wishes: list[_PendingRequest] = []
        self._reports: list[tuple[str, InstallReport]] = []
        self._heard: set[str] = set()
        self._news = asyncio.Event()
        self._looked_s = self._counted_s = 0.0
        self._deciding = desk.decides is None
        self.is_loaded = False  # whether `views` are what the disk has
        self._looks = GateLooks()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hub-rollouts")

    # -- for the link

    def on_report(self, device: str, report: InstallReport) -> None:
        """Take in a device's verified install report; `RolloutDependencies.seen` is called once it is on disk.

        Of several hubs each writes what it heard once a tick, since all others read it then.
        """
        self._reports.append((device, report))
        if self._desk.decides is None:
            self._news.set()

    def on_changed_elsewhere(self) -> None:
        """Another hub has changed a rollout: read it now."""
        self._looked_s = 0.0
        self._news.set()

    def on_heard(self, device: str) -> None:
        """Note that a device sent any signed message."""
        self._heard.add(device)

    def assignments_for(self, device: str) -> tuple[Assignment, ...]:
        """Return the assignments to send to a device again: the newest of each family, unless it has answered that."""
        newest: dict[str, Assignment] = {}
        now_ms = self._clock.now() * 1000
        for said in self._said.values():
            word = said.get(device)
            if word and word.counter > (newest[word.family].counter if word.family in newest else 0):
                newest[word.family] = word
        return tuple(word for word in newest.values() if word.expires_ms > now_ms and self._is_unanswered(word))

    def _is_unanswered(self, word: Assignment) -> bool:
        row = self._cores[word.rollout].fleet.rows[word.device]
        return row.goal is DeviceGoal.WITHDRAWN or not row.heard or row.state in OPEN | TIMED_OUT_STATES

    # -- for people

    async def start(self, order: RolloutOrder, by: str) -> RolloutView:
        """Start a rollout. RolloutError if the order cannot be planned or stored."""
        plan = build_plan(order, self._desk.members(), by, int(self._clock.now() * 1000))
        record, entry = build_record(plan)
        try:
            await self._run_in_store(lambda store: store.create_rollout(record, (entry,)))
        except SQLAlchemyError:
            raise RolloutError("conflict", _DISK_FULL) from None
        return await self._request_event(plan.id, lambda core, now: core.on_tick(now))

    async def pause(self, rollout: str, by: str, why: str) -> RolloutView:
        """Pause a rollout: no further device is assigned anything. RolloutError unless it is under way."""
        return await self._request_event(rollout, lambda core, now: core.pause(by, why, now))

    async def resume(self, rollout: str, by: str, why: str = "", *, accept: bool = False) -> RolloutView:
        """Resume a paused rollout. RolloutError if it is not paused or cannot go on.

        `accept`: its wave passes although the evidence does not decide.
        """
        return await self._request_event(rollout, lambda core, now: core.resume(by, now, why, accept=accept))

    async def abort(self, rollout: str, by: str, why: str, *, revert: bool = False) -> RolloutView:
        """Abort a rollout. It wins over whatever else is decided at the same time, here or by another hub."""
        return await self._request_event(rollout, lambda core, now: core.abort(by, why, now, revert=revert))

    async def approve(self, rollout: str, by: str, digest: str) -> RolloutView:
        """Add a person's approval of the plan with this digest. RolloutError if it may not count."""
        return await self._request_event(
            rollout, lambda core, now: core.approve(Approval(by, digest, int(now * 1000)), now) + core.on_tick(now)
        )

    def views(self) -> tuple[RolloutView, ...]:
        """Return all rollouts, newest first; those that ended long ago are left out."""
        return tuple(build_view(core) for core in sorted(self._cores.values(), key=lambda c: -c.plan.made_ms))

    def view(self, rollout: str) -> RolloutView:
        """Return one rollout's status. RolloutError if it does not exist."""
        return build_view(self._find_core(rollout))

    def devices(self, rollout: str) -> tuple[RolloutDeviceView, ...]:
        """Return the state of every device of a rollout."""
        return tuple(build_device_view(row) for row in self._find_core(rollout).fleet.rows.values())

    def looks(self, rollout: str) -> tuple[GateLook, ...]:
        """Return what each look of a rollout's gate saw since this start, oldest first."""
        return self._looks.of_rollout(self._find_core(rollout).plan.id)

    async def history(self, rollout: str) -> list[HistoryEntry]:
        """Return a rollout's history, oldest entry first."""
        return await self._run_in_store(lambda store: store.read_history(self._find_core(rollout).plan.id))

    # -- the task

    async def run(self, tick_s: float = TICK_S, rest_s: float = RETRY_INTERVAL_S) -> None:
        """Run all rollouts until cancelled; after a defect everything is read anew, `rest_s` seconds later."""
        try:
            while True:
                work = asyncio.create_task(self._run_rounds(tick_s), name="rollouts-work")
                try:
                    await asyncio.wait([work])
                finally:
                    work.cancel()
                self._on_failure(work)
                await asyncio.sleep(rest_s)
        finally:
            self._thread.shutdown(wait=True)
            self._store.close()

    def _on_failure(self, work: "asyncio.Task[None]") -> None:
        """Log a defect or an unreadable disk and forget all cores. Requests that wait are served after the restart."""
        error = work.exception()
        if error is not None:
            log_fault(self._desk.words, "rollouts_failed", error)
        self._cores.clear()
        self._said.clear()
        self.is_loaded = False

    async def _run_rounds(self, tick_s: float) -> None:
        await self._refresh_cores(REPEATED_MS)
        self.is_loaded = True
        while True:
            await self._run_round()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), tick_s)
            self._news.clear()

    async def _run_round(self) -> None:
        """Handle requests first, so that an abort waits for nothing; then reports; then time."""
        while self._wishes:
            await self._serve_request(self._wishes.pop(0))
        reports, self._reports = self._reports, []
        heard, self._heard = self._heard, set()
        await self._apply_reports(reports, heard)
        if await self._follow_task():
            await self._decide()
        if self._clock.now() >= self._looked_s + REFRESH_INTERVAL_S:
            await self._refresh_cores()

    async def _follow_task(self) -> bool:
        """Whether this hub decides now. One that comes to it takes every rollout up as after a start of its own."""
        deciding = self._desk.decides is None or self._desk.decides()
        if deciding and not self._deciding:
            for rollout in tuple(self._cores):
                await self._reload_rollout(rollout, anew=True)
            self._desk.words.info("rollouts_taken", rollouts=len(self._cores))
        self._deciding = deciding
        return deciding

    async def _decide(self) -> None:
        for rollout in [each for each, core in self._cores.items() if core.wake_at <= self._clock.now()]:
            await self._try_event(rollout, lambda core, now: core.on_tick(now))
        if self._clock.now() >= self._counted_s + MEMBERS_INTERVAL_S:
            await self._follow_members()

    async def _follow_members(self) -> None:
        """Tell every open rollout which of its devices are still in the fleet and in what it selected."""
        self._counted_s = self._clock.now()
        members = tuple(self._desk.members())
        for rollout in [each for each, core in self._cores.items() if core.state not in TERMINAL]:
            present = frozenset(DeviceSelector.parse(self._cores[rollout].plan.to).select_devices(members))
            await self._try_event(rollout, _apply_members(present))

    async def _serve_request(self, wish: _PendingRequest) -> None:
        refusal = RolloutError("conflict", "the rollouts were interrupted: try again")
        try:
            seen = build_view(await self._apply_event(wish.rollout, wish.act))
            if not wish.done.done():
                wish.done.set_result(seen)
        except RolloutError as error:
            refusal = error
        except SQLAlchemyError:
            refusal = RolloutError("conflict", _DISK_FULL)
        finally:
            if not wish.done.done():
                wish.done.set_exception(refusal)

    async def _apply_reports(self, reports: list[tuple[str, InstallReport]], heard: set[str]) -> None:
        by_rollout: dict[str, list[tuple[str, InstallReport]]] = {}
        for device, report in reports:
            by_rollout.setdefault(report.rollout, []).append((device, report))
        for rollout in {*by_rollout, *(self._cores if heard else ())}:
            said = by_rollout.get(rollout, [])
            if rollout not in self._cores or await self._try_event(rollout, _apply_messages(said, heard)):
                self._acknowledge_reports(said)

    def _acknowledge_reports(self, said: list[tuple[str, InstallReport]]) -> None:
        for device, report in said:
            self._desk.seen(device, report.seq)

    async def _try_event(self, rollout: str, act: CoreEvent) -> bool:
        """Apply an event. False if it did not reach the disk: devices repeat it, and time goes on."""
        try:
            await self._apply_event(rollout, act)
        except RolloutError as error:
            words = self._desk.words
            words.warning("rollout_not_written", rollout=safe_name(rollout), error=describe_error(error))
            return False
        except SQLAlchemyError as error:
            log_fault(self._desk.words, "rollout_not_written", error, rollout=safe_name(rollout))
            return False
        return True

    async def _apply_event(self, rollout: str, act: CoreEvent) -> RolloutCore:
        """Apply one event: judge, write, obey. Judged again if another hub has decided something meanwhile."""
        if rollout not in self._cores:
            await self._reload_rollout(rollout)
        for _ in range(TRIES):
            core = self._find_core(rollout)
            try:
                commands = act(core, self._clock.now())
                written = await self._write_changes(core.take_changes())
            except SQLAlchemyError:
                await self._reload_rollout(rollout)
                raise
            if written:
                core.told.pace.settle_times(self._clock.now())
                self._looks.record(core)
                await self._execute(core, commands)
                return core
            await self._reload_rollout(rollout)
        raise RolloutError("conflict", "other hubs keep changing it: try again")

    async def _execute(self, core: RolloutCore, commands: list[RolloutCommand]) -> None:
        for command in commands:
            if isinstance(command, Assign):
                self._said[core.plan.id][command.device] = command.assignment
                self._desk.tell(command.device, command.assignment)
            elif isinstance(command, NotifyOperator):
                self._desk.words.warning("rollout", rollout=safe_name(core.plan.id), state=core.state)
                self.alarms[core.plan.id] += 1
            else:
                await self._validate_plan(command.plan)

    async def _validate_plan(self, plan: RolloutPlan) -> None:
        why = await asyncio.to_thread(self._desk.check, plan)
        if why and self._desk.decides is not None and self._clock.now() < plan.made_ms / 1000 + FILES_WAIT_S:
            await self._reload_rollout(plan.id)  # it is asked for again with the next tick
            return
        await self._apply_event(plan.id, lambda core, now: core.on_validated(why, now))

    # -- what is on disk

    async def _write_changes(self, changes: RolloutChanges | None) -> bool:
        """Write changes. False if another hub was faster."""
        return changes is None or await self._run_in_store(lambda store: store.apply_changes(changes))

    def _find_core(self, rollout: str) -> RolloutCore:
        core = self._cores.get(rollout)
        if core is None:
            raise RolloutError("not_found", f"there is no rollout {rollout!r}")
        return core

    async def _request_event(self, rollout: str, act: CoreEvent) -> RolloutView:
        wish = _PendingRequest(rollout, act, asyncio.get_running_loop().create_future())
        self._wishes.append(wish)
        self._news.set()
        return await wish.done

    async def _refresh_cores(self, remembered_ms: int = 0) -> None:
        """Read what other hubs have created or changed."""
        self._looked_s = self._clock.now()
        since_ms = int(self._looked_s * 1000) - remembered_ms if remembered_ms else 1 << 60
        ids, revisions = await self._run_in_store(lambda store: (store.list_ids(since_ms), store.list_revisions()))
        for rollout in ids:
            known = self._cores.get(rollout)
            if known is None or known.head.revision != revisions.get(rollout, known.head.revision):
                await self._reload_rollout(rollout)
        for rollout in [each for each, core in self._cores.items() if core.state not in TERMINAL]:
            if rollout not in revisions:
                await self._reload_rollout(rollout)

    async def _reload_rollout(self, rollout: str, *, anew: bool = False) -> None:
        """Read a rollout again. `anew`: what this process knows of it does not count."""
        record = await self._run_in_store(lambda store: store.read_record(rollout))
        if record is None:
            return
        core = RolloutCore(record, now=self._clock.now(), before=None if anew else self._cores.get(rollout))
        if not self._deciding and core.state in UNDER_WAY | PAUSED:
            core.gate = core.told.compare_cohorts(core.head, evaluate_gate)  # to be shown, and nothing else
        self._cores[rollout] = core
        words = ((device, core.assignment_for(device)) for device in core.fleet.rows)
        self._said[rollout] = {device: word for device, word in words if word is not None}

    async def _run_in_store(self, job: Callable[[RolloutStore], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, job, self._store)


def _apply_members(present: frozenset[str]) -> CoreEvent:
    return lambda core, now: core.on_members(present, now)


def _apply_messages(said: list[tuple[str, InstallReport]], heard: set[str]) -> CoreEvent:
    def act(core: RolloutCore, now: float) -> list[RolloutCommand]:
        commands: list[Any] = []
        for device in heard:
            core.fleet.on_heard(device)
        for device, report in said:
            commands += core.on_report(device, report, now)
        return commands

    return act
