"""Does a question fit the model and the policy it names? Pure; nothing is stored for a question that does not."""

import math
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from cloud_hub.core.commands import Tombstone
from cloud_hub.core.merging_policy_check_rulebook import Facts, Rulebook, Travelling
from cloud_hub.engine.merging_types_work import ModelCard, Work
from cloud_hub.registry.orders import Notice, Orders
from models.runtime.chain import digest
from models.runtime.codec import NUMPY_DTYPES, CodecError, FeatureCodec, codec_of
from policies.decisions import leakage
from policies.decisions.merging_egress_egress import DERIVED, level_of
from policies.model.policy import HARD_CEILING
from wire.protocol.merging_sealing_erasure import SUBJECT_BYTES, mark_of
from wire.protocol.messages import DType, Escalation, FieldSpec, ModelRef, Reason, Tensor

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
