"""Tuning of the hub's half on the codes that the shipped graph really makes, in rounds, while calibration gains by it.

Rule: int8 arithmetic moves some codes by a level, and a codec may have coarsened others; the hub's half learns to read
them. Each round sees other training samples, from the second on varied as a user's augmentation varies them, and the
given model's answers to those. Weights that answer the calibration samples no better than before are put back.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from models.forge.evaluation.shipped import EdgeAnswers, run_edge_graph
from models.forge.export.codec_choice import CodecChoice, Codes, round_trip_codes
from models.forge.partition.cuts import PreparedModel
from models.forge.pipeline.path_tuning import weigh_gains
from models.forge.routes.judgement import PathJudge
from models.forge.training.code_path import CodePath
from models.forge.training.hub_tuning import HubTuningConfig, ShippedSamples, fine_tune_hub
from models.forge.training.modules import build_hub_module
from models.forge.training.teacher import AugmentFunction, predict_batches
from wire.protocol.messages import FieldSpec

_KEPT_ENOUGH = 0.99  # of what lossless features gain: the hub is not tuned any further
_WORTH = 0.01  # of that gain: what a round must bring for another one to follow


class FeaturePayload(NamedTuple):
    """The feature that travels to the hub, and the codec that makes its codes bytes."""

    feature: FieldSpec
    leaving: CodecChoice

    def deliver(self, codes: Codes) -> Codes:
        """Codes of samples as they arrive at the hub, through the codec and its fixed length."""
        return round_trip_codes(self.leaving.chosen, self.feature, codes)


class TuningPlan(NamedTuple):
    """Rounds of tuning: most of them, training samples of each, and how they are varied from the second round on."""

    rounds: int
    samples: int
    augment: AugmentFunction | None = None


def score_codes(judge: PathJudge, path: CodePath, codes: Codes) -> float:
    """Share kept by a path's hub half of what lossless features gain, with these codes of the judge's samples.

    Where lossless features gain nothing, 1 less the loss if all is asked.
    """
    answers = predict_batches(build_hub_module(path), codes.astype(np.float32)).numpy()
    kept = judge.recovered(answers)
    return 1 - judge.value.loss(answers, judge.whole) if math.isnan(kept) else kept


class ShippedJudge:
    """Scores a path's hub half on calibration samples, by the codes of the shipped graph as they arrive."""

    def __init__(self, judge: PathJudge, graph: bytes, path: CodePath, sending: FeaturePayload) -> None:
        self.path, self.graph, self.sending, self._judge = path, graph, sending, judge
        self._codes = sending.deliver(run_edge_graph(graph, judge.x).codes)

    def score(self) -> float:
        """Share kept of what lossless features gain, as `score_codes` counts it."""
        return score_codes(self._judge, self.path, self._codes)


class ShippedTuner:
    """Tunes decoder and tail of the path that ships. `course`: of one round; its seed is the first round's."""

    def __init__(self, found: PreparedModel, judge: ShippedJudge, plan: TuningPlan, course: HubTuningConfig) -> None:
        self._found, self._judge, self._plan, self._course = found, judge, plan, course
        self._modules = nn.ModuleDict({"decoder": judge.path.decoder, "tail": judge.path.tail})

    def run(self, first: EdgeAnswers, tell: Callable[[float], None]) -> None:
        """Tune round by round. `first`: the edge graph's answers to the first round's samples."""
        reached = self._judge.score()
        for number in range(self._plan.rounds):
            if reached >= _KEPT_ENOUGH:
                return
            before = copy_state(self._modules)
            shown = self._collect_samples(number, first if number == 0 else None)
            course = self._course._replace(seed=self._course.seed + number)
            fine_tune_hub(self._judge.path, shown, course, partial(self._tell_round, tell, number))
            gained = self._judge.score() - reached
            if not gained > 0:
                self._modules.load_state_dict(before)
            if not gained > _WORTH:
                return
            reached += gained

    def _tell_round(self, tell: Callable[[float], None], number: int, share: float) -> None:
        tell((number + share) / self._plan.rounds)

    def _collect_samples(self, number: int, seen: EdgeAnswers | None) -> ShippedSamples:
        """Codes, answers and targets of one round."""
        part, judge = self._found.data.training, self._judge
        rows = np.arange(number * self._plan.samples, (number + 1) * self._plan.samples) % len(part)
        rows = rows[: len(part)]
        x = part.x[0][rows]
        if number and self._plan.augment:
            x = _vary(x, self._plan.augment, self._course.seed + number)
        answers = predict_batches(self._found.traced.gm, x)
        seen = seen or run_edge_graph(judge.graph, x)
        weights = weigh_gains(answers, seen.logits, self._course)
        return ShippedSamples(judge.sending.deliver(seen.codes), answers.numpy(), part.y[rows], weights)


def _vary(x: npt.NDArray[np.generic], augment: AugmentFunction, seed: int) -> npt.NDArray[np.generic]:
    chance = torch.Generator().manual_seed(seed)
    return augment(torch.from_numpy(np.ascontiguousarray(x)), chance).numpy()


def copy_state(modules: nn.Module) -> dict[str, Tensor]:
    """Weights of modules as tensors of their own."""
    return {name: value.detach().clone().contiguous() for name, value in modules.state_dict().items()}
