"""Does a question fit the model and the policy it names? Pure; nothing is stored for a question that does not.

Does the policy that a question names let it come here? Judged again by what the hub knows itself. Pure.

Law: the device's word counts only where it narrows: the rules it names apply, and so do those that surely do by what
our registry says of it. A policy of which we lack a layer is judged by the layers we have: a layer can only narrow.
Only what people gave this hub makes a version too old; no question does.
"""

import math
import re
from collections.abc import Iterable
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from cloud_hub.core.commands import Tombstone
from cloud_hub.engine.types import ModelCard, Work
from cloud_hub.registry.orders import Notice, Orders
from models.runtime.chain import digest
from models.runtime.codec import NUMPY_DTYPES, CodecError, FeatureCodec, codec_of
from policies.decisions import leakage
from policies.decisions.egress import DERIVED, level_of
from policies.decisions.leakage import Clearance
from policies.decisions.permit import recheck
from policies.decisions.routing import HubSite
from policies.language.document import composed, hash_of
from policies.model.context import Context
from policies.model.policy import HARD_CEILING, Part, Policy, Terms
from policies.model.reasons import Denied
from policies.model.terms import surely, terms_for
from wire.protocol.messages import DType, Escalation, FieldSpec, Level, ModelRef, Reason, Tensor
from wire.protocol.sealing import SUBJECT_BYTES, mark_of
from wire.protocol.topics import tenant_of

DAY_S = 86_400.0
KEEP_DAYS = 7  # of a question whose policy says nothing of it
_HASH = re.compile(r"[0-9a-f]{32}")
_PARTLY = 1024  # compositions of which a layer is missing here that are remembered


class Facts(msgspec.Struct, frozen=True):
    """Of the device that asks, by our own registry; "" = not known."""

    device: str
    device_class: str = ""
    region: str = ""


class Travelling(msgspec.Struct, frozen=True):
    """Of the model that a question names: its fields as they travel, their highest label, what was measured of it."""

    schema: tuple[FieldSpec, ...]
    level: Level
    clearance: Clearance


class Rulebook:
    """`hashes`: policies whose questions are served, empty = any; `policies`: those of them that we have in full."""

    def __init__(self, site: HubSite, hashes: frozenset[str], policies: Iterable[Policy], orders: Orders) -> None:
        self._site = site
        self._any = not hashes
        self._hashes = frozenset(filter(_HASH.fullmatch, hashes))  # what is no hash, no question can name
        self._orders = orders
        self._policies: dict[str, Policy] = {}
        self._parts: dict[str, Part] = {}
        self._partly: dict[tuple[str, ...], Policy] = {}
        self.accept(policies)

    def accept(self, policies: Iterable[Policy]) -> None:
        """Serve these too, and from now on none older than the oldest of each name that is served."""
        for policy in policies:
            self._policies[policy.hash] = policy
            self._parts |= {part.hash: part for part in policy.layers}
        self._orders.learn(self._parts.values())
        self._partly.clear()

    def replace(self, policies: Iterable[Policy]) -> None:
        """Serve these instead: what they replace is too old from now on."""
        self._policies, self._parts, self._any = {}, {}, False
        self.accept(policies)
        self._hashes = frozenset(self._policies)

    def judge(self, question: Escalation, facts: Facts, of: Travelling, now: float) -> int | Reason:
        """For how many days anything of it may be kept here, or why it may not come."""
        policy = self._policy(question) if question.region == self._site.region else Reason.POLICY
        if isinstance(policy, Reason):
            return policy
        notice = self._orders.notice(facts.device)
        if notice and (policy is None or policy.clears_notice < notice.counter):
            return Reason.POLICY_OLD  # a document that we do not have clears nothing
        return question.keep_days if policy is None else self._under(policy, question, facts, of, now)

    def _under(self, policy: Policy, question: Escalation, facts: Facts, of: Travelling, now: float) -> int | Reason:
        terms = self._terms(policy, question, facts, of)
        if isinstance(terms, Denied) or terms.data_classes.get(question.data_class) is not True:
            return Reason.POLICY
        if recheck(terms, of.schema, question, site=self._site, day=int(now // DAY_S), cleared=of.clearance.of(terms)):
            return Reason.POLICY
        return min(question.keep_days, terms.retention.keep_days if terms.retention else KEEP_DAYS)

    def _policy(self, question: Escalation) -> Policy | Reason | None:
        """As far as we have it; None if we take questions under any. A layer below its floor is too old."""
        policy = self._policies.get(question.policy) or self._composed(question)
        hashes = [part.hash for part in policy.layers] if policy else [question.policy]
        if any(map(self._orders.is_old, (*hashes, *question.layers))):
            return Reason.POLICY_OLD
        if policy is None and not self._any and question.policy not in self._hashes:
            return Reason.POLICY
        return policy

    def _composed(self, question: Escalation) -> Policy | None:
        """Of the layers that are here. A question that misnames its layers has none."""
        layers = question.layers
        if not layers or hash_of(layers) != question.policy:
            return None
        if layers not in self._partly and any(layer in self._parts for layer in layers):
            if len(self._partly) >= _PARTLY:
                self._partly.clear()
            self._partly[layers] = composed(tuple(self._parts[layer] for layer in layers if layer in self._parts))
        return self._partly.get(layers)

    def _terms(self, policy: Policy, question: Escalation, facts: Facts, of: Travelling) -> Terms | Denied:
        tenant = tenant_of(facts.device)
        known = Context(question.data_class, facts.device_class, facts.region, tenant, level=of.level)
        return terms_for(policy, {*_named(policy, question), *surely(policy, known)})


def _named(policy: Policy, question: Escalation) -> set[str]:
    """The rules a device named, but for those of layers that we do not have. A name that no layer here has denies."""
    named = set(filter(None, question.rule.split("+")))
    if len(policy.layers) == len(question.layers) or not question.layers:
        return named
    ours = {part.name: part for part in policy.layers}
    mine = {rule for rule in named if rule.partition("/")[0] in ours}
    return mine if len(ours) > 1 else {rule.partition("/")[2] for rule in mine}


MOST_DAYS = 366


class Checked(msgspec.Struct, frozen=True, eq=False):
    """A question that may be worked on. `keep_days`: how long anything of it may be kept here."""

    work: Work
    keep_days: int


class Rules:
    """The models served, the policies accepted, and where this hub stands. Answers with `Checked` or a `Reason`.

    CodecError if a card's codec cannot be opened.
    """

    def __init__(self, cards: tuple[ModelCard, ...], book: Rulebook, orders: Orders) -> None:
        self.book = book
        self._orders = orders
        self._cards: dict[ModelRef, ModelCard] = {}
        self._codecs: dict[ModelRef, FeatureCodec] = {}
        self._travelling: dict[ModelRef, Travelling] = {}
        self._erased: dict[bytes, int] = {}
        for card in cards:
            self.know(card)

    def know(self, card: ModelCard) -> None:
        """One more model is served. CodecError if its codec cannot be opened."""
        codec = self._codecs[card.ref] = codec_of(card.ref.codec, card.features, card.tables)
        clearance = leakage.Clearance(card.features, _evidence(card))
        self._travelling[card.ref] = Travelling(_as_it_travels(card, codec), level_of(card.features), clearance)
        self._cards[card.ref] = card

    def forget(self, ref: ModelRef) -> None:
        """It is not served any more."""
        self._cards.pop(ref, None)

    def model(self, ref: ModelRef) -> str | None:
        """`digits@7` if exactly this head's tail is served."""
        card = self._cards.get(ref)
        return card.name if card else None

    def notice(self, device: str) -> Notice | None:
        """What was ordered last that this device sends nothing."""
        return self._orders.notice(device)

    def bury(self, stone: Tombstone) -> None:
        """What was created before it about its subject does not come in again."""
        self._erased[stone.mark] = max(stone.before_ms, self._erased.get(stone.mark, 0))

    def erased(self, device: str, subject: bytes, created_ms: int) -> bool:
        if not subject or not self._erased:
            return False
        return created_ms <= self._erased.get(mark_of(device, subject), -1)

    def check(self, question: Escalation, facts: Facts, now: float) -> Checked | Reason:
        """`facts`: of who asks, by certificate, signature and registry."""
        if not 0 < question.keep_days <= MOST_DAYS or len(question.subject) not in (0, SUBJECT_BYTES):
            return Reason.SCHEMA
        card = self._cards.get(question.model)
        if card is None:
            return Reason.MODEL_GONE
        keep_days = self.book.judge(question, facts, self._travelling[card.ref], now)
        if isinstance(keep_days, Reason):
            return keep_days
        work = self._decode(question, card)
        return work if isinstance(work, Reason) else Checked(work, keep_days)

    def decode(self, question: Escalation) -> Work | Reason:
        """Only what the model needs: for a question that was checked when it came in."""
        card = self._cards.get(question.model)
        return Reason.MODEL_GONE if card is None else self._decode(question, card)

    def _decode(self, question: Escalation, card: ModelCard) -> Work | Reason:
        left = dict(question.fields)
        codes: dict[str, npt.NDArray[np.uint8]] = {}
        for spec in card.features:
            tensor = left.pop(spec.name, None)
            if tensor is None or spec.level > HARD_CEILING:
                return Reason.SCHEMA
            try:
                codes[spec.name] = self._codecs[card.ref].decode(spec.name, tensor)
            except CodecError:
                return Reason.SCHEMA
        fits = all(name in _DERIVED and _plain_fits(_DERIVED[name], tensor) for name, tensor in left.items())
        return Work(codes) if fits else Reason.SCHEMA


_DERIVED = {spec.name: spec for spec in DERIVED}


def _plain_fits(spec: FieldSpec, tensor: Tensor) -> bool:
    size = math.prod(spec.shape) * NUMPY_DTYPES[spec.dtype].itemsize
    return (tensor.dtype, tensor.shape, len(tensor.data)) == (spec.dtype, spec.shape, size)


def _evidence(card: ModelCard) -> leakage.Evidence:
    return leakage.Evidence(card.leakage, partial(digest, card.ref.cut, card.ref.codec))


def _as_it_travels(card: ModelCard, codec: FeatureCodec) -> tuple[FieldSpec, ...]:
    """The schema with features in their packed form, as `Tensor`s carry them, and the derived fields."""
    packed = tuple(
        FieldSpec(
            f.name,
            DType.UINT8,
            (codec.payload_bytes(f.name),),
            low=f.low,
            high=f.high,
            level=f.level,
            category=f.category,
        )
        for f in card.features
    )
    return packed + DERIVED
