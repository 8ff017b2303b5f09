"""Learned confidence gate: the probability that the device's own answer stands.

Rule: fitted on the calibration part alone, with every probability read off samples that the fit did not see (of other
groups, where samples come in groups); it ships only if its ranking gains more there than the softmax's, or than a
regressor's own error scale. Learned deferral: Madras et al. 2018, Mozannar & Sontag 2020; when it beats the softmax:
Jitkrittum et al. 2023. Monotone calibration: Zadrozny & Elkan 2002.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.isotonic import isotonic_regression
from torch import Tensor, nn

from models.forge.data.types import Data, DataPart
from models.forge.training.calibration import fit_temperature, fit_tolerance
from models.forge.training.modules import TrainedModules, as_tuple, build_tail_module, pool_places
from models.forge.training.teacher import predict_batches

Floats = npt.NDArray[np.float64]
_FOLDS = 5
_HIDDEN = 24  # per fold
_SHOWN = 5  # largest log-probabilities that are gate inputs, in order
_WIDE = 32  # up to so many labels each label's log-probability is a gate input too
_KNOTS = 24
_STEPS, _RATE, _DECAY = 300, 0.01, 0.02
_ROWS = 2048  # samples of one step
_DEEPER_PAYS = 0.002  # share of right answers that reading the trunk must add before it is used
_VALUE_PAYS = 0.005  # share of the squared error that a regressor's gate must gain before it is used
_OUTLIER = 4.0  # larger gains, in units of their root mean square, count as this
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

    Low where the hub is expected to be right and the device wrong. `values`: the logits are a regressor's (value, log
    scale) and no classifier's.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, scale: Tensor, hidden: int, looks_deeper: bool, *, values: bool = False) -> None:
        super().__init__()
        self.looks_deeper, self.values = looks_deeper, values
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
        seen = build_gate_inputs(logits, summary if self.looks_deeper else None, values=self.values)
        gain: Tensor = self.second(torch.relu(self.first((seen - self.mean) * self.scale)))
        return -gain[:, 0]


def build_gate_inputs(logits: Tensor, summary: Tensor | None, *, values: bool = False) -> Tensor:
    """Gate inputs: ordered largest log-probabilities, margin, entropy, each label's, and the trunk if given.

    `values`: of a regressor, its value and log scale as they are.
    """
    deeper = [] if summary is None else [summary]
    if values:
        return torch.cat([logits, *deeper], 1)
    logs = torch.log_softmax(logits, 1)
    ordered = torch.topk(logs, min(_SHOWN, logs.shape[1]), dim=1).values
    margin = ordered[:, :1] - ordered[:, 1:2]
    entropy = -(logs.exp() * logs).sum(1, keepdim=True)
    each = [logs] if logs.shape[1] <= _WIDE else []
    return torch.cat([ordered, margin, entropy, *each, *deeper], 1)


class GateSamples(NamedTuple):
    """Samples for fitting, as the device and the hub answer them: tensors of `n` rows.

    `groups`: whole numbers `[n]` that say which samples belong together, None if each stands for itself.
    """

    logits: Tensor
    summary: Tensor
    hub: Tensor
    y: Tensor
    groups: Tensor | None = None


def collect_gate_samples(pieces: TrainedModules, part: DataPart) -> GateSamples:
    """The modules' own outputs (before temperature or gate) for a whole part, in float32."""
    device = _DeviceHalf(pieces).eval()
    found = [_run_device(device, part.x[0][i : i + 500]) for i in range(0, len(part), 500)]
    logits, summary, codes = (torch.cat(column) for column in zip(*found, strict=True))
    hub = predict_batches(build_tail_module(pieces), codes)
    groups = None if part.groups is None else torch.from_numpy(part.groups)
    return GateSamples(logits, summary, hub, torch.from_numpy(np.asarray(part.y)), groups)


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
    """Set `gate` and `temperature` from the calibration samples.

    A gate only if it beats the softmax, or a regressor's own error scale, on samples that its fit left out.
    """
    if data.labels:
        known = seen.y.numpy() >= 0
        pieces.temperature = fit_temperature(seen.logits.numpy()[known], seen.y.numpy()[known])
        pieces.gate = fit_gate(seen, seed)
    else:
        pieces.gate = fit_value_gate(seen, seed)


def fit_gate(seen: GateSamples, seed: int) -> ConfidenceGate | None:
    """The best of the softmax (None) and learned gates with and without the trunk, on samples that a fit left out."""
    if len(seen.y) < _LEAST:
        return None
    own, hub = seen.logits.argmax(1) == seen.y, seen.hub.argmax(1) == seen.y
    best, reached = None, mean_recovered(torch.softmax(seen.logits, 1).amax(1), own, hub)
    gains = expected_gain(seen)
    for looks_deeper, margin in ((False, 0.0), (True, _DEEPER_PAYS)):
        gate, scores = _fit_folds(seen, gains, looks_deeper, seed)
        found = mean_recovered(scores, own, hub)
        if found > reached + margin:
            gate.table = fit_isotonic(scores.double().numpy(), own.double().numpy())
            best, reached = gate.eval(), found
    return best


def fit_value_gate(seen: GateSamples, seed: int) -> ConfidenceGate | None:
    """A regressor's gate by gain: the best of its own error scale (None) and learned ones, on samples left out.

    A learned one predicts what the hub takes off the squared error, from value, log scale and trunk. Two estimates of
    that gain are learned from: the distance of the two answers (the plug-in estimate: the gain if the hub is right),
    which varies little, and the difference of the squared errors itself. What is compared is the mean gain over asked
    shares up to 30 %, which has to be larger by `_VALUE_PAYS` of the squared error.
    """
    if len(seen.y) < _LEAST:
        return None
    value, hub, y = seen.logits[:, 0].double(), seen.hub[:, 0].double(), seen.y.double()
    own, others = (value - y) ** 2, (hub - y) ** 2
    right = (value - y).abs() <= fit_tolerance((hub - y).numpy(), y.numpy())
    least = mean_recovered(-seen.logits[:, 1], -own, -others) + _VALUE_PAYS * float(own.mean())
    best, reached = None, least
    for gains in ((value - hub).abs(), own - others):
        scaled = (gains / gains.square().mean().sqrt().clamp(min=1e-9)).clamp(-_OUTLIER, _OUTLIER).float()
        for looks_deeper in (False, True):
            gate, scores = _fit_folds(seen, scaled, looks_deeper, seed, values=True)
            found = mean_recovered(scores, -own, -others)
            if found > reached:
                gate.table = fit_isotonic(scores.double().numpy(), right.double().numpy())
                best, reached = gate.eval(), found
    return best


def _fit_folds(
    seen: GateSamples, gains: Tensor, looks_deeper: bool, seed: int, *, values: bool = False
) -> tuple[ConfidenceGate, Tensor]:
    """A gate of one small network per fold, joined into one, and each sample's score by the one that left it out."""
    shown = build_gate_inputs(seen.logits, seen.summary if looks_deeper else None, values=values)
    mean, scale = shown.mean(0), 1 / shown.std(0).clamp(min=1e-3)
    folds = _assign_folds(len(shown), seen.groups, seed)
    learners = _FoldNetworks(shown.shape[1], seed, torch.nn.Identity() if values else torch.nn.Sigmoid())
    votes = learners.train_networks((shown - mean) * scale, gains, folds)
    gate = ConfidenceGate(mean, scale, _HIDDEN * _FOLDS, looks_deeper, values=values)
    learners.merge_into(gate)
    return gate, -votes[folds, torch.arange(len(shown))]


def _assign_folds(count: int, groups: Tensor | None, seed: int) -> Tensor:
    """Number of the fold `[n]` that leaves a sample out; a group is in one fold."""
    chance = np.random.default_rng(seed)
    rows = np.arange(count) if groups is None else groups.numpy()
    names, place = np.unique(rows, return_inverse=True)
    if groups is None or len(names) < 2:
        return torch.from_numpy(chance.integers(_FOLDS, size=count))
    return torch.from_numpy((chance.permutation(len(names)) % _FOLDS)[place])


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
    """One network per fold, trained side by side, each on the samples of the other folds.

    `link`: from a network's output to the gain that it predicts.
    """

    def __init__(self, inputs: int, seed: int, link: nn.Module) -> None:
        self._link = link
        self._chance = torch.Generator().manual_seed(seed)
        first = torch.randn(_FOLDS, inputs, _HIDDEN, generator=self._chance) * math.sqrt(2 / inputs)
        self._first = nn.Parameter(first)
        self._bias = nn.Parameter(torch.zeros(_FOLDS, 1, _HIDDEN))
        self._second = nn.Parameter(torch.zeros(_FOLDS, _HIDDEN, 1))
        self._end = nn.Parameter(torch.zeros(_FOLDS, 1, 1))

    def train_networks(self, seen: Tensor, gains: Tensor, folds: Tensor) -> Tensor:
        """Train all networks; returns the output of each on all samples, `[folds, n]`."""
        weights = (folds != torch.arange(_FOLDS)[:, None]).float()
        optimiser = torch.optim.AdamW(self._list_weights(), lr=_RATE, weight_decay=_DECAY)
        for step in range(_STEPS):
            optimiser.param_groups[0]["lr"] = _RATE * 0.5 * (1 + math.cos(math.pi * step / _STEPS))
            rows = torch.randint(len(seen), (_ROWS,), generator=self._chance) if len(seen) > _ROWS else slice(None)
            kept = weights[:, rows] / weights[:, rows].sum().clamp(min=1)
            loss = ((self._link(self._predict_folds(seen[rows])) - gains[rows]) ** 2 * kept).sum()
            optimiser.zero_grad()
            (loss * _FOLDS).backward()
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
    """Mean share of right answers over asked shares up to `most`, the lowest scores asked first.

    `own`, `hub`: whether each is right, or any other value of their answers, the more the better.
    """
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
