"""Quicker steps for graphs that serve, one for each batch size: compiled by TorchInductor, or recorded on a card.

Rule: a step is made on the golden set's samples and serves only where it gives what the graph itself gives there, by
the tolerance of the precisions; until it is made, and where it cannot be, the graph serves. No batch waits for a
compiler: it works on a thread of its own, one step at a time in the whole process. A recording (`card.StepRecorder`)
takes milliseconds and is made where it is first asked for, at the warm-up.
"""

import copy
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, fx

from cloud_hub.engine.card import first_output
from cloud_hub.engine.precision import GoldenColumns, compare_outputs
from models.bundle.bundle import Bundle
from models.graph.module import TORCH_ERRORS
from models.graph.precision import GraphNumbers, compute_in

GraphStep = Callable[..., Tensor]
StepMaker = Callable[[fx.GraphModule, Sequence[Tensor]], GraphStep]
_compiling = threading.Lock()  # TorchInductor is not made for two threads at once


class StepKey(NamedTuple):
    """Which step: of a graph, for batches of so many rows."""

    graph: str
    rows: int


class StepRefusedError(Exception):
    """A step that cannot be made, or does not give what its graph gives; one line."""


def compile_step(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> GraphStep:
    """Compile a graph for inputs of these shapes. StepRefusedError if the compiler cannot; it needs one for C++."""
    try:
        with _compiling, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch about itself
            from torch import _inductor as inductor  # noqa: PLC0415 - seconds, and only where somebody asked for it
            from torch._inductor import config  # noqa: PLC0415

            with config.patch(compile_threads=1):  # else it starts a pool of processes
                # a copy, for the compiler rewrites what it is given, and the graph serves meanwhile
                made = inductor.compile(fx.GraphModule(graph, copy.deepcopy(graph.graph)), list(inputs))
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises: the graph goes on as it is
        raise StepRefusedError(_describe_error(error)) from None
    return lambda *given: first_output(made(*given))


class StepCheck:
    """Makes steps on a bundle's golden set and checks them there. BundleError if the set cannot be read."""

    def __init__(self, bundle: Bundle, numbers: GraphNumbers) -> None:
        self._golden = GoldenColumns(bundle)
        self._manifest = bundle.manifest
        self._numbers = numbers

    def make_step(self, key: StepKey, graph: fx.GraphModule, make: StepMaker) -> GraphStep:
        """Make a step that gives what its graph gives. StepRefusedError if there is none."""
        columns = self._golden.batch(key.graph, key.rows)
        inputs = [torch.from_numpy(column).to(self._numbers.device) for column in columns]
        with torch.inference_mode(), compute_in(self._numbers):  # a thread has modes of its own
            step = make(graph, inputs)
            wanted, found = (_read_output(each(*inputs)) for each in (graph, step))
        check = compare_outputs(wanted, found, self._manifest)
        if not check.passed:
            raise StepRefusedError(f"a score moves by {check.scores_moved:.2f} on the golden set")
        return step


class StepTable:
    """Steps of a model's graphs, each made by `make` when its batch size is first run, and why some were not made.

    `behind`: they are made on a thread of its own, which `close` ends after the one that it makes.
    """

    def __init__(
        self, graphs: Mapping[str, fx.GraphModule], check: StepCheck, make: StepMaker, *, behind: bool
    ) -> None:
        self.why = ""
        self._graphs = graphs
        self._check = check
        self._make = make
        self._steps: dict[StepKey, GraphStep] = {}
        self._asked: set[StepKey] = set()
        self._wanted: SimpleQueue[StepKey | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="graph-steps", daemon=True) if behind else None
        if self._thread is not None:
            self._thread.start()

    @property
    def graphs(self) -> dict[str, GraphStep]:
        """The graphs, each of which takes the step that there is for a batch."""
        return {name: self._choose_step(name, graph) for name, graph in self._graphs.items()}

    def describe(self) -> str:
        """Return one line for people: how many of the asked steps there are, and why not more."""
        made, asked = len(self._steps), len(self._asked)
        return f"{made} of {asked} batch sizes" + (f", the others as they are: {self.why}" if self.why else "")

    def close(self) -> None:
        """Make no more steps."""
        self._closed = True
        self._wanted.put(None)

    def _choose_step(self, name: str, graph: fx.GraphModule) -> GraphStep:
        def run(*inputs: Tensor) -> Tensor:
            key = StepKey(name, inputs[0].shape[0])
            if key not in self._asked:
                self._ask(key)
            step = self._steps.get(key)
            found: Tensor = graph(*inputs) if step is None else step(*inputs)
            return found

        return run

    def _ask(self, key: StepKey) -> None:
        self._asked.add(key)
        if self._thread is None:
            self._build(key)
        else:
            self._wanted.put(key)

    def _work(self) -> None:
        while (key := self._wanted.get()) is not None and not self._closed:
            self._build(key)

    def _build(self, key: StepKey) -> None:
        """Make a step, if one can be made."""
        try:
            self._steps[key] = self._check.make_step(key, self._graphs[key.graph], self._make)
        except (StepRefusedError, *TORCH_ERRORS) as error:
            self.why = _describe_error(error)


def _read_output(made: Tensor | Sequence[Tensor]) -> npt.NDArray[np.float32]:
    found = first_output(made).float().cpu().numpy()
    return np.array(found.reshape(len(found), -1))  # a copy: a recording writes its next result there


def _describe_error(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
