"""Check of a precision against float32 on the golden set of a bundle, with one stated tolerance.

Rule: a precision is used only if no score of the golden set moves by more than `MAX_SCORE_MOVE` (a regressor's value:
by that share of its tolerance or spread), and no label changes whose lead in float32 was larger than that. The whole
model is checked on the samples and the tail on their codes, for devices ask the tail.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from cloud_hub.engine.base import EngineError
from cloud_hub.engine.bundle import TAIL, WHOLE, Array
from models.bundle.bundle import Bundle
from models.bundle.manifest import Manifest, ModelKind
from models.runtime.golden import INPUT, load_golden

MAX_SCORE_MOVE = 0.05
MAX_SAMPLES = 32  # of the golden set that are computed twice at a start
_CHUNK = 8

Outputs = Mapping[str, npt.NDArray[np.float32]]
GraphCall = Callable[[str, Sequence[Array]], npt.NDArray[np.float32]]


class PrecisionError(EngineError):
    """A precision changes the answers on the golden set too much, or cannot compute the model at all."""


class PrecisionCheck(msgspec.Struct, frozen=True):
    """How far a precision is from float32 on the golden set.

    `scores_moved`: the largest difference of a score; `labels_changed`: of samples whose label was not a close call.
    """

    samples: int
    labels_changed: int
    scores_moved: float

    @property
    def passed(self) -> bool:
        """Whether the precision may be used. NaN anywhere fails."""
        return not self.labels_changed and self.scores_moved <= MAX_SCORE_MOVE


class GoldenColumns:
    """Input columns of a bundle's golden set for both graphs. BundleError if the set cannot be read."""

    def __init__(self, bundle: Bundle) -> None:
        self._manifest = bundle.manifest
        arrays = load_golden(bundle)
        codes = [arrays[feature.name][:MAX_SAMPLES].astype(np.float32) for feature in self._manifest.features]
        self._columns = {WHOLE: [arrays[INPUT][:MAX_SAMPLES]], TAIL: codes}

    def compute(self, run: GraphCall) -> Outputs:
        """Run both graphs on the set, a few samples at a time: `[samples, outputs]` for each."""
        return {name: self._compute_graph(run, name, columns) for name, columns in self._columns.items()}

    def compare(self, reference: Outputs, found: Outputs) -> PrecisionCheck:
        """Compare outputs of a precision with those of float32; the worse of the two graphs counts."""
        checks = [compare_outputs(reference[name], found[name], self._manifest) for name in self._columns]
        return PrecisionCheck(
            checks[0].samples,
            max(check.labels_changed for check in checks),
            float(np.max([check.scores_moved for check in checks])),  # NaN wins
        )

    def batch(self, graph: str, size: int) -> list[Array]:
        """Return input columns of a batch of this size, from the set's samples over and over."""
        return [np.resize(column, (size, *column.shape[1:])) for column in self._columns[graph]]

    def _compute_graph(self, run: GraphCall, name: str, columns: Sequence[Array]) -> npt.NDArray[np.float32]:
        parts = [
            run(name, [column[at : at + _CHUNK] for column in columns]) for at in range(0, len(columns[0]), _CHUNK)
        ]
        return np.concatenate([part.reshape(len(part), -1) for part in parts])


def compare_outputs(
    reference: npt.NDArray[np.float32], found: npt.NDArray[np.float32], manifest: Manifest
) -> PrecisionCheck:
    """Compare outputs `[samples, outputs]`: a classifier's as scores at its temperature, a regressor's as they are."""
    if manifest.kind is ModelKind.REGRESSOR:
        scale = manifest.gate.tolerance or float(np.ptp(reference)) or 1.0
        return PrecisionCheck(len(reference), 0, float(np.abs(found - reference).max()) / scale)
    before, after = (_softmax(outputs, manifest.hub_temperature) for outputs in (reference, found))
    ranked = np.sort(before, axis=1)
    lead = ranked[:, -1] - ranked[:, -2] if before.shape[1] > 1 else np.zeros(len(before))
    changed = (before.argmax(1) != after.argmax(1)) & (lead > MAX_SCORE_MOVE)
    return PrecisionCheck(len(before), int(changed.sum()), float(np.abs(after - before).max()))


def _softmax(logits: npt.NDArray[np.float32], temperature: float) -> npt.NDArray[np.float64]:
    scaled = logits.astype(np.float64) / temperature
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    found: npt.NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return found
