"""Golden set of a bundle: stored samples and answers of the shipped graph, for a self-test on the device.

Rule: the file is numpy's `.npz` without pickled objects. Another processor may round one code to its neighbour; it may
not change a label, nor move a score by more than `MAX_SCORE_MOVE`, or a regressor's value by more than that share of
its scale.
"""

import io
import zipfile
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.bundle.bundle import Bundle
from models.bundle.manifest import BundleError, ModelKind
from models.runtime.runner import Inference, Runner

INPUT, SCORES = "input", "scores"
MAX_SCORE_MOVE = 0.05
MIN_CODES_EQUAL = 0.98  # least share of codes that must be the same

Arrays = dict[str, npt.NDArray[Any]]


class GoldenCheck(NamedTuple):
    """Result of a golden check: how far a runner's answers are from the stored ones.

    `labels_equal`: samples with the same label; a regressor's labels count as equal. `scores_moved`: largest difference
    of a score, or of a value as a share of its scale. `codes_equal`: least share of equal codes over the features;
    `codes_moved`: largest difference of a code.
    """

    samples: int
    labels_equal: int
    scores_moved: float
    codes_equal: float
    codes_moved: int

    @property
    def passed(self) -> bool:
        """True if every label is equal and scores and codes are within the limits above."""
        same = self.labels_equal == self.samples and self.scores_moved <= MAX_SCORE_MOVE
        return same and self.codes_equal >= MIN_CODES_EQUAL and self.codes_moved <= 1


def check_golden(bundle: Bundle, runner: Runner) -> GoldenCheck:
    """Run the golden samples as one batch and compare the answers with the stored ones.

    BundleError if the file is unreadable or does not fit the manifest; what `runner.infer` raises goes through.
    """
    arrays = load_golden(bundle)
    found = runner.infer(arrays[INPUT])
    scores = np.array([inference.prediction.scores for inference in found])
    moved = [_code_differences(found, name, arrays[name]) for name in _feature_names(bundle)]
    return GoldenCheck(
        samples=len(found),
        labels_equal=int((scores.argmax(1) == arrays[SCORES].argmax(1)).sum()),
        scores_moved=float(np.abs(scores - arrays[SCORES]).max()) / _score_scale(bundle, arrays[SCORES]),
        codes_equal=min(float((difference == 0).mean()) for difference in moved),
        codes_moved=max(int(difference.max()) for difference in moved),
    )


def golden_samples(bundle: Bundle) -> npt.NDArray[Any]:
    """Return the golden samples `[n, *shape]` alone. BundleError as `check_golden`."""
    return load_golden(bundle)[INPUT]


def pack_golden(samples: npt.NDArray[Any], scores: npt.NDArray[Any], features: Arrays) -> bytes:
    """Encode a golden file (`.npz` bytes); equal arrays give equal bytes.

    `samples` `[n, *shape]`, their `scores` `[n, outputs]` (stored as float32), and `features`: name to codes `[n,
    ...]`.
    """
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{INPUT: samples, SCORES: scores.astype(np.float32)}, **features)
    return buffer.getvalue()


def _score_scale(bundle: Bundle, scores: npt.NDArray[Any]) -> float:
    """Return the unit of score differences: 1 for probabilities, a regressor's tolerance or spread."""
    if bundle.manifest.kind is not ModelKind.REGRESSOR:
        return 1.0
    return bundle.manifest.gate.tolerance or float(np.ptp(scores)) or 1.0


def _code_differences(found: list[Inference], name: str, expected: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    codes = np.stack([inference.features[name] for inference in found]).astype(np.int64)
    return np.abs(codes - expected.astype(np.int64))


def _feature_names(bundle: Bundle) -> list[str]:
    return [feature.name for feature in bundle.manifest.features]


def load_golden(bundle: Bundle) -> Arrays:
    """Load the golden set: samples under `INPUT`, scores under `SCORES`, codes by feature name; rows are samples.

    BundleError if the file cannot be read or does not fit the manifest.
    """
    manifest = bundle.manifest
    try:
        with np.load(io.BytesIO(bundle.read_file(manifest.golden)), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise BundleError(f"{manifest.model}: {manifest.golden} cannot be read: {error}") from None
    count = len(arrays[INPUT]) if INPUT in arrays and arrays[INPUT].ndim else 0
    shapes = {INPUT: manifest.input.shape, SCORES: (manifest.outputs,)}
    shapes |= {feature.name: feature.shape for feature in manifest.features}
    if not count or any(name not in arrays or arrays[name].shape != (count, *shapes[name]) for name in shapes):
        raise BundleError(f"{manifest.model}: {manifest.golden} does not fit the manifest")
    return arrays
