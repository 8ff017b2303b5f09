"""Group of rank processes that run one sharded model: starts them, runs one batch at a time, kills all if one is lost.

Rule: a group that lost one rank, dead or silent, is dead as a whole: all are killed before the error is raised, so that
none of them can answer later. A new generation has new processes, new sockets and a new rendezvous.
"""

import selectors
import socket
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy.typing as npt

from cloud_hub.engine.base import EngineError
from cloud_hub.engine.sharded import protocol
from cloud_hub.engine.sharded.launcher import LaunchedRanks, LaunchError, RankLauncher
from cloud_hub.engine.sharded.protocol import (
    Array,
    BatchStep,
    PingReply,
    PingRequest,
    RankConfig,
    RankFailed,
    RankReady,
    StepDone,
)
from models.bundle.manifest import BundleError

_GONE_S = 5.0
_DYING_S = 0.5  # a rank that dies closes its sockets, which the others report, before it counts as dead


class RankLostError(EngineError):
    """A rank died, hung or failed; all ranks of the group were killed."""


class ShardingPlan(msgspec.Struct, frozen=True):
    """What each generation of a group is started from. `graphs`: JSON."""

    name: str
    charter: RankConfig
    graphs: bytes


class StepResult(NamedTuple):
    """Outputs of one batch. `seconds`: compute time by rank.

    `meetings`: collectives of the first rank since its start.
    """

    outputs: list[npt.NDArray[Any]]
    seconds: tuple[float, ...]
    meetings: dict[str, int]


class RankGroup:
    """One generation of ranks, started by `until` (monotonic) or `RankLostError`; then call `await_ready`."""

    def __init__(self, recipe: ShardingPlan, charter: RankConfig, launcher: RankLauncher, until: float) -> None:
        self._name = recipe.name
        self._world = charter.tensor * charter.pipeline
        self._charter = charter
        self._selector = selectors.DefaultSelector()
        self._ticket = 0
        self._killed = False
        self.ready: tuple[RankReady, ...] = ()
        self._ranks = self._start_ranks(launcher, until)
        for at, link in enumerate(self._links):
            self._selector.register(link, selectors.EVENT_READ, at)
        for at, link in enumerate(self._links):
            own = msgspec.structs.replace(charter, rank=at, device=self._ranks.devices[at], store=self._ranks.store)
            self._send_to(at, link, own, [recipe.graphs])

    @property
    def pids(self) -> tuple[int, ...]:
        """Process of each rank, on the machine that it runs on."""
        return tuple(self._ranks.pids)

    @property
    def _links(self) -> Sequence[socket.socket]:
        return self._ranks.links

    def await_ready(self, until: float) -> None:
        """Wait until all ranks have loaded their weights.

        RankLostError if it takes longer, BundleError if weights or plan are at fault; the ranks are killed in both
        cases.
        """
        words = self._await_all(RankReady, until, "was not ready in time")
        self.ready = tuple(word for word, _ in words if isinstance(word, RankReady))

    @property
    def stages(self) -> int:
        """Stages of the pipeline."""
        return self._charter.pipeline

    def step(self, graph: str, columns: Sequence[Array], limit_s: float, pieces: int = 1) -> StepResult:
        """Run one batch in `pieces` microbatches.

        RankLostError if a rank dies, or any takes longer than `limit_s` seconds.
        """
        self._ticket += 1
        until = time.monotonic() + limit_s
        batch = len(columns[0])
        for at, link in enumerate(self._links):
            fed = at < self._charter.tensor
            forms = protocol.describe_arrays(columns) if fed else ()
            word = BatchStep(self._ticket, graph, batch, forms, pieces)
            self._send_to(at, link, word, protocol.pack_arrays(columns) if fed else ())
        words = self._await_all(StepDone, until, f"silent for {limit_s:.1f} s")
        dones = [word for word, _ in words if isinstance(word, StepDone)]
        if any(done.ticket != self._ticket for done in dones):
            raise self._kill_as_lost("answered for another batch", 0)
        last = self._world - self._charter.tensor
        outputs = protocol.parse_arrays(dones[last].forms, words[last][1])
        return StepResult(outputs, tuple(done.seconds for done in dones), dones[0].meetings)

    def ping(self, limit_s: float) -> None:
        """Check that every rank answers within `limit_s` seconds; RankLostError otherwise."""
        self._ticket += 1
        for at, link in enumerate(self._links):
            self._send_to(at, link, PingRequest(self._ticket))
        self._await_all(PingReply, time.monotonic() + limit_s, f"silent for {limit_s:.1f} s")

    def kill(self) -> None:
        """Kill all ranks now."""
        if not self._killed:
            self._killed = True
            self._selector.close()
            self._ranks.kill()

    def _start_ranks(self, launcher: RankLauncher, until: float) -> LaunchedRanks:
        try:
            return launcher.start_ranks(self._charter, until)
        except LaunchError as error:
            self._selector.close()
            raise self._make_lost(str(error), error.rank) from None

    def _send_to(self, at: int, link: socket.socket, word: protocol.RankMessage, body: Sequence[Any] = ()) -> None:
        link.settimeout(_GONE_S)
        try:
            protocol.send_message(link, word, body)
        except protocol.PipeError as error:
            raise self._kill_as_lost(str(error), at) from None

    def _await_all(self, kind: type, until: float, silent: str) -> list[tuple[protocol.RankMessage, bytearray]]:
        """One message of `kind` from every rank, in rank order; the first failure is raised."""
        found: dict[int, tuple[protocol.RankMessage, bytearray]] = {}
        while len(found) < self._world:
            events = self._selector.select(max(0.0, until - time.monotonic()))
            if not events:
                raise self._kill_as_lost(silent, min(set(range(self._world)) - found.keys()))
            for key, _ in events:
                found[key.data] = self._receive_from(key.data, kind, until)
        return [found[at] for at in range(self._world)]

    def _receive_from(self, at: int, kind: type, until: float) -> tuple[protocol.RankMessage, bytearray]:
        try:
            word, body = protocol.receive_message(self._links[at], until)
        except protocol.PipeError as error:
            raise self._kill_as_lost(str(error), at) from None
        if isinstance(word, RankFailed):
            if not word.bundle:
                self._ranks.find_lost(_DYING_S)
            lost = self._kill_as_lost(word.why, at)
            raise BundleError(f"{self._name}: {word.why}") if word.bundle else lost
        if not isinstance(word, kind):
            raise self._kill_as_lost("sent an unexpected message", at)
        return word, body

    def _kill_as_lost(self, why: str, at: int) -> RankLostError:
        """Kill the group and return the error, which names a rank that died: the others only miss it."""
        lost = self._ranks.find_lost()
        if lost and at not in {each.rank for each in lost}:
            at, why = lost[0]
        self.kill()
        return self._make_lost(why, at)

    def _make_lost(self, why: str, at: int) -> RankLostError:
        of = f"generation {self._charter.generation}"
        return RankLostError(f"{self._name}: {f'rank {at} of {of}' if at >= 0 else of}: {why}")
