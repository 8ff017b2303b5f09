"""Learned confidence gate: the probability that the device's own answer stands.

Rule: fitted on the calibration part alone, with every probability read off samples that the fit did not see. Learned
deferral: Madras et al. 2018, Mozannar & Sontag 2020; when it beats the softmax: Jitkrittum et al. 2023. Monotone
calibration: Zadrozny & Elkan 2002.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.isotonic import isotonic_regression
from torch import Tensor, nn

from models.forge.data.types import Data, DataPart
from models.forge.training.calibration import fit_temperature
from models.forge.training.modules import TrainedModules, as_tuple, build_tail_module, pool_places
from models.forge.training.teacher import predict_batches

Floats = npt.NDArray[np.float64]
_FOLDS = 5
_HIDDEN = 24  # per fold
_SHOWN = 5  # largest log-probabilities that are gate inputs, in order
_WIDE = 32  # up to so many labels each label's log-probability is a gate input too
_KNOTS = 24
_STEPS, _RATE, _DECAY = 300, 0.01, 0.02
_DEEPER_PAYS = 0.002  # share of right answers that reading the trunk must add before it is used
_LEAST = 200  # samples of calibration below which nothing is learned from them


class PiecewiseLinear(nn.Module):
    """Piecewise linear, never falling function of one number, flat outside its knots."""

    first: Tensor
    starts: Tensor
    widths: Tensor
    slopes: Tensor

    def __init__(self, x: Floats, y: Floats) -> None:
        super().__init__()
        widths = np.diff(x)
        self.register_buffer("first", torch.tensor(y[0], dtype=torch.float32))
        self.register_buffer("starts", torch.tensor(x[:-1], dtype=torch.float32))
        self.register_buffer("widths", torch.tensor(widths, dtype=torch.float32))
        self.register_buffer("slopes", torch.tensor(np.diff(y) / widths, dtype=torch.float32))

    def forward(self, value: Tensor) -> Tensor:
        zero = torch.zeros_like(self.widths)
        steps = torch.minimum(torch.maximum(value[:, None] - self.starts, zero), self.widths)
        found: Tensor = (self.first + (steps * self.slopes).sum(1)).clamp(0.0, 1.0)
        return found


class ConfidenceGate(nn.Module):
    """Gate network: (logits, pooled trunk) -> confidence `[n]`.

    Low where the hub is expected to be right and the device wrong.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, scale: Tensor, hidden: int, looks_deeper: bool) -> None:
        super().__init__()
        self.looks_deeper = looks_deeper
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        self.first = nn.Linear(len(mean), hidden)
        self.second = nn.Linear(hidden, 1)
        self.table: nn.Module = nn.Identity()

    def forward(self, logits: Tensor, summary: Tensor) -> Tensor:
        found: Tensor = self.table(self.score(logits, summary))
        return found

    def score(self, logits: Tensor, summary: Tensor) -> Tensor:
        """Uncalibrated score `[n]`: the higher, the less there is to gain from asking the hub."""
        seen = build_gate_inputs(logits, summary if self.looks_deeper else None)
        gain: Tensor = self.second(torch.relu(self.first((seen - self.mean) * self.scale)))
        return -gain[:, 0]


def build_gate_inputs(logits: Tensor, summary: Tensor | None) -> Tensor:
    """Gate inputs: ordered largest log-probabilities, margin, entropy, each label's, and the trunk if given."""
    logs = torch.log_softmax(logits, 1)
    ordered = torch.topk(logs, min(_SHOWN, logs.shape[1]), dim=1).values
    margin = ordered[:, :1] - ordered[:, 1:2]
    entropy = -(logs.exp() * logs).sum(1, keepdim=True)
    each = [logs] if logs.shape[1] <= _WIDE else []
    return torch.cat([ordered, margin, entropy, *each, *([] if summary is None else [summary])], 1)


class GateSamples(NamedTuple):
    """Samples for fitting, as the device and the hub answer them: tensors of `n` rows."""

    logits: Tensor
    summary: Tensor
    hub: Tensor
    y: Tensor


def collect_gate_samples(pieces: TrainedModules, part: DataPart) -> GateSamples:
    """The modules' own outputs (before temperature or gate) for a whole part, in float32."""
    device = _DeviceHalf(pieces).eval()
    found = [_run_device(device, part.x[0][i : i + 500]) for i in range(0, len(part), 500)]
    logits, summary, codes = (torch.cat(column) for column in zip(*found, strict=True))
    return GateSamples(
        logits, summary, predict_batches(build_tail_module(pieces), codes), torch.from_numpy(np.asarray(part.y))
    )


def _run_device(device: nn.Module, x: npt.NDArray[np.float32]) -> tuple[Tensor, Tensor, Tensor]:
    with torch.no_grad():
        logits, summary, codes = device(torch.from_numpy(np.ascontiguousarray(x)))
    return logits.float(), summary.float(), codes.float()


class _DeviceHalf(nn.Module):
    def __init__(self, pieces: TrainedModules) -> None:
        super().__init__()
        self.head, self.encoder, self.exit, self.separate = pieces.head, pieces.encoder, pieces.exit, pieces.separate
        self.coder = pieces.sent.coder

    def forward(self, sample: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = as_tuple(self.head(sample))
        hidden = self.encoder.trunk(*features)
        logits = self.exit(sample) if self.separate else self.exit(hidden)
        return logits, pool_places(hidden), self.coder(sample, features, hidden)


def set_confidence(pieces: TrainedModules, seen: GateSamples, data: Data, seed: int) -> None:
    """Set `gate` and `temperature` from the calibration samples; a gate only if it beats the softmax there."""
    if data.labels:
        known = seen.y.numpy() >= 0
        pieces.temperature = fit_temperature(seen.logits.numpy()[known], seen.y.numpy()[known])
        pieces.gate = fit_gate(seen, seed)


def fit_gate(seen: GateSamples, seed: int) -> ConfidenceGate | None:
    """The best of the softmax (None) and learned gates with and without the trunk, on samples that a fit left out."""
    if len(seen.y) < _LEAST:
        return None
    own, hub = seen.logits.argmax(1) == seen.y, seen.hub.argmax(1) == seen.y
    best, reached = None, mean_recovered(torch.softmax(seen.logits, 1).amax(1), own, hub)
    for looks_deeper, margin in ((False, 0.0), (True, _DEEPER_PAYS)):
        gate, scores = _fit_folds(seen, looks_deeper, seed)
        found = mean_recovered(scores, own, hub)
        if found > reached + margin:
            gate.table = fit_isotonic(scores.double().numpy(), own.double().numpy())
            best, reached = gate.eval(), found
    return best


def _fit_folds(seen: GateSamples, looks_deeper: bool, seed: int) -> tuple[ConfidenceGate, Tensor]:
    """A gate of one small network per fold, joined into one, and each sample's score by the one that left it out."""
    shown = build_gate_inputs(seen.logits, seen.summary if looks_deeper else None)
    mean, scale = shown.mean(0), 1 / shown.std(0).clamp(min=1e-3)
    folds = torch.from_numpy(np.random.default_rng(seed).integers(_FOLDS, size=len(shown)))
    learners = _FoldNetworks(shown.shape[1], seed)
    votes = learners.train_networks((shown - mean) * scale, expected_gain(seen), folds)
    gate = ConfidenceGate(mean, scale, _HIDDEN * _FOLDS, looks_deeper)
    learners.merge_into(gate)
    return gate, -votes[folds, torch.arange(len(shown))]


def expected_gain(seen: GateSamples) -> Tensor:
    """P(hub right) - P(device right) by the hub's own calibrated probabilities: in 0..1, far less noisy than outcomes.

    The plug-in estimate of the deferral cost (Jitkrittum et al. 2023), with the hub's probabilities taken as true.
    """
    known = seen.y >= 0
    warmth = fit_temperature(seen.hub[known].numpy(), seen.y[known].numpy())
    chances = torch.softmax(seen.hub / warmth, 1)
    own = chances.gather(1, seen.logits.argmax(1, keepdim=True))
    return chances.amax(1) - own[:, 0]


class _FoldNetworks:
    """One network per fold, trained side by side, each on the samples of the other folds."""

    def __init__(self, inputs: int, seed: int) -> None:
        chance = torch.Generator().manual_seed(seed)
        first = torch.randn(_FOLDS, inputs, _HIDDEN, generator=chance) * math.sqrt(2 / inputs)
        self._first = nn.Parameter(first)
        self._bias = nn.Parameter(torch.zeros(_FOLDS, 1, _HIDDEN))
        self._second = nn.Parameter(torch.zeros(_FOLDS, _HIDDEN, 1))
        self._end = nn.Parameter(torch.zeros(_FOLDS, 1, 1))

    def train_networks(self, seen: Tensor, gains: Tensor, folds: Tensor) -> Tensor:
        """Train all networks; returns the output of each on all samples, `[folds, n]`."""
        weights = (folds != torch.arange(_FOLDS)[:, None]).float()
        weights = weights / weights.sum()
        optimiser = torch.optim.AdamW(self._list_weights(), lr=_RATE, weight_decay=_DECAY)
        for step in range(_STEPS):
            optimiser.param_groups[0]["lr"] = _RATE * 0.5 * (1 + math.cos(math.pi * step / _STEPS))
            loss = ((torch.sigmoid(self._predict_folds(seen)) - gains) ** 2 * weights).sum()
            optimiser.zero_grad()
            (loss * _FOLDS).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return self._predict_folds(seen).detach()

    def merge_into(self, gate: ConfidenceGate) -> None:
        """Write the mean of the networks into one gate.

        Hidden units side by side, the last layer divided by their number.
        """
        with torch.no_grad():
            gate.first.weight.copy_(self._first.transpose(1, 2).flatten(0, 1))
            gate.first.bias.copy_(self._bias.flatten())
            gate.second.weight.copy_(self._second.flatten(0, 1).T / _FOLDS)
            gate.second.bias.copy_(self._end.mean((0, 1)))

    def _predict_folds(self, seen: Tensor) -> Tensor:
        hidden = torch.relu(seen @ self._first + self._bias)
        return (hidden @ self._second + self._end)[:, :, 0]

    def _list_weights(self) -> list[nn.Parameter]:
        return [self._first, self._bias, self._second, self._end]


def mean_recovered(scores: Tensor, own: Tensor, hub: Tensor, most: float = 0.3) -> float:
    """Mean share of right answers over asked shares up to `most`, the lowest scores asked first."""
    order = torch.argsort(scores, stable=True)
    gain = torch.cumsum(hub[order].double() - own[order].double(), 0)[: max(1, int(most * len(own)))]
    return float(gain.mean()) / len(own) + float(own.double().mean())


def fit_isotonic(scores: Floats, right: Floats) -> PiecewiseLinear:
    """Isotonic calibration, score -> P(right): never falling, rising everywhere a little so that no order is lost."""
    order = np.argsort(scores, kind="stable")
    x = scores[order]
    fitted = isotonic_regression(right[order])
    places = np.unique(np.linspace(0, len(x) - 1, _KNOTS).round().astype(int))
    knots, first = np.unique(x[places], return_index=True)
    if len(knots) < 2:
        knots, first = np.array([x[0] - 0.5, x[0] + 0.5]), np.array([0, 0])
    smooth = np.array([fitted[max(0, p - 2) : p + 3].mean() for p in places[first]])
    hair = np.linspace(0, 1, len(knots))
    return PiecewiseLinear(knots, np.maximum.accumulate(smooth) * 0.99 + hair * 0.01)
