"""Search for the code path that ships over one trained edge: all routes judged side by side, larger learned codes last.

Rule: what takes no teaching is always measured. While no path within the limits keeps enough of the gain, or
meets `--max-loss`, the hub's half of the best ones is tuned and they are judged again; then learned codes are taught at
more and more bytes.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from models.forge.evaluation.threshold_choice import ASK_SHARE
from models.forge.export.device_work import count_module_macs
from models.forge.leakage.measure import quick_leakage_bound
from models.forge.partition.cuts import Cut, PreparedModel
from models.forge.partition.select import HEAD_SHARE
from models.forge.pipeline.path_tuning import PathTuner
from models.forge.routes.early_features import iter_early_paths
from models.forge.routes.features.draft_codes import FittedTransform, fit_feature_transform
from models.forge.routes.features.learned import TAUGHT, TrainedEdge, train_learned_path
from models.forge.routes.features.path_training import LearnedCourse
from models.forge.routes.frontier import (
    RoutePoint,
    choose_point,
    find_obstacle,
    is_enough,
    kept_share,
    mark_chosen,
)
from models.forge.routes.judgement import PathJudge
from models.forge.routes.sample.sample_code import fit_sample_codes
from models.forge.routes.weighted_sample import build_weighted_path, fit_sample_transform
from models.forge.spec import Effort, ForgeSpec
from models.forge.training.code_path import CodePath, Route, SampleCoder
from models.forge.training.distillation import DistillationConfig, build_loss_config
from models.forge.training.hub_tuning import HubTuningConfig
from models.forge.training.modules import TrainedModules, build_edge_module
from wire.protocol.messages import SensitivityLevel

PAYLOAD_SIZES = (64, 128, 256, 512)  # bytes of codes: steps of padding that double
STAGE = "comparing codes"
_JUDGED = {Effort.QUICK: 2000, Effort.NORMAL: 5000, Effort.THOROUGH: 10_000}  # calibration samples
_FITTED = 4000  # training samples for a codec's tables
_OTHER_CUTS = {Effort.QUICK: 1, Effort.NORMAL: 2, Effort.THOROUGH: 4}
_ATTACKED = {Effort.QUICK: 2, Effort.NORMAL: 5, Effort.THOROUGH: 9}  # paths that a quick attack is run on
_ATTACKED_SAMPLES = 1500
# share of the gain at which no larger codes are taught: what is near is brought nearer by tuning the hub
_NEAR_ENOUGH = {Effort.QUICK: 0.7, Effort.NORMAL: 0.9, Effort.THOROUGH: 1.0}


class TuningPace(NamedTuple):
    """How many paths are tuned before one is chosen, for how many epochs of how many training samples."""

    paths: int
    epochs: int
    samples: int


_TUNED = {
    Effort.QUICK: TuningPace(2, 1, 20_000),
    Effort.NORMAL: TuningPace(2, 2, 30_000),
    Effort.THOROUGH: TuningPace(3, 3, 60_000),
}
_LATER_SHARE, _MOST_LATER = 0.5, 6  # of the edge's epochs, for learned codes over it: they start from a working path


StageCallback = Callable[[str, float], None]


class PathChoice(NamedTuple):
    """The path that ships, every point of the frontier, and the judge of all of them."""

    path: CodePath
    points: tuple[RoutePoint, ...]
    judge: PathJudge


def plan_payloads(wish: ForgeSpec) -> tuple[int, ...]:
    """Bytes of learned codes to try, rising: the usual sizes up to `--max-bytes`, and that one itself."""
    if wish.max_bytes is None:
        return PAYLOAD_SIZES
    return (*(size for size in PAYLOAD_SIZES if size < wish.max_bytes), wish.max_bytes)


def plan_first_payload(wish: ForgeSpec) -> int:
    """Bytes of the codes that are taught together with the edge: few, and the same for most wishes, which share it."""
    return min(wish.max_bytes or PAYLOAD_SIZES[0], PAYLOAD_SIZES[0])


def plan_larger_payloads(wish: ForgeSpec) -> tuple[int, ...]:
    """Bytes of learned codes to teach over a trained edge, rising; at quick effort every second size."""
    first = plan_first_payload(wish)
    sizes = tuple(size for size in plan_payloads(wish) if size > first)
    if wish.effort is Effort.QUICK:
        return sizes[1::2] or sizes
    return sizes or (first,)


class TrainedCut(NamedTuple):
    """One cut with the modules that were trained for it, and how they were taught."""

    cut: Cut
    pieces: TrainedModules
    teaching: DistillationConfig


class PathSearch:
    """Tries the code paths of one edge; `timed(stage, share)` is called as it goes on."""

    def __init__(self, found: PreparedModel, wish: ForgeSpec, trained: TrainedCut, timed: StageCallback) -> None:
        self._found, self._wish, self._timed = found, wish, timed
        self._cut, self._pieces, self._teaching = trained
        self._judge = PathJudge(
            found.traced.gm,
            found.data,
            trained.pieces,
            wish.max_share or ASK_SHARE,
            samples=_JUDGED[wish.effort],
            fitted=_FITTED,
        )
        self._fitted: FittedTransform | None = None
        self._paths: dict[str, CodePath] = {}
        self._codes: dict[str, npt.NDArray[np.uint8]] = {}
        self._points: list[RoutePoint] = []

    def run(self) -> PathChoice:
        """Measure every path and choose. Raises UnmetPathError if the limits leave none."""
        self._timed(STAGE, 0.0)
        for number, path in enumerate(self._iter_untaught_paths()):
            self._measure(path)
            self._timed(STAGE, 0.5 * (1 - 0.7 ** (number + 1)))
        self._tune_best()
        for path in self._iter_larger_codes():
            self._measure(path)
        self._timed(STAGE, 0.7)
        self._attack_points()
        best = choose_point(self._points, self._wish)
        self._timed(STAGE, 1.0)
        return PathChoice(self._paths[best.name], mark_chosen(self._points, best.name, self._wish), self._judge)

    def _iter_untaught_paths(self) -> Iterator[CodePath]:
        """The codes taught with the edge, early features and the sample: none of them needs further teaching."""
        found, x = self._found, self._found.data.training.x[0]
        yield self._pieces.sent
        for path in iter_early_paths(found.traced, self._cut, self._list_other_cuts(), x):
            if not self._is_superfluous(path):
                yield path
        yield from self._iter_sample_paths()
        for size in plan_payloads(self._wish):
            yield self._learn_path(size, epochs=0)

    def _iter_sample_paths(self) -> Iterator[CodePath]:
        """The sample itself, coded, at each payload; without a stated label it counts as raw and may not ship."""
        found = self._found
        label = SensitivityLevel[self._wish.sample_level or "P4"]
        for code in fit_sample_codes(found.data.training.x[0], found.spec, plan_payloads(self._wish), self._wish.seed):
            yield CodePath(
                name=code.name,
                route=Route.SAMPLE,
                coder=SampleCoder(code.coder),
                decoder=code.decoder,
                tail=found.traced.gm,
                shape=code.shape,
                levels=code.levels,
                level=label,
                codec=code.codec,
                tables=code.tables,
            )
        fitted = fit_sample_transform(found.traced, found.data, softness=self._teaching.softness, seed=self._wish.seed)
        if fitted is None:
            return
        for size in plan_payloads(self._wish):
            yield build_weighted_path(found.traced, found.data, fitted, size, label)

    def _learn_path(self, size: int, *, epochs: int) -> CodePath:
        """Learned codes of `size` bytes at the cut; with no epochs the transform that teaching starts from."""
        course = LearnedCourse(
            epochs=epochs,
            batch=self._teaching.batch,
            softness=self._teaching.softness,
            hard_weight=self._teaching.hard_weight,
            copies=self._teaching.copies,
            leakage_weight=self._teaching.leakage_weight,
            seed=self._teaching.seed,
            threads=self._teaching.threads,
            augment=self._teaching.augment,
            folder=self._teaching.folder / f"{size}" if self._teaching.folder and epochs else None,
        )
        found = self._found
        self._fitted = self._fitted or fit_feature_transform(
            found.traced, found.data, self._cut, softness=course.softness, seed=course.seed
        )
        return train_learned_path(
            TrainedEdge(found.traced, found.data, self._cut, self._pieces, self._fitted),
            max_bytes=size,
            course=course,
            tell=lambda _, share: self._timed(f"teaching {size} B", share) if epochs else None,
        )

    def _is_superfluous(self, path: CodePath) -> bool:
        """True for more levels of a cut whose fewer levels keep enough already."""
        stem = path.name.rpartition("-")[0]
        return any(is_enough(point, self._wish.keep) for point in self._points if point.name.rpartition("-")[0] == stem)

    def _iter_larger_codes(self) -> Iterator[CodePath]:
        """Learned codes of more and more bytes, while no path of as few bytes that may ship keeps enough."""
        named = self._wish.path.removeprefix(TAUGHT)
        by_name = named != self._wish.path and named.isdecimal()
        for size in (max(1, int(named)),) if by_name else plan_larger_payloads(self._wish):
            if not by_name and self._fewest_enough() <= size:
                return
            yield self._learn_path(size, epochs=max(1, min(_MOST_LATER, round(_LATER_SHARE * self._teaching.epochs))))

    def _tune_best(self) -> None:
        """Tune the best path of each route that may leave, and judge it again, where none keeps enough untuned."""
        if self._wish.path or self._wish.leakage_aware or self._has_enough():
            return
        pace, best = _TUNED[self._wish.effort], self._best_of_routes()
        if not best:
            return
        aim = build_loss_config(self._found.data, self._teaching)
        course = HubTuningConfig(aim, epochs=pace.epochs, seed=self._wish.seed, bf16=True)
        tuner = PathTuner(self._found, self._judge, course, samples=pace.samples)
        for name in best[: pace.paths]:
            self._timed(f"tuning {name}", 0.0)
            tuned = tuner.tune(self._paths[name], lambda share, name=name: self._timed(f"tuning {name}", share))  # type: ignore[misc]
            before = next(point for point in self._points if point.name == name)
            judged = self._judge.measure(tuned, before.device_share)
            if judged.point.recovered > before.recovered:
                self._points[self._points.index(before)] = judged.point
                self._paths[name] = tuned

    def _has_enough(self) -> bool:
        """Whether a path that may leave meets the wish for loss, or keeps enough of the gain."""
        allowed = [point for point in self._points if not find_obstacle(point, self._wish)]
        return any(self._wish.max_loss is not None or is_enough(point, self._wish.keep) for point in allowed)

    def _best_of_routes(self) -> list[str]:
        """Names of the best path of each route, within all limits but that of loss; the best of all first."""
        wish = replace(self._wish, max_loss=None)
        best: dict[Route, RoutePoint] = {}
        for point in self._points:
            known = best.get(point.route)
            if not find_obstacle(point, wish) and (known is None or point.recovered > known.recovered):
                best[point.route] = point
        return [point.name for point in sorted(best.values(), key=lambda point: -point.recovered)]

    def _fewest_enough(self) -> float:
        """Bytes of the smallest path that may ship and keeps enough for this effort, or meets the wish for loss."""
        allowed = [point for point in self._points if not find_obstacle(point, self._wish)]
        least = min(self._wish.keep, _NEAR_ENOUGH[self._wish.effort])
        near = [point for point in allowed if is_enough(point, self._wish.keep) or point.recovered >= least]
        found = allowed if self._wish.max_loss is not None else near
        return min((point.payload_bytes for point in found), default=math.inf)

    def _list_other_cuts(self) -> list[Cut]:
        """The narrowest other cuts within the head's share."""
        most = max(self._wish.head_share or HEAD_SHARE, self._cut.share)
        light = [cut for cut in self._found.cuts if cut.share <= most and cut.name != self._cut.name]
        return sorted(light, key=lambda cut: (cut.values, cut.share))[: _OTHER_CUTS[self._wish.effort]]

    def _measure(self, path: CodePath) -> None:
        judged = self._judge.measure(path, self._device_share(path))
        self._paths[path.name], self._codes[path.name] = path, judged.codes
        self._points.append(judged.point)

    def _device_share(self, path: CodePath) -> float:
        """Multiply-accumulates of the device's whole half with this path, as a share of the given model's."""
        module = build_edge_module(replace(self._pieces, path=path))
        example = self._found.traced.example
        with torch.inference_mode(False):
            return round(count_module_macs(module, example) / max(self._found.traced.macs, 1), 5)

    def _attack_points(self) -> None:
        """Run a quick attack on the paths that could ship, the best first; on all where the wish limits leakage."""
        most = len(self._points) if self._wish.max_leakage is not None else _ATTACKED[self._wish.effort]
        x = self._judge.x[:_ATTACKED_SAMPLES]
        for name in self._pareto_names()[:most]:
            bound = quick_leakage_bound(x, (self._codes[name][: len(x)],), ids=x.dtype.kind in "iu")
            at = next(i for i, point in enumerate(self._points) if point.name == name)
            self._points[at] = msgspec.structs.replace(self._points[at], leakage=round(bound, 4))

    def _pareto_names(self) -> Sequence[str]:
        """Names of all paths: first those that no other beats in bytes and in what they keep, then the others."""
        order = sorted(self._points, key=lambda p: (p.sealed_bytes, -kept_share(p)))
        best = -math.inf
        front: list[str] = []
        rest: list[str] = []
        for point in order:
            (front if kept_share(point) > best else rest).append(point.name)
            best = max(best, kept_share(point))
        return [*front, *rest]
