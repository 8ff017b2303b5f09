"""One trial of the forge in a process of its own: `python -m benchmarks.forge.trial SET SEED WISH EFFORT`.

It forges a set as `skerry models forge` would, measures what the bundle says of the held-out part beside the same edge
with a hub that lost nothing on the way, and prints one JSON line (`TrialRecord`). Progress goes to standard error, a
line as each stage begins.
"""

import argparse
import math
import resource
import sys
import time
from dataclasses import replace
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.forge.datasets import CASES, bundles_folder, read_commit, trial_digest
from benchmarks.forge.trials import TrialKey, TrialRecord, encode_record
from models.bundle.bundle import Bundle
from models.bundle.measurements import LeakKind, QualityMetric
from models.forge.data.types import OUT_OF_SCOPE, Data, ForgeError
from models.forge.evaluation.deferral import pair_curve
from models.forge.evaluation.outcomes import Outcomes, read_outcomes
from models.forge.pipeline.forge import run_forge
from models.forge.spec import Effort, ForgeInputs
from models.forge.training.teacher import predict_batches
from wire.process.main import run_to_exit

Floats = npt.NDArray[np.float64]
STAGES = ".stages"
RESAMPLES = 1000
_SEED = 20
_MIB = 1024  # ru_maxrss is in KiB


def run_trial(key: TrialKey, threads: int) -> TrialRecord:
    """Forge and measure one set; a refusal of the forge is a record, too."""
    began = time.perf_counter()
    base = TrialRecord(
        set=key.set, seed=key.seed, wish=key.wish, effort=key.effort, recipe=trial_digest(), commit=read_commit()
    )
    case = CASES[key.set]
    zoo = import_module(case.module)
    data = zoo.samples()
    model = zoo.build_model()
    ready = time.perf_counter()
    folder = bundles_folder() / f"{key.set}-{key.wish}-{key.seed}"
    wish = replace(case.wishes[key.wish], name=key.set, seed=key.seed, effort=Effort(key.effort), threads=threads)
    small = getattr(zoo, "edge_model", None)
    aids = ForgeInputs(
        edge_model=small() if small else None,
        augment=case.find_augmentation(),
        cache=bundles_folder() / STAGES,
        source=f"{case.module}:build_model",
    )
    base = msgspec.structs.replace(base, model=_digest_weights(model))
    used = time.process_time()
    try:
        bundle = run_forge(model, data, wish, folder, StageLog(ready), aids=aids)
    except ForgeError as error:
        print(f"refused: {error}", file=sys.stderr)
        return msgspec.structs.replace(base, error=str(error), **_count_cost(ready, used))
    cost = _count_cost(ready, used)
    whole = _predict_whole(key.set, model, data)
    print(f"measured after {time.perf_counter() - began:.0f} s", file=sys.stderr)
    found = measure_bundle(bundle, data, whole, case.share)
    return msgspec.structs.replace(base, **cost, **found, more=case.measure_more(bundle, data))


class StageLog:
    """Progress of a forging as lines on standard error: when each stage began, in seconds since `began`."""

    def __init__(self, began: float) -> None:
        self._began, self._stage = began, ""

    def __call__(self, stage: str, _share: float) -> None:
        if stage != self._stage:
            print(f"{time.perf_counter() - self._began:7.1f} s  {stage}", file=sys.stderr, flush=True)
        self._stage = stage


def _count_cost(ready: float, used: float) -> dict[str, float]:
    return {
        "seconds": round(time.perf_counter() - ready, 1),
        "cpu_s": round(time.process_time() - used, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _MIB,
    }


def _predict_whole(name: str, model: Any, data: Data) -> Floats:
    """The given model's answers to the held-out samples, kept beside the bundles: no seed of the forge changes them."""
    path = bundles_folder() / f"{name}.{_digest_weights(model)}.whole.npy"
    if not path.exists():
        answers = predict_batches(model, data.heldout.x[0]).numpy()
        fresh = path.with_suffix(".new.npy")
        np.save(fresh, answers, allow_pickle=False)
        fresh.replace(path)
    return np.asarray(np.load(path, allow_pickle=False), np.float64)


def _digest_weights(model: Any) -> str:
    digest = sha256()
    for value in model.state_dict().values():
        digest.update(value.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def measure_bundle(bundle: Bundle, data: Data, whole: Floats, share: float) -> dict[str, Any]:
    """Fields of a `TrialRecord` from a forged bundle, its report and the given model's answers `[n, outputs]`."""
    report = _report_folder(bundle)
    facts = msgspec.json.decode((report / "report.json").read_bytes())
    coded = read_outcomes(report / "outcomes-heldout.npz")
    lossless = replace_hub(coded, whole, data)
    manifest = bundle.manifest
    payoff = facts["payoff"]
    low, high = map(_read_number, payoff["gained"])
    rows = [row for row in manifest.leakage if row.kind is LeakKind.RECONSTRUCTION]
    chosen: dict[str, Any] = next((point for point in facts.get("frontier", ()) if point.get("chosen")), {})
    made = msgspec.json.decode(bundle.report)
    return {
        "samples": len(coded),
        "metric": str(coded.metric),
        "route": str(chosen.get("route", "")),
        "path": str(chosen.get("name", "")),
        "cut": manifest.cut,
        "payload_bytes": int(made["payload_bytes"]),
        "sealed_bytes": int(payoff["question_bytes"]),
        "head_share": _read_number(made["head_share"]),
        "pair": manifest.calibration.pair,
        "asked": manifest.calibration.asked,
        "lost": _read_number(made["lost"]),
        "gained_low": low,
        "gained_high": high,
        "warnings": tuple(payoff["warnings"]),
        "leakage": (rows[0].score, rows[0].floor, rows[0].ceiling) if rows else (),
        "leakage_metric": rows[0].metric if rows else "",
        **compare_lossless(coded, lossless, share),
    }


def _read_number(value: float | None) -> float:
    """A figure of a report, where JSON has null for what is no number."""
    return math.nan if value is None else float(value)


def _report_folder(bundle: Bundle) -> Path:
    return bundle.path.with_name(f"{bundle.path.name}.report")


def replace_hub(coded: Outcomes, whole: Floats, data: Data) -> Outcomes:
    """The same outcomes with a hub that got the sample as it is. `whole`: answers to all held-out samples."""
    part = data.heldout
    inside = part.y != OUT_OF_SCOPE if data.labels else np.ones(len(part), bool)
    if coded.tolerance:
        errors = whole[inside, 0] - part.y[inside]
        right = np.abs(errors) <= coded.tolerance
        return Outcomes(coded.confidence, coded.edge_right, right, coded.edge_error, errors, coded.tolerance)
    return Outcomes(coded.confidence, coded.edge_right, whole[inside].argmax(1) == part.y[inside])


def compare_lossless(coded: Outcomes, lossless: Outcomes, share: float) -> dict[str, float]:
    """What codes keep of what lossless features gain, asking `share` of the least confident; with 95 % intervals.

    The intervals are percentiles of resampled held-out samples; a resample in which lossless features gain nothing has
    no `recovered` and counts as unbounded.
    """
    edge, pair, best, hub = _quality_at(coded, lossless, share)
    rng = np.random.default_rng(_SEED)
    drawn = np.array(
        [
            _quality_at(coded[rows], lossless[rows], share)
            for rows in (rng.integers(0, len(coded), len(coded)) for _ in range(RESAMPLES))
        ]
    )
    sign = -1.0 if coded.metric is QualityMetric.RMSE else 1.0
    gaps = sign * (drawn[:, 3] - drawn[:, 0])
    won, most = sign * (drawn[:, 1] - drawn[:, 0]), sign * (drawn[:, 2] - drawn[:, 0])
    shares = np.where(most > 0, won / np.where(most > 0, most, 1), np.where(won > 0, np.inf, -np.inf))
    low, high = np.quantile(gaps, (0.025, 0.975))
    under, over = np.quantile(shares, (0.025, 0.975), method="nearest")
    gain = sign * (best - edge)
    return {
        "edge": edge,
        "hub": hub,
        "share": share,
        "pair_at": pair,
        "lossless_at": best,
        "gap": sign * (hub - edge),
        "gap_low": float(low),
        "gap_high": float(high),
        "recovered": sign * (pair - edge) / gain if gain > 0 else math.nan,
        "recovered_low": float(under) if math.isfinite(under) else math.nan,
        "recovered_high": float(over) if math.isfinite(over) else math.nan,
    }


def _quality_at(coded: Outcomes, lossless: Outcomes, share: float) -> tuple[float, float, float, float]:
    """Edge alone, pair through codes and pair without loss asking `share`, and the hub without loss."""
    asked = round(share * len(coded))
    ours, best = pair_curve(coded), pair_curve(lossless)
    return float(ours[0]), float(ours[asked]), float(best[asked]), float(best[-1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forge.trial", description=__doc__)
    parser.add_argument("set", choices=sorted(CASES))
    parser.add_argument("seed", type=int)
    parser.add_argument("wish")
    parser.add_argument("effort", choices=[str(effort) for effort in Effort])
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    key = TrialKey(given.set, given.seed, given.wish, given.effort)
    print(encode_record(run_trial(key, given.threads)).decode())
    return 0


if __name__ == "__main__":
    sys.exit(run_to_exit("python -m benchmarks.forge.trial", main))
