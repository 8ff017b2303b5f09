"""A hub on the database of release 0.2, whose devices sealed questions in sessions (wire version 2)."""

import pytest
import sqlalchemy as sa

from cloud_hub.database.tables import effects, sealed
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import SimDevice
from wire.protocol.messages import RefusalReason, StatusReply
from wire.protocol.sealing import hash_frame


def in_session(frame: bytes, suite: int) -> bytes:
    """A frame as a session made it: version 2, one of its suites, and what opens with no key of today."""
    return bytes((2, suite)) + frame[2:-64] + bytes(64 if suite == 0x22 else 0)


def accept_in_session(bench: Bench, device: SimDevice, seq: int) -> bytes:
    """A hub of 0.2 has accepted this question and ended; the hub of today starts. Returns the question's frame."""
    frame = in_session(bench.ask(device, seq), 0x21)
    bench.commit()
    bench.commit()
    with bench.store._engine.begin() as db:
        db.execute(sealed.update().values(frame=frame))
        db.execute(effects.update().values(digest=hash_frame(frame)))
    bench.sent.clear()
    bench.restart()
    bench.commit()
    return frame


def test_a_question_that_a_hub_of_02_accepted_in_a_session_is_sealed_again_at_once_and_answered_once(device, bench):
    frame = accept_in_session(bench, device, 1)
    (refusal,) = bench.refusals(device)
    assert (refusal.seq, refusal.reason, refusal.final) == (1, RefusalReason.KEY_EXPIRED, False)
    assert refusal.digest == hash_frame(frame), "a device obeys a refusal of exactly the bytes it sent"
    bench.ask(device, 1)
    bench.settle()
    assert list(bench.verdicts(device)) == [1]


def test_a_verdict_that_a_hub_of_02_sealed_in_a_session_is_computed_again_for_the_device_that_asks(device, bench):
    frame = bench.ask(device, 1)
    bench.settle()
    ((_, before),) = bench.verdicts(device).items()
    with bench.store._engine.begin() as db:
        (stored,) = db.execute(sa.select(effects.c.verdict)).scalars()
        db.execute(effects.update().values(verdict=in_session(stored, 0x22)))
    bench.restart()
    bench.say(device.ask_topic, device.ask(1))
    bench.settle()
    assert bench.replies(device) == [StatusReply(device.epoch, (), (1,))], "unknown: send it again"
    bench.say(device.up, frame)
    bench.settle()
    assert bench.verdicts(device)[1].prediction == before.prediction
    bench.say(device.ask_topic, device.ask(1))
    bench.settle()
    assert list(bench.verdicts(device)) == [1], "from now on it is read from the store"


@pytest.mark.parametrize("suite", [0x21, 0x22])
def test_a_question_that_a_device_of_02_sends_in_a_session_is_dropped_as_any_unknown_version(device, bench, suite):
    bench.say(device.up, in_session(device.question(1), suite))
    bench.settle()
    assert bench.core.counts["dropped.version"] == 1
    assert bench.replies(device) == []
    bench.ask(device, 1)  # nobody answered: the device sealed it by itself
    bench.settle()
    assert list(bench.verdicts(device)) == [1]


def test_a_device_of_02_that_sends_many_questions_in_a_session_is_neither_muted_nor_suspended(device, bench):
    for seq in range(1, 200):
        bench.say(device.up, in_session(device.question(seq), 0x21))
    bench.ask(device, 200)
    bench.settle()
    assert list(bench.verdicts(device)) == [200]
