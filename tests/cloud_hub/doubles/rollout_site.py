"""Rollout controllers of one or several hubs over one database, with devices that obey and clocks that a test moves."""

import asyncio
import contextlib
import functools
import io
from typing import Any

from cloud_hub.rollout.controller import RolloutController
from cloud_hub.rollout.dependencies import RolloutDependencies, SteadyClock
from cloud_hub.rollout.planning import RolloutOrder
from cloud_hub.rollout.store import RolloutStore
from tests.cloud_hub.doubles.rollout_bench import BEGIN_S, NEW, QUICK, Device, members
from wire.process.logging import JsonLog

ORDER = RolloutOrder("digits", NEW, rules={**QUICK, "wave_deadline_s": 100_000.0}, id="r1")


class Machine:
    """Clocks of one machine: a wall clock that may be set, and a monotonic one."""

    def __init__(self) -> None:
        self.wall_s = BEGIN_S
        self.runs_s = 0.0

    def passes(self, seconds):
        self.wall_s += seconds
        self.runs_s += seconds


class Site:
    """Test bench: one or two hubs over one database, devices that obey, and time that the test moves.

    `told`: when, whom and what; `seen`: acknowledged reports; `tellers`: the hubs that told anybody anything;
    `mute`: hubs whose words are lost.
    """

    def __init__(self, path, fleet=20) -> None:
        self.path = path
        self.fleet = members(fleet)
        self.devices = {each.device: Device(each.device) for each in self.fleet}
        self.machine = Machine()
        self.seen: list[Any] = []
        self.unseen: dict[Any, Any] = {}
        self.told: list[Any] = []
        self.tellers: set[int] = set()
        self.mute: set[int] = set()
        self.wrong = ""
        self.hubs: list[Any] = []
        self.tasks: list[Any] = []

    def hub(self, decides=None, serves=lambda _device: True):
        """One more hub. `decides`: None if it is alone; `serves`: whether a device's messages reach it."""
        store = RolloutStore.open(self.path)
        clock = SteadyClock(0.0, lambda: self.machine.wall_s, lambda: self.machine.runs_s)
        tell = functools.partial(self.tell, len(self.hubs))
        log = JsonLog(io.StringIO())
        desk = RolloutDependencies(tell, self.see, lambda: self.fleet, self.check, log, decides)
        rollouts: Any = RolloutController(store, desk, clock)
        rollouts.store = store
        rollouts.serves = serves
        self.hubs.append(rollouts)
        self.tasks.append(asyncio.create_task(rollouts.run(0.0005, 0.01)))
        return rollouts

    def see(self, device, seq):
        self.seen.append((device, seq))
        self.unseen.pop((device, seq), None)

    def check(self, plan):
        if self.wrong == "defect":
            self.wrong = ""
            raise ZeroDivisionError
        return self.wrong

    def tell(self, hub, device, assignment):
        if hub in self.mute:
            return
        self.tellers.add(hub)
        self.told.append((self.machine.runs_s, device, assignment))
        self.devices[device].hear(assignment, self.machine.runs_s)

    def last(self, count):
        return [device for wave in self.hubs[0]._find_core("r1").plan.waves for device in wave][-count:]

    def candidates(self):
        return [word for _, _, word in self.told if not word.withdraw and word.digest == NEW.digest]

    async def passes(self, seconds, step=5.0):
        for _ in range(int(seconds / step)):
            self.machine.passes(step)
            for device in self.devices.values():
                self.unseen |= {(device.name, x.seq): x for x in device.step(self.machine.runs_s)}
            for (device, _), report in self.unseen.items():  # again, until it is kept
                for hub in self.hubs:
                    if hub.serves(device):
                        hub.on_report(device, report)
            await self.settled()

    async def settled(self):
        """Run a few rounds of every loop until their writes are done."""
        for _ in range(3):
            await asyncio.sleep(0.001)
            for hub in self.hubs:
                await hub._run_in_store(lambda _: None)

    async def until(self, hub, states, seconds=5000, rollout="r1"):
        for _ in range(int(seconds / 5)):
            if any(each.id == rollout and each.state in states for each in hub.views()):
                return hub.view(rollout)
            await self.passes(5)
        raise AssertionError(hub.view(rollout).state)

    async def stop(self):
        for task in self.tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
