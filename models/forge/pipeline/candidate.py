"""Candidate build: one cut trained, exported, quantised, retuned on its own codes, evaluated and attacked.

Rule: every stage that takes long is cached under the digest of what decides it; nothing is measured on what will not
ship.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
import safetensors.torch
from torch import nn

from models.forge.cache import StageCache, digest_parts
from models.forge.data.types import OUT_OF_SCOPE, DataPart, ForgeError
from models.forge.evaluation.metrics import PartAnswers, evaluate_pair
from models.forge.evaluation.shipped import EdgeAnswers, HubAnswers, run_edge_graph
from models.forge.export.benchmark import measure_p50_us
from models.forge.export.codec_choice import (
    CodecChoice,
    choose_codec,
    keep_option,
    measure_option,
    smallest_option,
)
from models.forge.export.device_work import DeviceWork, measure_device_work
from models.forge.export.manifest import ENVELOPE_BYTES, build_field_spec, name_field
from models.forge.export.onnx import export_edge_graph
from models.forge.export.quantise import (
    PrecisionCandidate,
    PrecisionChoice,
    ScoreFunction,
    build_candidates,
    choose_precision,
)
from models.forge.export.targets import Precision, TargetProfile, find_profile
from models.forge.leakage.forged_codes import AttackTarget, attack_codes, decode_measurement, encode_measurement
from models.forge.leakage.measure import LeakageMeasurement
from models.forge.partition.cuts import Cut, PreparedModel
from models.forge.partition.select import BundleCost
from models.forge.partition.split import copy_model
from models.forge.pipeline.path_search import PathChoice, PathSearch, TrainedCut, plan_first_payload
from models.forge.pipeline.shipped_tuning import (
    FeaturePayload,
    ShippedJudge,
    ShippedTuner,
    TuningPlan,
    copy_state,
    score_codes,
)
from models.forge.report.result import CandidateSummary, EdgeResult, ForgedBundle
from models.forge.spec import Effort, ForgeInputs, ForgeSpec
from models.forge.training.code_path import CodePath, Route
from models.forge.training.distillation import (
    DistillationConfig,
    build_loss_config,
    count_steps_per_epoch,
    train_modules,
)
from models.forge.training.gate import collect_gate_samples, set_confidence
from models.forge.training.hub_tuning import HubTuningConfig
from models.forge.training.losses import LossConfig
from models.forge.training.modules import (
    TrainedModules,
    build_edge_module,
    build_tail_module,
    edge_output_names,
)
from models.forge.training.teacher import predict_batches
from wire.protocol.messages import FieldSpec, ModelRef

StageCallback = Callable[[str, float], None]
_HEAD_SHARE = 0.10
_MANY = 20_000  # training samples: with fewer, a part of each batch is too few, and all of it takes little time
_SHOWN = 512  # samples from which the quantiser takes the range of every activation


class TrainingBudget(NamedTuple):
    """Length of training for one effort.

    `epochs`, `steps`: trained at least so long, but not for more epochs than `most`. `copies`: augmented copies of the
    training set; `coded`: share of each batch that the hub's half learns from, of `_MANY` samples or more; `tuning`:
    epochs of one round of tuning the hub on the shipped codes of `tuned` training samples; `rounds`: at most so many.
    """

    epochs: int
    steps: int
    most: int
    copies: int
    coded: float
    tuning: int
    tuned: int
    rounds: int = 3


TRAINING_BUDGETS = {
    Effort.QUICK: TrainingBudget(3, 260, 30, 1, 1 / 3, 2, 20_000),
    Effort.NORMAL: TrainingBudget(12, 1500, 40, 4, 1.0, 3, 30_000),
    Effort.THOROUGH: TrainingBudget(30, 9000, 150, 8, 1.0, 4, 60_000),
}


class CandidateBuild:
    """Builds everything a bundle needs for one cut after another of the same model.

    `timed(stage, share)` is called as the stages go on.
    """

    def __init__(
        self, found: PreparedModel, wish: ForgeSpec, aids: ForgeInputs, cache: StageCache, timed: StageCallback
    ) -> None:
        self._found, self._wish, self._aids, self._cache, self._timed = found, wish, aids, cache, timed
        self._pace = TRAINING_BUDGETS[wish.effort]
        self._profile = _select_profile(wish)

    def build(self, cut: Cut) -> ForgedBundle:
        """Train, export, quantise, retune, evaluate and attack one cut. Raises ForgeError if a stage cannot be done."""
        teaching = self._plan_training(cut)
        key = digest_parts(self._found.key, cut.name, _training_fields(teaching), _digest_inputs(self._aids))
        teaching = teaching._replace(folder=self._cache.scratch_folder("teach", key))
        pieces = self._train_modules(teaching, cut)
        found = PathSearch(self._found, self._wish, TrainedCut(cut, pieces, teaching), self._timed).run()
        if found.path.tail is self._found.traced.gm:  # the given model itself: a copy of it may be tuned
            found = found._replace(path=replace(found.path, tail=copy_model(self._found.traced)))
        pieces = self._take_path(pieces, found.path)
        feature = build_field_spec(found.path)
        key = digest_parts(key, found.path.name, feature.name, self._wish.target, self._wish.precision)
        edge = self._build_edge(key, pieces, partial(_score_edge_codes, found))
        shown = run_edge_graph(edge.graph, self._found.data.training.x[0][: self._pace.tuned])
        sending = FeaturePayload(feature, self._choose_codec(found.path, feature, shown.codes, edge))
        judge = ShippedJudge(found.judge, edge.graph, found.path, sending)
        self._tune_hub(key, judge, shown, build_loss_config(self._found.data, teaching))
        return self._evaluate(key, cut, pieces, edge, sending)._replace(path=found.path, points=found.points)

    def _take_path(self, pieces: TrainedModules, path: CodePath) -> TrainedModules:
        """The trained modules with the path that ships; the gate is fitted anew to the hub behind it."""
        if path.name == pieces.sent.name:
            return pieces
        pieces = replace(pieces, path=path)
        data = self._found.data
        set_confidence(pieces, collect_gate_samples(pieces, data.calibration), data, self._wish.seed)
        return pieces

    def _choose_codec(self, path: CodePath, feature: FieldSpec, codes: Any, edge: EdgeResult) -> CodecChoice:
        """The path's own codec; the smaller of packing and entropy coding for others that were not taught."""
        ref = ModelRef(self._wish.name, self._wish.version, path.name, "")
        if path.codec:
            return keep_option(measure_option(path.codec, path.tables, feature, codes, ref), "the codec of this path")
        if path.route is not Route.LEARNED:
            return keep_option(smallest_option(feature, codes, ref), "the fewest bytes for what was not taught")
        return choose_codec((feature,), codes, ref, edge.p50_us)

    def _plan_training(self, cut: Cut) -> DistillationConfig:
        """Training settings for a cut, from the limits and the effort.

        At least so many epochs and optimiser steps as the effort's budget says, bounded in epochs.
        """
        wish, pace = self._wish, self._pace
        steps = count_steps_per_epoch(len(self._found.data.training), DistillationConfig().batch)
        return DistillationConfig(
            max_bytes=plan_first_payload(wish),
            head_share=max(wish.head_share or _HEAD_SHARE, 1.1 * cut.share),
            epochs=min(pace.most, max(pace.epochs, math.ceil(pace.steps / steps))),
            seed=wish.seed,
            edge_model=self._aids.edge_model,
            augment=self._aids.augment,
            copies=pace.copies,
            coded=pace.coded if len(self._found.data.training) >= _MANY else 1.0,
            leakage_weight=wish.leakage_aware,
            threads=wish.threads,
        )

    def _train_modules(self, teaching: DistillationConfig, cut: Cut) -> TrainedModules:
        """Train encoder, decoder, tail and early exit; a killed training goes on at its checkpoint."""
        self._timed("teaching", 0.0)
        pieces = train_modules(
            self._found.traced, self._found.data, cut, teaching, lambda _, share: self._timed("teaching", share)
        )
        self._timed("teaching", 1.0)
        return pieces

    def _build_edge(self, key: str, pieces: TrainedModules, codes_kept: ScoreFunction) -> EdgeResult:
        """Export the device's half, compare its precisions and return the graph that ships, or the cached result.

        `codes_kept`: share of the gain that the hub keeps by a graph's codes. Where nothing was timed the shipped graph
        is timed alone, on this machine's processor.
        """
        kept = self._cache.find_stage("edge", key)
        if kept:
            facts = msgspec.json.decode(kept["edge.json"], type=_EdgeRecord)
            return EdgeResult(kept["edge.onnx"], facts.precision, facts.p50_us, facts.candidates, facts.work)
        self._timed("exporting", 0.0)
        model = export_edge_graph(
            build_edge_module(pieces), self._found.spec, edge_output_names(pieces, name_field(pieces.sent))
        )
        self._timed("exporting", 1.0)
        self._timed("quantising", 0.0)
        x = self._found.data.training.x[0]
        compared = build_candidates(model, x[:_SHOWN], self._profile, codes_kept)
        self._timed("quantising", 0.7)
        choice = self._apply_precision(choose_precision(compared, self._score_graph))
        speed = choice.shipped.p50_us
        edge = EdgeResult(
            choice.shipped.graph,
            choice.shipped.precision,
            measure_p50_us(choice.shipped.graph, x[:1]) if math.isnan(speed) else speed,
            tuple(_summarise_candidate(candidate, choice) for candidate in choice.candidates),
            measure_device_work(choice.shipped.graph, self._found.traced, self._found.spec, x[:1]),
        )
        told = msgspec.json.encode(_EdgeRecord(edge.precision, edge.p50_us, edge.candidates, edge.work))
        self._cache.store_stage("edge", key, {"edge.onnx": edge.graph, "edge.json": told})
        self._timed("quantising", 1.0)
        return edge

    def _apply_precision(self, choice: PrecisionChoice) -> PrecisionChoice:
        """The chosen precision, or the one that was requested. Raises ForgeError if that one cannot be made."""
        wanted = self._wish.precision
        for candidate in choice.candidates:
            if candidate.precision == wanted and candidate.fault:
                raise ForgeError(f"--precision {wanted}: {candidate.fault}; leave it out")
            if candidate.precision == wanted:
                return choice._replace(shipped=candidate)
        return choice

    def _score_graph(self, graph: bytes) -> float:
        """Score of an edge graph on the calibration part: accuracy of its early exit, or minus its RMSE.

        The RMSE is in standard deviations of the targets, so that one limit serves every scale.
        """
        part = self._found.data.calibration
        logits = run_edge_graph(graph, part.x[0]).logits
        if self._found.data.labels:
            kept = part.y != OUT_OF_SCOPE
            return float((logits[kept].argmax(1) == part.y[kept]).mean())
        return -float(np.sqrt(np.mean((logits[:, 0] - part.y) ** 2)) / max(float(part.y.std()), 1e-9))

    def _tune_hub(self, key: str, judge: ShippedJudge, seen: EdgeAnswers, aim: LossConfig) -> None:
        """Tune decoder and tail on the codes that the shipped graph makes, or load their cached weights."""
        modules = nn.ModuleDict({"decoder": judge.path.decoder, "tail": judge.path.tail})
        kept = self._cache.find_stage("tail", key)
        if kept:
            modules.load_state_dict(safetensors.torch.load(kept["tail.safetensors"]))
            return
        self._timed("tuning", 0.0)
        plan = TuningPlan(self._pace.rounds, self._pace.tuned, self._aids.augment)
        course = HubTuningConfig(aim, epochs=self._pace.tuning, seed=self._wish.seed, bf16=True)
        ShippedTuner(self._found, judge, plan, course).run(seen, lambda share: self._timed("tuning", share))
        self._cache.store_stage("tail", key, {"tail.safetensors": safetensors.torch.save(copy_state(modules))})
        self._timed("tuning", 1.0)

    def _evaluate(
        self, key: str, cut: Cut, pieces: TrainedModules, edge: EdgeResult, sending: FeaturePayload
    ) -> ForgedBundle:
        """Evaluate the pair, attack its codes and collect everything that the bundle and its report need."""
        self._timed("judging", 0.0)
        data, tail = self._found.data, build_tail_module(pieces)
        parts = (data.calibration, data.heldout)
        chosen_on, measured_on = answered = tuple(self._collect_answers(part, edge, tail, sending) for part in parts)
        judged = evaluate_pair(chosen_on, measured_on, self._wish, self._aids.corrupted, regressor=not data.labels)
        self._timed("judging", 1.0)
        leaked = self._measure_leakage(key, AttackTarget(cut, sending.feature, sending.leaving.chosen.name, answered))
        payload_bytes = sending.leaving.chosen.payload_bytes
        return ForgedBundle(
            cut=cut,
            tail=tail,
            edge=edge,
            feature=sending.feature,
            leaving=sending.leaving,
            chosen_on=chosen_on,
            measured_on=measured_on,
            judged=judged,
            leaked=leaked,
            profile=self._profile,
            shipped=BundleCost(
                payload_bytes,
                sending.leaving.chosen.question_bytes + ENVELOPE_BYTES,
                edge.p50_us / 1e3,
                judged.lost_calibration,
                leaked.upper95,
                edge.work.share,
            ),
        )

    def _measure_leakage(self, key: str, sent: AttackTarget) -> LeakageMeasurement:
        """Leakage of the shipped codes, from the cache if the same codec was attacked with the same effort before."""
        key = digest_parts(key, sent.codec, self._wish.effort)
        kept = self._cache.find_stage("leakage", key)
        if kept:
            return decode_measurement(kept)
        folder = self._cache.scratch_folder("attacks", key)
        measured = attack_codes(self._found, sent, self._wish.effort, self._timed, folder)
        self._cache.store_stage("leakage", key, encode_measurement(measured))
        return measured

    def _collect_answers(
        self, part: DataPart, edge: EdgeResult, tail: nn.Module, sending: FeaturePayload
    ) -> PartAnswers:
        """Answers of both halves to one part, with codes as they arrive through the codec."""
        found = run_edge_graph(edge.graph, part.x[0])
        found = found._replace(codes=sending.deliver(found.codes))
        asked = predict_batches(tail, found.codes.astype(np.float32)).numpy()
        return PartAnswers(part, found, HubAnswers(asked, predict_batches(self._found.traced.gm, part.x[0]).numpy()))


def _score_edge_codes(found: PathChoice, graph: bytes) -> float:
    """Share of the gain that the chosen path's hub half keeps by the codes of an edge graph, before any codec."""
    return score_codes(found.judge, found.path, run_edge_graph(graph, found.judge.x).codes)


def _select_profile(wish: ForgeSpec) -> TargetProfile:
    """The target's device profile; with a requested precision, reduced to that and float32.

    Raises ForgeError for an unknown target or precision.
    """
    profile = find_profile(wish.target)
    if not wish.precision:
        return profile
    kept = tuple(p for p in Precision if p is Precision.FLOAT32 or p == wish.precision)
    if len(kept) < 2 and wish.precision != Precision.FLOAT32:
        raise ForgeError(f"--precision {wish.precision}: there are {', '.join(Precision)}")
    return profile._replace(precisions=kept)


class _EdgeRecord(msgspec.Struct, frozen=True):
    """What the cache keeps of an exported edge graph, beside the graph."""

    precision: str
    p50_us: float
    candidates: tuple[CandidateSummary, ...]
    work: DeviceWork


def _summarise_candidate(candidate: PrecisionCandidate, choice: PrecisionChoice) -> CandidateSummary:
    """A candidate's row for the report: rounded figures, None for what was not measured, and why it does not ship."""
    why = next((d.reason for d in choice.dropped if d.precision == candidate.precision), "")
    return CandidateSummary(
        candidate.precision,
        candidate.size_bytes,
        None if math.isnan(candidate.p50_us) else round(candidate.p50_us, 2),
        candidate.rss_bytes,
        None if math.isnan(candidate.accuracy) else round(candidate.accuracy, 5),
        why if candidate.precision != choice.shipped.precision else "",
        candidate.busy,
    )


def _training_fields(teaching: DistillationConfig) -> dict[str, Any]:
    """The fields that decide the result of a training, without the modules themselves."""
    plain = teaching._asdict()
    return {name: plain[name] for name in plain if name not in {"entry", "edge_model", "augment", "folder"}}


def _digest_inputs(aids: ForgeInputs) -> list[str]:
    """Digests of what a user adds: the weights of a small model, the code of an augmentation."""
    found = []
    if aids.edge_model is not None:
        state = (value.detach().cpu().contiguous().numpy().tobytes() for value in aids.edge_model.state_dict().values())
        found.append(digest_parts(repr(aids.edge_model), *state))
    if aids.augment is not None:
        code = getattr(aids.augment, "__code__", None)
        found.append(
            digest_parts(repr(type(aids.augment)), code.co_code if code else b"", repr(code.co_consts) if code else "")
        )
    return found
