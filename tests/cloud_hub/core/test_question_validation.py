"""What a question must be to be computed: its model, its fields, how long it is kept, and which erasure it meets."""

from typing import Any

import msgspec
import pytest

from cloud_hub.core.commands import Tombstone
from cloud_hub.core.policy_check import DeviceFacts, PolicyRecheck, QuestionValidator, ValidatedQuestion
from cloud_hub.engine.types import ModelCard
from cloud_hub.registry.orders import Orders
from policies.decisions.egress import CONFIDENCE_FIELD, LOCAL_ANSWER_FIELD
from policies.decisions.routing import HubSite
from tests.cloud_hub.doubles.devices import CARD, NOW_S, SimDevice
from wire.protocol.messages import RefusalReason, SensitivityLevel, Tensor, TensorDType
from wire.protocol.sealing import hash_subject_mark

DEVICE = SimDevice()
FACTS = DeviceFacts(DEVICE.id)
SUBJECT = b"s" * 32
CONFIDENCE = Tensor(TensorDType.FP32, (1,), b"\0\0\0?")


def validator(*cards: ModelCard) -> QuestionValidator:
    orders = Orders()
    return QuestionValidator(cards, PolicyRecheck(HubSite("hub-1", "local"), frozenset(), (), orders), orders)


def judge(rules: QuestionValidator | None = None, **changes: Any) -> int | RefusalReason:
    """Days for which a question with these changes may be kept, or why it is refused."""
    rules, question = rules or validator(CARD), DEVICE.escalation(3, **changes)
    found = rules.validate_question(question, FACTS, NOW_S)
    (many,) = rules.decode_questions([question])
    if "fields" in changes:
        assert (many is found) == isinstance(found, RefusalReason), "one alone is judged as many are"
    return found.keep_days if isinstance(found, ValidatedQuestion) else found


@pytest.mark.parametrize(("days", "kept"), [(0, RefusalReason.SCHEMA), (1, 1), (366, 366), (367, RefusalReason.SCHEMA)])
def test_a_question_may_be_kept_for_a_day_to_a_year(days, kept):
    assert judge(keep_days=days) == kept


@pytest.mark.parametrize(("size", "sound"), [(0, True), (1, False), (31, False), (32, True), (33, False)])
def test_a_subject_is_named_by_a_whole_hash_or_not_at_all(size, sound):
    assert (judge(subject=b"s" * size) is not RefusalReason.SCHEMA) is sound


def test_a_question_of_a_model_that_is_not_served_any_more_is_refused():
    rules = validator(CARD)
    assert isinstance(judge(rules), int)
    rules.remove_model(CARD.ref)
    assert judge(rules) is RefusalReason.MODEL_GONE
    rules.add_model(CARD)
    assert isinstance(judge(rules), int)


@pytest.mark.parametrize(
    ("more", "sound"),
    [
        ({}, True),
        ({CONFIDENCE_FIELD: CONFIDENCE}, True),
        ({LOCAL_ANSWER_FIELD: Tensor(TensorDType.INT32, (1,), b"\1\0\0\0"), CONFIDENCE_FIELD: CONFIDENCE}, True),
        ({"image": CONFIDENCE}, False),
        ({"image": CONFIDENCE, CONFIDENCE_FIELD: CONFIDENCE}, False),
        ({CONFIDENCE_FIELD: Tensor(TensorDType.INT32, (1,), b"\0\0\0?")}, False),
        ({CONFIDENCE_FIELD: Tensor(TensorDType.FP32, (2,), b"\0\0\0?")}, False),
        ({CONFIDENCE_FIELD: Tensor(TensorDType.FP32, (1,), b"\0\0\0?\0\0\0?")}, False),
    ],
)
def test_beside_its_features_a_question_has_derived_fields_of_the_right_type_shape_and_size(more, sound):
    fields = DEVICE.escalation(3).fields | more
    assert (judge(fields=fields) is not RefusalReason.SCHEMA) is sound


def test_a_question_without_one_of_its_features_is_refused():
    assert judge(fields={}) is RefusalReason.SCHEMA
    assert judge(fields={CONFIDENCE_FIELD: CONFIDENCE}) is RefusalReason.SCHEMA


@pytest.mark.parametrize(("level", "sound"), [(SensitivityLevel.P3, True), (SensitivityLevel.P4, False)])
def test_no_question_of_a_model_whose_features_may_never_leave_is_computed(level, sound):
    features = tuple(msgspec.structs.replace(spec, level=level) for spec in CARD.features)
    rules = validator(msgspec.structs.replace(CARD, features=features))
    assert (judge(rules) is not RefusalReason.SCHEMA) is sound


def test_questions_of_several_models_are_decoded_each_by_its_own_and_in_their_places():
    gone = msgspec.structs.replace(CARD.ref, version=9)
    other = msgspec.structs.replace(CARD, ref=msgspec.structs.replace(CARD.ref, version=2))
    rules = validator(CARD, other)
    asked = [DEVICE.escalation(n, model=ref) for n, ref in enumerate((other.ref, gone, CARD.ref, other.ref), 1)]
    found = rules.decode_questions([*asked, DEVICE.escalation(5, fields={})])
    assert [each if isinstance(each, RefusalReason) else int(each.codes["features"][0]) for each in found] == [
        1, RefusalReason.MODEL_GONE, 3, 4, RefusalReason.SCHEMA,
    ]  # fmt: skip


def test_an_erasure_meets_what_was_created_until_it_and_a_later_one_moves_that_time_on():
    rules = validator(CARD)
    assert not rules.is_erased(DEVICE.id, SUBJECT, 0)
    mark = hash_subject_mark(DEVICE.id, SUBJECT)
    for before_ms in (1000, 500):
        rules.remember_erasure(Tombstone(DEVICE.id, mark, before_ms, 1, 2000))
        assert rules.is_erased(DEVICE.id, SUBJECT, 1000)
        assert not rules.is_erased(DEVICE.id, SUBJECT, 1001)
    rules.remember_erasure(Tombstone(DEVICE.id, mark, 3000, 1, 4000))
    assert rules.is_erased(DEVICE.id, SUBJECT, 3000)
    assert not rules.is_erased(DEVICE.id, b"t" * 32, 0), "another subject"
    assert not rules.is_erased("demo--d2", SUBJECT, 0), "another device"
    assert not rules.is_erased(DEVICE.id, b"", 0)
