"""Leakage measurement of a finished bundle on a user's samples, under a policy's transforms and under usual defences.

Rule: what is attacked is what leaves: the device's graph, the policy's transforms (`models/runtime/transforms.py`, as
on a device), the codec there and back. The attacker gets calibration and held-out samples; the training part only says
who was a member. It is trained on transformed codes, never on the original ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from models.bundle.bundle import Bundle
from models.bundle.manifest import MAX_ROWS, Manifest
from models.bundle.version import rewrite_version
from models.forge.data.packing import pack_inputs
from models.forge.data.types import Data, DataPart, ForgeError
from models.forge.leakage.effort import FULL
from models.forge.leakage.forged_codes import PART_NAMES
from models.forge.leakage.measure import ExposedData, LeakageMeasurement, Values, measure_leakage
from models.forge.leakage.membership import SampleSet, choose_outsiders, explain_no_outsiders
from models.graph.hub_model import open_hub_graphs
from models.runtime import transforms
from models.runtime.chain import CodeRange, FeatureChain, FieldChain, Transform, TransformStep, digest_chain
from models.runtime.onnx_runner import OnnxRunner

CodeArray = npt.NDArray[np.uint8]
NOISE, TOP_K = "noise", "top_k"
_KEY = bytes(32)  # any key will do: the attacker learns from pairs under the same key


def transform_codes(codes: CodeArray, steps: Sequence[Transform], field: CodeRange) -> CodeArray:
    """Codes `[n, ...]` of a feature after a policy's transforms, noise drawn from seed 0.

    Raises ForgeError if a transform cannot be applied.
    """
    rng = np.random.default_rng(0)

    def drawn(sigma: float, count: int) -> npt.NDArray[np.float64]:
        return np.rint(rng.normal(0, sigma, count))

    try:
        return transforms.apply_transforms(codes, steps, field, transforms.TransformTools(drawn, _KEY))
    except transforms.TransformStepError as error:
        raise ForgeError(f"{error}, so nothing would be sent; choose other transforms") from None


def keep_top_scores(scores: npt.NDArray[Any], count: int) -> npt.NDArray[np.float32]:
    """The `count` largest scores of each row, the rest set to the least of these: what a short answer reveals."""
    bar = -np.partition(-scores, count - 1, axis=1)[:, count - 1 : count]
    return np.asarray(np.maximum(scores, bar), np.float32)


def usual_defences(levels: int) -> dict[str, tuple[TransformStep, ...]]:
    """Transforms by name that are shown beside a chain that has none.

    Noise of a tenth and a quarter of the range, half the range alone, and steps of a quarter of it.
    """
    top = float(levels - 1)
    quarter = max(2.0, round(levels / 4))
    return {
        f"noise {top / 10:.2g}": (TransformStep(NOISE, step=top / 10),),
        f"noise {top / 4:.2g}": (TransformStep(NOISE, step=top / 4),),
        f"clip 0..{top // 2:g}": (TransformStep("clip", 0.0, top // 2),),
        f"quantise {quarter:g}": (
            TransformStep("clip", 0.0, top - top % quarter),
            TransformStep("quantise", step=quarter),
        ),
    }


ProgressCallback = Callable[[str, float], None]
Codes = dict[str, npt.NDArray[np.uint8]]

BARE = "as the model makes them"
_BATCH = 256
_MOST = FULL.pairs + FULL.tests
_TOP = (1, 3)


class AttackCase(NamedTuple):
    """One chain that was attacked: `what` in words, its digest, what was found."""

    what: str
    chain: str
    found: LeakageMeasurement


class _ScoreField(NamedTuple):
    name: str = "scores"
    low: float = 0.0
    high: float = 1.0


class _DeviceOutputs(NamedTuple):
    """Codes before any transform, and the device's own scores, of all samples in order."""

    codes: Codes
    scores: Values


def remeasure_bundle(
    bundle: Bundle,
    data: Data,
    steps: Mapping[str, Sequence[Any]],
    effort: str,
    tell: ProgressCallback,
    *,
    folder: Path | None = None,
) -> AttackCase:
    """Attack one chain of a finished bundle.

    `steps`: transforms per feature, as `policies.model.policy.TransformSpec` or `chain.TransformStep`; `folder`: for
    the state of attacks, so that a killed measurement goes on there. Raises ForgeError if the data is not the model's;
    BundleError, SampleError as they arise.
    """
    what = (
        ", ".join(f"{name}: {' then '.join(map(_describe_step, each))}" for name, each in steps.items() if each) or BARE
    )
    return _AttackBench(bundle, data, folder).attack_chain(what, steps, effort, tell)


def attack_defences(bundle: Bundle, data: Data, tell: ProgressCallback) -> tuple[AttackCase, ...]:
    """Quick attacks on the bare chain, on the usual defences, and on the device's scores cut to the largest few."""
    bench, specs = _AttackBench(bundle, data), bundle.manifest.features
    named: dict[str, tuple[TransformStep, ...]] = {BARE: (), **usual_defences(round(specs[0].high) + 1)}
    cases = []
    for at, (what, steps) in enumerate(named.items()):
        tell("defences", at / (len(named) + 1))
        cases.append(bench.attack_chain(what, {spec.name: steps for spec in specs}, "quick", _ignore_progress))
    tell("defences", len(named) / (len(named) + 1))
    return (*cases, *bench.attack_scores())


def replace_leakage_rows(bundle: Bundle, cases: Sequence[AttackCase]) -> Bundle:
    """Write the bundle again with the rows of these chains, in place of older ones of the same chains.

    Raises ForgeError if there would be more than `MAX_ROWS`.
    """
    fresh = {case.chain for case in cases}
    kept = [row for row in bundle.manifest.leakage if row.chain not in fresh]
    rows = (*kept, *(row for case in cases for row in case.found.rows))
    if len(rows) > MAX_ROWS:
        raise ForgeError(f"the bundle would have {len(rows)} rows of leakage, at most {MAX_ROWS}; forge it again")
    return rewrite_version(bundle, msgspec.structs.replace(bundle.manifest, leakage=rows))


class _AttackBench:
    """One bundle run once over the samples; then any number of chains are attacked on its outputs."""

    def __init__(self, bundle: Bundle, data: Data, folder: Path | None = None) -> None:
        self._bundle, self._folder = bundle, folder
        self._runner = OnnxRunner(bundle, cpu_only=True)
        self._data = _check_model_data(data, bundle.manifest)
        self._attacked = _join_parts(self._data.calibration, self._data.heldout)
        self._seen = self._run_device(self._attacked.x[0])
        training, parts = self._data.training, _part_rows(self._data)
        self._outsiders = choose_outsiders(
            SampleSet(training.x[0], training.y),
            {name: SampleSet(self._attacked.x[0][rows], self._attacked.y[rows]) for name, rows in parts.items()},
        )
        self._outside_rows = parts.get(self._outsiders.part, slice(0, 0))
        count = min(len(training), len(self._attacked.y[self._outside_rows]))
        self._members = self._run_device(training.x[0][:count]) if count else None

    def attack_chain(
        self, what: str, steps: Mapping[str, Sequence[Any]], effort: str, tell: ProgressCallback
    ) -> AttackCase:
        """Attack the codes after these transforms."""
        manifest = self._bundle.manifest
        plans: list[FieldChain] = [FeatureChain(spec, tuple(steps.get(spec.name, ()))) for spec in manifest.features]
        chain = digest_chain(manifest.cut, manifest.codec, plans)
        codes = self._transmit_codes(self._seen.codes, plans)
        part = self._attacked
        exposed = ExposedData(
            x=part.x[0],
            codes=tuple(codes.values()),
            y=part.y,
            sensitive=part.sensitive,
            ids=part.x[0].dtype.kind in "iu",
        )
        exposed = self._add_members(exposed, codes, plans)
        return AttackCase(what, chain, measure_leakage(exposed, chain, effort, tell, self._folder))

    def _add_members(self, exposed: ExposedData, codes: Codes, plans: Sequence[FieldChain]) -> ExposedData:
        """The same with the hub's answers to members and outsiders, or with the reason why there are none."""
        if self._members is None:
            return replace(exposed, absent=(explain_no_outsiders(self._outsiders),))
        rows, count = self._outside_rows, len(self._members.scores)
        return replace(
            exposed,
            members=(self._run_tail(self._transmit_codes(self._members.codes, plans)), self._data.training.y[:count]),
            outsiders=(self._run_tail({name: each[rows] for name, each in codes.items()}), self._attacked.y[rows]),
            blind=self._outsiders.blind,
        )

    def attack_scores(self) -> list[AttackCase]:
        """Attack the device's own scores, whole and cut to the largest few."""
        part, scores, found = self._attacked, self._seen.scores, []
        for count in (*(k for k in _TOP if k < scores.shape[1]), scores.shape[1]):
            step = TransformStep(TOP_K, step=float(count))
            chain = digest_chain("answer", "scores", (FeatureChain(_ScoreField(), (step,)),))
            exposed = ExposedData(
                part.x[0], (keep_top_scores(scores, count),), part.y, ids=part.x[0].dtype.kind in "iu"
            )
            found.append(AttackCase(f"{count} largest scores alone", chain, measure_leakage(exposed, chain, "quick")))
        return found

    def _run_device(self, x: Values) -> _DeviceOutputs:
        codes: dict[str, list[Values]] = {spec.name: [] for spec in self._bundle.manifest.features}
        scores = []
        for start in range(0, len(x), _BATCH):
            for one in self._runner.infer(np.ascontiguousarray(x[start : start + _BATCH])):
                scores.append(one.prediction.scores)
                for name, each in one.features.items():
                    codes[name].append(each)
        return _DeviceOutputs({name: np.stack(each) for name, each in codes.items()}, np.array(scores, np.float32))

    def _transmit_codes(self, codes: Codes, plans: Sequence[FieldChain]) -> Codes:
        """The codes as they arrive at the hub, after transforms and codec."""
        codec, found = self._runner.codec, {}
        for plan in plans:
            name = plan.spec.name
            out = transform_codes(codes[name], plan.transforms, plan.spec)
            found[name] = np.stack([codec.decode(name, codec.encode(name, one)) for one in out])
        return found

    def _run_tail(self, codes: Codes) -> Values:
        tail, count = open_hub_graphs(self._bundle).tail, len(next(iter(codes.values())))
        parts = []
        with torch.inference_mode():
            for start in range(0, count, _BATCH):
                inputs = [torch.from_numpy(each[start : start + _BATCH].astype(np.float32)) for each in codes.values()]
                parts.append(tail(*inputs).reshape(len(inputs[0]), -1).numpy())
        return np.concatenate(parts)


def _check_model_data(data: Data, manifest: Manifest) -> Data:
    data = pack_inputs(nn.Identity(), data).data
    x = data.heldout.x[0]
    if x.shape[1:] != manifest.input.shape:
        raise ForgeError(
            f"samples are {list(x.shape[1:])}, the model takes {list(manifest.input.shape)}; give its data"
        )
    return data


def _join_parts(calibration: DataPart, heldout: DataPart) -> DataPart:
    """Calibration and held-out samples as one part, held-out ones last."""
    parts = (calibration, heldout)
    names = set(calibration.sensitive) & set(heldout.sensitive)
    ends = _kept_rows(calibration, heldout)
    return DataPart(
        (np.concatenate([part.x[0][end] for part, end in zip(parts, ends, strict=True)]),),
        np.concatenate([part.y[end] for part, end in zip(parts, ends, strict=True)]),
        {n: np.concatenate([p.sensitive[n][end] for p, end in zip(parts, ends, strict=True)]) for n in sorted(names)},
    )


def _kept_rows(calibration: DataPart, heldout: DataPart) -> tuple[slice, slice]:
    """Which samples of each part are attacked: three of four are held-out ones, if there are as many."""
    first = min(len(calibration), max(_MOST // 4, _MOST - len(heldout)))
    return slice(0, first), slice(max(0, len(heldout) - (_MOST - first)), None)


def _part_rows(data: Data) -> dict[str, slice]:
    """Rows of each part in what `_join_parts` makes."""
    first, last = _kept_rows(data.calibration, data.heldout)
    count = len(data.calibration.y[first])
    return dict(zip(PART_NAMES, (slice(0, count), slice(count, count + len(data.heldout.y[last]))), strict=True))


def _describe_step(step: Any) -> str:
    return f"clip {step.low:g}..{step.high:g}" if str(step.kind) == "clip" else f"{step.kind} {step.step:g}"


def _ignore_progress(_stage: str, _share: float) -> None:
    """Progress callback that does nothing."""
