"""Judgement of code paths on calibration samples: what of the gain of lossless features the codes keep.

Rule: one edge, one ranking of the samples (its own softmax, or its own error scale) and one share asked for all paths,
so that two paths differ in their codes alone; codes are judged as they arrive, through the codec and its fixed length.

The gain of an answer is counted in the given model's own calibrated probabilities (Jitkrittum et al. 2023, plug-in
estimate), which vary far less than single outcomes; for a regressor in squared errors against the targets.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from models.forge.data.types import Data, DataPart
from models.forge.export.codec_choice import CodecOption, measure_option, round_trip_codes, smallest_option
from models.forge.export.manifest import ENVELOPE_BYTES, build_field_spec
from models.forge.routes.frontier import RoutePoint
from models.forge.training.calibration import fit_temperature, softmax_probabilities
from models.forge.training.code_path import CodePath
from models.forge.training.modules import TrainedModules, as_tuple, build_hub_module
from models.forge.training.teacher import predict_batches
from wire.protocol.messages import FieldSpec, ModelRef

Values = npt.NDArray[Any]
_BATCH = 250
_NO_GAIN = 1e-9


class AnswerValue:
    """Value of answers to fixed samples: the more, the better.

    A classifier's answer is worth the given model's calibrated probability of its label, a regressor's minus its
    squared error. `whole`: the given model's outputs `[n, outputs]`; `y`: targets `[n]`, none of them out of scope.
    """

    def __init__(self, whole: Values, y: Values, *, regressor: bool) -> None:
        self._y, self._regressor = y, regressor
        self._chances = None if regressor else softmax_probabilities(whole, fit_temperature(whole, y))

    def of(self, outputs: Values) -> npt.NDArray[np.float64]:
        """Value of each answer `[n]`."""
        if self._chances is None:
            return -np.square(outputs[:, 0].astype(np.float64) - self._y)
        found: npt.NDArray[np.float64] = self._chances[np.arange(len(self._y)), outputs.argmax(1)]
        return found

    def quality(self, outputs: Values, rows: Values | None = None) -> float:
        """Accuracy, or RMSE, against the targets; of `rows` alone if given."""
        kept = slice(None) if rows is None else rows
        if self._regressor:
            return float(np.sqrt(np.square(outputs[kept, 0].astype(np.float64) - self._y[kept]).mean()))
        return float((outputs[kept].argmax(1) == self._y[kept]).mean())

    def loss(self, outputs: Values, against: Values, rows: Values | None = None) -> float:
        """What `outputs` lose against others: a share of accuracy, or of the others' RMSE."""
        found, other = self.quality(outputs, rows), self.quality(against, rows)
        return found / max(other, 1e-12) - 1 if self._regressor else other - found


class JudgedCodes(NamedTuple):
    """A path's point on the frontier, and its codes of the judged samples, for an attack."""

    point: RoutePoint
    codes: npt.NDArray[np.uint8]


class PathJudge:
    """Judges code paths over one trained edge.

    `share`: of the samples that the hub is asked for. `samples`: most calibration samples used; `fitted`: most training
    samples for a codec's tables.
    """

    def __init__(
        self, whole: nn.Module, data: Data, pieces: TrainedModules, share: float, *, samples: int, fitted: int
    ) -> None:
        self._pieces, self._regressor = pieces, not data.labels
        part = _thin_part(data.calibration, samples, in_scope=bool(data.labels))
        self.x, self.y = part.x[0], part.y
        self._shown = _thin_rows(data.training.x[0], fitted)
        self.whole = predict_batches(whole, self.x).numpy()
        self.edge = self.answer_edge(self.x)
        self.value = AnswerValue(self.whole, self.y, regressor=self._regressor)
        self.asked = self._rank_samples() < math.floor(share * len(self.y))
        lossless, alone = self._pair_quality(self.whole), self.value.quality(self.edge)
        self._has_gain = lossless < alone if self._regressor else lossless > alone

    def measure(self, path: CodePath, device_share: float) -> JudgedCodes:
        """A path's point: codes fitted on training samples, judged on the calibration samples."""
        way, spec = self._choose_packing(path)
        codes = round_trip_codes(way, spec, self.run_coder(path, self.x))
        answers = predict_batches(build_hub_module(path), codes.astype(np.float32)).numpy()
        point = RoutePoint(
            name=path.name,
            route=path.route,
            label=path.level.name,
            payload_bytes=way.payload_bytes,
            sealed_bytes=way.question_bytes + ENVELOPE_BYTES,
            quality=self._pair_quality(answers),
            edge=self.value.quality(self.edge),
            lossless=self._pair_quality(self.whole),
            recovered=self.recovered(answers),
            recovered_low=self.recovered(answers) - self.recovered_error(answers),
            lost_asked=self.value.loss(answers, self.whole, self.asked) if self.asked.any() else 0.0,
            lost=self.value.loss(answers, self.whole),
            device_share=device_share,
            samples=len(self.y),
        )
        return JudgedCodes(point, codes)

    def recovered(self, answers: Values) -> float:
        """Share of the gain of lossless features on asked samples that these answers keep; NaN if there is no gain.

        There is none where lossless features, asked for the same samples, are no better than the edge alone.
        """
        if not self._has_gain:
            return math.nan
        own = self.value.of(self.edge)[self.asked]
        most = float((self.value.of(self.whole)[self.asked] - own).sum())
        return float((self.value.of(answers)[self.asked] - own).sum()) / most if most > _NO_GAIN else math.nan

    def recovered_error(self, answers: Values) -> float:
        """Standard error of `recovered`, a ratio of sums over the asked samples (Cochran 1977, section 6.4)."""
        own = self.value.of(self.edge)[self.asked]
        won, most = self.value.of(answers)[self.asked] - own, self.value.of(self.whole)[self.asked] - own
        if not self._has_gain:
            return math.nan
        rest = won - self.recovered(answers) * most
        return float(np.sqrt(np.square(rest).sum()) / most.sum()) if most.sum() > _NO_GAIN else math.nan

    def deliver_codes(self, path: CodePath, x: Values) -> npt.NDArray[np.uint8]:
        """Codes `[n, *path.shape]` of samples as they arrive, through the codec and its fixed length."""
        way, spec = self._choose_packing(path)
        return round_trip_codes(way, spec, self.run_coder(path, x))

    def _choose_packing(self, path: CodePath) -> tuple[CodecOption, FieldSpec]:
        """The path's own codec, or the smallest for its codes of the training samples; and the field that travels."""
        spec = build_field_spec(path)
        ref, shown = ModelRef("model", 1, "cut", ""), self.run_coder(path, self._shown)
        if path.codec:
            return measure_option(path.codec, path.tables, spec, shown, ref), spec
        return smallest_option(spec, shown, ref), spec

    def run_coder(self, path: CodePath, x: Values) -> npt.NDArray[np.uint8]:
        """Codes `[n, *path.shape]` of samples, before any codec."""
        pieces, found = self._pieces, []
        with torch.inference_mode():
            for batch in _iter_batches(x):
                features = as_tuple(pieces.head(batch))
                found.append(path.coder(batch, features, pieces.encoder.trunk(*features)).to(torch.uint8))
        return torch.cat(found).numpy()

    def answer_edge(self, x: Values) -> npt.NDArray[np.float32]:
        """Outputs `[n, ...]` of the early exit, before export."""
        pieces, found = self._pieces, []
        with torch.inference_mode():
            for batch in _iter_batches(x):
                hidden = None if pieces.separate else pieces.encoder.trunk(*as_tuple(pieces.head(batch)))
                found.append(pieces.exit(batch if hidden is None else hidden).float())
        return torch.cat(found).numpy()

    def _rank_samples(self) -> npt.NDArray[np.int64]:
        """Rank `[n]` of each sample, the least sure first."""
        logits = self.edge
        sure = -logits[:, 1] if self._regressor else softmax_probabilities(logits, 1.0).max(1)
        ranks = np.empty(len(sure), np.int64)
        ranks[np.argsort(sure, kind="stable")] = np.arange(len(sure))
        return ranks

    def _pair_quality(self, answers: Values) -> float:
        column = (self.asked[:, None], answers[:, :1], self.edge[:, :1]) if self._regressor else None
        if column:
            return self.value.quality(np.where(*column))
        return self.value.quality(np.where(self.asked[:, None], answers, self.edge))


def _iter_batches(x: Values) -> "list[Tensor]":
    return [torch.from_numpy(np.ascontiguousarray(x[at : at + _BATCH])) for at in range(0, len(x), _BATCH)]


def _thin_rows(x: Values, most: int) -> Values:
    """At most `most` rows, evenly spaced."""
    return x[:: max(1, -(-len(x) // most))]


def _thin_part(part: DataPart, most: int, *, in_scope: bool) -> DataPart:
    kept = np.flatnonzero(part.y >= 0) if in_scope else np.arange(len(part.y))
    rows = _thin_rows(kept, most)
    return DataPart((part.x[0][rows],), part.y[rows])
