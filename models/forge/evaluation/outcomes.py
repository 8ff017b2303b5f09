"""Outcomes: per sample the edge's confidence, and whether edge and hub were right (or their errors, for a regressor).

Rule: these arrays are all that a gate is evaluated by; they are kept beside a bundle as plain numpy (no pickle), so
that every figure can be taken again without a model.
"""

import io
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models.bundle.measurements import QualityMetric
from models.forge.data.types import ForgeError

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Whole = npt.NDArray[np.integer[Any]]

OUTCOMES_FILE = "outcomes.npz"
_NONE = np.zeros(0)
_NO_GROUPS = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Outcomes:
    """Results of both halves on the same samples: arrays `[n]`.

    `confidence` in 0..1; `edge_right`, `hub_right`: bool. A regressor's errors (answer minus truth, in units of the
    target) are there too; right is then |error| <= `tolerance`. `given_loss`: of the given model on the raw samples, as
    `hub_loss`; empty where it was not run. `groups`: whole numbers that say which samples belong together (a patient, a
    user, a machine); empty where every sample stands for itself.
    """

    confidence: Floats
    edge_right: Flags
    hub_right: Flags
    edge_error: Floats = field(default_factory=lambda: _NONE)
    hub_error: Floats = field(default_factory=lambda: _NONE)
    tolerance: float = 0.0
    given_loss: Floats = field(default_factory=lambda: _NONE)
    groups: npt.NDArray[np.int64] = field(default_factory=lambda: _NO_GROUPS)

    def __len__(self) -> int:
        return len(self.confidence)

    def __getitem__(self, rows: Any) -> "Outcomes":
        optional = ("edge_error", "hub_error", "given_loss", "groups")
        kept = {name: getattr(self, name)[rows] for name in optional if len(getattr(self, name))}
        rights = self.edge_right[rows], self.hub_right[rows]
        return Outcomes(self.confidence[rows], *rights, tolerance=self.tolerance, **kept)

    @property
    def metric(self) -> QualityMetric:
        """RMSE for a regressor, else accuracy."""
        return QualityMetric.RMSE if self.tolerance else QualityMetric.ACCURACY

    @property
    def edge_loss(self) -> Floats:
        """Loss of the edge per sample: wrong (0 or 1), or the squared error."""
        return self.edge_error**2 if self.tolerance else (~self.edge_right).astype(np.float64)

    @property
    def hub_loss(self) -> Floats:
        """Loss of the hub per sample, as `edge_loss`."""
        return self.hub_error**2 if self.tolerance else (~self.hub_right).astype(np.float64)

    @property
    def loss_to_reach(self) -> Floats:
        """Loss per sample of the best that asking could give: the given model's, or the hub's where that is not known.

        "Gap recovered" is a share of what lies between the edge and this.
        """
        return self.given_loss if len(self.given_loss) else self.hub_loss


def add_given_loss(outcomes: Outcomes, loss: Floats) -> Outcomes:
    """The same outcomes with the given model's loss per sample: wrong (0 or 1), or a regressor's squared error."""
    return check_outcomes(replace(outcomes, given_loss=np.asarray(loss, np.float64)))


def add_groups(outcomes: Outcomes, groups: npt.NDArray[np.int64] | None) -> Outcomes:
    """The same outcomes with the group of each sample; None: every sample stands for itself."""
    return outcomes if groups is None else check_outcomes(replace(outcomes, groups=np.asarray(groups, np.int64)))


def classifier_outcomes(confidence: npt.NDArray[Any], edge: Whole, hub: Whole, y: Whole) -> Outcomes:
    """Outcomes of a classifier: labels `[n]` of edge and hub against the truth `y`.

    A sample of no label (-1) is right only where the answer is -1 too: see `predict_or_reject`.
    """
    return check_outcomes(Outcomes(np.asarray(confidence, np.float64), edge == y, hub == y))


def regressor_outcomes(
    confidence: npt.NDArray[Any], edge: npt.NDArray[Any], hub: npt.NDArray[Any], y: npt.NDArray[Any], tolerance: float
) -> Outcomes:
    """Outcomes of a regressor: values `[n]` of edge and hub against the truth `y`.

    Raises ForgeError unless `tolerance`, the error that still counts as right, is more than 0.
    """
    if not tolerance > 0:
        raise ForgeError(
            f"tolerance {tolerance:g}: say what error still counts as right, more than 0 units of the target"
        )
    own, hubs = np.asarray(edge, np.float64) - y, np.asarray(hub, np.float64) - y
    right, hub_right = np.abs(own) <= tolerance, np.abs(hubs) <= tolerance
    return check_outcomes(Outcomes(np.asarray(confidence, np.float64), right, hub_right, own, hubs, float(tolerance)))


def check_outcomes(outcomes: Outcomes) -> Outcomes:
    """The same outcomes. Raises ForgeError for no samples, lengths that differ, or a confidence outside 0..1."""
    size = len(outcomes)
    errors = [outcomes.edge_error, outcomes.hub_error] if outcomes.tolerance else []
    errors += [outcomes.given_loss] if len(outcomes.given_loss) else []
    groups = [outcomes.groups] if len(outcomes.groups) else []
    if not size or any(array.shape != (size,) for array in (outcomes.edge_right, outcomes.hub_right, *errors, *groups)):
        raise ForgeError(f"outcomes of {size} samples: give one value of the edge and one of the hub for every sample")
    confidence = outcomes.confidence
    if not (confidence.min() >= 0 and confidence.max() <= 1):
        raise ForgeError(f"confidence {confidence.min():g}..{confidence.max():g}: a gate needs values in 0..1")
    if not all(np.isfinite(array).all() for array in errors):
        raise ForgeError("errors: NaN or infinite values; look at the model's outputs")
    return outcomes


def encode_outcomes(outcomes: Outcomes) -> bytes:
    """Bytes of an .npz file.

    `confidence, edge_right, hub_right`, of a regressor `edge_error, hub_error, tolerance`, and where they are known
    `given_loss` and `groups`.
    """
    arrays: dict[str, npt.NDArray[Any]] = {
        "confidence": outcomes.confidence,
        "edge_right": outcomes.edge_right,
        "hub_right": outcomes.hub_right,
    }
    if outcomes.tolerance:
        arrays |= {"edge_error": outcomes.edge_error, "hub_error": outcomes.hub_error}
        arrays["tolerance"] = np.float64(outcomes.tolerance)  # type: ignore[assignment]  # numpy saves a scalar too
    arrays |= {name: getattr(outcomes, name) for name in ("given_loss", "groups") if len(getattr(outcomes, name))}
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


def read_outcomes(path: Path | str) -> Outcomes:
    """Outcomes of an .npz file. Raises ForgeError if it cannot be read or holds something else."""
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise ForgeError(f"{path}: cannot be read as outcomes ({error})") from None
    try:
        return _decode_outcomes(found)
    except KeyError as error:
        raise ForgeError(f"{path}: has no {error}; outcomes are confidence, edge_right, hub_right") from None


def _decode_outcomes(found: dict[str, npt.NDArray[Any]]) -> Outcomes:
    confidence = np.asarray(found["confidence"], np.float64)
    if float(found.get("tolerance", np.float64(0))):
        errors = found["edge_error"], found["hub_error"]
        plain = regressor_outcomes(confidence, *errors, np.zeros(len(confidence)), float(found["tolerance"]))
    else:
        plain = Outcomes(confidence, found["edge_right"].astype(bool), found["hub_right"].astype(bool))
    given, groups = found.get("given_loss", _NONE), found.get("groups", _NO_GROUPS)
    return check_outcomes(replace(plain, given_loss=np.asarray(given, np.float64), groups=groups.astype(np.int64)))


def predict_or_reject(scores: Floats, below: float) -> npt.NDArray[np.int64]:
    """The label of the largest score `[n, labels]`, or -1 (out of scope) where that score is under `below`."""
    return np.where(scores.max(1) < below, -1, scores.argmax(1))


def fit_rejection(scores: Floats, y: Whole) -> float:
    """The `below` of `predict_or_reject` that is right most often on these samples.

    It is 0 if none of them is out of scope.
    """
    if not (y < 0).any():
        return 0.0
    top = scores.max(1)
    order = np.argsort(top, kind="stable")
    won = (y[order] < 0).astype(np.int64) - (scores.argmax(1) == y)[order]  # by rejecting this one too
    best = int(np.cumsum(won).argmax()) + 1
    return float(top[order][best]) if best < len(y) else 1.0
