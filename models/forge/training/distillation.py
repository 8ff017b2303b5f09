"""Distillation training of encoder, decoder, tail and early exit together, with the given model as teacher.

Rule: nothing but the training part is learned from, the calibration part only chooses numbers; a killed training goes
on at its last whole epoch. Distillation: Hinton et al. 2015; with consistent augmentation: Beyer et al. 2022.
"""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from models.forge import cache
from models.forge.data.types import Data
from models.forge.partition.cuts import find_cuts
from models.forge.partition.layout import find_layout
from models.forge.partition.split import split_model, split_shared
from models.forge.training.bottleneck import BottleneckDecoder, BottleneckEncoder, Codebook, choose_codebook
from models.forge.training.determinism import deterministic_torch
from models.forge.training.early_exit import EarlyExit, RegressionExit, ScaledRegressor
from models.forge.training.gate import collect_gate_samples, set_confidence
from models.forge.training.leakage_penalty import LeakagePenalty, penalty_share
from models.forge.training.losses import LossConfig, distillation_loss, exit_loss, feature_matching_loss
from models.forge.training.modules import TrainedModules, as_tuple
from models.forge.training.novelty import set_novelty
from models.forge.training.teacher import AugmentFunction, TeacherAnswers, choose_execution

if TYPE_CHECKING:
    from models.forge.partition.cuts import Cut, TracedModel

ProgressCallback = Callable[[str, float], None]  # (stage, share of the training that is done)
STATE = "pieces.safetensors"
_ENTRY_SHARE = 0.85  # the decoder enters the given model before this share of its arithmetic
_LEAST_SHARE = 0.05  # of the given model's arithmetic, for an encoder behind a cut that has used up the head's share
_LEAST_MACS = 20_000
_GIVEN_RATE = 0.4  # factor on the learning rate of layers that were trained already
_LEAST_BATCH, _LEAST_STEPS = 16, 32  # small sets: small batches, so that an epoch has steps enough
_USUAL = 512  # samples over which the mean features are taken
_MATCHED = 0.1  # of the epochs, the decoder imitates the given model's own features too
_FITTING = 0.05  # share of the progress left for gate and novelty


class DistillationConfig(NamedTuple):
    """Settings of one training.

    `entry`: where the decoder enters the given model again, at the cut or later; None: chosen. `codebook`: None: chosen
    from `max_bytes`, on a grid if `spatial`, else one vector for the whole sample. `head_share`: multiply-accumulates
    of
    the device's half, as a share of the given model's. `edge_model`: the user's own small model as the early exit.
    `copies`: differently augmented copies of the training set, each answered by the given model once. `rate`: highest
    learning rate. `coded`: share of each batch that decoder and tail learn from, 0..1; trunk and
    early exit, of far less arithmetic, learn from all of it.
    `leakage_weight`: of a bit that a code tells beyond the label (`LeakagePenalty`), 0: none counts.
    `folder`: for checkpoints; with the same settings, a second call goes on there, or ends at once.
    """

    entry: "Cut | None" = None
    codebook: Codebook | None = None
    max_bytes: int = 128
    head_share: float = 0.10
    epochs: int = 12
    seed: int = 0
    edge_model: nn.Module | None = None
    augment: AugmentFunction | None = None
    spatial: bool = True
    batch: int = 256
    rate: float = 3e-3
    copies: int = 4
    coded: float = 1.0
    exit_weight: float = 0.2
    hard_weight: float = 0.3
    softness: float = 3.0
    leakage_weight: float = 0.0
    folder: Path | None = None
    threads: int = 1


def train_modules(
    traced: "TracedModel", data: Data, cut: "Cut", wish: DistillationConfig, tell: ProgressCallback
) -> TrainedModules:
    """Train all modules; returns them in evaluation mode, with gate, novelty and temperature fitted.

    Gate, novelty and temperature are fitted on the calibration part. `tell(what, share)` reports progress.
    """
    with deterministic_torch(wish.seed, wish.threads):
        aim = build_loss_config(data, wish)
        entry = wish.entry or choose_entry(traced, cut)
        pieces = build_modules(traced, cut, entry, wish, aim)
        models = _TeacherModels(traced.gm, split_shared(traced, entry).head)
        _Trainer(data, models, wish, aim, pieces).run(tell)
        tell("fitting the gate", 1 - _FITTING)
        seen = collect_gate_samples(pieces, data.calibration)
        set_confidence(pieces, seen, data, wish.seed)
        set_novelty(pieces, seen, data)
    tell("taught", 1.0)
    return pieces


def choose_batch(samples: int, batch: int) -> int:
    """Samples of one step: at most `batch`, fewer where an epoch would have too few steps."""
    return max(_LEAST_BATCH, min(batch, samples // _LEAST_STEPS))


def count_steps_per_epoch(samples: int, batch: int) -> int:
    """Optimiser steps that a training takes over `samples` in one epoch: what a plan of steps has to divide by."""
    return max(1, samples // choose_batch(samples, batch))


def build_loss_config(data: Data, wish: DistillationConfig) -> LossConfig:
    """Task and loss weights for this data."""
    y = data.training.y
    if data.labels:
        return LossConfig(len(data.labels), softness=wish.softness, hard=wish.hard_weight)
    return LossConfig(0, float(y.mean()), max(float(y.std()), 1e-6), hard=1.0)


def choose_entry(traced: "TracedModel", cut: "Cut") -> "Cut":
    """Cut at which the decoder enters the given model again.

    The narrowest one that is not before the cut, has the same layout of features and leaves the tail something to do.
    """
    kind = find_layout(traced.gm, cut).order
    best = cut
    for later in find_cuts(traced):
        if later.share <= cut.share or later.share > _ENTRY_SHARE or find_layout(traced.gm, later).order is not kind:
            continue
        if _count_values(later) <= _count_values(best):
            best = later
    return best


def _count_values(cut: "Cut") -> int:
    return sum(math.prod(shape) for shape in cut.shapes)


def build_modules(
    traced: "TracedModel", cut: "Cut", entry: "Cut", wish: DistillationConfig, aim: LossConfig
) -> TrainedModules:
    """Untrained modules: the given model's own head and tail, copied, and new parts between them."""
    feature, goal = find_layout(traced.gm, cut), find_layout(traced.gm, entry)
    codebook = wish.codebook or choose_codebook(feature, wish.max_bytes, spatial=wish.spatial)
    budget = max((wish.head_share - cut.share) * traced.macs, _LEAST_SHARE * traced.macs, _LEAST_MACS)
    encoder = BottleneckEncoder(feature, codebook, budget)
    local: nn.Module
    if wish.edge_model is None:
        local = EarlyExit(encoder.hidden, aim.labels or 2)
        local = local if aim.labels else RegressionExit(local, aim.mean, aim.spread)
    else:
        local = copy.deepcopy(wish.edge_model)
        local = local if aim.labels else ScaledRegressor(local, math.log(aim.spread / 2))
    return TrainedModules(
        head=split_model(traced, cut).head,
        encoder=encoder,
        decoder=BottleneckDecoder(codebook, goal),
        tail=split_model(traced, entry).tail,
        exit=local,
        codebook=codebook,
        separate=wish.edge_model is not None,
    )


class _TeacherModels(NamedTuple):
    """The given model, and the part of it that makes the features which the decoder has to imitate."""

    teacher: nn.Module
    guide: nn.Module


class _Trainer:
    """One training. Owns the optimiser, the schedule and the checkpoint."""

    def __init__(
        self, data: Data, models: _TeacherModels, wish: DistillationConfig, aim: LossConfig, pieces: TrainedModules
    ) -> None:
        self._wish, self._aim, self._pieces = wish, aim, pieces
        self._y = torch.from_numpy(np.ascontiguousarray(data.training.y))
        x = data.training.x[0]
        self._answers = TeacherAnswers(models.teacher, x, wish.augment, wish.seed, wish.folder)
        self._speed = choose_execution(models.teacher, torch.from_numpy(x[:2]))
        self._guide = models.guide
        self._penalty = LeakagePenalty(wish.leakage_weight, aim.labels) if wish.leakage_weight else None
        with torch.inference_mode():
            usual = pieces.decoder.entry.to_canonical(*as_tuple(self._guide(torch.from_numpy(x[:_USUAL])))).mean(
                0, keepdim=True
            )
        pieces.decoder.set_initial_mean(usual)
        self._match_epochs = max(1, round(_MATCHED * wish.epochs))
        pieces.head.requires_grad_(requires_grad=False).eval()
        names = ("encoder", "decoder", "tail", "exit")
        self._modules = nn.ModuleDict({name: getattr(pieces, name) for name in names})
        self._optimiser = torch.optim.AdamW(self._parameter_groups(), lr=wish.rate, weight_decay=0.02)

    def run(self, tell: ProgressCallback) -> None:
        wish = self._wish
        path = wish.folder / STATE if wish.folder else None
        done = cache.load_checkpoint(path, self._modules, self._optimiser) if path else 0
        for epoch in range(done, wish.epochs):
            loss = self._run_epoch(epoch)
            if path:
                cache.save_checkpoint(path, self._modules, self._optimiser, epoch + 1)
            tell(f"teaching, loss {loss:.3f}", (1 - _FITTING) * (epoch + 1) / wish.epochs)
        self._modules.eval()

    def _parameter_groups(self) -> list[dict[str, Any]]:
        pieces, rate = self._pieces, self._wish.rate
        fresh = [*pieces.encoder.parameters(), *pieces.decoder.parameters(), *pieces.exit.parameters()]
        given = [weight for weight in pieces.tail.parameters() if weight.requires_grad]
        groups = [{"params": fresh, "lr": rate, "top": rate}, {"params": given, "lr": rate, "top": rate * _GIVEN_RATE}]
        return [group for group in groups if group["params"]]

    def _run_epoch(self, epoch: int) -> float:
        wish = self._wish
        lesson = self._answers.load_copy(epoch % max(1, wish.copies))
        chance = torch.Generator().manual_seed(wish.seed * 1009 + epoch)
        torch.manual_seed(wish.seed * 1009 + epoch)  # dropout: an epoch is the same after a restart
        order = torch.randperm(len(self._y), generator=chance)
        size, steps = choose_batch(len(order), wish.batch), count_steps_per_epoch(len(order), wish.batch)
        total = 0.0
        self._modules.train()
        for step in range(steps):
            chosen = order[step * size : (step + 1) * size]
            self._set_rate((epoch + step / steps) / wish.epochs)
            batch = self._speed.arrange(lesson.x[chosen])
            with self._speed.autocast():
                loss = self._compute_loss(batch, lesson.answers[chosen], self._y[chosen], epoch)
            self._apply_loss(loss)
            total += loss.item()
        return total / steps

    def _apply_loss(self, loss: Tensor) -> None:
        self._optimiser.zero_grad()
        if not torch.isfinite(loss):  # skip a batch of NaN loss: its gradient would spoil every weight
            return
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._modules.parameters(), 5.0)
        self._optimiser.step()

    def _compute_loss(self, batch: Tensor, answers: Tensor, y: Tensor, epoch: int) -> Tensor:
        pieces, wish = self._pieces, self._wish
        with torch.no_grad():
            found = as_tuple(pieces.head(batch))
        hidden = pieces.encoder.trunk(*found)
        local = pieces.exit(batch) if pieces.separate else pieces.exit(hidden)
        count = min(len(y), max(_LEAST_BATCH, round(wish.coded * len(y))))  # of a batch in random order
        codes = pieces.encoder.quantise(hidden[:count])
        features = as_tuple(pieces.decoder(codes))
        loss = distillation_loss(as_tuple(pieces.tail(*features))[0], answers[:count], y[:count], self._aim)
        if self._penalty:
            loss = loss + penalty_share(epoch, wish.epochs) * self._penalty(codes, y[:count])
        loss = loss + wish.exit_weight * exit_loss(local, answers, y, self._aim)
        if epoch < self._match_epochs:
            with torch.no_grad():
                wanted = as_tuple(self._guide(batch[:count]))
            loss = loss + feature_matching_loss(features, wanted)
        return loss

    def _set_rate(self, share: float) -> None:
        """One-cycle learning rate (Smith & Topin 2018): up for a fifth of the time, down to nothing along a cosine."""
        rise = 0.2
        height = share / rise if share < rise else 0.5 * (1 + math.cos(math.pi * (share - rise) / (1 - rise)))
        for group in self._optimiser.param_groups:
            group["lr"] = group["top"] * max(height, 0.02)
