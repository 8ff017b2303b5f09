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
from models.forge.cache import Cache, digest
from models.forge.data.coerce import coerced
from models.forge.data.types import Part
from models.forge.export.manifest import input_spec, vocabulary
from models.forge.leakage.untrained import attacked
from models.forge.partition import cost
from models.forge.partition.cost import decode_rows, encode_rows
from models.forge.partition.cuts import Cut, Given, find_cuts, trace
from models.forge.partition.select import Broken, broken, named, rank, refusal
from models.forge.pipeline import loading
from models.forge.pipeline.bundle import Asked, write
from models.forge.pipeline.candidate import Attempt
from models.forge.report.report import write_report
from models.forge.report.result import Made
from models.forge.spec import Aids, Effort, Wish, check_wish, recipe_digest
from models.forge.training.determinism import repeatable

Tell = Callable[[str, float], None]
_ATTACKED = {Effort.QUICK: 3, Effort.NORMAL: 6, Effort.THOROUGH: 12}  # cuts whose training-free codes are attacked
_NONE = Aids()
_TRIES = {Effort.QUICK: 1, Effort.NORMAL: 2, Effort.THOROUGH: 4}


def forge(
    model: nn.Module, data: Any, wish: Wish, out: Path | str, tell: Tell | None = None, *, aids: Aids = _NONE
) -> Bundle:
    """Forge a bundle at `out`, replacing one that is there, and a report in `OUT.report/`; returns the opened bundle.

    - `data`: a `Data`, or anything that `coerced` understands.
    - `tell(stage, share)`: called with the stage's name and the share of it that is done, 0..1.
    - `aids`: the optional inputs; see `Aids`.

    Raises ForgeError, one line, if the model, the data or the specification cannot make a bundle: then nothing is
    written
    at `out`, and what was measured stays in the cache.
    """
    check_wish(wish)
    with repeatable(wish.seed, wish.threads), Cache(aids.cache) as cache:
        return _Run(wish, aids, cache, tell or _silent).forge(model, data, Path(out))


class _Run:
    """State of one forge run: its inputs, its cache and the time spent per stage.

    `stage_s` in `forge.json` has seconds by stage, summed over the cuts that were tried.
    """

    def __init__(self, wish: Wish, aids: Aids, cache: Cache, tell: Tell) -> None:
        self._wish, self._aids, self._cache, self._tell = wish, aids, cache, tell
        self._start = self._lap = time.perf_counter()
        self._stage_s: dict[str, float] = {}

    def forge(self, model: nn.Module, data: Any, out: Path) -> Bundle:
        """Build candidates in the order of their rank until one meets every limit, and write its bundle.

        Raises `UnmetError` with the nearest candidate if none of those tried does.
        """
        found = self._given(model, data)
        rows = self._measured(found)
        self._tell("measuring cuts", 1.0)
        tried: list[tuple[str, tuple[Broken, ...]]] = []
        for cut in self._candidates(found, rows):
            made = Attempt(found, self._wish, self._aids, self._cache, self._timed).make(cut)
            faults = broken(self._wish, made.shipped)
            if not faults:
                return self._write(found, made, rows, out)
            tried.append((cut.name, faults))
        raise refusal(tried, rows)

    def _given(self, model: nn.Module, data: Any) -> Given:
        """Check, pack and trace the model and its data; returns them with the digest that keys all later stages."""
        self._tell("reading", 0.0)
        model = loading.check_model(model)
        data = loading.check_data(coerced(data), self._wish.max_risk, self._wish.confidence)
        model, data, _ = loading.pack_inputs(model, data)
        weights = digest(*(bytes_of(value) for value in model.state_dict().values()))
        numbers = digest(*map(_part_digest, (data.training, data.calibration, data.heldout)), list(data.labels))
        self._timed("reading", 1.0)
        self._tell("cutting", 0.0)
        x = data.training.x[0]
        traced = trace(model, torch.from_numpy(np.ascontiguousarray(x[:2])))
        loading.check_outputs(traced.outputs, data)
        cuts = find_cuts(traced)
        spec = input_spec(
            [part.x[0] for part in (data.training, data.calibration, data.heldout)], vocabulary(traced.gm)
        )
        key = digest(recipe_digest(), weights, numbers, traced.gm.code, self._wish.seed, self._wish.threads)
        self._timed("cutting", 1.0)
        return Given(data, traced, cuts, spec, numbers, weights, key)

    def _measured(self, found: Given) -> list[cost.HeadCost]:
        """Cost of every cut, from the cache if it was measured before; nothing if one cut is requested by name."""
        if self._wish.cut:
            return []
        key = digest(found.key, "frontier", self._wish.effort)
        kept = self._cache.find("frontier", key)
        if kept:
            return decode_rows(kept["rows.json"], found.cuts)
        bounds = cost.Bounds(threads=1)
        rows = cost.frontier(found.traced, found.cuts, found.data, bounds, self._part("measuring cuts", 0.0, 0.6))
        tell = self._part("measuring cuts", 0.6, 1.0)
        rows = attacked(found.traced, rows, found.data, _ATTACKED[self._wish.effort], tell)
        self._cache.keep("frontier", key, {"rows.json": encode_rows(rows)})
        return rows

    def _candidates(self, found: Given, rows: Sequence[cost.HeadCost]) -> list[Cut]:
        """Cuts to build, best first: the requested one, or as many of the ranked ones as the effort allows."""
        if self._wish.cut:
            return [found.cuts[named(self._wish.cut, [cut.name for cut in found.cuts])]]
        return [row.cut for row in rank(rows, self._wish)][: _TRIES[self._wish.effort]]

    def _write(self, found: Given, made: Made, rows: Sequence[cost.HeadCost], out: Path) -> Bundle:
        """Write the bundle, and its report unless it was turned off."""
        self._timed("bundling", 0.0)
        bundle = write(out, found, made, Asked(self._wish, self._aids.source), self._report)
        self._timed("bundling", 1.0)
        if self._aids.report:
            write_report(bundle, found, made, rows, self._wish)
        self._timed("reporting", 1.0)
        return bundle

    def _report(self) -> dict[str, Any]:
        return {"forge_s": round(time.perf_counter() - self._start, 2), "stage_s": self._stage_s}

    def _part(self, stage: str, start: float, end: float) -> Callable[[float], None]:
        """Progress callback that maps 0..1 to the part `start`..`end` of a stage."""
        return lambda share: self._timed(stage, start + (end - start) * share)

    def _timed(self, stage: str, share: float) -> None:
        """Add the time since the last call to a stage, and pass its progress on."""
        now = time.perf_counter()
        self._stage_s[stage] = round(self._stage_s.get(stage, 0.0) + now - self._lap, 2)
        self._lap = now
        self._tell(stage, share)


def bytes_of(value: torch.Tensor) -> bytes:
    """The raw bytes of a tensor's numbers, for digests."""
    return value.detach().cpu().contiguous().numpy().tobytes()


def _part_digest(part: Part) -> str:
    """Digest of one part's arrays: inputs, targets and sensitive columns."""
    arrays: list[npt.NDArray[Any]] = [*part.x, part.y, *(part.sensitive[name] for name in sorted(part.sensitive))]
    return digest(sorted(part.sensitive), *(np.ascontiguousarray(array).tobytes() for array in arrays))


def _silent(_stage: str, _share: float) -> None:
    """Progress callback that does nothing."""
