"""Group of rank processes that run one sharded model: starts them, runs batches in turn, kills all if one is lost.

Rule: a group that lost one rank, dead or silent, is dead as a whole: all are killed before the error is raised, so that
none of them can answer later. A new generation has new processes, new sockets and a new rendezvous.

Several threads may step at once: their batches wait at the ranks, so that a pipeline's first stage begins a batch while
its last still computes the one before. Answers are read in the order in which batches were sent.
"""

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import msgspec
import numpy.typing as npt

from cloud_hub.engine.base import ClusterError, EngineError
from cloud_hub.engine.sharded import protocol
from cloud_hub.engine.sharded.launcher import LaunchedRanks, LaunchError, RankLauncher
from cloud_hub.engine.sharded.protocol import (
    Array,
    BatchStep,
    PingReply,
    PingRequest,
    RankConfig,
    RankFailed,
    RankLink,
    RankReady,
    StepDone,
)
from models.bundle.manifest import BundleError

_GONE_S = 5.0
_LOOK_S = 0.05
_NEWS = -1  # in place of a rank: what the launcher hears of all of them
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
        self._sending, self._state = threading.Lock(), threading.Condition()
        self._sent = self._read = 0  # batches and pings: the last one sent, and the last one whose answers were read
        self._users, self._closed = 0, False
        self._lost = ""
        self.ready: tuple[RankReady, ...] = ()
        self._ranks = self._start_ranks(launcher, until)
        self._inbox = [deque[_RankAnswer]() for _ in self._links]
        self._senders = [link.dup() for link in self._links]  # a time limit belongs to one of the two threads
        for at, link in enumerate(self._links):
            self._selector.register(link, selectors.EVENT_READ, at)
        self._news = self._ranks.news
        if self._news is not None:
            self._selector.register(self._news, selectors.EVENT_READ, _NEWS)
        with self._use():
            for at in range(self._world):
                own = msgspec.structs.replace(charter, rank=at, device=self._ranks.devices[at], store=self._ranks.store)
                self._send_to(at, own, [recipe.graphs])

    @property
    def pids(self) -> tuple[int, ...]:
        """Process of each rank, on the machine that it runs on."""
        return tuple(self._ranks.pids)

    @property
    def _links(self) -> Sequence[RankLink]:
        return self._ranks.links

    def await_ready(self, until: float) -> None:
        """Wait until all ranks have loaded their weights.

        RankLostError if it takes longer, BundleError if weights or plan are at fault; the ranks are killed in both
        cases.
        """
        with self._use():
            words = self._await_all(RankReady, until, "was not ready in time")
        self.ready = tuple(word for word, _ in words if isinstance(word, RankReady))

    @property
    def stages(self) -> int:
        """Stages of the pipeline."""
        return self._charter.pipeline

    @property
    def busy(self) -> bool:
        """Whether anything was sent whose answers were not read."""
        return self._sent != self._read

    def step(self, graph: str, columns: Sequence[Array], limit_s: float, pieces: int = 1) -> StepResult:
        """Run one batch in `pieces` microbatches, after those that other threads have sent.

        RankLostError if a rank dies, or any takes longer than `limit_s` seconds once the batch before is done.
        """
        batch = len(columns[0])

        def send(number: int) -> None:
            for at in range(self._world):
                fed = at < self._charter.tensor
                forms = protocol.describe_arrays(columns) if fed else ()
                word = BatchStep(number, graph, batch, forms, pieces)
                self._send_to(at, word, protocol.pack_arrays(columns) if fed else (), limit_s)

        words = self._exchange(send, StepDone, limit_s)
        dones = [word for word, _ in words if isinstance(word, StepDone)]
        last = self._world - self._charter.tensor
        outputs = protocol.parse_arrays(dones[last].forms, words[last][1])
        return StepResult(outputs, tuple(done.seconds for done in dones), dones[0].meetings)

    def ping(self, limit_s: float) -> None:
        """Check that every rank answers within `limit_s` seconds; RankLostError otherwise."""

        def send(number: int) -> None:
            for at in range(self._world):
                self._send_to(at, PingRequest(number))

        self._exchange(send, PingReply, limit_s)

    def kill(self) -> None:
        """Kill all ranks now; what other threads have on the way fails."""
        self._give_up(f"{self._name}: was stopped")
        with suppress(RankLostError), self._use(lost=True):
            pass

    def _exchange(self, send: Callable[[int], None], kind: type, limit_s: float) -> list["_RankAnswer"]:
        """Send a message to every rank by `send`, which is told its number, and await the answers in turn."""
        with self._use():
            with self._sending:
                self._sent += 1
                number = self._sent
                send(number)
            with self._await_turn(number):
                words = self._await_all(kind, time.monotonic() + limit_s, f"silent for {limit_s:.1f} s")
                if any(isinstance(word, StepDone | PingReply) and word.number != number for word, _ in words):
                    raise self._kill_as_lost("answered for another batch", 0)
                return words

    @contextmanager
    def _use(self, *, lost: bool = False) -> Iterator[None]:
        """Keep the sockets open for as long as it lasts. RankLostError if the group is lost.

        Whoever leaves a lost group last kills its ranks; the others leave when that is done.
        """
        with self._state:
            if self._lost and (self._closed or not lost):
                raise RankLostError(self._lost)
            self._users += 1
        try:
            yield
        finally:
            with self._state:
                self._users -= 1
                if self._lost and not self._users and not self._closed:
                    self._close()
                self._state.wait_for(lambda: not self._lost or self._closed)

    @contextmanager
    def _await_turn(self, number: int) -> Iterator[None]:
        """Wait until the answers to all that was sent before were read. RankLostError if the group is lost."""
        with self._state:
            self._state.wait_for(lambda: bool(self._lost) or self._read == number - 1)
            if self._lost:
                raise RankLostError(self._lost)
        try:
            yield
        finally:
            with self._state:
                self._read = number
                self._state.notify_all()

    def _give_up(self, why: str) -> None:
        """Declare the group lost and wake every thread that waits for it. The first reason stays."""
        with self._state:
            self._lost = self._lost or why
            for link in () if self._closed else self._senders:
                with suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)
            self._state.notify_all()

    def _close(self) -> None:
        """Kill the ranks and close the sockets, when no thread uses them any more."""
        for link in self._senders:
            link.close()
        self._selector.close()
        self._ranks.kill()
        self._closed = True
        self._state.notify_all()

    def _start_ranks(self, launcher: RankLauncher, until: float) -> LaunchedRanks:
        try:
            return launcher.start_ranks(self._charter, until)
        except LaunchError as error:
            self._selector.close()
            lost = self._make_lost(str(error), error.rank)
            raise ClusterError(str(lost)) if error.cluster else lost from None

    def _send_to(self, at: int, word: protocol.RankMessage, body: Sequence[Any] = (), limit_s: float = _GONE_S) -> None:
        """Send a message; a rank reads it when it has computed what it has, within `limit_s`."""
        try:
            protocol.send_message(self._senders[at], word, body, limit_s)
        except protocol.PipeError as error:
            raise self._kill_as_lost(str(error), at) from None

    def _await_all(self, kind: type, until: float, silent: str) -> list["_RankAnswer"]:
        """One message of `kind` from every rank, in rank order; the first failure is raised."""
        while not all(self._inbox):
            ready = self._ranks.list_pending() or [
                int(key.data) for key, _ in self._selector.select(max(0.0, until - time.monotonic()))
            ]
            if not ready:
                raise self._kill_as_lost(silent, next(at for at, box in enumerate(self._inbox) if not box))
            for at in ready:
                if at == _NEWS:
                    self._take_news()
                else:
                    self._inbox[at].append(self._receive_from(at, until))
        words = [box.popleft() for box in self._inbox]
        odd = [at for at, (word, _) in enumerate(words) if not isinstance(word, kind)]
        if odd:
            raise self._kill_as_lost("sent an unexpected message", odd[0])
        return words

    def _receive_from(self, at: int, until: float) -> "_RankAnswer":
        try:
            word, body = protocol.receive_message(self._links[at], until)
        except protocol.PipeError as error:
            raise self._kill_as_lost(str(error), at) from None
        if isinstance(word, RankFailed):
            if not word.bundle:
                self._ranks.find_lost(_DYING_S)
                ended = self._find_ended(at)
                raise self._kill_as_lost(*((word.why, at) if ended is None else ("gone", ended)))
            self._kill_as_lost(word.why, at)
            raise BundleError(f"{self._name}: {word.why}")
        return _RankAnswer(word, body)

    def _take_news(self) -> None:
        """Take in what the launcher heard of the ranks. RankLostError if one of them is dead."""
        if lost := self._ranks.find_lost():
            raise self._kill_as_lost(lost[0].why, lost[0].rank)
        if self._ranks.news is None and self._news is not None:
            self._selector.unregister(self._news)
            self._news = None

    def _find_ended(self, but: int) -> int | None:
        """A rank whose link has ended, as that of a rank that another one misses."""
        for key, _ in self._selector.select(0):
            try:
                if key.data not in (but, _NEWS):
                    protocol.receive_message(self._links[key.data], time.monotonic() + _LOOK_S)
            except protocol.PipeError as error:
                if str(error).startswith("gone"):
                    return int(key.data)
        return None

    def _kill_as_lost(self, why: str, at: int) -> RankLostError:
        """Give the group up and return the error, which names a rank that died: the others only miss it.

        The ranks are dead once the error leaves this module: see `_use`.
        """
        lost = self._ranks.find_lost()
        if lost and at not in {each.rank for each in lost}:
            at, why = lost[0]
        place = self._ranks.places[at]
        self._give_up(str(self._make_lost(why, at, f" on {place}" if place else "")))
        return RankLostError(self._lost)

    def _make_lost(self, why: str, at: int, place: str = "") -> RankLostError:
        of = f"generation {self._charter.generation}"
        return RankLostError(f"{self._name}: {f'rank {at} of {of}' if at >= 0 else of}{place}: {why}")


class _RankAnswer(NamedTuple):
    """A message of a rank with its body."""

    word: protocol.RankMessage
    body: bytearray
