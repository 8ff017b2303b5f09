"""Engine of a model bundle: from work items to padded input columns, and from graph outputs to predictions.

Rule: a `GraphRunner` implementation knows only arrays and graph names; a result that is not finite is an `EngineError`.
Batch sizes come from a fixed ladder, so that each was run at warm-up and little is wasted: a batch is padded to the
next size with copies of its last row.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from cloud_hub.engine.base import Engine, EngineError, EngineHealth, EngineState
from cloud_hub.engine.types import EngineSetup, ModelCard, WorkItem
from models.bundle.manifest import Manifest, ModelKind
from models.runtime.feature_codec import NUMPY_DTYPES
from models.runtime.novelty import judge_logits
from models.runtime.runner import check_values
from wire.protocol.messages import FieldSpec, Prediction

Array = npt.NDArray[np.generic]


def list_batch_sizes(max_batch: int) -> tuple[int, ...]:
    """Batch sizes that are computed: 1, 2, 3, 4, 6, 8, 12, 16, 24, ...

    Up to `max_batch`; at most a third is padding.
    """
    steps = {max_batch}
    power = 1
    while power < max_batch:
        steps |= {power, power + power // 2}
        power *= 2
    return tuple(sorted(step for step in steps if step <= max_batch))


def choose_batch_size(count: int, buckets: Sequence[int]) -> int:
    """The smallest batch size that holds `count` rows. ValueError if none does."""
    for size in buckets:
        if size >= count:
            return size
    raise ValueError(f"a batch of {count}, the largest bucket is {max(buckets, default=0)}")


def pad_rows(column: Array, size: int) -> Array:
    """Pad rows `[n, ...]` to `[size, ...]` by repeating the last row; n >= 1."""
    missing = size - len(column)
    return column if not missing else np.concatenate([column, np.repeat(column[-1:], missing, axis=0)])


TAIL, WHOLE = "tail", "whole"


class GraphRunner(Protocol):
    """Runs the two graphs of a bundle.

    `tail` takes codes as float32, one column per feature; `whole` takes raw samples. `depth`: threads that may run
    batches at once.
    """

    @property
    def inline(self) -> bool: ...

    @property
    def depth(self) -> int: ...

    @property
    def ranks(self) -> tuple[tuple[int, float], ...]: ...

    @property
    def setup(self) -> EngineSetup: ...

    def start(self) -> None: ...

    def run(self, graph: str, columns: Sequence[Array]) -> npt.NDArray[np.float32]:
        """`[bucket, ...]` per input -> `[bucket, outputs]`. EngineError, or anything of `base.ENGINE_FAULTS`."""
        ...

    def health(self) -> EngineHealth: ...

    def stop(self) -> None: ...


class BundleEngine:
    """Engine of one replica of a bundle, on any `GraphRunner`."""

    def __init__(self, manifest: Manifest, card: ModelCard, graphs: GraphRunner) -> None:
        self._buckets = card.buckets or list_batch_sizes(card.max_batch)
        self.card = msgspec.structs.replace(card, buckets=self._buckets)
        self._manifest = manifest
        self._graphs = graphs
        self._draining = False

    @property
    def inline(self) -> bool:
        return self._graphs.inline

    @property
    def ranks(self) -> tuple[tuple[int, float], ...]:
        return self._graphs.ranks

    @property
    def setup(self) -> EngineSetup:
        return self._graphs.setup

    @property
    def replicas(self) -> Sequence[Engine]:
        return (self,)

    @property
    def depth(self) -> int:
        return self._graphs.depth

    def start(self) -> None:
        self._graphs.start()

    def warm(self) -> None:
        """Run both graphs, the largest batch size first: it allocates what the smaller ones reuse."""
        sample, raw = self.sample(), self._raw_sample()
        for size in reversed(self._buckets):
            self._run_graph(TAIL, [np.stack([sample.codes[f.name]] * size).astype(np.float32) for f in self._features])
            self._run_graph(WHOLE, [np.stack([raw] * size)])

    def infer(self, batch: Sequence[WorkItem]) -> list[Prediction]:
        """Predict a batch; codes and raw samples may be mixed, each kind is one forward pass."""
        if self._draining:
            raise EngineError(f"{self.card.name}: draining")
        raw = {index: work.raw for index, work in enumerate(batch) if work.raw is not None}
        codes = [index for index in range(len(batch)) if index not in raw]
        found: dict[int, Prediction] = {}
        if codes:
            columns = [[batch[index].codes[f.name].astype(np.float32) for index in codes] for f in self._features]
            found |= zip(codes, self._predict(TAIL, [np.stack(column) for column in columns]), strict=True)
        if raw:
            for sample in raw.values():
                self._check_sample(sample)
            found |= zip(raw, self._predict(WHOLE, [np.stack(list(raw.values()))]), strict=True)
        return [found[index] for index in range(len(batch))]

    def health(self) -> EngineHealth:
        found = self._graphs.health()
        return EngineHealth(EngineState.DRAINING, found.why, found.generation) if self._draining else found

    def drain(self) -> None:
        """Refuse further batches with EngineError."""
        self._draining = True

    def stop(self) -> None:
        self._graphs.stop()

    def sample(self) -> WorkItem:
        """A work item with the lowest code everywhere."""
        return WorkItem({f.name: np.full(f.shape, int(f.low), np.uint8) for f in self._features})

    @property
    def _features(self) -> Sequence[FieldSpec]:
        return self.card.features

    def _raw_sample(self) -> npt.NDArray[np.generic]:
        spec = self._manifest.input
        return np.full(spec.shape, spec.low, NUMPY_DTYPES[spec.dtype])

    def _check_sample(self, sample: npt.NDArray[np.generic]) -> None:
        # Integers are often indices into an embedding table, and an out-of-range one crashes an accelerator.
        if sample.dtype.kind in "iu":
            check_values(sample, self._manifest.input)

    def _predict(self, graph: str, columns: Sequence[Array]) -> list[Prediction]:
        outputs = self._run_graph(graph, columns)
        if not np.isfinite(outputs).all():
            raise EngineError("the model gave NaN or infinite values")
        if self._manifest.kind is ModelKind.REGRESSOR:
            return [Prediction(-1, 1.0, tuple(row), self.card.name) for row in outputs.tolist()]
        return self._predict_labels(outputs)

    def _run_graph(self, graph: str, columns: Sequence[Array]) -> npt.NDArray[np.float32]:
        rows = len(columns[0])
        size = choose_batch_size(rows, self._buckets)
        outputs = self._graphs.run(graph, [pad_rows(column, size) for column in columns])
        return outputs[:rows].reshape(rows, -1)

    def _predict_labels(self, logits: npt.NDArray[np.float32]) -> list[Prediction]:
        """Softmax of the logits at the bundle's temperature, as one labelled prediction per row."""
        scaled = logits.astype(np.float64) / self._manifest.hub_temperature
        scaled -= scaled.max(axis=1, keepdims=True)  # the largest exponent is 0: nothing overflows
        powers = np.exp(scaled)
        scores = powers / powers.sum(axis=1, keepdims=True)
        labels = scores.argmax(axis=1).tolist()
        rows = zip(labels, scores.tolist(), judge_logits(logits, self._manifest.gate.hub_domain), strict=True)
        return [Prediction(label, row[label], tuple(row), self.card.name, known) for label, row, known in rows]
