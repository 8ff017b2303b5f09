"""Leakage measurement of a new bundle: collects what the attacks need from a forge run, and caches their results.

Rule: attackers get samples that the model was not trained with, and the codes exactly as they arrive at the hub.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from models.bundle.measurements import LeakageRow
from models.forge.evaluation.metrics import PartAnswers
from models.forge.leakage.effort import AttackCost
from models.forge.leakage.measure import ExposedData, LeakageMeasurement, ReconstructedImages, measure_leakage
from models.forge.leakage.membership import SampleSet, choose_outsiders, explain_no_outsiders
from models.forge.partition.cuts import Cut, PreparedModel
from models.forge.partition.split import run_head, split_shared
from models.forge.spec import Effort
from models.runtime.chain import FeatureChain, digest_chain
from wire.protocol.messages import FieldSpec


class AttackPower(NamedTuple):
    """Power of an attack: its effort ("quick" or "full"), and most samples that it gets."""

    effort: str
    most_samples: int


# by the forge's effort, those to try one after another
ATTACK_POWERS = {
    Effort.QUICK: (AttackPower("quick", 2_000), AttackPower("full", 12_000)),
    Effort.NORMAL: (AttackPower("full", 12_000),),
    Effort.THOROUGH: (AttackPower("full", 20_000),),
}
_MOST_FEATURE_BYTES = 100 << 20
_LEAST_EARLY = 1_500  # samples, with which the attack on features of the earliest cut has its power
_CHUNK = 250
PART_NAMES = ("calibration", "held-out")  # of `AttackTarget.answered`, in its order


class AttackTarget(NamedTuple):
    """What leaves the device, and the answers of both halves, for the parts that the model was not trained with."""

    cut: Cut
    feature: FieldSpec
    codec: str
    answered: tuple[PartAnswers, ...]


def attack_codes(
    found: PreparedModel,
    sent: AttackTarget,
    effort: Effort,
    timed: Callable[[str, float], None],
    folder: Path | None = None,
) -> LeakageMeasurement:
    """Run `measure` on calibration and held-out samples. `timed(stage, share)` reports progress.

    `folder`: for the state of attacks, so that a killed run goes on there.
    """
    timed("attacking", 0.0)
    chain = digest_chain(sent.cut.name, sent.codec, [FeatureChain(sent.feature)])

    def measure(power: AttackPower) -> LeakageMeasurement:
        exposed = _collect_exposed(found, sent.answered, power.most_samples)
        return measure_leakage(exposed, chain, power.effort, lambda _, share: timed("attacking", share), folder)

    measured = measure_with_power(measure, ATTACK_POWERS[effort])
    timed("attacking", 1.0)
    return measured


def measure_with_power(
    measure: Callable[[AttackPower], LeakageMeasurement], powers: Sequence[AttackPower]
) -> LeakageMeasurement:
    """Measure with one power after another, until an attack succeeds where nothing is hidden: until one is not void.

    Returns the last measurement, with the cost of all.
    """
    cost = AttackCost()
    for power in powers:
        measured = measure(power)
        cost = cost.plus(measured.cost)
        if not measured.void:
            break
    return measured._replace(cost=cost)


def _collect_exposed(found: PreparedModel, answered: tuple[PartAnswers, ...], most: int) -> ExposedData:
    x, codes, y = (
        np.concatenate(arrays)[:most]
        for arrays in (
            [a.part.x[0] for a in answered],
            [a.edge.codes for a in answered],
            [a.part.y for a in answered],
        )
    )
    names = set.intersection(*(set(a.part.sensitive) for a in answered))
    return replace(
        _collect_members(found, answered, most),
        x=x,
        codes=(codes,),
        y=y,
        sensitive={name: np.concatenate([a.part.sensitive[name] for a in answered])[:most] for name in sorted(names)},
        earliest=_earliest_features(found, x),
        ids=x.dtype.kind in "iu",
    )


def _collect_members(found: PreparedModel, answered: tuple[PartAnswers, ...], most: int) -> ExposedData:
    """Members and the part that serves as outsiders, with the given model's answers to both; the rest is empty."""
    training = found.data.training
    parts = dict(zip(PART_NAMES, answered, strict=True))
    chosen = choose_outsiders(
        SampleSet(training.x[0], training.y), {n: SampleSet(a.part.x[0], a.part.y) for n, a in parts.items()}
    )
    empty = ExposedData(np.zeros(0), (), np.zeros(0))
    if not chosen.part:
        return replace(empty, absent=(explain_no_outsiders(chosen),))
    outside = parts[chosen.part]
    count = min(most, len(training), len(outside.part))
    return replace(
        empty,
        members=(_run_model(found, training.x[0][:count]), training.y[:count]),
        outsiders=(outside.hub.whole[:count], outside.part.y[:count]),
        blind=chosen.blind,
    )


def _run_model(found: PreparedModel, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    with torch.inference_mode():
        parts = [found.traced.gm(torch.from_numpy(x[start : start + _CHUNK])) for start in range(0, len(x), _CHUNK)]
    return np.concatenate([(part[0] if isinstance(part, tuple) else part).numpy() for part in parts])


def _earliest_features(found: PreparedModel, x: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Features of the first cut for as many samples as fit in memory: what an attack must be able to invert."""
    cut = found.cuts[0]
    count = min(len(x), _MOST_FEATURE_BYTES // (cut.values * 4))
    if len(cut.nodes) != 1 or count < min(len(x), _LEAST_EARLY):
        return None
    head = split_shared(found.traced, cut).head
    with torch.inference_mode():
        parts = [
            run_head(head, torch.from_numpy(np.ascontiguousarray(x[start : min(count, start + _CHUNK)])))[0].numpy()
            for start in range(0, count, _CHUNK)
        ]
    return np.concatenate(parts)


def encode_measurement(measured: LeakageMeasurement) -> dict[str, bytes]:
    """Files of a measurement for the cache: rows as JSON, images as .npz."""
    buffer = io.BytesIO()
    pictures = measured.pictures
    arrays = {"originals": pictures.originals, "rebuilt": pictures.rebuilt} if pictures else {}
    np.savez(buffer, allow_pickle=False, **arrays)
    told = _StoredRows(measured.rows, measured.void, measured.absent, measured.cost)
    return {"rows.json": msgspec.json.encode(told), "pictures.npz": buffer.getvalue()}


class _StoredRows(msgspec.Struct):
    rows: tuple[LeakageRow, ...]
    void: str
    absent: tuple[str, ...]
    cost: AttackCost


def decode_measurement(kept: dict[str, bytes]) -> LeakageMeasurement:
    """The measurement from its cached files."""
    found = msgspec.json.decode(kept["rows.json"], type=_StoredRows)
    with np.load(io.BytesIO(kept["pictures.npz"]), allow_pickle=False) as file:
        pictures = ReconstructedImages(file["originals"], file["rebuilt"]) if file.files else None
    return LeakageMeasurement(found.rows, pictures, found.void, found.absent, found.cost)
