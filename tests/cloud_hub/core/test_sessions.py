"""Questions of a session at the hub: answered in it, refused without it, and what attackers try with them."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud_hub.core.core import EXPIRE_EVERY_S
from cloud_hub.core.session_notes import MAX_LISTED, OFFER_AGE_S
from cloud_hub.core.verification import STRIKE_BURST
from cloud_hub.security.sessions import GRACE_S, MAX_OF_DEVICE
from tests.cloud_hub.doubles.bench import Bench, owed
from tests.cloud_hub.doubles.devices import HUB, NOW_S, SimDevice
from wire.errors import Fault, RemoteError
from wire.protocol.codec import encode_clear_part, split_frame
from wire.protocol.messages import CipherSuite, Refusal, RefusalReason, WelcomeNote
from wire.protocol.sealing import hash_frame, verify_frame
from wire.protocol.session_notes import SessionAccept, SessionInvite
from wire.protocol.sessions import SESSION_S
from wire.protocol.topics import TopicChannel, build_topic, compute_shard

ALL = frozenset(("*",))


@pytest.fixture
def device() -> SimDevice:
    return SimDevice()


@pytest.fixture
def bench(device: SimDevice) -> Bench:
    bench = Bench(device, session_classes=ALL)
    bench.open_session(device)
    return bench


def session_of(device: SimDevice) -> bytes:
    assert device.session is not None
    return device.session.id


def reasons(bench: Bench, device: SimDevice) -> list[RefusalReason]:
    return [refusal.reason for refusal in bench.refusals(device)]


# Opening


@pytest.mark.parametrize(
    ("classes", "invited"), [((), False), (("meter",), False), (("camera",), True), (("*",), True)]
)
def test_only_devices_of_the_named_classes_are_invited_and_may_offer(classes: tuple[str, ...], invited: bool):
    device = SimDevice()
    bench = Bench(device, session_classes=frozenset(classes))
    bench.registry.put(replace(device.enrolled(), device_class="camera"))
    bench.say(device.ask_topic, device.hello())
    kinds = [type(note) for note in bench.replies(device)]
    assert kinds == [WelcomeNote, SessionInvite] if invited else kinds == [WelcomeNote]
    bench.say(device.ask_topic, device.offer())
    assert [type(note) for note in bench.replies(device)] == ([SessionAccept] if invited else [])


def test_no_device_is_invited_unless_the_operator_says_so():
    assert not Bench().settings.opens_sessions("")
    assert not Bench().settings.opens_sessions("camera")


def test_the_same_offer_once_more_gets_the_same_answer(device: SimDevice):
    bench = Bench(device, session_classes=ALL)
    for _ in range(3):
        bench.say(device.ask_topic, device.offer())
        bench.wait(2.5)
    assert len(set(bench.replies(device))) == 1


@pytest.mark.parametrize("age_s", [OFFER_AGE_S + 1, -OFFER_AGE_S - 1])
def test_a_recorded_offer_opens_no_session_later(device: SimDevice, age_s: float):
    bench = Bench(device, session_classes=ALL)
    bench.say(device.ask_topic, device.offer(NOW_S - age_s))
    assert not bench.replies(device)
    assert bench.core.counts["dropped.old_offer"] == 1


@pytest.mark.parametrize(
    "changes", [{"hub": "hub-2"}, {"key_id": bytes(8)}, {"share": bytes(31)}, {"share": bytes(32)}, {"epoch": -1}]
)
def test_an_offer_that_fits_nothing_is_not_answered(device: SimDevice, changes: dict[str, Any]):
    bench = Bench(device, session_classes=ALL)
    bench.say(device.ask_topic, device.offer(**changes))
    assert not bench.replies(device)


def test_nobody_offers_in_the_name_of_a_device(device: SimDevice):
    bench, genuine = Bench(device, session_classes=ALL), device.signing
    device.signing = Ed25519PrivateKey.generate()
    bench.say(device.ask_topic, device.offer())
    device.signing = genuine
    assert not bench.replies(device)


# Questions and verdicts


def test_a_question_of_a_session_is_answered_in_it(bench: Bench, device: SimDevice):
    frame = bench.ask(device, 1)
    assert split_frame(frame).suite is CipherSuite.SESSION
    bench.settle()
    (sent,) = [each for each in bench.sent[device.id] if split_frame(each).suite is CipherSuite.SESSION_SIGNED]
    assert split_frame(sent).header.key_id == session_of(device)
    assert bench.verdicts(device).keys() == {1}


def test_a_replayed_question_has_one_effect_and_the_same_verdict(bench: Bench, device: SimDevice):
    frame = bench.ask(device, 1)
    bench.settle()
    for _ in range(20):
        bench.say(device.up, frame)
        bench.settle()
    assert len({each for each in bench.sent[device.id] if split_frame(each).suite is CipherSuite.SESSION_SIGNED}) == 1
    assert bench.core.counts["accepted"] == 1


def test_garbage_in_a_devices_name_counts_as_a_bad_signature_does(bench: Bench, device: SimDevice):
    frame = device.question(1)
    for _ in range(int(STRIKE_BURST) + 1):
        bench.say(device.up, frame[:-1] + bytes([frame[-1] ^ 1]))
    assert bench.core.counts["dropped.seal"] == STRIKE_BURST + 1
    bench.say(device.up, frame)
    assert bench.core.counts["dropped.muted"] == 1


@pytest.mark.parametrize("changes", [{"seq": 2}, {"created_ms": round(NOW_S * 1000) + 1}, {"epoch": 78}])
def test_a_question_whose_header_was_changed_is_not_taken(bench: Bench, device: SimDevice, changes: dict[str, int]):
    frame = split_frame(device.question(1))
    forged = encode_clear_part(CipherSuite.SESSION, msgspec.structs.replace(frame.header, **changes)) + frame.body
    bench.say(device.up, forged)
    assert not bench.core.counts["accepted"]
    assert bench.core.counts["dropped.seal"] == ("epoch" not in changes)  # that session is not of this epoch


def test_a_question_moved_to_another_device_or_channel_is_dropped(bench: Bench, device: SimDevice):
    other = SimDevice("demo--d2")
    bench.registry.put(other.enrolled())
    frame = device.question(1)
    bench.say(other.up, frame)
    bench.say(device.ask_topic, frame)
    bench.say(build_topic(device.id, TopicChannel.REPORT), frame)
    assert bench.core.counts["dropped.topic"] == 1
    assert bench.core.counts["dropped.suite"] == 2
    assert not bench.core.counts["accepted"]


def test_a_session_of_another_device_of_the_same_name_is_refused(bench: Bench, device: SimDevice):
    """The device was enrolled anew, and somebody has the memory of the earlier one."""
    enrolled = SimDevice(device.id)
    bench.registry.put(enrolled.enrolled())
    bench.ask(device, 1)
    (_, refusal) = bench.notes[-1]
    assert isinstance(refusal, Refusal)
    assert refusal.reason is RefusalReason.KEY_EXPIRED


def test_a_question_without_a_session_where_one_was_is_still_taken(bench: Bench, device: SimDevice):
    """Version 1 is spoken for good: a device whose session is suppressed goes on as before."""
    device.session = None
    bench.ask(device, 1)
    bench.settle()
    assert bench.verdicts(device).keys() == {1}


def test_the_other_suites_are_not_taken_for_a_question(bench: Bench, device: SimDevice):
    frame = device.question(1)
    for suite in CipherSuite:
        if suite is not CipherSuite.SESSION:
            bench.say(device.up, frame[:1] + bytes([suite]) + frame[2:])
    bench.say(device.up, b"\x01" + frame[1:])
    assert not bench.core.counts["accepted"]


@pytest.mark.parametrize(
    "limits",
    [
        {"max_queued": 3}, {"device_open": 2}, {"tenant_rate_per_s": 0.001, "tenant_burst": 2.0},
        {"device_rate_per_s": 0.001, "device_burst": 2.0}, {"max_frame_bytes": 100}, {},
    ],
)  # fmt: skip
@pytest.mark.parametrize("drained", [False, True])
def test_a_question_of_a_session_is_admitted_as_a_signed_one_is(limits: dict[str, Any], drained: bool):
    """It is opened before it is admitted, where the other is admitted before it is opened."""
    found = []
    for in_session in (False, True):
        device = SimDevice()
        bench = Bench(device, session_classes=ALL, **limits)
        if in_session:
            bench.open_session(device)
        if drained:
            bench.core.drain()
        for seq in range(1, 7):
            bench.ask(device, seq)
            bench.commit()
        found.append((bench.core.counts["accepted"], reasons(bench, device)))
    assert found[0] == found[1]


# The end of a session


def test_after_its_end_and_grace_its_questions_are_sealed_again(bench: Bench, device: SimDevice):
    frame = bench.ask(device, 1)
    bench.settle()
    bench.wait(SESSION_S + GRACE_S - 1)
    bench.ask(device, 2)
    assert bench.core.counts["accepted"] == 2
    bench.wait(EXPIRE_EVERY_S + 1)
    bench.say(device.up, device.question(3, bench.now))
    refusal = bench.refusals(device)[-1]
    assert (refusal.seq, refusal.reason, refusal.final) == (3, RefusalReason.KEY_EXPIRED, False)
    assert bench.envelopes.open_in_session(split_frame(frame)) is None


def test_a_verdict_that_takes_longer_than_its_session_is_still_read(bench: Bench, device: SimDevice):
    bench.ask(device, 1)
    bench.flush()
    bench.wait(SESSION_S + GRACE_S + EXPIRE_EVERY_S)
    bench.open_session(device)
    bench.settle()
    assert bench.verdicts(device).keys() == {1}


def test_a_hub_that_starts_anew_has_questions_sealed_again_at_once(bench: Bench, device: SimDevice):
    frame = bench.ask(device, 1)
    bench.commit()
    bench.commit()
    assert owed(bench) == [1]
    bench.sent.clear()
    bench.restart()
    (refusal,) = bench.refusals(device)
    assert (refusal.digest, refusal.reason, refusal.final) == (hash_frame(frame), RefusalReason.KEY_EXPIRED, False)
    device.session = None
    bench.ask(device, 1)
    bench.settle()
    assert bench.verdicts(device).keys() == {1}
    assert not owed(bench)


def test_a_verdict_of_a_session_is_sent_again_after_a_restart_of_the_hub(bench: Bench, device: SimDevice):
    """It opens for whoever keeps the key of its question, as the device does until the question has ended."""
    bench.ask(device, 1)
    bench.settle()
    bench.sent.clear()
    bench.restart()
    bench.say(device.ask_topic, device.ask(1))
    bench.settle()
    assert bench.verdicts(device).keys() == {1}


def test_a_question_resealed_without_its_session_gets_the_verdict_it_has(bench: Bench, device: SimDevice):
    bench.ask(device, 1)
    bench.settle()
    first = bench.verdicts(device)
    device.session = None
    bench.ask(device, 1)
    bench.settle()
    assert bench.verdicts(device) == first
    assert bench.core.counts["accepted"] == 1


def test_shards_handed_over_take_their_sessions_with_them(bench: Bench, device: SimDevice):
    bench.ask(device, 1)
    bench.settle()
    bench.sent.clear()
    shard = compute_shard(device.id)
    bench._obey(bench.core.on_lost((shard,), bench.now))
    bench._obey(bench.core.on_gained((shard,), (), bench.now))
    bench.ask(device, 2)
    assert reasons(bench, device) == [RefusalReason.KEY_EXPIRED]


def test_a_device_has_few_sessions_and_the_oldest_goes_first(bench: Bench, device: SimDevice):
    first = device.session
    for _ in range(MAX_OF_DEVICE):
        bench.wait(3.0)
        bench.open_session(device)
    bench.ask(device, 2)
    bench.settle()
    bench.sent.clear()
    device.session = first
    bench.ask(device, 1)
    assert bench.core.counts["accepted"] == 1
    assert reasons(bench, device) == [RefusalReason.KEY_EXPIRED]


def test_a_verdict_does_not_open_as_that_of_another_question_of_the_session(bench: Bench, device: SimDevice):
    bench.ask(device, 1)
    bench.ask(device, 2)
    bench.settle()
    verdict = next(f for f in bench.sent[device.id] if f[1] == CipherSuite.SESSION_SIGNED and _seq_of(f) == 2)
    device.verdict_keys[session_of(device), 2] = device.verdict_keys[session_of(device), 1]
    with pytest.raises(RemoteError) as refused:
        device.read(verdict)
    assert refused.value.fault is Fault.SEAL


def _seq_of(frame: bytes) -> int:
    return split_frame(frame).header.seq


# Lists of frames


def test_a_list_is_taken_up_as_it_was_signed(bench: Bench, device: SimDevice):
    bench.wait(2.5)
    note = device.frame_list(bytes(32), bytes(31) + b"\x01", after=7)
    bench.say(build_topic(device.id, TopicChannel.REPORT), note)
    (kept,) = bench.lists
    assert (kept.device, kept.frame, kept.listed.digests[0]) == (device.id, note, bytes(32))
    assert kept.key == device.signing.public_key().public_bytes_raw()


@pytest.mark.parametrize("digests", [(bytes(31),), (bytes(32),) * (MAX_LISTED + 1)])
def test_a_list_that_cannot_be_is_dropped(bench: Bench, device: SimDevice, digests: tuple[bytes, ...]):
    bench.say(build_topic(device.id, TopicChannel.REPORT), device.frame_list(*digests))
    bench.say(device.ask_topic, device.frame_list(bytes(32)))
    assert not bench.lists


def test_each_verdict_of_a_session_is_signed_by_the_hub(bench: Bench, device: SimDevice):
    """Who gave a verdict is shown to others by the frame alone, as without sessions."""
    bench.ask(device, 1)
    bench.settle()
    (verdict,) = [split_frame(f) for f in bench.sent[device.id] if f[1] == CipherSuite.SESSION_SIGNED]
    verify_frame(verdict, by=HUB.signing.public_key(), channel=TopicChannel.REPLY)
    with pytest.raises(RemoteError):
        verify_frame(verdict, by=device.signing.public_key(), channel=TopicChannel.REPLY)
