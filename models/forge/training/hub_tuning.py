"""Fine-tuning of the hub's own layers on the codes that arrive: decoder and tail, or the whole given model.

Rule: the codes are those of the shipped graph (int8 arithmetic moves some by a level) as the codec delivers them; what
the device does stays as it is. The path's modules are changed in place: a caller whose tail is the user's own model
gives a copy. Whether tuning pays is for the caller to judge, on calibration samples.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from models.forge.training.code_path import CodePath
from models.forge.training.losses import LossConfig, distillation_loss
from models.forge.training.modules import build_hub_module
from models.forge.training.teacher import has_fast_bf16

_CLIPPED = 5.0  # largest norm of a gradient


class HubTuningConfig(NamedTuple):
    """Length and rates of fine-tuning. `aim`: loss weights (see `losses.LossConfig`).

    `rate`: highest learning rate, falling to a twentieth. `bf16`: compute in bfloat16 where this machine is quick at it
    and the layers allow it; convolutions gain most.
    """

    aim: LossConfig
    epochs: int = 3
    batch: int = 256
    rate: float = 3e-4
    seed: int = 0
    bf16: bool = False


class ShippedSamples(NamedTuple):
    """Training samples as the hub receives them: `codes` uint8 `[n, *path.shape]`, and their targets `y` `[n]`.

    `answers`: the given model's, `[n, outputs]`, to the same samples; `weights` `[n]`: how much each counts, None: all
    alike.
    """

    codes: npt.NDArray[np.uint8]
    answers: npt.NDArray[np.float32]
    y: npt.NDArray[Any]
    weights: npt.NDArray[np.float32] | None = None


def fine_tune_hub(
    path: CodePath, shown: ShippedSamples, course: HubTuningConfig, tick: Callable[[float], None] | None = None
) -> None:
    """Train the path's decoder and tail on decoded codes, in place; normalisation keeps the statistics that it has.

    Nothing happens to a path without trainable weights. `tick` is called with the share done, 0..1.
    """
    hub = build_hub_module(path)
    weights = [weight for weight in hub.parameters() if weight.requires_grad]
    if not weights:
        return
    optimiser = torch.optim.Adam(weights, lr=course.rate)
    chance = torch.Generator().manual_seed(course.seed)
    shares = np.ones(len(shown.y), np.float32) if shown.weights is None else shown.weights
    columns = [torch.from_numpy(np.ascontiguousarray(one)) for one in (shown.codes, shown.answers, shown.y, shares)]
    size = min(course.batch, len(shown.y))
    steps = len(shown.y) // size
    fast = _can_run_bf16(hub, columns[0][:2]) if course.bf16 else False
    for epoch in range(course.epochs):
        order = torch.randperm(len(shown.y), generator=chance)
        for step in range(steps):
            share = (epoch + step / steps) / course.epochs
            optimiser.param_groups[0]["lr"] = course.rate * (1 - 0.95 * share)
            codes, answers, y, counts = (column[order[step * size : (step + 1) * size]] for column in columns)
            with torch.autocast("cpu", torch.bfloat16, enabled=fast):
                loss = distillation_loss(hub(codes.float()), answers, y, course.aim, counts)
            _apply_loss(loss, optimiser, weights)
        if tick:
            tick((epoch + 1) / course.epochs)


def _apply_loss(loss: Tensor, optimiser: torch.optim.Optimizer, weights: list[nn.Parameter]) -> None:
    optimiser.zero_grad()
    if not torch.isfinite(loss):  # skip a batch of NaN loss: its gradient would spoil every weight
        return
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(weights, _CLIPPED)
    optimiser.step()


def _can_run_bf16(hub: nn.Module, codes: Tensor) -> bool:
    if not has_fast_bf16():
        return False
    try:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            hub(codes.float())
    except RuntimeError:  # a graph with fixed types
        return False
    return True
