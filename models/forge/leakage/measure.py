"""Leakage measurement of one transform chain: reconstruction, attribute and membership attacks as rows of a manifest.

Rule: an attack that cannot rebuild what it is given almost untouched (the earliest cut, or the sample itself) proves
nothing about the codes: then the measurement is void, says so, and gives no row of reconstruction.
"""

import math
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from models.bundle.measurements import LeakageRow, LeakKind
from models.forge.data.types import Data
from models.forge.leakage import inversion, metrics
from models.forge.leakage.attribute_probes import measure_label_baseline, probe_attribute
from models.forge.leakage.effort import EFFORTS, QUICK, AttackCost, AttackEffort, AttackWork
from models.forge.leakage.inversion import MIN_SAMPLES, AttackSamples, InversionResult, ReconstructionMetric
from models.forge.leakage.membership import HubPredictions, measure_membership
from models.forge.leakage.metrics import BootstrapInterval, RatioEstimate
from models.forge.partition.code_levels import fit_range
from models.forge.partition.cost import CutCost
from models.forge.partition.cuts import TracedModel
from models.forge.partition.split import run_head, split_shared

Values = npt.NDArray[Any]
ProgressCallback = Callable[[str, float], None]

POWER = 0.8  # what the attack must reach on the earliest cut
_FEW = (100, 1000)
_SHOWN = 12
_POWER_SHARE, _REBUILT_SHARE, _PROBED_SHARE = 0.3, 0.8, 0.95


@dataclass(frozen=True)
class ExposedData:
    """What the attacker has and wants.

    `x`: the original samples `[n, ...]` (packed as the bundle's one input); `codes`: per feature `[n, ...]` exactly as
    they leave (after codec range and transforms); `y`: `[n]` labels or values.
    `sensitive`: named columns `[n]` of whole numbers. `earliest`: the features `[m, ...]` of the earliest cut for the
    first m samples, the proof of the attack's power; None = the sample itself. `ids`: the samples are token ids.
    `members` and `outsiders`: what the hub answers (logits `[n, k]`, `y` `[n]`) to samples the model was trained on and
    to others of the same distribution; `blind`: the advantage there of a guesser that sees no answer
    (`membership.choose_outsiders`). `absent`: sentences on what cannot be measured with this data.
    """

    x: Values
    codes: tuple[Values, ...]
    y: Values
    sensitive: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    earliest: Values | None = None
    ids: bool = False
    members: tuple[Values, Values] | None = None
    outsiders: tuple[Values, Values] | None = None
    blind: float = 0.0
    absent: tuple[str, ...] = ()


class ReconstructedImages(NamedTuple):
    """Images for the report: originals and what the attacker made of their codes, both `[m, c, h, w]` in 0..1."""

    originals: Values
    rebuilt: Values


class LeakageMeasurement(NamedTuple):
    """Leakage rows of one chain. `void`: why there is no row of reconstruction, "" if there is one.

    `absent`: a sentence for each other row that there is not, and why. `cost`: what the attacks have cost in all.
    """

    rows: tuple[LeakageRow, ...]
    pictures: ReconstructedImages | None
    void: str = ""
    absent: tuple[str, ...] = ()
    cost: AttackCost = AttackCost()

    @property
    def upper95(self) -> float:
        """Upper 95 % bound of the strongest reconstruction, 0..1.

        1 if nothing was measured, for the unknown may be all.
        """
        about = [
            r.upper95 for r in self.rows if r.kind == LeakKind.RECONSTRUCTION and r.metric in set(ReconstructionMetric)
        ]
        return max(about, default=1.0)


def measure_leakage(
    exposed: ExposedData,
    chain: str,
    effort: str | AttackEffort = "full",
    tell: ProgressCallback | None = None,
    folder: Path | None = None,
) -> LeakageMeasurement:
    """How much of the samples the codes of one chain give away, as the strongest of several attacks finds it.

    `chain`: `models.runtime.chain.digest_chain(...)`. `effort`: "quick" (seconds), "full" (bounded minutes) or limits
    of your own. `folder`: where finished attacks and the state of one in hand are kept, so that a killed measurement
    goes on there.

    Rows: reconstruction by the strongest attack from 100, 1,000 and all pairs (quick: all) and, for images, the same
    by peak signal to noise and by distance in random features; the advantage of guessing each sensitive column; and
    the advantage of telling members of the training set.
    """
    limits = effort if isinstance(effort, AttackEffort) else EFFORTS[effort]
    return _Measurement(exposed, chain, limits, tell or _ignore_progress, AttackWork(folder)).run()


def quick_leakage_bound(
    x: Values, codes: tuple[Values, ...], *, ids: bool = False, effort: AttackEffort = QUICK
) -> float:
    """Upper bound of a quick inversion attack's score, 0..1, for a table of many cuts. Seconds on one thread."""
    truth = inversion.prepare_samples(x, effort, ids=ids)
    return float(min(1.0, max(0.0, inversion.invert_codes(truth, codes, effort).score.high)))


class _Measurement:
    def __init__(
        self, exposed: ExposedData, chain: str, effort: AttackEffort, tell: ProgressCallback, work: AttackWork
    ) -> None:
        self._of = exposed
        self._chain = chain
        self._effort = effort
        self._quick = effort.pairs <= QUICK.pairs
        self._tell = tell
        self._work = work
        self._absent = list(exposed.absent)

    def run(self) -> LeakageMeasurement:
        began = time.process_time()
        before = self._work.cost.cpu_s
        rows, pictures, void = self._measure_reconstruction()
        self._tell("attributes", _REBUILT_SHARE)
        rows += self._measure_attributes()
        self._tell("membership", _PROBED_SHARE)
        rows += self._measure_membership()
        self._tell("measured", 1.0)
        cost = self._work.cost
        # seconds of attacks that were found done come from their files, all else was spent here
        cost = cost._replace(cpu_s=max(cost.cpu_s - before, time.process_time() - began))
        return LeakageMeasurement(tuple(rows), pictures, void, tuple(self._absent), cost)

    def _measure_reconstruction(self) -> tuple[list[LeakageRow], ReconstructedImages | None, str]:
        of = self._of
        if len(of.x) < MIN_SAMPLES:
            return [], None, f"{len(of.x)} samples are too few to attack with; give {MIN_SAMPLES} or more"
        truth = inversion.prepare_samples(of.x, self._effort, ids=of.ids)
        if not truth.values.shape[1]:
            return [], None, "the samples do not differ from one another: there is nothing to rebuild"
        self._follow_training("power of the attack", 0.0, _POWER_SHARE)
        ceiling = self._attack_power(truth)
        if ceiling < POWER:
            early = "the sample itself" if of.earliest is None else "the earliest cut or the sample itself"
            said = f"from {early} the attack reaches {truth.metric} {ceiling:.2f}, less than {POWER}"
            return [], None, f"void: {said}; give more samples or --effort thorough"
        floor = inversion.score_label_baseline(truth, of.y).value
        found = self._invert_all(truth)
        rows = [self._reconstruction_row(truth.metric, each, each.score, floor, ceiling) for each in found]
        if truth.metric is not ReconstructionMetric.SSIM:
            return rows, None, ""
        best = max(found, key=lambda each: each.score.value)
        rows += list(self._further_metrics(truth, best))
        shown = truth.values[truth.test[:_SHOWN]]
        return rows, ReconstructedImages(shown, best.rebuilt[:_SHOWN]), ""

    def _invert_all(self, truth: AttackSamples) -> list[InversionResult]:
        """The attack with each number of pairs."""
        found = []
        counts = self._pair_counts(len(truth.train))
        each_share = (_REBUILT_SHARE - _POWER_SHARE) / len(counts)
        for at, pairs in enumerate(counts):
            self._follow_training(f"reconstruction, {pairs:,} pairs", _POWER_SHARE + each_share * at, each_share)
            found.append(inversion.invert_codes(truth, self._of.codes, self._effort, pairs, self._work))
        return found

    def _follow_training(self, stage: str, start: float, length: float) -> None:
        """Report a stage that begins, and its training as it goes on."""
        self._tell(stage, start)
        self._work.set_progress(lambda share: self._tell(stage, start + length * share))

    def _attack_power(self, truth: AttackSamples) -> float:
        """Score of the same attack on what hides nothing: features of the earliest cut, or else the sample itself.

        Of the features it may be given fewer samples, since they are large; and they may hide much already, as those of
        a narrow first layer do. So where the attack fails on them it is tried on the sample itself.
        """
        early = self._attack_earliest()
        if early >= POWER:
            return early
        seen: Values = truth.values if truth.metric is ReconstructionMetric.IDS else self._of.x
        return max(early, inversion.invert_codes(truth, (seen,), self._effort, work=self._work).score.value)

    def _attack_earliest(self) -> float:
        """Score of the attack on features of the earliest cut, 0 where none are given."""
        if self._of.earliest is None:
            return 0.0
        count = len(self._of.earliest)
        part = inversion.prepare_samples(self._of.x[:count], self._effort, ids=self._of.ids)
        return inversion.invert_codes(part, (self._of.earliest,), self._effort, work=self._work).score.value

    def _pair_counts(self, most: int) -> list[int]:
        return [most] if self._quick else [*(few for few in _FEW if few < most), most]

    def _further_metrics(self, truth: AttackSamples, best: InversionResult) -> Iterator[LeakageRow]:
        """The strongest image reconstruction by other metrics: decibels, and closeness in random features.

        Of the latter 1 = equal, 0 = as far away as the mean image.
        """
        originals = truth.values[truth.test]
        mean = np.repeat(truth.values[truth.train].mean(0)[None], len(originals), 0)
        peak = metrics.bootstrap_interval(RatioEstimate.from_values(metrics.psnr_db(originals, best.rebuilt)))
        blind_db = float(metrics.psnr_db(originals, mean).mean())
        yield self._reconstruction_row("psnr_db", best, peak, blind_db, 100.0)
        far, blind = (metrics.feature_distance(originals, each) for each in (best.rebuilt, mean))
        yield self._reconstruction_row(
            "feature_closeness", best, metrics.bootstrap_interval(RatioEstimate(blind - far, blind)), 0.0, 1.0
        )

    def _reconstruction_row(
        self, metric: str, found: InversionResult, score: BootstrapInterval, floor: float, ceiling: float
    ) -> LeakageRow:
        return build_leakage_row(
            self._chain, LeakKind.RECONSTRUCTION, "", (found.attack, metric, found.pairs), (score, floor, ceiling)
        )

    def _measure_attributes(self) -> list[LeakageRow]:
        rows = []
        for name, column in sorted(self._of.sensitive.items()):
            told = probe_attribute(self._of.codes, column, quick=self._quick)
            if told is None:
                self._absent.append(f"{name}: fewer than two values have samples enough to guess at")
                continue
            floor = measure_label_baseline(self._of.y, column)
            raw = None if self._of.ids else probe_attribute((self._of.x,), column, quick=self._quick)
            ceiling = raw.score.value if raw else 1 - 1 / told.values
            how = (told.attack, "advantage", told.pairs)
            rows.append(build_leakage_row(self._chain, LeakKind.ATTRIBUTE, name, how, (told.score, floor, ceiling)))
        return rows

    def _measure_membership(self) -> list[LeakageRow]:
        if self._of.members is None or self._of.outsiders is None:
            return []
        found = measure_membership(HubPredictions(*self._of.members), HubPredictions(*self._of.outsiders))
        if found is None:
            self._absent.append("membership: fewer than 40 samples of a kind")
            return []
        floor = min(self._of.blind, max(found.advantage.value, 0.0))
        kind, pairs = LeakKind.MEMBERSHIP, found.pairs
        return [
            build_leakage_row(self._chain, kind, "", (found.attack, "advantage", pairs), (found.advantage, floor, 1.0)),
            build_leakage_row(
                self._chain, kind, "", (found.attack, "found_at_1_percent", pairs), (found.found_at_1, 0.01, 1.0)
            ),
        ]


def build_leakage_row(
    chain: str, kind: LeakKind, subject: str, how: tuple[str, str, int], figures: tuple[BootstrapInterval, float, float]
) -> LeakageRow:
    """A manifest's leakage row from one attack's result.

    `how`: attack, metric, pairs; `figures`: score, floor, ceiling. The upper bound is rounded up.
    """
    (name, metric, pairs), (score, floor, ceiling) = how, figures
    upper = math.ceil(max(score.high, score.value) * 1e4) / 1e4
    return LeakageRow(
        chain, kind, subject, name, str(metric), pairs, round(score.value, 4), upper, round(floor, 4), round(ceiling, 4)
    )


def _ignore_progress(_stage: str, _share: float) -> None:
    """Progress callback that does nothing."""


# The attack on training-free codes is bounded in samples, values and steps: it is shown beside a cut, decides nothing,
# and is no row of a manifest.
_BRIEF = QUICK._replace(pairs=600, tests=200, macs=1e10, width=16, steps=150)
_MOST_VALUES = 20_000  # of one cut: an attack on more takes minutes
_CHUNK = 100


def attack_cuts(
    traced: TracedModel,
    rows: Sequence[CutCost],
    data: Data,
    which: tuple[Container[str], int],
    tell: Callable[[float], None],
) -> list[CutCost]:
    """The rows with `leakage`, for few cuts that no other beats in time and bytes at once.

    `which`: names of the cuts that may be attacked, and how many of them are, the fewest bytes first.
    """
    names, most = which
    possible = [row for row in rows if row.cut.name in names and row.cut.values <= _MOST_VALUES]
    chosen = set(pareto_cuts(possible)[:most])
    x = data.calibration.x[0][: _BRIEF.pairs + _BRIEF.tests]
    found = []
    for number, row in enumerate(rows):
        found.append(row._replace(leakage=_measure_cut(traced, row, x)) if row.cut.name in chosen else row)
        tell((number + 1) / len(rows))
    return found


def pareto_cuts(rows: Sequence[CutCost]) -> list[str]:
    """Names of the Pareto-optimal cuts in head latency and coded bytes, the fewest bytes first."""
    kept: list[CutCost] = []
    for row in sorted(rows, key=lambda row: (row.head_us, row.coded_bytes)):
        if not kept or row.coded_bytes < kept[-1].coded_bytes:
            kept.append(row)
    return [row.cut.name for row in reversed(kept)]


def _measure_cut(traced: TracedModel, row: CutCost, x: np.ndarray) -> float | None:
    head = split_shared(traced, row.cut).head
    with torch.no_grad():
        parts = [
            run_head(head, torch.from_numpy(np.ascontiguousarray(x[start : start + _CHUNK])))
            for start in range(0, len(x), _CHUNK)
        ]
        features = [torch.cat(column) for column in zip(*parts, strict=True)]
        codes = tuple(fit_range(one, row.levels).quantise(one.clone()).numpy() for one in features)
    return round(quick_leakage_bound(x, codes, ids=x.dtype.kind in "iu", effort=_BRIEF), 4)
