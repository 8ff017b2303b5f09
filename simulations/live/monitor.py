"""Monitor of a live run: connected agents, the hub's queue, and CPU time, memory and descriptors of each process.

Rule: it changes nothing; what it cannot see at a moment counts as not there.
"""

import asyncio
import os
import re
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import NamedTuple

import aiohttp

from simulations.live.hosts import AgentProcesses
from simulations.live.links import ProxyProcesses
from simulations.processes import ProcessHarness
from simulations.scenario.types import Scenario

EVERY_S = 1.0
SIZES_EVERY_S = 5.0  # to list the descriptors of thousands of agents takes milliseconds
_QUEUED = re.compile(rb"^skerry_hub_queued\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)
_OWN = ("monitor", "agents")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ProcessSize(NamedTuple):
    """Resident memory in KiB and open descriptors of the processes of one role at a moment."""

    rss_kib: int
    descriptors: int


class RunMonitor:
    """Samples the run once a second.

    `states`: devices by state at the end of each bucket; `queued`: most questions seen waiting in each.
    """

    def __init__(
        self, scenario: Scenario, stage: ProcessHarness, crew: AgentProcesses, proxies: ProxyProcesses
    ) -> None:
        self._scenario = scenario
        self._stage = stage
        self._crew = crew
        self._proxies = proxies
        self.states: dict[str, Counter[int]] = {state: Counter() for state in ("online", "offline", "down")}
        self.queued: Counter[int] = Counter()
        self._before: dict[int, int] = {}  # processor time by process, when the run began
        self._sizes: dict[str, list[ProcessSize]] = {}  # by role, a look each; none while it is down

    @property
    def peak_bytes(self) -> int:
        """Most memory that was seen of this process and those of the agents, each at its own peak."""
        peaks = [max(size.rss_kib for size in self._sizes[role]) for role in _OWN if role in self._sizes]
        return sum(peaks) * 1024

    async def run(self, began: float) -> None:
        """Monitor until cancelled. `began`: monotonic seconds."""
        self._before = {pid: _cpu_ms(pid) for pids in self._process_ids().values() for pid in pids}
        sizes_at = began
        while True:
            bucket = int((time.monotonic() - began) // self._scenario.step_s)
            self._count_states(bucket)
            if time.monotonic() >= sizes_at:
                sizes_at = time.monotonic() + SIZES_EVERY_S
                self._look_at_sizes()
            self.queued[bucket] = max(self.queued[bucket], await self._read_queue())
            await asyncio.sleep(EVERY_S)

    def _look_at_sizes(self) -> None:
        for role, pids in self._process_ids().items():
            if pids and (size := _read_size(pids)) is not None:
                self._sizes.setdefault(role, []).append(size)

    def _count_states(self, bucket: int) -> None:
        states = self._crew.states
        self.states["online"][bucket] = sum(state.online for state in states)
        self.states["offline"][bucket] = sum(state.offline for state in states)
        self.states["down"][bucket] = sum(state.down for state in states)

    async def _read_queue(self) -> int:
        hub = self._stage.hub
        if hub is None:
            return 0
        try:
            limit = aiohttp.ClientTimeout(total=EVERY_S)
            headers = {"Authorization": f"Bearer {hub.token}"}
            async with self._stage.session.get(f"{hub.url}/metrics", headers=headers, timeout=limit) as response:
                return int(sum(map(float, _QUEUED.findall(await response.read()))))
        except (aiohttp.ClientError, TimeoutError, OSError):
            return 0

    async def collect_counts(self) -> dict[str, int]:
        """Totals by dotted name.

        The proxies' counters, CPU time (ms) and memory (MB) by role of the processes, and by how much its memory (KiB)
        and descriptors grew from the second quarter of the looks to the last, medians of both.
        """
        sizes = sorted(self._sizes.items())
        return {
            **{f"proxy.{name}": count for name, count in (await self._proxies.read_counts()).items()},
            **{f"cpu_ms.{name}": sum(map(self._cpu_spent_ms, pids)) for name, pids in self._process_ids().items()},
            **{f"rss_mb.{name}": _rss_mb(pids) for name, pids in self._process_ids().items()},
            **{f"growth_kib.{name}": _find_growth([each.rss_kib for each in seen]) for name, seen in sizes},
            **{f"growth_fds.{name}": _find_growth([each.descriptors for each in seen]) for name, seen in sizes},
        }

    def _cpu_spent_ms(self, pid: int) -> int:
        return _cpu_ms(pid) - self._before.get(pid, 0)

    def _process_ids(self) -> dict[str, list[int]]:
        hub, broker = self._stage.hub, self._stage.broker_pid()
        return {
            "agents": self._crew.pids,
            "monitor": [os.getpid()],
            "hub": [hub.child.pid] if hub is not None else [],
            "broker": [broker] if broker is not None else [],
            "proxy": self._proxies.pids,
        }


def _cpu_ms(pid: int) -> int:
    """User and system time of a process and all its threads in ms; 0 where it is gone or the system does not tell."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return (int(words[11]) + int(words[12])) * 1000 // _TICKS


def _read_size(pids: list[int]) -> ProcessSize | None:
    """Sum over the processes; None if one of them is gone."""
    try:
        held = sum(map(_read_rss_bytes, pids))
        return ProcessSize(held // 1024, sum(map(_count_descriptors, pids)))
    except OSError:
        return None


def _count_descriptors(pid: int) -> int:
    with os.scandir(f"/proc/{pid}/fd") as found:  # a Path for each of thousands costs seven times as much
        return sum(1 for _ in found)


def _find_growth(seen: list[int]) -> int:
    """By how much the last quarter of the looks is above the second, medians of both; the first is the warming up."""
    quarter = len(seen) // 4
    return round(median(seen[-quarter:]) - median(seen[quarter : 2 * quarter])) if quarter else 0


def _rss_mb(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        try:
            total += _read_rss_bytes(pid)
        except OSError:
            continue
    return total // 1_000_000


def _read_rss_bytes(pid: int) -> int:
    """Resident memory of a process. OSError if it is gone."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
