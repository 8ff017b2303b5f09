"""Engine that runs a bundle's hub model in PyTorch, in this process: the tail on codes, the whole model on raw samples.

Rule: everything runs in evaluation mode without gradients, on the device and in the precision that the hub's options
name; the device's half has no say. A precision other than float32 is checked on the golden set before it serves.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import fx

from cloud_hub.engine.base import EngineError, EngineHealth, EngineState
from cloud_hub.engine.bundle import TAIL, WHOLE, Array, BundleEngine, GraphRunner
from cloud_hub.engine.card import CARD_DEPTH, CardStreams, StepRecorder, TorchCard
from cloud_hub.engine.devices import cards_compute_bfloat16, count_usable_cards
from cloud_hub.engine.fallback import DeviceFaultError, FallbackGraphRunner
from cloud_hub.engine.precision import GoldenColumns, PrecisionError
from cloud_hub.engine.steps import GraphStep, StepCheck, StepTable, compile_step
from cloud_hub.engine.types import EngineSetup, make_bundle_card
from models.bundle.bundle import Bundle
from models.bundle.manifest import BundleError
from models.graph.hub_model import open_hub_graphs
from models.graph.module import TORCH_ERRORS, HubGraphModule
from models.graph.precision import GraphNumbers, compute_in, convert_graphs, count_weight_bytes
from policies.serving.computing import ComputeOptions, ComputeTarget, NoTarget, Precision, choose_targets

_CPU = torch.device("cpu")
_NARROW = {Precision.BFLOAT16: torch.bfloat16, Precision.FLOAT16: torch.float16}
_AUTO_BATCH = 8
_AUTO_LEAST_S = 0.002  # a batch that is computed faster than this is not worth a second precision
_AUTO_SHARE = 0.7  # of float32's time: then bfloat16 is clearly faster
_AUTO_MAX_BYTES = 1 << 30  # of weights, for both precisions are in memory while they are compared
_TRIES = 3


class ServedGraphs(NamedTuple):
    """Graphs that serve: `checks` judge a batch before it runs, `graphs` compute it in `numbers`.

    `steps`: what they take the place of, where there is a quicker step for a batch size. `streams`: of the card.
    """

    checks: Mapping[str, HubGraphModule]
    graphs: Mapping[str, fx.GraphModule]
    numbers: GraphNumbers
    precision: Precision
    steps: Mapping[str, GraphStep] | None = None
    streams: CardStreams | None = None

    def run(self, graph: str, columns: Sequence[Array]) -> npt.NDArray[np.float32]:
        """Run a batch. BundleError if it does not fit the graph; what torch raises goes through."""
        inputs = [torch.from_numpy(column) for column in columns]
        self.checks[graph].check_inputs(inputs)
        compute = (self.steps or self.graphs)[graph]
        with torch.inference_mode(), compute_in(self.numbers):
            if self.streams:
                return _as_array(self.streams.run(inputs, compute))
            return _as_array(compute(*(each.to(self.numbers.device) for each in inputs)).float().cpu())


def _limit_threads(count: int) -> None:
    """Let operations that this thread calls use `count` threads: OpenMP keeps the number for each calling thread."""
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def _as_array(made: torch.Tensor) -> npt.NDArray[np.float32]:
    found: npt.NDArray[np.float32] = made.numpy()
    return found


class TorchGraphRunner:
    """The two PyTorch graphs of a bundle on one device, in one precision.

    `start` raises BundleError if graphs or weights cannot be used, PrecisionError if the precision cannot, and
    DeviceFaultError if the card cannot. `threads`: of torch, for the whole process. `compiles`: graphs are compiled
    while they serve, for each batch size that the warm-up runs; on a card each is recorded then.
    """

    ranks = ()

    def __init__(self, bundle: Bundle, target: ComputeTarget, threads: int = 1, *, compiles: bool = False) -> None:
        self.inline = not target.cuda  # the event loop never waits for a card
        self.depth = CARD_DEPTH if target.cuda else 1
        self._room = threading.BoundedSemaphore(self.depth)
        self._bundle = bundle
        self._target = target
        self._threads = threads
        self._compiles = compiles
        self._served: ServedGraphs | None = None
        self._steps: StepTable | None = None
        self._setup = EngineSetup("cuda:0" if target.cuda else "cpu", target.precision)

    @property
    def setup(self) -> EngineSetup:
        steps = self._steps.describe() if self._steps is not None else ""
        return msgspec.structs.replace(self._setup, steps=steps)

    def start(self) -> None:
        _limit_threads(self._threads)
        if self._served is not None:
            return  # started before
        found = open_hub_graphs(self._bundle)  # of the hub part; the bundle itself is the edge part alone
        stored = serve_as_stored({TAIL: found.tail, WHOLE: found.whole})
        try:
            self._served = served = self._prepare_graphs(stored)
        except TORCH_ERRORS as error:
            raise self._describe_fault(error) from None
        self._setup = EngineSetup(str(served.numbers.device), served.precision, count_weight_bytes(served.graphs))
        if self._compiles or self._target.cuda:
            self._steps = steps = self._open_steps(served)
            streams = CardStreams(TorchCard(served.numbers.device)) if self._target.cuda else None
            self._served = served._replace(steps=steps.graphs, streams=streams)

    def _open_steps(self, served: ServedGraphs) -> StepTable:
        on_card = served.numbers.device != _CPU
        make = StepRecorder() if on_card else compile_step
        return StepTable(served.graphs, StepCheck(self._bundle, served.numbers), make, behind=not on_card)

    def run(self, graph: str, columns: Sequence[Array]) -> npt.NDArray[np.float32]:
        if self._served is None:
            raise EngineError("the engine is not started")
        _limit_threads(self._threads)
        try:
            with self._room:
                return self._served.run(graph, columns)
        except BundleError as error:
            raise EngineError(str(error)) from None
        except TORCH_ERRORS as error:
            if not self._target.cuda:
                raise
            raise self._describe_fault(error) from None

    def health(self) -> EngineHealth:
        return EngineHealth(EngineState.READY if self._served else EngineState.NEW)

    def stop(self) -> None:
        self._served = None
        if self._steps is not None:
            self._steps.close()
        if self._target.cuda:
            with suppress(*TORCH_ERRORS):  # a card that is gone has nothing to give back, and another runner waits
                torch.cuda.empty_cache()

    def _prepare_graphs(self, stored: ServedGraphs) -> ServedGraphs:
        precision = self._target.precision
        if not self._target.cuda and precision is Precision.AUTO:
            return choose_cpu_precision(stored, self._bundle)
        numbers = choose_numbers(self._target)
        if precision is Precision.FLOAT32:
            return stored if numbers.device == _CPU else convert_served(stored, numbers, precision, consume=True)
        golden = GoldenColumns(self._bundle)
        reference = golden.compute(stored.run)
        served = convert_served(stored, numbers, precision, consume=True)
        check = golden.compare(reference, golden.compute(served.run))
        if not check.passed:
            raise PrecisionError(
                f"{self._bundle.manifest.model}: {precision} breaks the golden set: a score moves by"
                f" {check.scores_moved:.2f}, {check.labels_changed} of {check.samples} labels change; set another"
                " precision, or allow_fallback = true"
            )
        return served

    def _describe_fault(self, error: BaseException) -> EngineError:
        said = " ".join(str(error).split())[:200] or type(error).__name__
        kind = DeviceFaultError if self._target.cuda else PrecisionError
        return kind(f"{self._bundle.manifest.model}: cannot compute in {self._target}: {said}")


def choose_numbers(target: ComputeTarget) -> GraphNumbers:
    """Choose element types and device for a target; int8 on a card computes its other products in bfloat16."""
    device = torch.device("cuda:0") if target.cuda else _CPU
    int8 = target.precision is Precision.INT8
    return GraphNumbers(device, torch.bfloat16 if int8 and target.cuda else _NARROW.get(target.precision), int8)


def serve_as_stored(graphs: Mapping[str, HubGraphModule]) -> ServedGraphs:
    """Serve graphs on the CPU in the types that they are stored in."""
    return ServedGraphs(
        graphs, {name: each.graph for name, each in graphs.items()}, GraphNumbers(_CPU), Precision.FLOAT32
    )


def convert_served(stored: ServedGraphs, numbers: GraphNumbers, precision: Precision, *, consume: bool) -> ServedGraphs:
    """Convert graphs served as stored; `consume` frees their weights on the way."""
    checks = {name: each.copy_without_weights() for name, each in stored.checks.items()}
    return ServedGraphs(checks, convert_graphs(stored.checks, numbers, consume=consume), numbers, precision)


def choose_cpu_precision(stored: ServedGraphs, bundle: Bundle) -> ServedGraphs:
    """Choose bfloat16 on the CPU if it is clearly faster and passes the golden set, else float32."""
    if count_weight_bytes(stored.graphs) > _AUTO_MAX_BYTES:
        return stored
    try:
        golden = GoldenColumns(bundle)
        slow_s = _time_batch(stored, golden)
        if slow_s < _AUTO_LEAST_S:
            return stored
        tried = convert_served(stored, GraphNumbers(_CPU, torch.bfloat16), Precision.BFLOAT16, consume=False)
        if _time_batch(tried, golden) > _AUTO_SHARE * slow_s:
            return stored
        passed = golden.compare(golden.compute(stored.run), golden.compute(tried.run)).passed
    except (BundleError, *TORCH_ERRORS):
        return stored  # nothing to measure it on, or nothing that this processor can compute
    return tried if passed else stored


def _time_batch(served: ServedGraphs, golden: GoldenColumns) -> float:
    """Seconds of one batch of the whole model: the best of a few."""
    columns, best = golden.batch(WHOLE, _AUTO_BATCH), float("inf")
    for _ in range(_TRIES):
        started = time.perf_counter()
        served.run(WHOLE, columns)
        best = min(best, time.perf_counter() - started)
    return best


class TorchEngine(BundleEngine):
    """Bundle engine on PyTorch in this process. EngineError if the options ask for a card and none is there.

    `note`: why it is this engine and not the one that was asked for, "" if it is.
    """

    def __init__(
        self,
        bundle: Bundle,
        max_batch: int = 32,
        threads: int = 1,
        options: ComputeOptions | None = None,
        note: str = "",
    ) -> None:
        chosen = options or ComputeOptions()
        make = partial(TorchGraphRunner, threads=threads, compiles=chosen.compile)
        runner = make_runner(bundle, chosen, make, note)
        super().__init__(bundle.manifest, make_bundle_card(bundle, max_batch), runner)


def make_runner(
    bundle: Bundle, options: ComputeOptions, make: Callable[[Bundle, ComputeTarget], GraphRunner], note: str = ""
) -> GraphRunner:
    """Make the runner of what the options choose on this machine, with its fallbacks if there are any.

    `note`: a fallback that was taken before.
    """
    chosen = choose_targets(options, cards=count_usable_cards(), bfloat16_cards=cards_compute_bfloat16())
    if isinstance(chosen, NoTarget):
        raise EngineError(f"{bundle.manifest.model}: {chosen.why}")
    return FallbackGraphRunner([partial(make, bundle, target) for target in chosen.targets], note or chosen.fallback)
