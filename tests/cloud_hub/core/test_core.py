"""Life of one question at the hub: stored before its receipt, ended once, the same answer to every repeat."""

import pytest

from tests.cloud_hub.doubles.bench import DAY_S, Bench, owed
from tests.cloud_hub.doubles.devices import SimDevice
from tests.examples import further
from wire.protocol.messages import CipherSuite, Receipt, Refusal, RefusalReason


def test_nothing_is_receipted_before_it_is_stored(device, bench):
    bench.ask(device, 1)
    bench.commit()  # the lookup: this stream was never seen
    bench.flush()
    assert not bench.replies(device)
    assert not owed(bench)
    bench.commit()
    assert owed(bench) == [1]
    bench.flush()
    assert bench.receipts(device) == [1]


def test_a_verdict_is_said_only_after_it_is_stored_and_the_sealed_bytes_are_gone(device, bench):
    bench.ask(device, 1)
    bench.commit()
    bench.flush()
    bench.commit()
    bench.infer()
    assert not bench.replies(device)
    bench.commit()
    ((seq, verdict),) = bench.replies(device)
    assert seq == 1
    assert (verdict.hub, verdict.region, verdict.prediction.label) == ("hub-1", "local", 0)
    assert not owed(bench)


def test_the_answer_comes_without_a_receipt_where_both_fit_one_commit(device, bench):
    bench.ask(device, 1)
    bench.commit()
    bench.flush()
    bench.infer()
    writes = bench.writes
    bench.commit()
    bench.flush()
    assert bench.writes == writes + 1
    assert [type(reply) for reply in bench.replies(device)] == [tuple]


def test_each_repeat_of_a_question_is_counted_once(device, bench):
    frame = bench.ask(device, 1)
    bench.commit()
    for repeats in range(3):
        assert bench.core.counts["duplicates"] == repeats
        bench.say(device.up, frame)
    bench.settle()
    bench.say(device.up, frame)
    assert bench.core.counts["duplicates"] == 4


def test_questions_that_could_not_be_stored_leave_the_queue_of_their_model(device, bench):
    bench.ask(device, 1)
    bench.settle()
    for seq in range(2, 82):
        bench.ask(device, seq)
    assert bench.core.queued_by_model() == {"echo@1": 80}
    bench.lose_commit()
    assert bench.core.queued_by_model()["echo@1"] < 20
    bench.settle()
    assert bench.core.counts["verdicts"] == 1


def test_one_receipt_for_a_batch_and_device_with_at_most_64_seqs(bench, device):
    other = SimDevice("demo--d2")
    bench.registry.put(other.enrolled())
    for seq in range(1, 151):
        bench.ask(device, seq)
        bench.ask(other, seq)
    bench.commit()
    bench.commit()
    bench.flush()
    receipts = [note for name, note in bench.notes if name == device.id and isinstance(note, Receipt)]
    assert [len(receipt.seqs) for receipt in receipts] == [64, 64, 22]
    assert sorted(seq for receipt in receipts for seq in receipt.seqs) == list(range(1, 151))


@pytest.mark.parametrize("times", [100, further(500), pytest.param(10_000, marks=pytest.mark.heavy)])
def test_the_same_message_again_and_again_is_one_effect_and_one_answer(device, bench, times):
    frame = bench.ask(device, 1)
    for _ in range(times * 2 // 5):
        bench.now += 0.01
        bench.say(device.up, frame)
        bench.flush()
        bench.commit()
    bench.settle()
    bench.restart()
    for _ in range(times * 3 // 5):
        bench.now += 0.01
        bench.say(device.up, frame)
        bench.flush()
        bench.commit()
    bench.settle()
    assert len({frame for frame in bench.sent[device.id] if frame[1] == CipherSuite.SEALED}) == 1
    assert bench.core.counts["accepted"] == 0
    assert sum(bench.engine.batches) == 1


def test_a_repeat_before_the_verdict_is_receipted_again_and_computed_once(device, bench):
    frame = bench.ask(device, 1)
    bench.commit()
    bench.commit()
    bench.flush()
    bench.say(device.up, frame)
    bench.flush()
    assert bench.receipts(device) == [1, 1]
    bench.settle()
    assert sum(bench.engine.batches) == 1


def test_another_question_under_a_used_key_is_a_conflict_before_and_after_the_verdict(device, bench):
    bench.ask(device, 1)
    bench.commit()
    bench.commit()
    bench.ask(device, 1, policy="cd" * 16)
    bench.settle()
    bench.ask(device, 1, policy="cd" * 16)
    bench.restart()
    bench.ask(device, 1, policy="cd" * 16)
    bench.settle()
    refusals = [note for _, note in bench.notes if isinstance(note, Refusal)]
    assert [(r.reason, r.final) for r in refusals] == [(RefusalReason.CONFLICT, True)] * 3
    assert sum(bench.engine.batches) == 1


def test_the_same_question_sealed_again_gets_the_first_answer(device, bench):
    bench.ask(device, 1)
    bench.settle()
    first = bench.sent[device.id][-1]
    bench.sent.clear()
    again = bench.ask(device, 1)
    bench.settle()
    bench.restart()
    bench.say(device.up, again)
    bench.settle()
    assert bench.sent[device.id] == [first, first]


def test_seqs_may_come_in_any_order(device, bench):
    for seq in (9, 2, 7, 1, 8, 3):
        bench.ask(device, seq)
        bench.settle()
    assert sorted(bench.verdicts(device)) == [1, 2, 3, 7, 8, 9]


def test_a_restart_computes_what_was_owed(device, bench):
    for seq in (1, 2, 3):
        bench.ask(device, seq)
    bench.commit()
    bench.commit()
    bench.restart()
    assert owed(bench) == [1, 2, 3]
    bench.settle()
    assert {r[0] for r in bench.replies(device) if isinstance(r, tuple)} == {1, 2, 3}
    assert not owed(bench)


def test_a_kill_at_any_point_leaves_one_effect_and_one_answer(device):
    steps = ("commit", "flush", "infer")
    for kill_after in range(10):
        bench = Bench(device)
        frame = bench.ask(device, 1)
        for step in range(kill_after):
            getattr(bench, steps[step % 3])()
        bench.restart()
        bench.say(device.up, frame)  # unreceipted, so the device sends it again
        bench.settle()
        bench.say(device.ask_topic, device.ask(1))
        bench.settle()
        verdicts = {frame for frame in bench.sent[device.id] if isinstance(device.read(frame), tuple)}
        assert len(verdicts) == 1, kill_after
        assert not owed(bench)


def test_a_full_disk_owes_nothing_and_asks_for_patience(device, bench):
    bench.ask(device, 1)
    bench.commit()
    bench.flush()
    bench.infer()
    bench.lose_commit()
    (refusal,) = bench.refusals(device)
    assert (refusal.reason, refusal.final, refusal.retry_after_s) == (RefusalReason.BUSY, False, 5.0)
    assert bench.core.open_count == 0
    bench.ask(device, 1)
    bench.settle()
    assert bench.core.counts["verdicts"] == 1


def test_a_verdict_that_cannot_be_written_is_kept_and_written_later(device, bench):
    bench.ask(device, 1)
    bench.commit()
    bench.flush()
    bench.commit()
    bench.infer()
    bench.lose_commit()
    bench.settle()
    assert bench.core.counts["verdicts"] == 0
    bench.wait(1.0)
    bench.settle()
    assert bench.core.counts["verdicts"] == 1
    assert sum(bench.engine.batches) == 1


def test_a_lookup_that_fails_says_nothing_and_the_next_try_works(device, bench):
    frame = bench.ask(device, 1)
    bench.lose_commit()
    bench.say(device.up, frame)
    bench.settle()
    assert bench.core.counts["verdicts"] == 1


def test_a_question_that_is_still_being_written_expires_only_once_it_is_stored(device, bench):
    bench.ask(device, 1)
    bench.commit()  # the lookup; the question itself is not written yet
    bench.wait(8 * DAY_S)
    assert bench.job.keeps
    assert not bench.job.endings
    bench.commit()
    bench.wait(DAY_S)
    bench.commit()
    assert [refusal.reason for refusal in bench.refusals(device)] == [RefusalReason.EXPIRED]
