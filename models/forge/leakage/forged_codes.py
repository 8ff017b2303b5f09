"""Leakage measurement of a new bundle: collects what the attacks need from a forge run, and caches their results.

Rule: attackers get samples that the model was not trained with, and the codes exactly as they arrive at the hub.
"""

import io
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from models.bundle.measurements import LeakageRow
from models.forge.evaluation.metrics import PartAnswers
from models.forge.leakage.measure import ExposedData, LeakageMeasurement, ReconstructedImages, measure_leakage
from models.forge.partition.cuts import Cut, PreparedModel
from models.forge.partition.split import run_head, split_shared
from models.forge.spec import Effort
from models.runtime.chain import FeatureChain, digest_chain
from wire.protocol.messages import FieldSpec

MOST_SAMPLES = {Effort.QUICK: 2_000, Effort.NORMAL: 12_000, Effort.THOROUGH: 20_000}
_MOST_FEATURE_BYTES = 300 << 20
_CHUNK = 250


class AttackTarget(NamedTuple):
    """What leaves the device, and the answers of both halves, for the parts that the model was not trained with."""

    cut: Cut
    feature: FieldSpec
    codec: str
    answered: tuple[PartAnswers, ...]


def attack_codes(
    found: PreparedModel, sent: AttackTarget, effort: Effort, timed: Callable[[str, float], None]
) -> LeakageMeasurement:
    """Run `measure` on calibration and held-out samples. `timed(stage, share)` reports progress."""
    timed("attacking", 0.0)
    exposed = _collect_exposed(found, sent.answered, MOST_SAMPLES[effort])
    chain = digest_chain(sent.cut.name, sent.codec, [FeatureChain(sent.feature)])
    power = "quick" if effort is Effort.QUICK else "full"
    measured = measure_leakage(exposed, chain, power, lambda _, share: timed("attacking", share))
    timed("attacking", 1.0)
    return measured


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
    training, outside = found.data.training, answered[-1]
    count = min(most, len(training), len(outside.part))
    return ExposedData(
        x=x,
        codes=(codes,),
        y=y,
        sensitive={name: np.concatenate([a.part.sensitive[name] for a in answered])[:most] for name in sorted(names)},
        earliest=_earliest_features(found, x),
        ids=x.dtype.kind in "iu",
        members=(_run_model(found, training.x[0][:count]), training.y[:count]),
        outsiders=(outside.hub.whole[:count], outside.part.y[:count]),
    )


def _run_model(found: PreparedModel, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    with torch.inference_mode():
        parts = [found.traced.gm(torch.from_numpy(x[start : start + _CHUNK])) for start in range(0, len(x), _CHUNK)]
    return np.concatenate([(part[0] if isinstance(part, tuple) else part).numpy() for part in parts])


def _earliest_features(found: PreparedModel, x: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Features of the first cut, if they fit in memory: what an attack must be able to invert."""
    cut = found.cuts[0]
    if len(cut.nodes) != 1 or cut.values * 4 * len(x) > _MOST_FEATURE_BYTES:
        return None
    head = split_shared(found.traced, cut).head
    with torch.inference_mode():
        parts = [
            run_head(head, torch.from_numpy(np.ascontiguousarray(x[start : start + _CHUNK])))[0].numpy()
            for start in range(0, len(x), _CHUNK)
        ]
    return np.concatenate(parts)


def encode_measurement(measured: LeakageMeasurement) -> dict[str, bytes]:
    """Files of a measurement for the cache: rows as JSON, images as .npz."""
    buffer = io.BytesIO()
    pictures = measured.pictures
    arrays = {"originals": pictures.originals, "rebuilt": pictures.rebuilt} if pictures else {}
    np.savez(buffer, allow_pickle=False, **arrays)
    rows = msgspec.json.encode({"rows": measured.rows, "void": measured.void})
    return {"rows.json": rows, "pictures.npz": buffer.getvalue()}


class _StoredRows(msgspec.Struct):
    rows: tuple[LeakageRow, ...]
    void: str


def decode_measurement(kept: dict[str, bytes]) -> LeakageMeasurement:
    """The measurement from its cached files."""
    found = msgspec.json.decode(kept["rows.json"], type=_StoredRows)
    with np.load(io.BytesIO(kept["pictures.npz"]), allow_pickle=False) as file:
        pictures = ReconstructedImages(file["originals"], file["rebuilt"]) if file.files else None
    return LeakageMeasurement(found.rows, pictures, found.void)
