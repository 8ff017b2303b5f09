"""Limits of the hub core: queues, draining, ages of frames, restored backups, web requests beside devices."""

import msgspec
import numpy as np
import pytest

from cloud_hub.core import (
    admission,
    core,
    intake,
    lineup,
    notes,
    policy_check,
    queues,
    scheduler,
    shards,
    verification,
)
from cloud_hub.core.commands import LOCAL, ErasureRequest, QuestionKey, QuestionRow
from cloud_hub.core.context import RECENT_ROWS, STREAMS, QuestionMemory
from cloud_hub.core.core import HubCore
from cloud_hub.storage.jobs import StoreJob
from policies.serving.admission import RefuseQuestion
from tests.cloud_hub.doubles.bench import DAY_S, POISON, Bench
from tests.cloud_hub.doubles.devices import CARD, CODEC, HUB, MANIFEST, SimDevice
from wire.protocol.codec import encode_wire_message, pad_plaintext
from wire.protocol.messages import ModelRef, Prediction, Receipt, Refusal, RefusalReason, StatusReply, StatusRequest
from wire.protocol.sealing import hash_frame, seal_frame, sign_frame
from wire.protocol.topics import TopicChannel


def test_a_full_queue_refuses_without_a_write_and_says_when_to_come_back(device):
    bench = Bench(device, max_queued=4, device_open=4)
    for seq in range(1, 9):
        bench.ask(device, seq)
    bench.commit()
    refusals = bench.refusals(device)
    assert refusals
    assert all(not r.final and r.retry_after_s > 0 for r in refusals)
    bench.settle()
    assert bench.core.counts["accepted"] == 8 - len(refusals)


@pytest.mark.further
def test_a_backlog_takes_turns_with_live_traffic(device):
    live = SimDevice("demo--live")
    bench = Bench(device, live, max_batch=8)
    for seq in range(1, 401):
        bench.ask(device, seq * 16)
    bench.commit()
    bench.flush()
    bench.ask(live, 1)
    bench.commit()
    for _ in range(3):
        bench.infer()
        bench.flush()
        bench.commit()
    assert [seq for seq, _ in (r for r in bench.replies(live) if isinstance(r, tuple))] == [1]
    bench.settle()
    assert bench.core.counts["verdicts"] == 401


def test_a_hub_that_does_not_hear_of_the_others_takes_nothing_new_and_finishes_what_it_has(device, bench):
    bench.ask(device, 1)
    bench.commit()
    bench.core.news.on_caught_up(bench.now + 5.0, bench.now)
    bench.ask(device, 2)
    bench.wait(5.1)
    assert bench.core.news.is_closed(bench.now)
    bench.ask(device, 3)
    refused = bench.core.queue_web_request(1, CARD.name, [np.zeros(4, np.float32)], bench.now)
    assert isinstance(refused, RefuseQuestion)
    assert (refused.reason, refused.retry_after_s > 0) == (RefusalReason.BUSY, True)
    bench.settle()
    assert [(r.seq, r.reason, r.final) for r in bench.refusals(device)] == [(3, RefusalReason.BUSY, False)]
    assert bench.core.counts["verdicts"] == 2
    bench.core.news.on_caught_up(bench.now + 5.0, bench.now)
    bench.ask(device, 3)
    bench.settle()
    assert bench.core.counts["verdicts"] == 3


def test_what_another_hub_erased_is_not_answered_from_memory(device, bench):
    key = QuestionKey(device.id, device.epoch, 1)
    bench.ask(device, 1)
    bench.settle()
    bench.store.apply_jobs([StoreJob(erases=[ErasureRequest(device.id, bytes(32), 2**52, 2**52, (key,))])])
    (stone,) = bench.store.read_tombstones()
    bench.sent.clear()
    bench.core.news.on_erased_elsewhere([stone], bench.now)
    bench.say(device.up, device.question(1, bench.now))
    bench.settle()
    assert bench.verdicts(device) == {}


def test_draining_refuses_what_is_new_and_finishes_what_is_not(device, bench):
    bench.ask(device, 1)
    bench.commit()
    bench.core.drain()
    bench.ask(device, 2)
    bench.settle()
    assert [(r.seq, r.reason, r.final) for _, r in bench.notes if isinstance(r, Refusal)] == [
        (2, RefusalReason.DRAINING, False)
    ]
    assert bench.core.counts["verdicts"] == 1
    assert bench.core.open_count == 0


def test_an_owed_question_that_grows_too_old_ends_expired_and_says_so_for_ever(device, bench):
    bench.engine.broken = True
    frame = bench.ask(device, 1)
    bench.settle()
    bench.wait(7 * DAY_S + 1)
    bench.settle()
    (refusal,) = [note for _, note in bench.notes if isinstance(note, Refusal)]
    assert (refusal.seq, refusal.reason, refusal.final) == (1, RefusalReason.EXPIRED, True)
    assert refusal.digest == hash_frame(frame)
    bench.engine.broken = False
    bench.wait(60.0)
    bench.settle()
    assert bench.core.counts["verdicts"] == 0


def test_rows_live_nine_days_and_outlive_every_replay(device, bench):
    frame = bench.ask(device, 1, keep_days=9)
    bench.settle()
    bench.wait(8.9 * DAY_S)
    bench.settle()
    bench.restart()
    bench.sent.clear()
    bench.say(device.ask_topic, device.ask(1))
    bench.settle()
    assert [reply[0] for reply in bench.replies(device)] == [1]
    bench.wait(0.2 * DAY_S)
    bench.settle()
    bench.restart()
    bench.say(device.ask_topic, device.ask(1))
    bench.settle()
    assert bench.replies(device) == [StatusReply(device.epoch, (), (1,))]
    bench.say(device.up, frame)
    assert bench.core.counts["refused.expired"] == 1


def test_a_hub_restored_from_a_backup_computes_again_and_keeps_no_second_effect(device):
    bench = Bench(device)
    for seq in (1, 2):
        bench.ask(device, seq)
    bench.settle()
    later = [bench.ask(device, seq) for seq in (3, 4)]
    bench.settle()
    backup = Bench(device)  # a store that knows of 1 and 2 alone
    for seq in (1, 2):
        backup.ask(device, seq)
    backup.settle()
    backup.restart()
    backup.say(device.ask_topic, device.ask(3, 4))
    backup.settle()
    assert StatusReply(device.epoch, (), (3, 4)) in backup.replies(device)
    assert backup.core.counts["gaps"] == 2  # receipted once and now unknown: counted as data loss
    for frame in later:
        backup.say(device.up, frame)
    backup.settle()
    assert sorted(r[0] for r in backup.replies(device) if isinstance(r, tuple)) == [3, 4]


def test_a_clock_that_went_back_changes_no_order(device, bench):
    bench.ask(device, 1)
    bench.settle()
    bench.say(device.up, device.question(2, bench.now - 3600))
    bench.settle()
    assert list(bench.verdicts(device)) == [1, 2]


def test_web_requests_share_the_queue_with_devices(device, bench):
    bench.ask(device, 1)
    bench.commit()
    samples = [np.full(10, value, np.float32) for value in (0.0, 1.0)]
    assert bench.core.queue_web_request(1, CARD.name, samples, bench.now) is None
    bench.settle()
    assert bench.engine.batches == [3]
    assert [hand.key for hand in bench.handed] == [QuestionKey(LOCAL, 1, 0), QuestionKey(LOCAL, 1, 1)]
    assert all(isinstance(hand.result, Prediction) and hand.result.model == MANIFEST.model for hand in bench.handed)
    assert bench.core.open_count == 0


def test_a_poisoned_web_sample_fails_alone_and_one_that_nobody_waits_for_is_thrown_away(device, bench):
    samples = [np.frombuffer(bytes((code,)) * 40, np.float32) for code in (0, POISON)]
    bench.core.queue_web_request(1, CARD.name, samples, bench.now)
    bench.core.queue_web_request(2, CARD.name, samples[:1], bench.now)
    bench.core.drop_web_request(2)
    bench.settle()
    assert {hand.key.seq: type(hand.result) for hand in bench.handed} == {0: Prediction, 1: RefusalReason}


def test_a_web_request_is_refused_when_the_queue_is_full_or_draining(device):
    bench = Bench(device, max_queued=4)
    samples = [np.zeros(10, np.float32)] * 5
    assert isinstance(bench.core.queue_web_request(1, CARD.name, samples, bench.now), RefuseQuestion)
    bench.core.drain()
    assert bench.core.queue_web_request(2, CARD.name, samples[:1], bench.now) == RefuseQuestion(
        RefusalReason.DRAINING, 5.0
    )


def test_a_sealed_message_that_is_no_question_is_refused_for_good(device, bench):
    to = HUB.hpke[HUB.current].public_key()
    for seq, padded in enumerate(
        (
            b"",
            pad_plaintext(b"\xc1"),
            pad_plaintext(encode_wire_message(device.escalation(1)))[:-64],
            bytes(63) + b"\1",
        ),
        1,
    ):
        frame = seal_frame(device.header(seq), padded, to=to, by=device.signing, channel=TopicChannel.QUESTION)
        bench.say(device.up, frame)
    bench.settle()
    assert [(r.seq, r.reason, r.final) for r in bench.refusals(device)] == [
        (seq, RefusalReason.SCHEMA, True) for seq in (1, 2, 3, 4)
    ]
    assert bench.writes == 0


def test_through_another_replica_on_the_same_store_it_is_one_effect_and_one_answer(device, bench):
    other = Bench(device)
    other.store = bench.store
    frame = bench.ask(device, 1)
    other.say(device.up, frame)
    bench.commit()
    other.commit()  # both looked it up, both found nothing
    bench.commit()
    other.commit()
    assert [r.reason for _, r in other.notes if isinstance(r, Refusal)] == [RefusalReason.BUSY]
    second = bench.ask(device, 2)
    bench.settle()
    for repeated in (frame, second):
        other.say(device.up, repeated)
        other.settle()
    assert bench.sent[device.id][-2:] == other.sent[device.id][-2:]
    assert other.core.counts["store_failures"] == 1  # since the first one it looks this stream up
    assert other.core.counts["verdicts"] == 0


def test_a_result_of_a_question_that_was_given_up_answers_no_later_one(device, bench):
    fields = {code: {"features": CODEC.encode("features", np.array([code] + [0] * 9, np.uint8))} for code in (1, 2)}
    bench.ask(device, 1, fields=fields[1])
    bench.commit()
    bench.flush()
    bench.lose_commit()
    bench.ask(device, 1, fields=fields[2])
    bench.settle()
    assert bench.verdicts(device)[1].prediction.label == 2
    assert sum(bench.engine.batches) == 2


def test_a_verdict_being_written_is_not_overtaken_by_its_expiry(device, bench):
    bench.ask(device, 1, keep_days=9)
    bench.commit()
    bench.commit()
    bench.flush()
    bench.infer()
    bench.wait(8 * DAY_S)
    bench.commit()
    assert list(bench.verdicts(device)) == [1]
    bench.restart()
    bench.say(device.ask_topic, device.ask(1))
    bench.commit()
    assert list(bench.verdicts(device)) == [1]


def test_a_model_gone_after_a_restart_ends_its_questions_and_damaged_bytes_are_forgotten(device, bench):
    frames = {seq: bench.ask(device, seq) for seq in (1, 2)}
    bench.commit()
    bench.commit()
    (kept, spoilt) = bench.store.read_unanswered()
    spoilt = msgspec.structs.replace(spoilt, sealed=b"\1\2\3")
    newer = msgspec.structs.replace(CARD, ref=ModelRef("echo", 2, "echo", "pack4"))
    bench.core = HubCore(bench.settings, (newer,), bench.registry, bench.envelopes)
    bench._obey(bench.core.restore_questions([kept, spoilt], bench.now))
    bench.settle()
    (refusal,) = bench.refusals(device)
    assert (refusal.seq, refusal.reason, refusal.final) == (kept.key.seq, RefusalReason.MODEL_GONE, True)
    assert refusal.digest == hash_frame(frames[kept.key.seq])
    bench.say(device.ask_topic, device.ask(spoilt.key.seq))
    bench.settle()
    assert bench.replies(device) == [StatusReply(device.epoch, (), (spoilt.key.seq,))]


def test_an_ending_whose_row_is_gone_leaves_the_question_to_the_device(device, bench):
    frame = bench.ask(device, 1)
    bench.commit()
    bench.commit()
    bench.store.apply_jobs([StoreJob(forgets=[QuestionKey(device.id, device.epoch, 1)])])
    bench.settle()
    assert bench.core.counts["vanished"] == 1
    assert bench.core.open_count == 0
    assert not bench.verdicts(device)
    bench.say(device.up, frame)
    bench.settle()
    assert list(bench.verdicts(device)) == [1]


def test_a_note_that_is_none_or_of_another_epoch_is_dropped(device, bench):
    header = device.header(0)
    for body in (
        b"\xc1",
        encode_wire_message(Receipt(device.epoch, (1,))),
        encode_wire_message(StatusRequest(device.epoch + 1, (1,))),
    ):
        bench.say(device.ask_topic, sign_frame(header, body, by=device.signing, channel=TopicChannel.ASK))
    assert bench.core.counts["dropped.malformed"] == 3
    assert not bench.notes


def test_what_is_remembered_is_bounded():
    memory = QuestionMemory()
    for n in range(RECENT_ROWS + 10):
        memory.remember_row(QuestionRow(QuestionKey("d", 1, n), b"", b""))
    assert memory.recent_row(QuestionKey("d", 1, 9)) is None
    assert memory.recent_row(QuestionKey("d", 1, 10)) is not None
    for epoch in range(STREAMS + 1):
        memory.raise_highest(("d", epoch), 5)
    assert not memory.is_certainly_new(QuestionKey("d", 0, 6))  # forgotten: to be looked up
    assert memory.is_certainly_new(QuestionKey("d", 1, 6))


def test_the_numbers_of_the_hubs_core_are_these():
    assert (admission.OVERLOAD_LAG_S, core.STORE_RETRY_S, core.EXPIRE_EVERY_S, core.PRUNE_EVERY_S) == (
        0.05, 5.0, 60.0, 600.0,
    )  # fmt: skip
    assert (notes.MAX_WORD_CHARS, notes.MAX_DETAIL_CHARS, notes.MAX_TOTALS, notes.MAX_ACCOUNT_CHARS) == (
        120, 400, 1000, 128,
    )  # fmt: skip
    assert (notes.MAX_PAST, notes.ASK_REPLIES, notes.CONNECTS_PER_S, shards.RECEIPT_SEQS) == (64, 1024, 15.0, 64)
    assert (queues.QUIET_S, queues.BACKGROUND_WAIT_S, scheduler.RECHECK_BASE_S, scheduler.RECHECK_CAP_S) == (
        5.0, 1.0, 1.0, 30.0,
    )  # fmt: skip
    limits = (
        verification.STRIKE_BURST, verification.STRIKES_PER_S, verification.MUTE_S, verification.MUTES,
        verification.REFUSAL_BURST, verification.REFUSALS_PER_S, verification.NOTE_BURST, verification.NOTES_PER_S,
        verification.SUSPENDED_RETRY_S, verification.UNKNOWN_RETRY_S, verification.RATE_RETRY_S,
    )  # fmt: skip
    assert limits == (20.0, 0.2, 60.0, 2, 40.0, 20.0, 10.0, 0.5, 600.0, 3600.0, 2.0)
    assert (policy_check.DEFAULT_KEEP_DAYS, policy_check.MAX_KEEP_DAYS, intake.POLICY_RETRY_S) == (7, 366, 5.0)
    assert (lineup.MODEL_USE_TTL_MS, lineup.RECORD_EVERY_MS) == (30 * 86_400_000, 86_400_000)
