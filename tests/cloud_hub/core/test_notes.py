"""Signed notes at the hub: answers to Hello and Ask, refusals, key changes, and notes that get no answer."""

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from cloud_hub.core.notes import CONNECTS_PER_S
from cloud_hub.registry.device_states import Standing
from cloud_hub.security.envelopes import HubEnvelopes
from cloud_hub.security.hub_keys import HubKeys
from cloud_hub.storage.jobs import StoreJob
from tests.cloud_hub.doubles.bench import POISON, Bench, owed
from tests.cloud_hub.doubles.devices import CARD, HUB
from tests.policies.doubles.given import plain
from wire.protocol.messages import (
    ModelRef,
    Refusal,
    RefusalReason,
    StatusReply,
    Tensor,
    TensorDType,
    Verdict,
    WelcomeNote,
)
from wire.protocol.sealing import compute_key_id, hash_frame


def test_ask_is_answered_with_verdict_pending_and_unknown(device, bench):
    bench.ask(device, 1)
    bench.settle()
    bench.ask(device, 2)
    bench.commit()
    bench.replies(device)
    bench.say(device.ask_topic, device.ask(1, 2, 3, 3, -4, 2**64 - 1))
    bench.commit()
    (seq, verdict), statuses = bench.replies(device)
    assert (seq, type(verdict)) == (1, Verdict)
    assert statuses == StatusReply(device.epoch, (2,), (3,))


def test_a_question_that_comes_while_it_is_looked_up_is_pending_and_not_a_gap(device, bench):
    bench.ask(device, 1)
    bench.settle()
    bench.replies(device)
    bench.say(device.ask_topic, device.ask(2))
    asked, bench.job = bench.job, StoreJob()
    bench.ask(device, 2)
    sent, bench.job = bench.job, asked
    bench.commit()
    assert bench.replies(device) == [StatusReply(device.epoch, (2,), ())]
    assert bench.core.counts["gaps"] == 0
    bench.job = sent
    bench.settle()
    assert list(bench.verdicts(device)) == [2]


def test_what_was_asked_while_the_store_failed_is_not_answered_later_from_an_old_lookup(device, bench):
    bench.ask(device, 1)
    bench.settle()
    bench.replies(device)
    bench.say(device.ask_topic, device.ask(2))
    (find,) = bench.job.finds
    bench.lose_commit()
    assert bench.core.counts["store_failures"] == 1
    assert bench.core.on_found(find, {}, {}, bench.now) == []
    bench.say(device.ask_topic, device.ask(2))
    bench.commit()
    assert bench.replies(device) == [StatusReply(device.epoch, (), (2,))]


def test_ask_after_a_restart_is_answered_from_the_store(device, bench):
    bench.ask(device, 1)
    bench.ask(device, POISON)
    bench.settle()
    bench.replies(device)
    bench.restart()
    bench.say(device.ask_topic, device.ask(1, POISON))
    bench.settle()
    (seq, _), refusal = bench.replies(device)
    assert seq == 1
    assert (refusal.seq, refusal.reason, refusal.final) == (POISON, RefusalReason.ENGINE, True)


@pytest.mark.further
def test_a_long_backlog_of_verdicts_comes_in_portions(device, bench):
    for seq in range(1, 1301):
        bench.ask(device, seq * 16)
        if seq % 100 == 0:
            bench.settle()
    bench.sent.clear()
    bench.say(device.ask_topic, device.ask(*(seq * 16 for seq in range(1, 1301))))
    bench.settle()
    replies = bench.replies(device)
    assert sum(isinstance(reply, tuple) for reply in replies) == 1024
    assert len(replies[-1].pending) == 276


def test_hello_is_welcomed_with_hub_time(device, bench):
    bench.say(device.ask_topic, device.hello())
    (welcome,) = bench.replies(device)
    assert welcome == WelcomeNote(device.epoch, "hub-1", "local", 1 / CONNECTS_PER_S)
    assert bench.core.hellos[device.id].agent == "agent/1"


def test_notes_are_limited_per_device(device, bench):
    for _ in range(100):
        bench.say(device.ask_topic, device.hello())
    assert bench.core.counts["notes"] == 10
    assert bench.core.counts["dropped.note_rate"] == 90


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"region": "elsewhere"}, RefusalReason.POLICY),
        ({"model": ModelRef("echo", 2, "echo", "pack4")}, RefusalReason.MODEL_GONE),
        ({"model": ModelRef("echo", 1, "other-cut", "pack4")}, RefusalReason.MODEL_GONE),
        ({"fields": {}}, RefusalReason.SCHEMA),
        ({"fields": {"features": Tensor(TensorDType.UINT8, (4,), b"1234")}}, RefusalReason.SCHEMA),
        ({"fields": {"features": Tensor(TensorDType.FP32, (5,), bytes(20))}}, RefusalReason.SCHEMA),
    ],
)
def test_what_does_not_fit_is_refused_for_good_and_never_stored(device, bench, changes, reason):
    bench.ask(device, 1, **changes)
    bench.settle()
    (refusal,) = bench.refusals(device)
    assert (refusal.reason, refusal.final) == (reason, True)
    assert bench.writes == 0


def test_a_field_that_the_schema_does_not_have_is_refused_and_the_derived_ones_are_taken(device, bench):
    good = device.escalation(1).fields
    confidence = Tensor(TensorDType.FP32, (1,), b"\0\0\0?")
    bench.ask(device, 1, fields=good | {"confidence": confidence})
    bench.ask(device, 2, fields=good | {"raw_image": confidence})
    bench.ask(device, 3, fields=good | {"confidence": Tensor(TensorDType.FP32, (1,), b"\0" * 40)})
    bench.settle()
    assert [r.seq for r in bench.refusals(device)] == [2, 3]
    assert bench.core.counts["verdicts"] == 1


def test_a_policy_hash_that_is_not_served_is_refused(device):
    bench = Bench(device, policies=frozenset(("cd" * 16,)))
    bench.ask(device, 1)
    bench.settle()
    assert bench.core.counts["refused.policy"] == 1


def test_a_policy_known_in_full_is_evaluated_again(device):
    policy = plain().compile()
    bench = Bench(device, documents=(policy,))
    good = device.escalation(1).fields
    bench.ask(device, 1, policy=policy.hash)
    bench.ask(device, 2, policy=policy.hash, fields=good | {"confidence": Tensor(TensorDType.FP32, (1,), b"\0\0\0?")})
    bench.settle()
    assert [(r.seq, r.reason) for r in bench.refusals(device)] == [(2, RefusalReason.POLICY)]
    assert bench.core.counts["verdicts"] == 1


def test_a_retired_hub_key_is_refused_for_now_and_the_resealed_question_is_the_same(device, bench):
    old = X25519PrivateKey.generate()
    old_id = compute_key_id(old.public_key().public_bytes_raw())
    device.hub = HubKeys({old_id: old}, old_id, HUB.signing)
    frame = bench.ask(device, 1)
    bench.settle()
    (refusal,) = bench.refusals(device)
    assert (refusal.reason, refusal.final, refusal.retry_after_s) == (RefusalReason.KEY_EXPIRED, False, 0.0)
    assert refusal.digest == hash_frame(frame)
    device.hub = HUB
    bench.ask(device, 1)
    bench.settle()
    assert bench.core.counts["verdicts"] == 1


def test_a_question_sealed_to_the_key_before_last_still_opens(device):
    old = X25519PrivateKey.generate()
    old_id = compute_key_id(old.public_key().public_bytes_raw())
    keys = HubKeys({old_id: old, **HUB.hpke}, HUB.current, HUB.signing)
    bench = Bench(device, envelopes=HubEnvelopes(keys))
    device.hub = HubKeys(keys.hpke, old_id, HUB.signing)
    bench.ask(device, 1)
    bench.settle()
    assert bench.core.counts["verdicts"] == 1


def test_a_key_destroyed_before_a_restart_makes_the_question_unknown(device, bench):
    bench.ask(device, 1)
    bench.commit()
    bench.commit()
    other = X25519PrivateKey.generate()
    other_id = compute_key_id(other.public_key().public_bytes_raw())
    bench.envelopes = HubEnvelopes(HubKeys({other_id: other}, other_id, HUB.signing))
    bench.restart()
    bench.settle()
    bench.sent.clear()
    bench.say(device.ask_topic, device.ask(1))
    bench.settle()
    assert bench.replies(device) == [StatusReply(device.epoch, (), (1,))]


def test_a_device_enrolled_again_gets_its_verdict_sealed_to_its_new_key(device, bench):
    frame = bench.ask(device, 1)
    bench.settle()
    bench.sent.clear()
    device.hpke = X25519PrivateKey.generate()
    bench.registry.put(device.enrolled())
    bench.say(device.ask_topic, device.ask(1))
    bench.settle()
    assert bench.replies(device) == [StatusReply(device.epoch, (), (1,))]
    bench.say(device.up, frame)
    bench.settle()
    assert list(bench.verdicts(device)) == [1]


def test_a_device_revoked_while_its_question_is_computed_gets_no_verdict(device, bench):
    bench.ask(device, 1)
    bench.commit()
    bench.registry.put(device.enrolled(Standing.REVOKED))
    bench.settle()
    assert bench.core.counts["verdicts"] == 0
    assert bench.core.counts["ended.device_unknown"] == 1
    assert not owed(bench)


def test_a_poisoned_question_is_refused_alone_after_one_retry(device, bench):
    for seq in (1, 2, POISON, 4):
        bench.ask(device, seq)
    bench.settle()
    refusals = [note for _, note in bench.notes if isinstance(note, Refusal)]
    assert [(r.seq, r.reason, r.final) for r in refusals] == [(POISON, RefusalReason.ENGINE, True)]
    assert bench.core.counts["verdicts"] == 3
    assert bench.engine.batches == [4, 4, 1, 1, 1, 1]


def test_a_broken_engine_refuses_nobody_and_recovers(device, bench):
    bench.engine.broken = True
    for seq in (1, 2):
        bench.ask(device, seq)
    bench.settle()
    assert bench.core.engines_down() == (CARD.name,)
    assert not [note for _, note in bench.notes if isinstance(note, Refusal)]
    bench.ask(device, 3)
    for _ in range(5):
        bench.wait(30.0)
        bench.settle()
    assert owed(bench) == [1, 2, 3]
    bench.engine.broken = False
    bench.wait(60.0)
    bench.settle()
    assert bench.core.engines_down() == ()
    assert bench.core.counts["verdicts"] == 3
