"""Forge run: a torch model and data become a bundle, stage by stage, under the limits of a specification.

Rule: the stages have a fixed order and each result is stored under the digest of all that decides it, so that a killed
run goes on and equal inputs give an equal bundle. What differs from run to run (seconds, microseconds) goes into
`forge.json` and the report, which are not part of the bundle's content.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from models.bundle.bundle import Bundle
from models.bundle.replacement import check_place
from models.forge.cache import StageCache, digest_parts
from models.forge.data.coerce import coerce_data
from models.forge.data.types import DataPart
from models.forge.export.manifest import build_input_spec, check_prepared_input, vocabulary_size
from models.forge.leakage.measure import attack_cuts
from models.forge.partition import cost
from models.forge.partition.cost import decode_costs, encode_costs
from models.forge.partition.cuts import Cut, PreparedModel, find_cuts, trace_model
from models.forge.partition.select import (
    UnmetLimit,
    UnmetLimitsError,
    build_refusal,
    find_cut_index,
    find_unmet_limits,
    largest_head_share,
    rank_cuts,
)
from models.forge.pipeline import loading
from models.forge.pipeline.bundle import ForgeRequest, write_forged_bundle
from models.forge.pipeline.candidate import CandidateBuild
from models.forge.report.report import check_report_place, write_report
from models.forge.report.result import ForgedBundle
from models.forge.routes.frontier import UnmetPathError
from models.forge.spec import Effort, ForgeInputs, ForgeSpec, recipe_digest, validate_spec
from models.forge.training.determinism import deterministic_torch

ProgressCallback = Callable[[str, float], None]
_ATTACKED_CUTS = {Effort.QUICK: 1, Effort.NORMAL: 2, Effort.THOROUGH: 6}  # cuts whose training-free codes are attacked
_NO_INPUTS = ForgeInputs()
_MOST_CUTS = {Effort.QUICK: 1, Effort.NORMAL: 2, Effort.THOROUGH: 4}


def run_forge(
    model: nn.Module,
    data: Any,
    wish: ForgeSpec,
    out: Path | str,
    tell: ProgressCallback | None = None,
    *,
    aids: ForgeInputs = _NO_INPUTS,
) -> Bundle:
    """Forge a bundle at `out`, replacing an older one of the model, with a report in `OUT.report/`; return it opened.

    - `data`: a `Data`, or anything that `coerce_data` understands.
    - `tell(stage, share)`: called with the stage's name and the share of it that is done, 0..1.
    - `aids`: the optional inputs; see `ForgeInputs`.

    Raises PlaceError, before anything is done, if something else lies at `out`; ForgeError, one line, if the model, the
    data or the specification cannot make a bundle: then nothing is written at `out`, and what was measured stays in
    the cache.
    """
    validate_spec(wish)
    check_place(out, wish.name)
    if aids.report:
        check_report_place(Path(out))
    with deterministic_torch(wish.seed, wish.threads), StageCache(aids.cache) as cache:
        return _ForgeRun(wish, aids, cache, tell or _ignore_progress).run(model, data, Path(out))


class _ForgeRun:
    """State of one forge run: its inputs, its cache and the time spent per stage.

    `stage_s` in `forge.json` has seconds by stage, summed over the cuts that were tried.
    """

    def __init__(self, wish: ForgeSpec, aids: ForgeInputs, cache: StageCache, tell: ProgressCallback) -> None:
        self._wish, self._aids, self._cache, self._tell = wish, aids, cache, tell
        self._start = self._lap = time.perf_counter()
        self._stage_s: dict[str, float] = {}

    def run(self, model: nn.Module, data: Any, out: Path) -> Bundle:
        """Build candidates in the order of their rank until one meets every limit, and write its bundle.

        Raises `UnmetLimitsError` with the nearest candidate if none of those tried does.
        """
        found = self._prepare_model(model, data)
        rows = self._measure_cuts(found)
        self._tell("measuring cuts", 1.0)
        tried: list[tuple[str, tuple[UnmetLimit, ...]]] = []
        refused: list[str] = []
        for cut in self._candidate_cuts(found, rows):
            try:
                made = CandidateBuild(found, self._wish, self._aids, self._cache, self._record_progress).build(cut)
            except UnmetPathError as error:
                refused.append(f"cut {cut.name}: {error}")
                continue
            faults = find_unmet_limits(self._wish, made.shipped)
            if not faults:
                return self._write_bundle(found, made, rows, out)
            tried.append((cut.name, faults))
        raise build_refusal(tried, rows) if tried else UnmetLimitsError(refused[0], rows)

    def _prepare_model(self, model: nn.Module, data: Any) -> PreparedModel:
        """Check, pack and trace the model and its data; returns them with the digest that keys all later stages."""
        self._tell("reading", 0.0)
        model = loading.check_model(model)
        data = loading.check_data(coerce_data(data), self._wish.max_risk, self._wish.confidence)
        model, data, _ = loading.pack_inputs(model, data)
        weights = digest_parts(*(tensor_bytes(value) for value in model.state_dict().values()))
        numbers = digest_parts(*map(_digest_part, (data.training, data.calibration, data.heldout)), list(data.labels))
        self._record_progress("reading", 1.0)
        self._tell("cutting", 0.0)
        x = data.training.x[0]
        traced = trace_model(model, torch.from_numpy(np.ascontiguousarray(x[:2])))
        loading.check_answers(traced, data)
        cuts = find_cuts(traced)
        spec = build_input_spec(
            [part.x[0] for part in (data.training, data.calibration, data.heldout)], vocabulary_size(traced.gm)
        )
        spec = check_prepared_input(spec, self._wish.preparation)
        span, wish = f"{spec.low} {spec.high}", self._wish
        key = digest_parts(recipe_digest(), weights, numbers, traced.gm.code, wish.seed, wish.threads, span)
        self._record_progress("cutting", 1.0)
        return PreparedModel(data, traced, cuts, spec, numbers, weights, key)

    def _measure_cuts(self, found: PreparedModel) -> list[cost.CutCost]:
        """Cost of every cut, from the cache if it was measured before; nothing if one cut is requested by name."""
        if self._wish.cut:
            self._check_requested_cut(found)
            return []
        key = digest_parts(found.key, "frontier", self._wish.effort, largest_head_share(self._wish))
        kept = self._cache.find_stage("frontier", key)
        if kept:
            return decode_costs(kept["rows.json"], found.cuts)
        bounds = cost.select_bounds(self._wish.effort, largest_head_share(self._wish))
        rows = cost.measure_frontier(
            found.traced, found.cuts, found.data, bounds, self._stage_part("measuring cuts", 0.0, 0.6)
        )
        tell = self._stage_part("measuring cuts", 0.6, 1.0)
        hopeful = {cut.name for cut in cost.find_hopeful_cuts(found.cuts, bounds.head_share)}
        rows = attack_cuts(found.traced, rows, found.data, (hopeful, _ATTACKED_CUTS[self._wish.effort]), tell)
        self._cache.store_stage("frontier", key, {"rows.json": encode_costs(rows)})
        return rows

    def _check_requested_cut(self, found: PreparedModel) -> None:
        """Check the head of the cut that is requested by name before anything is trained, once."""
        cut = found.cuts[find_cut_index(self._wish.cut, [cut.name for cut in found.cuts])]
        key = digest_parts(found.key, "head", cut.name)
        if not self._cache.find_stage("head", key):
            cost.check_head(found.traced, cut)
            self._cache.store_stage("head", key, {"checked": b"1"})

    def _candidate_cuts(self, found: PreparedModel, rows: Sequence[cost.CutCost]) -> list[Cut]:
        """Cuts to build, best first: the requested one, or as many of the ranked ones as the effort allows."""
        if self._wish.cut:
            return [found.cuts[find_cut_index(self._wish.cut, [cut.name for cut in found.cuts])]]
        return [row.cut for row in rank_cuts(rows, self._wish)][: _MOST_CUTS[self._wish.effort]]

    def _write_bundle(
        self, found: PreparedModel, made: ForgedBundle, rows: Sequence[cost.CutCost], out: Path
    ) -> Bundle:
        """Write the bundle, and its report unless it was turned off."""
        self._record_progress("bundling", 0.0)
        bundle = write_forged_bundle(out, found, made, ForgeRequest(self._wish, self._aids.source), self._timing_fields)
        self._record_progress("bundling", 1.0)
        if self._aids.report:
            write_report(bundle, found, made, rows, self._wish, own_edge=self._aids.edge_model is not None)
        self._record_progress("reporting", 1.0)
        return bundle

    def _timing_fields(self) -> dict[str, Any]:
        return {"forge_s": round(time.perf_counter() - self._start, 2), "stage_s": self._stage_s}

    def _stage_part(self, stage: str, start: float, end: float) -> Callable[[float], None]:
        """Progress callback that maps 0..1 to the part `start`..`end` of a stage."""
        return lambda share: self._record_progress(stage, start + (end - start) * share)

    def _record_progress(self, stage: str, share: float) -> None:
        """Add the time since the last call to a stage, and pass its progress on."""
        now = time.perf_counter()
        self._stage_s[stage] = round(self._stage_s.get(stage, 0.0) + now - self._lap, 2)
        self._lap = now
        self._tell(stage, share)


def tensor_bytes(value: torch.Tensor) -> bytes:
    """The raw bytes of a tensor's numbers, for digests."""
    return value.detach().cpu().contiguous().numpy().tobytes()


def _digest_part(part: DataPart) -> str:
    """Digest of one part's arrays: inputs, targets, sensitive columns and groups."""
    arrays: list[npt.NDArray[Any]] = [*part.x, part.y, *(part.sensitive[name] for name in sorted(part.sensitive))]
    arrays += [] if part.groups is None else [part.groups]
    return digest_parts(
        sorted(part.sensitive), part.groups is not None, *(np.ascontiguousarray(array).tobytes() for array in arrays)
    )


def _ignore_progress(_stage: str, _share: float) -> None:
    """Progress callback that does nothing."""
