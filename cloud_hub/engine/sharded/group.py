"""Group of rank processes that run one sharded model: starts them, runs one batch at a time, kills all if one is lost.

Rule: a group that lost one rank, dead or silent, is dead as a whole: all are killed before the error is raised, so that
none of them can answer later. A new generation has new processes, new sockets and a new rendezvous file.
"""

import selectors
import shutil
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy.typing as npt

from cloud_hub.engine.base import EngineError
from cloud_hub.engine.sharded import protocol
from cloud_hub.engine.sharded.fork_server import ForkServer, ForkServerError, RankProcess, wait_for_death
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
    """What each generation of a group is started from.

    `graphs`: JSON; `files`: open weight files that every rank inherits.
    """

    name: str
    charter: RankConfig
    graphs: bytes
    files: tuple[int, ...] = ()


class StepResult(NamedTuple):
    """Outputs of one batch. `seconds`: compute time by rank.

    `meetings`: collectives of the first rank since its start.
    """

    outputs: list[npt.NDArray[Any]]
    seconds: tuple[float, ...]
    meetings: dict[str, int]


class RankGroup:
    """One generation of rank processes, started by `until` (monotonic) or `RankLostError`; then call `await_ready`."""

    def __init__(self, recipe: ShardingPlan, charter: RankConfig, nursery: ForkServer, until: float) -> None:
        self._name = recipe.name
        self._world = charter.tensor * charter.pipeline
        self._folder = Path(tempfile.mkdtemp(prefix="skerry-gang-"))
        self._charter = msgspec.structs.replace(charter, store=str(self._folder / "meet"))
        self._graphs = recipe.graphs
        self._ranks: list[RankProcess] = []
        self._links: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()
        self._ticket = 0
        self.ready: tuple[RankReady, ...] = ()
        self._spawn_ranks(nursery, recipe.files, until)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(rank.pid for rank in self._ranks)

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
        """Kill all ranks now and remove the rendezvous folder."""
        ranks, self._ranks = self._ranks, []
        for rank in ranks:
            rank.kill(_GONE_S)
            rank.close()
        for link in self._links:
            link.close()
        self._links = []
        self._selector.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _spawn_ranks(self, nursery: ForkServer, files: Sequence[int], until: float) -> None:
        for at in range(self._world):
            ours, theirs = socket.socketpair()
            self._links.append(ours)
            self._selector.register(ours, selectors.EVENT_READ, at)
            try:
                self._ranks.append(nursery.spawn(theirs, files, until))
            except ForkServerError as error:
                raise self._kill_as_lost(str(error), at) from None
            finally:
                theirs.close()
        for at, link in enumerate(self._links):
            own = msgspec.structs.replace(self._charter, rank=at, device=_rank_device(self._charter.device, at))
            self._send_to(at, link, own, [self._graphs])

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
                wait_for_death(self._ranks, _DYING_S)
            lost = self._kill_as_lost(word.why, at)
            raise BundleError(f"{self._name}: {word.why}") if word.bundle else lost
        if not isinstance(word, kind):
            raise self._kill_as_lost("sent an unexpected message", at)
        return word, body

    def _kill_as_lost(self, why: str, at: int) -> RankLostError:
        """Kill the group and return the error, which names a rank that died: the others only miss it."""
        dead = [rank for rank, child in enumerate(self._ranks) if not child.alive]
        if dead and at not in dead:
            at, why = dead[0], "died"
        self.kill()
        return RankLostError(f"{self._name}: rank {at} of generation {self._charter.generation}: {why}")


def _rank_device(first: str, at: int) -> str:
    """Device of the rank number `at`: graphics cards are counted up from the first; there is one CPU."""
    kind, _, number = first.partition(":")
    return f"{kind}:{int(number) + at}" if number else kind
