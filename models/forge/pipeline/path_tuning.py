"""Tuning of code paths before one is chosen: the hub's half of a path learns to read its codes as they arrive.

Rule: a path is judged by what it keeps once it is tuned where no path keeps enough untuned, since tuning lifts coarse
codes most; head, coder and codec stay as they are, and the modules of other paths are never changed.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from models.forge.partition.cuts import PreparedModel
from models.forge.routes.features.path_training import expected_gains
from models.forge.routes.judgement import PathJudge
from models.forge.training.code_path import CodePath
from models.forge.training.hub_tuning import HubTuningConfig, ShippedSamples, fine_tune_hub
from models.forge.training.teacher import predict_batches

Values = npt.NDArray[np.float32]
_LEAST_WEIGHT = 0.3  # of a sample that the hub answers no better than the device, beside 1


class PathTuner:
    """Tunes the hub's half of one path after another on the first `samples` training samples."""

    def __init__(self, found: PreparedModel, judge: PathJudge, course: HubTuningConfig, *, samples: int) -> None:
        part = found.data.training
        self._judge, self._course = judge, course
        self._x, self._y = part.x[0][:samples], part.y[:samples]
        answers = predict_batches(found.traced.gm, self._x)
        self._answers = answers.numpy()
        self._weights = weigh_gains(answers, judge.answer_edge(self._x), course)

    def tune(self, path: CodePath, tell: Callable[[float], None] | None = None) -> CodePath:
        """The path with decoder and tail of its own, tuned on its codes. `tell` is called with the share done."""
        own = replace(path, decoder=deepcopy(path.decoder), tail=_copy_trainable(path.tail))
        codes = self._judge.deliver_codes(own, self._x)
        fine_tune_hub(own, ShippedSamples(codes, self._answers, self._y, self._weights), self._course, tell)
        return own


def _copy_trainable(tail: nn.Module) -> nn.Module:
    """A copy whose weights may be tuned, as those of a given model need not."""
    copied = deepcopy(tail)
    for weight in copied.parameters():
        weight.requires_grad_(weight.is_floating_point())
    return copied


def weigh_gains(answers: Tensor, local: Values, course: HubTuningConfig) -> Values:
    """Weight `[n]` of each sample in tuning: most where the given model's answer gains over the edge's `local` ones."""
    gains = expected_gains(answers, torch.from_numpy(local), course.aim, warmth=1.0).numpy()
    return (_LEAST_WEIGHT + (1 - _LEAST_WEIGHT) * gains).astype(np.float32)
