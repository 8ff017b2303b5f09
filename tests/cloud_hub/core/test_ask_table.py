"""What a device hears of a question that it asks about, by what memory and store hold of it."""

import pytest

from cloud_hub.core.commands import QuestionKey, QuestionRow, SendFrame, SendNote
from cloud_hub.core.notes import ASK_REPLIES
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import SimDevice
from wire.protocol.messages import Refusal, RefusalReason, StatusReply

DIGEST = bytes(32)


def verdict_for(bench: Bench, device: SimDevice) -> bytes:
    """A verdict that the device can read."""
    bench.ask(device, 1)
    bench.settle()
    frame = bench.sent[device.id][-1]  # after its receipt
    bench.sent.clear()
    assert isinstance(device.read(frame), tuple), "a seq and its verdict"
    return frame


def ask_about(bench: Bench, device: SimDevice, rows: list[QuestionRow], seqs: list[int]) -> list[object]:
    bench.say(device.ask_topic, device.ask(*seqs))
    (find,) = bench.job.finds
    return list(bench.core.on_found(find, {row.key: row for row in rows}, {}, bench.now))


@pytest.mark.parametrize(
    ("verdict", "refusal", "answer"),
    [
        ("readable", None, "verdict"),
        ("of a former key", None, "unknown"),
        (None, RefusalReason.ENGINE, "refused"),
        (None, None, "unknown"),
        ("no row", None, "unknown"),
    ],
)
def test_an_ask_is_answered_by_what_the_store_holds(bench, device, verdict, refusal, answer):
    readable = verdict_for(bench, device)
    frames = {"readable": readable, "of a former key": b"another wire version"}
    key = QuestionKey(device.id, device.epoch, 7)
    row = QuestionRow(key, DIGEST, DIGEST, frames.get(verdict), refusal)
    found = ask_about(bench, device, [] if verdict == "no row" else [row], [7])
    assert (
        found
        == {
            "verdict": [SendFrame(device.id, readable)],
            "refused": [SendNote(device.id, Refusal(device.epoch, 7, DIGEST, RefusalReason.ENGINE, 0.0, final=True))],
            "unknown": [SendNote(device.id, StatusReply(device.epoch, (), (7,)))],
        }[answer]
    )
    assert bench.core.counts["gaps"] == (verdict == "no row")


@pytest.mark.parametrize("more", [0, 1])
def test_no_more_verdicts_than_a_portion_are_sent_for_one_ask_and_the_rest_is_pending(bench, device, more):
    readable = verdict_for(bench, device)
    seqs = list(range(1, ASK_REPLIES + more + 1))
    rows = [QuestionRow(QuestionKey(device.id, device.epoch, seq), DIGEST, DIGEST, readable) for seq in seqs]
    found = ask_about(bench, device, rows, [*seqs, 9000])
    assert found[:-1] == [SendFrame(device.id, readable)] * ASK_REPLIES
    assert found[-1] == SendNote(device.id, StatusReply(device.epoch, tuple(seqs[ASK_REPLIES:]), (9000,)))


def test_a_question_that_came_while_it_was_looked_up_is_pending_whatever_the_store_held(bench, device):
    readable = verdict_for(bench, device)
    bench.say(device.ask_topic, device.ask(7))
    (find,) = bench.job.finds
    bench.ask(device, 7)
    row = QuestionRow(QuestionKey(device.id, device.epoch, 7), DIGEST, DIGEST, readable)
    found = bench.core.on_found(find, {row.key: row}, {}, bench.now)
    assert found == [SendNote(device.id, StatusReply(device.epoch, (7,), ()))]
