"""Validation of questions: whether one fits the model it names, and whether its policy allows it to come here. Pure.

The hub evaluates the policy again with what it knows itself. Rule: a device's own claim counts only where it narrows:
the rules it names apply, and so do those that certainly apply by the registry's facts about it. A policy of which a
layer is missing here is evaluated by the layers that are here, since a layer can only narrow. Only what
administrators gave this hub makes a policy version too old; no question does.
"""

import math
import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from cloud_hub.core.commands import Tombstone
from cloud_hub.engine.types import ModelCard, WorkItem
from cloud_hub.registry.orders import DenyNotice, Orders
from models.bundle.manifest import TEXT_FIELD
from models.runtime.chain import digest_sent_chain
from models.runtime.feature_codec import NUMPY_DTYPES, CodecError, FeatureCodec, build_codec
from models.runtime.runner import SampleError
from models.runtime.text import decode_text
from policies.decisions import leakage
from policies.decisions.egress import DERIVED_FIELDS, find_highest_level
from policies.decisions.leakage import LeakageCache
from policies.decisions.permit import recheck_question
from policies.decisions.routing import HubSite
from policies.model.composition import compose_layers, hash_documents
from policies.model.context import DecisionContext
from policies.model.policy import HARD_CEILING_LEVEL, CompiledLayer, Policy, Terms
from policies.model.reasons import Denied
from policies.model.terms import list_certain_rules, resolve_terms_for
from wire.protocol.messages import Escalation, FieldSpec, ModelRef, RefusalReason, SensitivityLevel, Tensor, TensorDType
from wire.protocol.sealing import SUBJECT_BYTES, hash_subject_mark
from wire.protocol.topics import extract_tenant

DAY_S = 86_400.0
DEFAULT_KEEP_DAYS = 7  # retention of a question whose policy sets none
_HASH = re.compile(r"[0-9a-f]{32}")
_PARTLY = 1024  # bound of the cache of policies composed without all of their layers


class DeviceFacts(msgspec.Struct, frozen=True):
    """Registry facts about the device that sent a question; "" = unknown."""

    device: str
    device_class: str = ""
    region: str = ""


class SentFields(msgspec.Struct, frozen=True):
    """Wire schema of a model: its fields as sent, their highest sensitivity level, and its measured leakage."""

    schema: tuple[FieldSpec, ...]
    level: SensitivityLevel
    clearance: LeakageCache


class PolicyRecheck:
    """The policies whose questions this hub serves, and the check of a question against them.

    `hashes`: policies that are served, empty = any. `policies`: those of them that the hub has in full and evaluates
    again. `orders`: deny notices and the minimum versions of policies.
    """

    def __init__(self, site: HubSite, hashes: frozenset[str], policies: Iterable[Policy], orders: Orders) -> None:
        self._site = site
        self._any = not hashes
        self._hashes = frozenset(filter(_HASH.fullmatch, hashes))  # a question can name nothing else
        self._orders = orders
        self._policies: dict[str, Policy] = {}
        self._parts: dict[str, CompiledLayer] = {}
        self._partly: dict[tuple[str, ...], Policy] = {}
        self.add_policies(policies)

    def add_policies(self, policies: Iterable[Policy]) -> None:
        """Serve these policies too; a version below the highest floor that any of them sets is refused from now on."""
        for policy in policies:
            self._policies[policy.hash] = policy
            self._parts |= {part.hash: part for part in policy.layers}
        self._orders.learn_documents(self._parts.values())
        self._partly.clear()

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The policies that the hub has in full, the first served first."""
        return tuple(self._policies.values())

    def replace_policies(self, policies: Iterable[Policy]) -> None:
        """Serve these policies instead: questions under the replaced ones are refused as too old."""
        self._policies, self._parts, self._any = {}, {}, False
        self.add_policies(policies)
        self._hashes = frozenset(self._policies)

    def check_question(
        self, question: Escalation, facts: DeviceFacts, of: SentFields, now: float
    ) -> int | RefusalReason:
        """Days for which data of the question may be kept here, or the reason to refuse it.

        `of`: schema and leakage of its model; `now` in hub seconds. The policy, the region, deny notices and the
        permit are checked, each by what the hub knows.
        """
        policy = self._find_policy(question) if question.region == self._site.region else RefusalReason.POLICY
        if isinstance(policy, RefusalReason):
            return policy
        notice = self._orders.notice_for(facts.device)
        if notice and (policy is None or policy.clears_notice < notice.counter):
            return RefusalReason.POLICY_OLD  # only a policy that we have in full can lift a notice
        return question.keep_days if policy is None else self._check_terms(policy, question, facts, of, now)

    def _check_terms(
        self, policy: Policy, question: Escalation, facts: DeviceFacts, of: SentFields, now: float
    ) -> int | RefusalReason:
        """Check a question under a policy that is here: data class and permit.

        Returns the days of retention, or the refusal.
        """
        terms = self._compute_terms(policy, question, facts, of)
        if isinstance(terms, Denied) or terms.data_classes.get(question.data_class) is not True:
            return RefusalReason.POLICY
        if recheck_question(
            terms, of.schema, question, site=self._site, day=int(now // DAY_S), cleared=of.clearance.finding_for(terms)
        ):
            return RefusalReason.POLICY
        return min(question.keep_days, terms.retention.keep_days if terms.retention else DEFAULT_KEEP_DAYS)

    def _find_policy(self, question: Escalation) -> Policy | RefusalReason | None:
        """The policy that a question names, as far as it is here; None if any is served.

        A layer below its floor is too old.
        """
        policy = self._policies.get(question.policy) or self._compose_layers(question)
        hashes = [part.hash for part in policy.layers] if policy else [question.policy]
        if any(map(self._orders.is_old, (*hashes, *question.layers))):
            return RefusalReason.POLICY_OLD
        if policy is None and not self._any and question.policy not in self._hashes:
            return RefusalReason.POLICY
        return policy

    def _compose_layers(self, question: Escalation) -> Policy | None:
        """The policy composed of those layers that are here, or None.

        None too if the hash does not match the layers named.
        """
        layers = question.layers
        if not layers or hash_documents(layers) != question.policy:
            return None
        if layers not in self._partly and any(layer in self._parts for layer in layers):
            if len(self._partly) >= _PARTLY:
                self._partly.clear()
            self._partly[layers] = compose_layers(tuple(self._parts[layer] for layer in layers if layer in self._parts))
        return self._partly.get(layers)

    def _compute_terms(
        self, policy: Policy, question: Escalation, facts: DeviceFacts, of: SentFields
    ) -> Terms | Denied:
        tenant = extract_tenant(facts.device)
        known = DecisionContext(question.data_class, facts.device_class, facts.region, tenant, level=of.level)
        return resolve_terms_for(policy, {*_named_rules(policy, question), *list_certain_rules(policy, known)})


def _named_rules(policy: Policy, question: Escalation) -> set[str]:
    """Names of the rules a device claims, without those of layers that are missing here. An unknown name denies."""
    named = set(filter(None, question.rule.split("+")))
    if len(policy.layers) == len(question.layers) or not question.layers:
        return named
    ours = {part.name: part for part in policy.layers}
    mine = {rule for rule in named if rule.partition("/")[0] in ours}
    return mine if len(ours) > 1 else {rule.partition("/")[2] for rule in mine}


MAX_KEEP_DAYS = 366


class ValidatedQuestion(msgspec.Struct, frozen=True, eq=False):
    """A validated question: its decoded work, and for how many days data of it may be kept here."""

    work: WorkItem
    keep_days: int


class QuestionValidator:
    """Validates questions against the models served and the policies accepted.

    The result is `ValidatedQuestion` or a `RefusalReason`. Also remembers erasures, so that an erased question is not
    accepted again. CodecError if a card's codec cannot be opened.
    """

    def __init__(self, cards: tuple[ModelCard, ...], book: PolicyRecheck, orders: Orders) -> None:
        self.book = book
        self._orders = orders
        self._cards: dict[ModelRef, ModelCard] = {}
        self._codecs: dict[ModelRef, FeatureCodec] = {}
        self._travelling: dict[ModelRef, SentFields] = {}
        self._names: dict[ModelRef, frozenset[str]] = {}  # of the features
        self._decodable: dict[ModelRef, bool] = {}  # no feature is above what may ever leave
        self._erased: dict[bytes, int] = {}
        for card in cards:
            self.add_model(card)

    def add_model(self, card: ModelCard) -> None:
        """Serve one more model. CodecError if its codec cannot be opened."""
        codec = self._codecs[card.ref] = build_codec(card.ref.codec, card.features, card.tables)
        clearance = leakage.LeakageCache(card.features, _leakage_evidence(card))
        self._travelling[card.ref] = SentFields(
            _build_wire_schema(card, codec), find_highest_level(card.features), clearance
        )
        self._names[card.ref] = frozenset(spec.name for spec in card.features)
        self._decodable[card.ref] = all(spec.level <= HARD_CEILING_LEVEL for spec in card.features)
        self._cards[card.ref] = card

    def remove_model(self, ref: ModelRef) -> None:
        """Stop serving a model."""
        self._cards.pop(ref, None)

    def served_name(self, ref: ModelRef) -> str | None:
        """Name of the served model, as `digits@7`, if exactly the tail of this head is served; else None."""
        card = self._cards.get(ref)
        return card.name if card else None

    def notice_for(self, device: str) -> DenyNotice | None:
        """The latest deny notice that covers this device, or None."""
        return self._orders.notice_for(device)

    def remember_erasure(self, stone: Tombstone) -> None:
        """Remember an erasure: questions about its subject created up to its time are refused."""
        self._erased[stone.mark] = max(stone.before_ms, self._erased.get(stone.mark, 0))

    def is_erased(self, device: str, subject: bytes, created_ms: int) -> bool:
        """Whether a question created then (ms, device time) about this subject was erased."""
        if not subject or not self._erased:
            return False
        return created_ms <= self._erased.get(hash_subject_mark(device, subject), -1)

    def validate_question(
        self, question: Escalation, facts: DeviceFacts, now: float
    ) -> ValidatedQuestion | RefusalReason:
        """Validate a question: limits, model, policy, then its tensors.

        `facts`: of the sender, by certificate, signature and registry. Returns the decoded work or the reason to
        refuse.
        """
        if not 0 < question.keep_days <= MAX_KEEP_DAYS or len(question.subject) not in (0, SUBJECT_BYTES):
            return RefusalReason.SCHEMA
        card = self._cards.get(question.model)
        if card is None:
            return RefusalReason.MODEL_GONE
        keep_days = self.book.check_question(question, facts, self._travelling[card.ref], now)
        if isinstance(keep_days, RefusalReason):
            return keep_days
        work = self._decode_one(question, card)
        return work if isinstance(work, RefusalReason) else ValidatedQuestion(work, keep_days)

    def decode_questions(self, questions: Sequence[Escalation]) -> list[WorkItem | RefusalReason]:
        """Decode the tensors of questions that were validated when they were accepted, those of one model together."""
        found: list[WorkItem | RefusalReason] = [RefusalReason.MODEL_GONE] * len(questions)
        places: dict[ModelRef, list[int]] = {}
        for place, question in enumerate(questions):
            if question.model in self._cards:
                places.setdefault(question.model, []).append(place)
        for ref, own in places.items():
            for place, work in zip(
                own, self._decode_fields([questions[i] for i in own], self._cards[ref]), strict=True
            ):
                found[place] = work
        return found

    def _decode_one(self, question: Escalation, card: ModelCard) -> WorkItem | RefusalReason:
        """Decode one question, exactly as strictly as `_decode_fields` and at half its cost."""
        if not self._decodable[card.ref] or not _fields_fit(question, self._names[card.ref]):
            return RefusalReason.SCHEMA
        codec = self._codecs[card.ref]
        try:
            fields = {spec.name: codec.decode(spec.name, question.fields[spec.name]) for spec in card.features}
        except CodecError:
            return RefusalReason.SCHEMA
        return WorkItem(fields) if _text_fits(fields, card) else RefusalReason.SCHEMA

    def _decode_fields(self, questions: Sequence[Escalation], card: ModelCard) -> list[WorkItem | RefusalReason]:
        """Decode questions of one model; RefusalReason.SCHEMA in the place of each that is malformed."""
        names = self._names[card.ref]
        sound = [place for place, question in enumerate(questions) if _fields_fit(question, names)]
        if not self._decodable[card.ref]:
            sound = []
        codes: dict[int, dict[str, npt.NDArray[np.uint8]]] = {place: {} for place in sound}
        for spec in card.features:
            left = list(codes)
            tensors = [questions[place].fields[spec.name] for place in left]
            batch = self._codecs[card.ref].decode_batch(spec.name, tensors)
            for row, place in enumerate(left):
                if row in batch.faults:
                    del codes[place]
                else:
                    codes[place][spec.name] = batch.codes[row]
        for place in [place for place, fields in codes.items() if not _text_fits(fields, card)]:
            del codes[place]
        return [WorkItem(codes[place]) if place in codes else RefusalReason.SCHEMA for place in range(len(questions))]


def _text_fits(fields: dict[str, npt.NDArray[np.uint8]], card: ModelCard) -> bool:
    """Whether what shall be a text is one."""
    try:
        return all(spec.category != TEXT_FIELD or decode_text(fields[spec.name]) for spec in card.features)
    except SampleError:
        return False


def _fields_fit(question: Escalation, features: AbstractSet[str]) -> bool:
    """Whether a question has all features of its model, and beside them nothing but derived fields that fit."""
    others = [(name, tensor) for name, tensor in question.fields.items() if name not in features]
    return features <= question.fields.keys() and all(
        name in _DERIVED and _fits_derived_field(_DERIVED[name], tensor) for name, tensor in others
    )


_DERIVED = {spec.name: spec for spec in DERIVED_FIELDS}


def _fits_derived_field(spec: FieldSpec, tensor: Tensor) -> bool:
    """Whether a derived (uncoded) field has the type, shape and size of its specification."""
    size = math.prod(spec.shape) * NUMPY_DTYPES[spec.dtype].itemsize
    return (tensor.dtype, tensor.shape, len(tensor.data)) == (spec.dtype, spec.shape, size)


def _leakage_evidence(card: ModelCard) -> leakage.LeakageEvidence:
    return leakage.LeakageEvidence(card.leakage, partial(digest_sent_chain, card.ref.cut, card.ref.codec))


def _build_wire_schema(card: ModelCard, codec: FeatureCodec) -> tuple[FieldSpec, ...]:
    """The wire schema: features in packed form, as `Tensor`s carry them, and the derived fields."""
    packed = tuple(
        FieldSpec(
            f.name,
            TensorDType.UINT8,
            (codec.payload_bytes(f.name),),
            low=f.low,
            high=f.high,
            level=f.level,
            category=f.category,
        )
        for f in card.features
    )
    return packed + DERIVED_FIELDS
