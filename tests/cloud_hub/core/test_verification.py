"""Attacks on incoming frames: each is refused before anything is decrypted, stored or computed."""

import msgspec
import pytest

from cloud_hub.core.verification import (
    MUTE_S,
    MUTES,
    RATE_RETRY_S,
    STRIKE_BURST,
    SUSPENDED_RETRY_S,
    UNKNOWN_RETRY_S,
    VerifiedFrame,
)
from cloud_hub.registry.device_states import Standing
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import HUB, MemoryRegistry, SimDevice
from tests.examples import count_examples
from wire.protocol.codec import MAX_FRAME_BYTES, encode_wire_message, pad_plaintext, split_frame
from wire.protocol.messages import CipherSuite, Refusal, RefusalReason
from wire.protocol.sealing import hash_frame, seal_frame, sign_frame
from wire.protocol.topics import TopicChannel, build_topic

DAY_S = 86_400.0


def untouched(bench: Bench) -> bool:
    """Whether nothing was accepted, stored, written or queued."""
    bench.settle()
    return not bench.store.read_unanswered() and bench.writes == 0 and bench.core.open_count == 0


@pytest.fixture
def device() -> SimDevice:
    return SimDevice()


@pytest.fixture
def bench(device: SimDevice) -> Bench:
    return Bench(device)


@pytest.mark.examples
def test_any_flipped_byte_of_header_ciphertext_or_signature_is_refused(device, bench):
    frame = device.question(1)
    each = len(frame) // count_examples(len(frame))
    for number, at in enumerate(range(0, len(frame), each)):
        if number % 16 == 0:
            bench = Bench(device)  # a fresh hub now and then: after 20 bad signatures a device is muted
        bench.say(device.up, frame[:at] + bytes((frame[at] ^ 0x20,)) + frame[at + 1 :])
        assert bench.core.counts["accepted"] == 0
        assert untouched(bench), at


def test_header_of_one_with_the_ciphertext_of_another_is_refused(device, bench):
    other = SimDevice("demo--d2")
    bench.registry.put(other.enrolled())
    mine, theirs = split_frame(device.question(1)), split_frame(other.question(1))
    for frame in (mine.clear + theirs.body + mine.signature, mine.clear + theirs.body + theirs.signature):
        bench.say(device.up, frame)
        bench.say(other.up, frame)
    assert bench.core.counts["dropped.signature"] == 2
    assert bench.core.counts["dropped.topic"] == 2
    assert untouched(bench)


def test_stripped_and_signed_again_by_another_device_is_refused(device, bench):
    other = SimDevice("demo--d2")
    bench.registry.put(other.enrolled())
    mine = split_frame(device.question(1))
    stolen = mine.clear + mine.body + other.signing.sign(b"skerry/1/up/q\0" + mine.clear + mine.body)
    bench.say(device.up, stolen)
    bench.say(other.up, stolen)
    # Under a header of its own the signature is good, but HPKE bound the ciphertext to the first header.
    clear = split_frame(other.question(1)).clear
    bench.say(other.up, clear + mine.body + other.signing.sign(b"skerry/1/up/q\0" + clear + mine.body))
    assert untouched(bench)
    assert bench.core.counts["dropped.signature"] == 1
    assert bench.core.counts["dropped.topic"] == 1
    assert bench.core.counts["refused.schema"] == 1


@pytest.mark.parametrize(
    ("age_s", "reason"),
    [
        (8 * DAY_S, RefusalReason.EXPIRED),
        (7 * DAY_S + 0.001, RefusalReason.EXPIRED),
        (7 * DAY_S, None),
        (0.0, None),
        (-300.0, None),
        (-300.001, RefusalReason.CREATED_AHEAD),
        (-600.0, RefusalReason.CREATED_AHEAD),
    ],
)
def test_created_seven_days_old_or_five_minutes_ahead_is_the_last_that_is_taken(device, bench, age_s, reason):
    frame = device.question(1, bench.now - age_s)
    bench.say(device.up, frame)
    if reason is None:
        bench.settle()
        assert bench.core.counts["verdicts"] == 1
        return
    (refusal,) = bench.refusals(device)
    assert (refusal.reason, refusal.final) == (reason, reason is RefusalReason.EXPIRED)
    assert (refusal.retry_after_s == 0.0) is refusal.final
    assert refusal.digest == hash_frame(frame)
    assert untouched(bench)


def test_a_question_ahead_of_time_is_told_when_to_come_back(device, bench):
    bench.say(device.up, device.question(1, bench.now + 310.0))
    (refusal,) = bench.refusals(device)
    assert refusal.retry_after_s == pytest.approx(10.0)
    bench.now += refusal.retry_after_s
    bench.say(device.up, device.question(1, bench.now + 300.0))
    assert bench.core.counts["refused.created_ahead"] == 1


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_refused(device, bench, version):
    bench.say(device.up, bytes((version,)) + device.question(1)[1:])
    assert bench.core.counts["dropped.version"] == 1
    assert untouched(bench)


@pytest.mark.parametrize("suite", [0x00, 0x02, 0x10, 0x12, 0xFF])
def test_an_unknown_suite_is_refused(device, bench, suite):
    frame = device.question(1)
    bench.say(device.up, frame[:1] + bytes((suite,)) + frame[2:])
    assert bench.core.counts["dropped.suite"] == 1
    assert untouched(bench)


def test_a_question_in_plaintext_is_refused_though_its_signature_is_good(device, bench):
    padded = pad_plaintext(encode_wire_message(device.escalation(1)))
    bench.say(device.up, sign_frame(device.header(1), padded, by=device.signing, channel=TopicChannel.QUESTION))
    assert bench.core.counts["dropped.suite"] == 1
    assert untouched(bench)


def test_a_signed_frame_relabelled_as_sealed_is_refused(device, bench):
    frame = bytearray(sign_frame(device.header(1), bytes(64), by=device.signing, channel=TopicChannel.QUESTION))
    frame[1] = CipherSuite.SEALED
    bench.say(device.up, bytes(frame))
    assert bench.core.counts["dropped.signature"] == 1
    assert untouched(bench)


def test_what_another_device_signs_for_this_one_changes_nothing(device, bench):
    other = SimDevice("demo--d2", epoch=device.epoch)
    bench.registry.put(other.enrolled())
    bench.say(device.up, other.question(1))
    bench.say(device.ask_topic, other.hello())
    bench.say(device.ask_topic, other.ask(1))
    assert bench.core.counts["dropped.topic"] == 3
    assert not bench.notes
    assert untouched(bench)


def test_a_note_moved_to_the_question_channel_and_back_is_refused(device, bench):
    bench.say(device.up, device.hello())
    bench.say(device.ask_topic, device.question(1))
    assert bench.core.counts["dropped.suite"] == 2
    assert untouched(bench)


def test_a_flood_of_bad_signatures_costs_twenty_checks_and_silences_its_sender_alone(device, bench):
    class Counting(type(bench.envelopes)):  # type: ignore[misc]
        verified = 0

        def verify(self, frame, device, channel):
            type(self).verified += 1
            super().verify(frame, device, channel)

    counting = Counting(HUB)
    other = SimDevice("demo--d2")
    bench = Bench(device, other, envelopes=counting)
    frame = device.question(1)
    for _ in range(1000):
        bench.say(device.up, frame[:-1] + bytes((frame[-1] ^ 1,)))
    assert counting.verified == STRIKE_BURST + 1
    assert not bench.notes  # no reply either: it could be aimed at a third party
    bench.ask(other, 1)
    bench.settle()
    assert bench.core.counts["verdicts"] == 1
    bench.say(device.up, frame)
    assert bench.core.counts["accepted"] == 1
    bench.now += MUTE_S
    bench.say(device.up, frame)
    bench.settle()
    assert bench.core.counts["verdicts"] == 2


def test_more_frames_than_the_rate_are_refused_for_now_and_later_taken(device):
    bench = Bench(device, device_rate_per_s=10.0, device_burst=5.0)
    for seq in range(1, 9):
        bench.ask(device, seq)
    assert bench.core.counts["refused.rate"] == 3
    assert all(r.reason is RefusalReason.RATE and not r.final and r.retry_after_s > 0 for r in bench.refusals(device))
    bench.now += 1.0
    bench.ask(device, 9)
    assert bench.core.counts["refused.rate"] == 3


def test_refusals_of_what_is_not_believed_are_few(device):
    bench = Bench(device, device_rate_per_s=1.0, device_burst=1.0)
    frame = device.question(1)
    for _ in range(1000):
        bench.say(device.up, frame)
    assert len(bench.notes) <= 41
    assert bench.core.counts["dropped.refused_silently"] >= 950


@pytest.mark.parametrize(("state", "final"), [(Standing.SUSPENDED, False), (Standing.REVOKED, True)])
def test_a_device_that_may_not_ask_is_refused_by_our_own_registry(device, state, final):
    bench = Bench(device)
    bench.registry.put(device.enrolled(state))
    bench.ask(device, 1)
    (refusal,) = bench.refusals(device)
    assert (refusal.reason, refusal.final) == (RefusalReason.DEVICE_UNKNOWN, final)
    bench.say(device.ask_topic, device.hello())
    bench.say(device.ask_topic, device.ask(1))
    assert bench.core.counts["dropped.not_active"] == 2
    assert untouched(bench)


def test_an_unknown_device_is_refused_for_now(device):
    bench = Bench()
    bench.ask(device, 1)
    (refusal,) = bench.refusals(device)
    assert (refusal.reason, refusal.final) == (RefusalReason.DEVICE_UNKNOWN, False)
    assert untouched(bench)


def test_a_frame_over_the_hubs_own_limit_is_refused_for_good_and_over_the_links_limit_dropped(device):
    bench = Bench(device, max_frame_bytes=600)
    bench.say(device.up, device.question(1, size=1024))
    (refusal,) = bench.refusals(device)
    assert (refusal.reason, refusal.final, refusal.retry_after_s) == (RefusalReason.TOO_BIG, True, 0.0)
    bench.say(device.up, bytes(MAX_FRAME_BYTES + 1))
    assert bench.core.counts["dropped.too_big"] == 1
    assert untouched(bench)


@pytest.mark.parametrize("name", ["v1/00/demo--d1/up/q", "v1/zz/x/up/q", "$SYS/x", "", "v1/+/+/up/q"])
def test_a_topic_that_is_not_its_devices_own_is_dropped(device, bench, name):
    bench.say(name, device.question(1))
    assert bench.core.counts["dropped.topic"] == 1
    assert untouched(bench)


@pytest.mark.parametrize("change", [{"seq": -1}, {"seq": 2**63}, {"epoch": 2**64 - 1}, {"created_ms": -5}])
def test_numbers_that_no_database_column_holds_are_refused(device, bench, change):
    header = msgspec.structs.replace(device.header(1), **change)
    to = HUB.hpke[HUB.current].public_key()
    padded = pad_plaintext(encode_wire_message(device.escalation(1)), 512)
    bench.say(device.up, seal_frame(header, padded, to=to, by=device.signing, channel=TopicChannel.QUESTION))
    assert bench.core.counts["dropped.malformed"] == 1
    assert untouched(bench)


def test_states_are_no_input_and_a_report_without_a_signature_is_dropped(device, bench):
    for channel in (TopicChannel.STATE, TopicChannel.REPORT):
        bench.say(build_topic(device.id, channel), b"\xff" * 100)
    assert bench.core.counts["hints"] == 1
    assert sum(count for name, count in bench.core.counts.items() if name.startswith("dropped.")) == 1
    assert untouched(bench)


def test_a_frame_of_just_the_hubs_limit_is_taken_and_of_one_byte_more_refused(device):
    size = len(device.question(1))
    for limit, refused in ((size, 0), (size - 1, 1)):
        bench = Bench(device, max_frame_bytes=limit)
        bench.say(device.up, device.question(1))
        assert bench.core.counts["refused.too_big"] == refused


@pytest.mark.parametrize("field", ["seq", "epoch", "created_ms"])
def test_the_largest_number_of_a_database_column_is_no_reason_to_drop_a_frame(device, bench, field):
    for value, dropped in ((2**63 - 1, 0), (2**63, 1), (-1, 2)):
        header = msgspec.structs.replace(device.header(1), **{field: value})
        padded = pad_plaintext(encode_wire_message(device.escalation(1)), 512)
        to = HUB.hpke[HUB.current].public_key()
        bench.say(device.up, seal_frame(header, padded, to=to, by=device.signing, channel=TopicChannel.QUESTION))
        assert bench.core.counts["dropped.malformed"] == dropped


def test_a_device_whose_bad_signatures_go_on_after_it_was_muted_is_suspected(device, bench):
    frame = device.question(1)
    bad, verifier = frame[:-1] + bytes((frame[-1] ^ 1,)), bench.core._gate
    suspected = []
    for _ in range(MUTES):
        checked = [verifier.verify_question(device.id, bad, bench.now) for _ in range(200)]
        assert checked[-1].why == "muted"
        assert verifier.verify_note(device.id, device.hello(), bench.now).why == "muted"
        suspected.append(sum(found.suspect for found in checked))
        bench.now += MUTE_S
    assert (MUTES, suspected) == (2, [0, 1])


STATE_REFUSALS = {
    None: (RefusalReason.DEVICE_UNKNOWN, UNKNOWN_RETRY_S, False),  # its registry may be restored
    Standing.SUSPENDED: (RefusalReason.DEVICE_UNKNOWN, SUSPENDED_RETRY_S, False),
    Standing.REVOKED: (RefusalReason.DEVICE_UNKNOWN, SUSPENDED_RETRY_S, True),
}


@pytest.mark.parametrize("frame", ["good", "too big", "over the rate", "too old", "ahead"])
@pytest.mark.parametrize("standing", [Standing.ACTIVE, *STATE_REFUSALS])
def test_a_frame_is_refused_by_its_size_then_the_rate_then_its_device_and_last_its_age(device, standing, frame):
    bench = Bench(device, max_frame_bytes=2000, device_rate_per_s=1.0, device_burst=1.0)
    if standing is None:
        bench.registry = bench.core._gate._registry = MemoryRegistry(())
    else:
        bench.registry.put(device.enrolled(standing))
    created_s = {"too old": bench.now - 8 * DAY_S, "ahead": bench.now + 400.0}.get(frame, bench.now)
    payload = device.question(1, created_s, size=4096 if frame == "too big" else 512)
    if frame == "over the rate":
        bench.core._gate.verify_question(device.id, payload, bench.now)
    found = bench.core._gate.verify_question(device.id, payload, bench.now)
    by_age = {"too old": (RefusalReason.EXPIRED, 0.0, True), "ahead": (RefusalReason.CREATED_AHEAD, 100.0, False)}
    refused = {
        "too big": (RefusalReason.TOO_BIG, 0.0, True),
        "over the rate": (RefusalReason.RATE, RATE_RETRY_S, False),
    }
    expected = refused.get(frame) or STATE_REFUSALS.get(standing) or by_age.get(frame)
    if expected is None:
        assert isinstance(found, VerifiedFrame)
        return
    reason, retry_after_s, final = expected
    assert found == Refusal(device.epoch, 1, hash_frame(payload), reason, retry_after_s, final)
