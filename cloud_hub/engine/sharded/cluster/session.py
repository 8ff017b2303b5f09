"""Session of a Ray cluster: one driver process and the hosts that it placed, seen from the hub.

Rule: it waits for the driver only up to a stated time; a driver that died, or whose Ray hangs, costs the session.
"""

import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

from cloud_hub.engine.sharded.cluster.messages import (
    MAX_LINE_BYTES,
    DriverFailed,
    DriverOrder,
    DriverReport,
    HeadLost,
    HostFacts,
    HostLost,
    HostsPlaced,
    KillRanks,
    PlaceHosts,
    RankDied,
    RanksKilled,
    SpawnRanks,
    decode_report,
    encode_line,
)
from cloud_hub.engine.sharded.launcher import LaunchError
from cloud_hub.engine.sharded.protocol import JoinOrder
from wire.process.files import PACKAGES_FOLDER

_START = "from cloud_hub.engine.sharded.cluster.driver import main; main({descriptor})"
_ENDING_S = 2.0
_KILL_S = 2.0  # hosts that live kill their ranks in milliseconds; of one that is gone Ray hears after seconds


class DriverSession:
    """A driver whose hosts are placed. LaunchError of one line, by `until` (monotonic), if they cannot be."""

    def __init__(self, order: PlaceHosts, until: float) -> None:
        self._order = order
        self._link, theirs = socket.socketpair()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the driver
        words = [sys.executable, "-P", "-c", _START.format(descriptor=theirs.fileno())]
        quiet, variables = subprocess.DEVNULL, _driver_environment(order.address)
        self._process = subprocess.Popen(
            words, cwd=PACKAGES_FOLDER, env=variables, stdin=quiet, stdout=quiet, stderr=self._said,
            pass_fds=[theirs.fileno()], start_new_session=True,
        )  # fmt: skip
        theirs.close()
        self._reading = threading.Lock()  # a thread that sends and one that receives may both miss a rank
        self._received = b""
        self._ended = self._head_lost = False
        self._killed: set[tuple[int, int]] = set()  # generation and stage
        self._dead: list[RankDied] = []
        self.lost_hosts: dict[int, str] = {}
        self.hosts: Sequence[HostFacts] = ()
        self.nodes: Sequence[str] = ()  # Ray's ids, by stage
        try:
            self._place(until)
        except LaunchError:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def news(self) -> socket.socket | None:
        """The socket of the driver; None once it has ended."""
        return None if self._ended else self._link

    @property
    def sound(self) -> bool:
        """Whether another generation can be started: driver, head and all hosts live, as far as is known now."""
        self.read_reports()
        return not (self._ended or self._head_lost or self.lost_hosts)

    def spawn_ranks(self, generation: int, orders: Sequence[Sequence[JoinOrder]], limit_s: float) -> None:
        """Have all ranks started; they connect by themselves."""
        self._send(SpawnRanks(generation, tuple(tuple(stage) for stage in orders), limit_s))

    def kill_ranks(self, generation: int) -> list[int]:
        """Have all ranks killed; the stages whose hosts did not say within two seconds that they are dead."""
        self._send(KillRanks(generation))
        until = time.monotonic() + _KILL_S
        while (left := self._list_silent(generation)) and not self._ended and time.monotonic() < until:
            if set(left) <= self.lost_hosts.keys():
                break
            self.read_reports(until - time.monotonic())
        return [] if self._ended else left  # without a driver nothing is known of them

    def _list_silent(self, generation: int) -> list[int]:
        return [stage for stage in range(self._order.stages) if (generation, stage) not in self._killed]

    def list_dead(self, generation: int) -> list[RankDied]:
        """Ranks of a generation that hosts reported dead."""
        return [each for each in self._dead if each.generation == generation]

    def read_reports(self, patience_s: float = 0.0) -> None:
        """Take in what the driver reported, waiting up to `patience_s` seconds for the first report."""
        with self._reading:
            self._read_lines(patience_s)

    def _read_lines(self, patience_s: float) -> None:
        while not self._ended and select.select([self._link], [], [], max(0.0, patience_s))[0]:
            patience_s = 0.0
            data = self._receive()
            *lines, self._received = (self._received + data).split(b"\n")
            for line in lines:
                self._take(decode_report(line))
            self._ended = self._ended or not data or len(self._received) > MAX_LINE_BYTES

    def describe_end(self) -> str:
        """Why the session is of no more use: its head is gone, or the last line that its driver wrote."""
        if self._head_lost:
            return f"the Ray head at {self._order.address} does not answer any more"
        self._said.seek(0)
        lines = [line.strip() for line in self._said.read().decode(errors="replace").splitlines() if line.strip()]
        return f"the driver of Ray ended ({lines[-1][:200]})" if lines else "the driver of Ray ended"

    def close(self) -> None:
        """End the driver; Ray then ends its hosts."""
        self._link.close()
        try:
            self._process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()
        self._ended = True

    def _place(self, until: float) -> None:
        """Send the first order and wait for its answer."""
        self._send(self._order)
        while not self.hosts:
            left = until - time.monotonic()
            if left <= 0:
                raise LaunchError(f"Ray at {self._order.address} placed no ranks in time", cluster=True)
            self.read_reports(left)
            if self._ended and not self.hosts:
                raise LaunchError(f"Ray at {self._order.address}: {self.describe_end()}", cluster=True)

    def _send(self, word: DriverOrder) -> None:
        try:
            self._link.settimeout(_ENDING_S)
            self._link.sendall(encode_line(word))
        except OSError:
            self._ended = True

    def _receive(self) -> bytes:
        try:
            return self._link.recv(1 << 16)
        except OSError:
            return b""

    def _take(self, report: DriverReport) -> None:
        if isinstance(report, HostsPlaced):
            self.hosts, self.nodes = report.hosts, report.nodes
        elif isinstance(report, RanksKilled):
            self._killed.add((report.generation, report.stage))
        elif isinstance(report, RankDied):
            self._dead.append(report)
        elif isinstance(report, HostLost):
            self.lost_hosts.setdefault(report.stage, report.why)
        elif isinstance(report, HeadLost):
            self._head_lost = True
        elif isinstance(report, DriverFailed):
            raise LaunchError(report.why, cluster=True)


def _driver_environment(address: str) -> dict[str, str]:
    """Environment of the driver: without SKERRY_ secrets; Ray's own variables, as its token's, go through."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SKERRY_")}
    # Else Ray takes another address of this machine for a head that listens on loopback alone.
    return kept | ({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} if address.startswith("127.") else {})
