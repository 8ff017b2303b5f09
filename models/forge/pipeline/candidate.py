"""Candidate build: one cut trained, exported, quantised, retuned on its own codes, evaluated and attacked.

Rule: every stage that takes long is cached under the digest of what decides it; nothing is measured on what will not
ship.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import safetensors.torch
from torch import nn

from models.forge.cache import Cache, digest
from models.forge.data.types import OUT_OF_SCOPE, ForgeError, Part
from models.forge.evaluation.metrics import Answered, judge
from models.forge.evaluation.shipped import HubAnswers, edge_answers
from models.forge.export.benchmark import p50_us
from models.forge.export.codec_choice import Leaving, choose_codec, travelled
from models.forge.export.manifest import FEATURE, field_specs
from models.forge.export.onnx import export_edge
from models.forge.export.quantise import Candidate, Choice, candidates, choose
from models.forge.export.targets import Precision, Profile, profile_named
from models.forge.leakage.forged_codes import Sent, attack, decode_measured, encode_measured
from models.forge.leakage.measure import Measured
from models.forge.partition.cuts import Cut, Given
from models.forge.partition.select import Shipped
from models.forge.report.result import Candid, Edge, Made
from models.forge.spec import Aids, Effort, Wish
from models.forge.training.distillation import Teaching, aim_of, teach
from models.forge.training.losses import Aim
from models.forge.training.modules import Pieces, Retuning, Shown, edge_module, edge_outputs, retune, tail_module
from models.forge.training.teacher import ask
from wire.protocol.messages import FieldSpec, ModelRef

Timed = Callable[[str, float], None]
PAYLOAD_BYTES = 64  # of codes, if no limit is given: one step of padding
_HEAD_SHARE = 0.10
_SHOWN = 512  # samples from which the quantiser takes the range of every activation
_MOST_TUNED = 60_000


class Pace(NamedTuple):
    """Length of training for one effort.

    `epochs`, `steps`: trained at least so long, but not for more epochs than `most`. `copies`: augmented copies of the
    training set; `tuning`: epochs of retuning on the shipped codes.
    """

    epochs: int
    steps: int
    most: int
    copies: int
    tuning: int


PACES = {
    Effort.QUICK: Pace(3, 260, 30, 1, 1),
    Effort.NORMAL: Pace(12, 3000, 60, 4, 3),
    Effort.THOROUGH: Pace(30, 9000, 150, 8, 4),
}


class Sending(NamedTuple):
    """The feature that travels to the hub, and the codec that makes its codes bytes."""

    feature: FieldSpec
    leaving: Leaving


class Attempt:
    """Builds everything a bundle needs for one cut after another of the same model.

    `timed(stage, share)` is called as the stages go on.
    """

    def __init__(self, found: Given, wish: Wish, aids: Aids, cache: Cache, timed: Timed) -> None:
        self._found, self._wish, self._aids, self._cache, self._timed = found, wish, aids, cache, timed
        self._pace = PACES[wish.effort]
        self._profile = _profile(wish)

    def make(self, cut: Cut) -> Made:
        """Train, export, quantise, retune, evaluate and attack one cut. Raises ForgeError if a stage cannot be done."""
        teaching = self._teaching(cut)
        key = digest(self._found.key, cut.name, _facts(teaching), _source(self._aids))
        pieces = self._taught(teaching._replace(folder=self._cache.scratch("teach", key)), cut)
        (feature,) = field_specs([pieces.codebook.shape], pieces.codebook.levels)
        key = digest(key, self._wish.target, self._wish.precision)
        edge = self._edge(key, pieces)
        codes = edge_answers(edge.graph, self._found.data.training.x[0][:_MOST_TUNED], FEATURE).codes
        self._tuned(key, pieces, codes, aim_of(self._found.data, teaching))
        ref = ModelRef(self._wish.name, self._wish.version, cut.name, "")
        leaving = choose_codec((feature,), codes, ref, edge.p50_us)
        return self._finished(key, cut, pieces, edge, Sending(feature, leaving))

    def _teaching(self, cut: Cut) -> Teaching:
        """Training settings for a cut, from the limits and the effort.

        At least so many epochs and optimiser steps as the effort's budget says, bounded in epochs.
        """
        wish, pace = self._wish, self._pace
        steps = max(1, len(self._found.data.training) // Teaching().batch)
        return Teaching(
            max_bytes=wish.max_bytes or PAYLOAD_BYTES,
            head_share=max(_HEAD_SHARE, 1.1 * cut.share),
            epochs=min(pace.most, max(pace.epochs, math.ceil(pace.steps / steps))),
            seed=wish.seed,
            edge_model=self._aids.edge_model,
            augment=self._aids.augment,
            copies=pace.copies,
            threads=wish.threads,
        )

    def _taught(self, teaching: Teaching, cut: Cut) -> Pieces:
        """Train encoder, decoder, tail and early exit; a killed training goes on at its checkpoint."""
        self._timed("teaching", 0.0)
        pieces = teach(
            self._found.traced, self._found.data, cut, teaching, lambda _, share: self._timed("teaching", share)
        )
        self._timed("teaching", 1.0)
        return pieces

    def _edge(self, key: str, pieces: Pieces) -> Edge:
        """Export the device's half, compare its precisions and return the graph that ships, or the cached result.

        Where nothing was timed the shipped graph is timed alone, on this machine's processor.
        """
        kept = self._cache.find("edge", key)
        if kept:
            facts = msgspec.json.decode(kept["edge.json"], type=_EdgeFacts)
            return Edge(kept["edge.onnx"], facts.precision, facts.p50_us, facts.candidates)
        self._timed("exporting", 0.0)
        model = export_edge(edge_module(pieces), self._found.spec, edge_outputs(pieces, FEATURE))
        self._timed("exporting", 1.0)
        self._timed("quantising", 0.0)
        x = self._found.data.training.x[0]
        compared = candidates(model, x[:_SHOWN], self._profile)
        self._timed("quantising", 0.7)
        choice = self._pinned(choose(compared, self._score))
        speed = choice.shipped.p50_us
        edge = Edge(
            choice.shipped.graph,
            choice.shipped.precision,
            p50_us(choice.shipped.graph, x[:1]) if math.isnan(speed) else speed,
            tuple(_candid(candidate, choice) for candidate in choice.candidates),
        )
        told = msgspec.json.encode(_EdgeFacts(edge.precision, edge.p50_us, edge.candidates))
        self._cache.keep("edge", key, {"edge.onnx": edge.graph, "edge.json": told})
        self._timed("quantising", 1.0)
        return edge

    def _pinned(self, choice: Choice) -> Choice:
        """The chosen precision, or the one that was requested. Raises ForgeError if that one cannot be made."""
        wanted = self._wish.precision
        for candidate in choice.candidates:
            if candidate.precision == wanted and candidate.fault:
                raise ForgeError(f"--precision {wanted}: {candidate.fault}; leave it out")
            if candidate.precision == wanted:
                return choice._replace(shipped=candidate)
        return choice

    def _score(self, graph: bytes) -> float:
        """Score of an edge graph on the calibration part: accuracy of its early exit, or minus its RMSE.

        The RMSE is in standard deviations of the targets, so that one limit serves every scale.
        """
        part = self._found.data.calibration
        logits = edge_answers(graph, part.x[0], FEATURE).logits
        if self._found.data.labels:
            kept = part.y != OUT_OF_SCOPE
            return float((logits[kept].argmax(1) == part.y[kept]).mean())
        return -float(np.sqrt(np.mean((logits[:, 0] - part.y) ** 2)) / max(float(part.y.std()), 1e-9))

    def _tuned(self, key: str, pieces: Pieces, codes: Any, aim: Aim) -> None:
        """Retune decoder and tail on the codes that the shipped graph really makes, or load their cached weights.

        Int8 arithmetic moves some codes by one level; the hub's half learns to read them.
        """
        modules = nn.ModuleDict({"decoder": pieces.decoder, "tail": pieces.tail})
        kept = self._cache.find("tail", key)
        if kept:
            modules.load_state_dict(safetensors.torch.load(kept["tail.safetensors"]))
            return
        self._timed("tuning", 0.0)
        part = self._found.data.training
        answers = ask(self._found.traced.gm, part.x[0][:_MOST_TUNED]).numpy()
        course = Retuning(aim, epochs=self._pace.tuning, seed=self._wish.seed)
        shown = Shown(codes, answers, part.y[:_MOST_TUNED])
        retune(pieces, shown, course, lambda share: self._timed("tuning", share))
        state = {name: value.detach().clone().contiguous() for name, value in modules.state_dict().items()}
        self._cache.keep("tail", key, {"tail.safetensors": safetensors.torch.save(state)})

    def _finished(self, key: str, cut: Cut, pieces: Pieces, edge: Edge, sending: Sending) -> Made:
        """Evaluate the pair, attack its codes and collect everything that the bundle and its report need."""
        self._timed("judging", 0.0)
        data, tail = self._found.data, tail_module(pieces)
        parts = (data.calibration, data.heldout)
        chosen_on, measured_on = answered = tuple(self._answered(part, edge, tail, sending) for part in parts)
        judged = judge(chosen_on, measured_on, self._wish, self._aids.corrupted, regressor=not data.labels)
        self._timed("judging", 1.0)
        leaked = self._attacked(key, Sent(cut, sending.feature, sending.leaving.chosen.name, answered))
        payload_bytes = sending.leaving.chosen.payload_bytes
        return Made(
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
            shipped=Shipped(payload_bytes, edge.p50_us / 1e3, judged.lost, leaked.upper95),
        )

    def _attacked(self, key: str, sent: Sent) -> Measured:
        """Leakage of the shipped codes, from the cache if the same codec was attacked with the same effort before."""
        key = digest(key, sent.codec, self._wish.effort)
        kept = self._cache.find("leakage", key)
        if kept:
            return decode_measured(kept)
        measured = attack(self._found, sent, self._wish.effort, self._timed)
        self._cache.keep("leakage", key, encode_measured(measured))
        return measured

    def _answered(self, part: Part, edge: Edge, tail: nn.Module, sending: Sending) -> Answered:
        """Answers of both halves to one part, with codes as they arrive through the codec."""
        found = edge_answers(edge.graph, part.x[0], FEATURE)
        found = found._replace(codes=travelled(sending.leaving.chosen, sending.feature, found.codes))
        asked = ask(tail, found.codes.astype(np.float32)).numpy()
        return Answered(part, found, HubAnswers(asked, ask(self._found.traced.gm, part.x[0]).numpy()))


def _profile(wish: Wish) -> Profile:
    """The target's device profile; with a requested precision, reduced to that and float32.

    Raises ForgeError for an unknown target or precision.
    """
    profile = profile_named(wish.target)
    if not wish.precision:
        return profile
    kept = tuple(p for p in Precision if p is Precision.FLOAT32 or p == wish.precision)
    if len(kept) < 2 and wish.precision != Precision.FLOAT32:
        raise ForgeError(f"--precision {wish.precision}: there are {', '.join(Precision)}")
    return profile._replace(precisions=kept)


class _EdgeFacts(msgspec.Struct, frozen=True):
    """What the cache keeps of an exported edge graph, beside the graph."""

    precision: str
    p50_us: float
    candidates: tuple[Candid, ...]


def _candid(candidate: Candidate, choice: Choice) -> Candid:
    """A candidate's row for the report: rounded figures, None for what was not measured, and why it does not ship."""
    why = next((d.reason for d in choice.dropped if d.precision == candidate.precision), "")
    return Candid(
        candidate.precision,
        candidate.size_bytes,
        None if math.isnan(candidate.p50_us) else round(candidate.p50_us, 2),
        candidate.rss_bytes,
        None if math.isnan(candidate.accuracy) else round(candidate.accuracy, 5),
        why if candidate.precision != choice.shipped.precision else "",
    )


def _facts(teaching: Teaching) -> dict[str, Any]:
    """The fields that decide the result of a training, without the modules themselves."""
    plain = teaching._asdict()
    return {name: plain[name] for name in plain if name not in {"entry", "edge_model", "augment", "folder"}}


def _source(aids: Aids) -> list[str]:
    """Digests of what a user adds: the weights of a small model, the code of an augmentation."""
    found = []
    if aids.edge_model is not None:
        state = (value.detach().cpu().contiguous().numpy().tobytes() for value in aids.edge_model.state_dict().values())
        found.append(digest(repr(aids.edge_model), *state))
    if aids.augment is not None:
        code = getattr(aids.augment, "__code__", None)
        found.append(
            digest(repr(type(aids.augment)), code.co_code if code else b"", repr(code.co_consts) if code else "")
        )
    return found
