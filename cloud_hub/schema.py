"""Does a question fit the model and the policy it names? Pure; nothing is stored for a question that does not."""

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
import numpy.typing as npt

from cloud_hub.work import ModelCard, Work
from models.chain import digest
from models.codec import NUMPY_DTYPES, CodecError, FeatureCodec, codec_of
from policies import leakage
from policies.egress import DERIVED
from policies.judge import recheck
from policies.locality import HubSite
from policies.policy import HARD_CEILING, Policy
from wire.messages import DType, Escalation, FieldSpec, ModelRef, Reason, Tensor

DAY_S = 86_400.0


class Rules:
    """The models served, the policies accepted, and where this hub stands. Answers with `Work` or a final `Reason`.

    `hashes` empty = questions under any policy hash; `policies` are full documents: where the hub has the document a
    question names, the document is evaluated again as well. CodecError if a card's codec cannot be opened.
    """

    def __init__(
        self,
        site: HubSite,
        cards: tuple[ModelCard, ...],
        hashes: frozenset[str] = frozenset(),
        policies: tuple[Policy, ...] = (),
    ) -> None:
        self._site = site
        self._cards = {card.ref: card for card in cards}
        self._hashes = hashes
        self._policies: Mapping[str, Policy] = {policy.hash: policy for policy in policies}
        self._codecs = {card.ref: codec_of(card.ref.codec, card.features, card.tables) for card in cards}
        self._travelling = {card.ref: _as_it_travels(card, self._codecs[card.ref]) for card in cards}

        self._cleared = {
            (card.ref, policy.hash): leakage.clear(policy, card.features, _evidence(card))
            for card in cards
            for policy in policies
        }

    def model(self, ref: ModelRef) -> str | None:
        """`digits@7` if exactly this head's tail is served."""
        card = self._cards.get(ref)
        return card.name if card else None

    def check(self, question: Escalation, now: float) -> Work | Reason:
        if question.region != self._site.region or (self._hashes and question.policy not in self._hashes):
            return Reason.POLICY
        card = self._cards.get(question.model)
        if card is None:
            return Reason.MODEL_GONE
        if question.policy in self._policies:
            travelling, cleared = self._travelling[card.ref], self._cleared[card.ref, question.policy]
            if recheck(self._policies, travelling, question, self._site, int(now // DAY_S), cleared):
                return Reason.POLICY
        return self._decode(question, card)

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
        FieldSpec(f.name, DType.UINT8, (codec.payload_bytes(f.name),), f.low, f.high, f.level, f.category)
        for f in card.features
    )
    return packed + DERIVED
