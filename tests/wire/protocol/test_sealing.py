"""Sealed frames under attack: whatever is changed, moved or reattached is refused."""

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.doubles import frames
from tests.wire.doubles.frames import DEVICE_HPKE, DEVICE_SIGNING, HUB_HPKE, HUB_SIGNING, OTHER_SIGNING
from wire.errors import Fault, LocalError, RemoteError
from wire.protocol import codec, sealing
from wire.protocol.messages import CipherSuite, Receipt
from wire.protocol.topics import TopicChannel

QUESTION = codec.pad_plaintext(codec.encode_wire_message(frames.question()))
FRAME = frames.sealed_question()
PRINT = codec.hash_plaintext(QUESTION)


def receive(data: bytes, channel: TopicChannel = TopicChannel.QUESTION) -> bytes:
    """What the hub does with a question of `DEVICE`: split, verify, open."""
    frame = codec.split_frame(data)
    sealing.verify_frame(frame, by=DEVICE_SIGNING.public_key(), channel=channel)
    return sealing.open_sealed_frame(frame, key=HUB_HPKE, channel=channel)


def reply(binding: bytes, seq: int = 1) -> bytes:
    padded = codec.pad_plaintext(codec.encode_wire_message(frames.verdict()), 256)
    to = DEVICE_HPKE.public_key()
    return sealing.seal_frame(
        frames.header(seq), padded, to=to, by=HUB_SIGNING, channel=TopicChannel.REPLY, binding=binding
    )


def open_reply(data: bytes, binding: bytes) -> bytes:
    frame = codec.split_frame(data)
    sealing.verify_frame(frame, by=HUB_SIGNING.public_key(), channel=TopicChannel.REPLY)
    return sealing.open_sealed_frame(frame, key=DEVICE_HPKE, channel=TopicChannel.REPLY, binding=binding)


def hear(note: bytes) -> None:
    """What a device does with a note of its hub."""
    sealing.verify_frame(codec.split_frame(note), by=HUB_SIGNING.public_key(), channel=TopicChannel.REPLY)


def refused(data: bytes) -> Fault:
    with pytest.raises(RemoteError) as error:
        receive(data)
    return error.value.fault


def test_an_untouched_question_opens_to_what_was_sealed() -> None:
    assert receive(FRAME) == QUESTION


def test_two_sealings_of_one_question_differ_but_open_to_one_fingerprint() -> None:
    again = frames.sealed_question()
    assert again != FRAME
    assert sealing.hash_frame(again) != sealing.hash_frame(FRAME)
    assert codec.hash_plaintext(receive(again)) == PRINT


def test_every_flipped_byte_is_refused() -> None:
    for at in range(len(FRAME)):
        for flip in (0x01, 0x80, 0xFF):
            assert refused(FRAME[:at] + bytes([FRAME[at] ^ flip]) + FRAME[at + 1 :]) in Fault


@given(st.integers(0, len(FRAME) - 1), st.integers(1, 255))
def test_any_other_value_of_any_byte_is_refused(at: int, flip: int) -> None:
    assert refused(FRAME[:at] + bytes([FRAME[at] ^ flip]) + FRAME[at + 1 :]) in Fault


def test_every_flipped_byte_of_the_ciphertext_is_refused_without_the_signature_too() -> None:
    """The seal must hold by itself: a thief of the signing key still cannot alter what was sealed."""
    frame = codec.split_frame(FRAME)
    for at in range(len(frame.body)):
        body = frame.body[:at] + bytes([frame.body[at] ^ 1]) + frame.body[at + 1 :]
        resigned = sealing.append_signature(frame.clear, body, DEVICE_SIGNING, TopicChannel.QUESTION)
        assert refused(resigned) is Fault.SEAL


def test_every_truncation_is_refused() -> None:
    for end in range(len(FRAME)):
        assert refused(FRAME[:end]) in Fault


@given(st.binary(min_size=1, max_size=64))
def test_bytes_added_at_the_end_are_refused(more: bytes) -> None:
    assert refused(FRAME + more) is Fault.SIGNATURE


def test_the_header_of_one_question_does_not_carry_the_body_of_another() -> None:
    one, other = codec.split_frame(FRAME), codec.split_frame(frames.sealed_question(seq=2))
    assert refused(one.clear + other.body + other.signature) is Fault.SIGNATURE
    resigned = sealing.append_signature(one.clear, other.body, DEVICE_SIGNING, TopicChannel.QUESTION)
    assert refused(resigned) is Fault.SEAL  # even the device itself cannot renumber what it sealed


def test_a_stripped_question_signed_by_another_device_is_refused() -> None:
    frame = codec.split_frame(FRAME)
    stolen = sealing.append_signature(frame.clear, frame.body, OTHER_SIGNING, TopicChannel.QUESTION)
    assert refused(stolen) is Fault.SIGNATURE


def test_another_device_cannot_put_its_own_header_over_a_stolen_body() -> None:
    stolen = codec.split_frame(FRAME)
    clear = codec.encode_clear_part(CipherSuite.SEALED, frames.header(device="demo--thief"))
    frame = codec.split_frame(sealing.append_signature(clear, stolen.body, OTHER_SIGNING, TopicChannel.QUESTION))
    sealing.verify_frame(frame, by=OTHER_SIGNING.public_key(), channel=TopicChannel.QUESTION)
    with pytest.raises(RemoteError) as error:
        sealing.open_sealed_frame(frame, key=HUB_HPKE, channel=TopicChannel.QUESTION)
    assert error.value.fault is Fault.SEAL


@pytest.mark.parametrize("channel", [c for c in TopicChannel if c is not TopicChannel.QUESTION])
def test_a_message_moved_to_another_channel_is_refused(channel: TopicChannel) -> None:
    with pytest.raises(RemoteError) as error:
        receive(FRAME, channel)
    assert error.value.fault is Fault.SIGNATURE
    with pytest.raises(RemoteError) as unsealed:
        sealing.open_sealed_frame(codec.split_frame(FRAME), key=HUB_HPKE, channel=channel)
    assert unsealed.value.fault is Fault.SEAL


def test_a_sealed_question_cannot_be_passed_off_as_a_signed_one() -> None:
    downgraded = FRAME[:1] + bytes([CipherSuite.SIGNED]) + FRAME[2:]
    assert refused(downgraded) is Fault.SIGNATURE


def test_a_plaintext_question_is_refused_where_a_sealed_one_is_expected() -> None:
    plain = sealing.sign_frame(frames.header(), QUESTION, by=DEVICE_SIGNING, channel=TopicChannel.QUESTION)
    assert refused(plain) is Fault.SUITE


def test_version_zero_is_refused_though_its_signature_would_fit() -> None:
    frame = codec.split_frame(FRAME)
    old = sealing.append_signature(b"\x00" + frame.clear[1:], frame.body, DEVICE_SIGNING, TopicChannel.QUESTION)
    assert refused(old) is Fault.VERSION


def test_a_question_sealed_to_another_key_does_not_open() -> None:
    with pytest.raises(RemoteError) as error:
        sealing.open_sealed_frame(
            codec.split_frame(FRAME), key=X25519PrivateKey.generate(), channel=TopicChannel.QUESTION
        )
    assert error.value.fault is Fault.SEAL


@pytest.mark.parametrize("size", [0, 1, 31, 32, 47, 48, 200])
def test_a_body_that_is_no_ciphertext_does_not_open(size: int) -> None:
    clear = codec.encode_clear_part(CipherSuite.SEALED, frames.header())
    assert refused(sealing.append_signature(clear, bytes(size), DEVICE_SIGNING, TopicChannel.QUESTION)) is Fault.SEAL


def test_a_verdict_opens_for_its_own_question() -> None:
    binding = sealing.compute_verdict_binding(PRINT, "digits@7", "policy")
    assert codec.decode_verdict(codec.unpad_plaintext(open_reply(reply(binding), binding))) == frames.verdict()


def test_a_verdict_reattached_to_another_question_is_refused() -> None:
    sent = reply(sealing.compute_verdict_binding(PRINT, "digits@7", "policy"))
    for binding in (
        sealing.compute_verdict_binding(codec.hash_plaintext(b"another question"), "digits@7", "policy"),
        sealing.compute_verdict_binding(PRINT, "digits@8", "policy"),
        sealing.compute_verdict_binding(PRINT, "digits@7", "another policy"),
        b"",
    ):
        with pytest.raises(RemoteError) as error:
            open_reply(sent, binding)
        assert error.value.fault is Fault.SEAL


def test_a_verdict_under_the_header_of_another_question_is_refused() -> None:
    binding = sealing.compute_verdict_binding(PRINT, "digits@7", "policy")
    one, other = codec.split_frame(reply(binding, seq=1)), codec.split_frame(reply(binding, seq=2))
    moved = sealing.append_signature(other.clear, one.body, HUB_SIGNING, TopicChannel.REPLY)
    with pytest.raises(RemoteError) as error:
        open_reply(moved, binding)
    assert error.value.fault is Fault.SEAL


parts = st.text(max_size=6).map(lambda text: text.replace("x", "\0"))


@given(st.tuples(parts, parts), st.tuples(parts, parts))
def test_no_two_questions_share_a_verdict_binding(one: tuple[str, str], other: tuple[str, str]) -> None:
    same = sealing.compute_verdict_binding(PRINT, *one) == sealing.compute_verdict_binding(PRINT, *other)
    assert same == (one == other)


def test_a_border_moved_between_model_and_policy_changes_the_binding() -> None:
    assert sealing.compute_verdict_binding(PRINT, "a\0b", "c") != sealing.compute_verdict_binding(PRINT, "a", "b\0c")


def test_a_note_says_who_signed_it_and_for_which_channel() -> None:
    note = sealing.sign_frame(
        frames.header(), codec.encode_wire_message(Receipt(5, (1,))), by=HUB_SIGNING, channel=TopicChannel.REPLY
    )
    frame = codec.split_frame(note)
    sealing.verify_frame(frame, by=HUB_SIGNING.public_key(), channel=TopicChannel.REPLY)
    assert codec.decode_down_note(frame.body) == Receipt(5, (1,))
    with pytest.raises(RemoteError):
        sealing.verify_frame(frame, by=DEVICE_SIGNING.public_key(), channel=TopicChannel.REPLY)
    with pytest.raises(RemoteError):
        sealing.verify_frame(frame, by=HUB_SIGNING.public_key(), channel=TopicChannel.DESIRED)


def test_every_flipped_byte_of_a_signed_note_is_refused() -> None:
    note = sealing.sign_frame(
        frames.header(), codec.encode_wire_message(Receipt(5, (1,))), by=HUB_SIGNING, channel=TopicChannel.REPLY
    )
    for at in range(len(note)):
        with pytest.raises(RemoteError):
            hear(note[:at] + bytes([note[at] ^ 1]) + note[at + 1 :])


def test_a_frame_over_the_brokers_limit_is_never_made() -> None:
    with pytest.raises(LocalError, match="at most"):
        sealing.seal_frame(
            frames.header(),
            bytes(codec.MAX_FRAME_BYTES),
            to=HUB_HPKE.public_key(),
            by=DEVICE_SIGNING,
            channel=TopicChannel.QUESTION,
        )
