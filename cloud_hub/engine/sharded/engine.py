"""Sharded engine: supervises one group of rank processes per replica, and replaces a group that died or hangs.

Rule: a lost group costs the batch it had, which is reported as an `EngineError` once all its processes are dead, so
that a retry is answered once. The next call, or the next idle moment, starts a new generation and warms it up.
Of a pipeline two batches are on the way at once: its first stage would wait for the last one otherwise.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from cloud_hub.engine.base import Engine, EngineError, EngineHealth, EngineState
from cloud_hub.engine.bundle import Array, BundleEngine
from cloud_hub.engine.sharded.group import RankGroup, RankLostError, ShardingPlan, StepResult
from cloud_hub.engine.sharded.launcher import RankLauncher
from cloud_hub.engine.types import EngineSetup, ModelCard, WorkItem
from models.bundle.hub_part import WeightFiles
from models.bundle.manifest import BundleError, Manifest
from policies.monitoring.backoff import compute_delay
from policies.serving.computing import Precision
from wire.protocol.messages import Prediction

_PIPELINE_DEPTH = 2
_KEPT = 256  # step times remembered per graph and batch size
_KNOWN = 8  # step times needed before their percentile is used as a limit
_REBUILD_CAP_S = 30.0
_MICROBATCHES = (1, 2, 4, 8)  # a stage, that are tried
_TRIALS = 3
_HOPELESS = 1.5  # times the best: what takes so long at first is not tried again


class SupervisionLimits(msgspec.Struct, frozen=True):
    """Time limits of supervision, in seconds.

    `ready_s`: for a group to become ready; `silence_s`: shortest silence that counts as hung; `times_p99`: a step is
    hung when it takes so many times the 99th percentile of its kind.
    """

    ready_s: float = 60.0
    silence_s: float = 2.0
    times_p99: float = 5.0


class ShardedGraphRunner:
    """Graph runner on a group of rank processes, restarted when it is lost."""

    inline = False

    def __init__(self, recipe: ShardingPlan, limits: SupervisionLimits, launcher: RankLauncher) -> None:
        self.depth = _PIPELINE_DEPTH if recipe.charter.pipeline > 1 else 1
        self._recipe = recipe
        self._launcher = launcher
        self._limits = limits
        self._choosing = threading.Lock()  # of the group that a batch goes to: one thread starts or measures it
        self._gang: RankGroup | None = None
        self._generation = 0
        self._why = "not started"
        self._failures = 0
        self._not_before = 0.0
        self._steps: dict[tuple[str, int], deque[float]] = {}
        self._piece_rows: dict[str, int] = {}  # rows of a microbatch by graph, as measured at warm-up
        # The first batch of each size, to warm up the next generation.
        self._rehearsed: dict[tuple[str, int], list[Array]] = {}
        self.last: StepResult | None = None
        self.rebuilt_s = 0.0

    @property
    def ranks(self) -> tuple[tuple[int, float], ...]:
        return tuple(enumerate(self.last.seconds)) if self.last else ()

    @property
    def setup(self) -> EngineSetup:
        """The device of the first rank, and the weights of all."""
        held = sum(rank.shard_bytes for rank in self._gang.ready) if self._gang else 0
        return EngineSetup(self._recipe.charter.device, Precision.FLOAT32, held)

    @property
    def rebuilds(self) -> int:
        """How often the group was lost and started again."""
        return max(0, self._generation - 1)

    @property
    def rank_group(self) -> RankGroup | None:
        """The current group of ranks, None if it is lost."""
        return self._gang

    @property
    def fork_server_pid(self) -> int:
        """Process that starts the ranks; 0 if there is none."""
        return self._launcher.pid

    def start(self) -> None:
        """Start the first group. BundleError or EngineError; then no process is left behind."""
        if self._gang is None:
            self._build_group()

    def run(self, graph: str, columns: Sequence[Array]) -> npt.NDArray[np.float32]:
        """Run one batch through the ranks, after a restart if the group was lost; `depth` threads may call at once."""
        key = (graph, len(columns[0]))
        with self._choosing:
            gang = self._gang or self._rebuild_group()
            self._rehearsed.setdefault(key, [column.copy() for column in columns])
            self._measure_new_graph(gang, key, columns)
        outputs: npt.NDArray[np.float32] = self._run_step(gang, key, columns).outputs[0]
        return outputs

    def health(self) -> EngineHealth:
        """Ping every rank; start a new group if the old one is lost. What other threads do with it goes first."""
        if self._choosing.acquire(blocking=False):
            try:
                self._check_group()
            except (EngineError, BundleError) as error:
                self._why = str(error)
            finally:
                self._choosing.release()
        state = EngineState.READY if self._gang else EngineState.LOST if self._generation else EngineState.NEW
        return EngineHealth(state, "" if self._gang else self._why, max(1, self._generation))

    def _check_group(self) -> None:
        if self._gang is None and self._generation and time.monotonic() >= self._not_before:
            self._rebuild_group()
        elif self._gang is not None and not self._gang.busy:
            self._guard_call(lambda gang: gang.ping(self._limits.silence_s - 0.25), self._gang)

    def stop(self) -> None:
        """Kill the ranks and what started them."""
        if self._gang is not None:
            self._gang.kill()
        self._launcher.close()
        self._gang = None

    def step_limit_s(self, graph: str, batch: int) -> float:
        """Seconds that a step of this graph and batch size may take before it counts as hung."""
        known = self._steps.get((graph, batch), ())
        if len(known) < _KNOWN:
            return self._limits.ready_s
        p99 = sorted(known)[math.ceil(0.99 * len(known)) - 1]
        return max(self._limits.silence_s, self._limits.times_p99 * p99)

    def count_pieces(self, graph: str, batch: int) -> int:
        """Microbatches that a batch of this size is divided into; 1 until a batch of the graph was measured."""
        return -(-batch // self._piece_rows.get(graph, batch))

    def _measure_new_graph(self, gang: RankGroup, key: tuple[str, int], columns: Sequence[Array]) -> None:
        if gang.stages > 1 and key[1] > 1 and key[0] not in self._piece_rows:
            self._piece_rows[key[0]] = self._measure_pieces(gang, key[0], columns)

    def _run_step(self, gang: RankGroup, key: tuple[str, int], columns: Sequence[Array]) -> StepResult:
        pieces = self.count_pieces(*key)
        started = time.monotonic()
        answer: StepResult = self._guard_call(
            lambda gang: gang.step(key[0], columns, self.step_limit_s(*key), pieces), gang
        )
        self._steps.setdefault(key, deque(maxlen=_KEPT)).append(time.monotonic() - started)
        self.last = answer
        return answer

    def _measure_pieces(self, gang: RankGroup, graph: str, columns: Sequence[Array]) -> int:
        """Find the rows of a microbatch with which as many batches as are on the way at once take least time.

        Many small ones keep all stages busy (of `n` stages, m microbatches take (m + n - 1) / (m n) of the time of one
        process; Huang et al. 2019, "GPipe"), but small ones use a processor badly: how badly is measured, not guessed.
        """
        batch = len(columns[0])
        seconds: dict[int, float] = {}
        tried = sorted({min(batch, many * gang.stages) for many in _MICROBATCHES} | {1})
        for turn in range(1 + _TRIALS):  # the first run of a shape plans and allocates: it does not count
            for pieces in list(tried):
                started = time.monotonic()
                self._run_together(gang, graph, columns, pieces)
                if turn:
                    seconds[pieces] = min(seconds.get(pieces, math.inf), time.monotonic() - started)
            if turn:
                tried = [pieces for pieces in tried if seconds[pieces] < _HOPELESS * min(seconds.values())]
        return -(-batch // min(seconds, key=lambda pieces: seconds[pieces]))

    def _run_together(self, gang: RankGroup, graph: str, columns: Sequence[Array], pieces: int) -> None:
        """Run as many batches as are on the way at once."""
        limit_s = self._limits.ready_s
        with ThreadPoolExecutor(self.depth) as threads:
            running = [threads.submit(gang.step, graph, columns, limit_s, pieces) for _ in range(self.depth)]
        for each in running:
            self._guard_call(lambda _, step=each: step.result(), gang)

    def _guard_call(self, call: Any, gang: RankGroup) -> Any:
        try:
            return call(gang)
        except (RankLostError, BundleError) as error:
            if self._gang is gang:  # another thread may have started the next one
                self._gang, self._why = None, str(error)
            raise

    def _rebuild_group(self) -> RankGroup:
        if time.monotonic() < self._not_before:
            raise EngineError(f"{self._why}; next try in {self._not_before - time.monotonic():.0f} s")
        started = time.monotonic()
        gang = self._build_group()
        self.rebuilt_s = time.monotonic() - started
        return gang

    def _build_group(self) -> RankGroup:
        self._generation += 1
        told = msgspec.structs.replace(self._recipe.charter, generation=self._generation)
        until = time.monotonic() + self._limits.ready_s
        try:
            self._gang = gang = RankGroup(self._recipe, told, self._launcher, until)
            self._guard_call(lambda gang: gang.await_ready(until), gang)
            for key, columns in list(self._rehearsed.items()):
                self._measure_new_graph(gang, key, columns)
                self._run_step(gang, key, columns)
        except (EngineError, BundleError) as error:
            self._why = str(error)
            self._failures += 1
            self._not_before = time.monotonic() + compute_delay(self._failures, 1.0, 0.5, _REBUILD_CAP_S)
            raise
        self._failures, self._not_before = 0, 0.0
        return gang


class ShardedEngine:
    """Engine of a model over several processes: one rank group per replica.

    `files`: of weights, hashed; they stay open for later generations, until `stop`. None where ranks open their own.
    BundleError or EngineError from `start`, with no process left behind.
    """

    inline = False

    def __init__(
        self,
        manifest: Manifest,
        card: ModelCard,
        gangs: Sequence[ShardedGraphRunner],
        files: WeightFiles | None = None,
    ) -> None:
        self._files = files
        self.gangs = tuple(gangs)
        slots = msgspec.structs.replace(card, slots=len(self.gangs))
        self._parts = tuple(BundleEngine(manifest, slots, gang) for gang in self.gangs)
        self.card = self._parts[0].card

    @property
    def ranks(self) -> tuple[tuple[int, float], ...]:
        return self._parts[0].ranks

    @property
    def setup(self) -> EngineSetup:
        """The setup of the first replica, with the weights of all."""
        found = self._parts[0].setup
        held = sum(part.setup.weight_bytes for part in self._parts)
        return msgspec.structs.replace(found, weight_bytes=held)

    @property
    def replicas(self) -> Sequence[Engine]:
        return self._parts

    @property
    def depth(self) -> int:
        return self._parts[0].depth

    @property
    def rebuilds(self) -> int:
        """How often groups of its replicas were lost and started again."""
        return sum(gang.rebuilds for gang in self.gangs)

    def start(self) -> None:
        try:
            for part in self._parts:
                part.start()
        except (BundleError, EngineError):
            self.stop()
            raise

    def warm(self) -> None:
        for part in self._parts:
            part.warm()

    def infer(self, batch: Sequence[WorkItem]) -> list[Prediction]:
        """Predict on the first replica; `EngineWorker` calls the replicas directly."""
        return self._parts[0].infer(batch)

    def health(self) -> EngineHealth:
        """The worst health of its replicas."""
        return min((part.health() for part in self._parts), key=lambda health: health.state is EngineState.READY)

    def drain(self) -> None:
        for part in self._parts:
            part.drain()

    def stop(self) -> None:
        for part in self._parts:
            part.stop()
        if self._files is not None:
            self._files.close()

    def sample(self) -> WorkItem:
        return self._parts[0].sample()
