"""Wire codec: round trips, padding classes, and the fault named for each foreign frame."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.doubles import frames
from wire.errors import Fault, LocalError, RemoteError
from wire.protocol import codec
from wire.protocol.messages import CipherSuite, Escalation, FrameHeader, Receipt, Verdict


@given(frames.escalations)
def test_an_escalation_comes_out_as_it_went_in(message: Escalation) -> None:
    assert codec.decode_escalation(codec.encode_wire_message(message)) == message


@given(frames.verdicts)
def test_a_verdict_comes_out_as_it_went_in(message: Verdict) -> None:
    assert codec.decode_verdict(codec.encode_wire_message(message)) == message


@given(frames.up_notes)
def test_a_note_of_the_device_comes_out_as_it_went_in(message) -> None:
    assert codec.decode_up_note(codec.encode_wire_message(message)) == message


@given(frames.down_notes)
def test_a_note_of_the_hub_comes_out_as_it_went_in(message) -> None:
    assert codec.decode_down_note(codec.encode_wire_message(message)) == message


@given(frames.headers, st.binary(max_size=300), st.sampled_from(CipherSuite))
def test_a_split_frame_gives_back_its_parts(header: FrameHeader, body: bytes, suite: CipherSuite) -> None:
    clear = codec.encode_clear_part(suite, header)
    frame = codec.split_frame(clear + body + bytes(64))
    assert (frame.suite, frame.header, frame.clear, frame.body) == (suite, header, clear, body)


def test_notes_are_told_apart_by_their_tag_and_not_by_their_shape() -> None:
    receipt = codec.encode_wire_message(Receipt(1, (2, 3)))
    with pytest.raises(RemoteError) as refused:
        codec.decode_up_note(receipt)
    assert refused.value.fault is Fault.MALFORMED


def test_the_clear_header_costs_no_more_than_the_design_says() -> None:
    """Header, HPKE and signature together: about 196 bytes for a device id of the usual length."""
    overhead = len(frames.sealed_question()) - len(codec.pad_plaintext(codec.encode_wire_message(frames.question())))
    assert overhead <= 196


@given(st.binary(max_size=2000))
def test_padding_is_taken_off_again(data: bytes) -> None:
    assert codec.unpad_plaintext(codec.pad_plaintext(data)) == data


@given(st.binary(max_size=2000))
def test_a_padded_size_is_a_whole_class_and_the_smallest_that_fits(data: bytes) -> None:
    size = len(codec.pad_plaintext(data))
    assert size % codec.SIZE_CLASS_BYTES == 0
    assert 0 <= size - len(data) - 4 < codec.SIZE_CLASS_BYTES


@given(st.binary(max_size=252), st.binary(max_size=252))
def test_with_a_fixed_size_any_two_samples_have_the_same_length(one: bytes, other: bytes) -> None:
    assert len(codec.pad_plaintext(one, 256)) == len(codec.pad_plaintext(other, 256)) == 256


def test_a_sample_that_does_not_fit_the_fixed_size_is_our_own_fault() -> None:
    assert len(codec.pad_plaintext(bytes(252), 256)) == 256
    with pytest.raises(LocalError, match="257 bytes do not fit"):
        codec.pad_plaintext(bytes(253), 256)


@given(st.binary(max_size=200), st.data())
def test_padding_that_is_not_zero_is_refused(data: bytes, drawn: st.DataObject) -> None:
    padded = bytearray(codec.pad_plaintext(data, 256))
    padded[drawn.draw(st.integers(4 + len(data), 255))] = drawn.draw(st.integers(1, 255))
    with pytest.raises(RemoteError) as refused:
        codec.unpad_plaintext(bytes(padded))
    assert refused.value.fault is Fault.PADDING


@given(st.binary(max_size=200), st.integers(1, 255))
def test_padding_cut_into_the_data_is_refused(data: bytes, short: int) -> None:
    padded = codec.pad_plaintext(data)
    cut = padded[: max(0, 4 + len(data) - short)]
    with pytest.raises(RemoteError) as refused:
        codec.unpad_plaintext(cut)
    assert refused.value.fault is Fault.PADDING


def test_padding_that_claims_more_than_there_is_is_refused() -> None:
    with pytest.raises(RemoteError):
        codec.unpad_plaintext((61).to_bytes(4, "big") + bytes(60))
    assert codec.unpad_plaintext((60).to_bytes(4, "big") + bytes(60)) == bytes(60)


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_the_fingerprint_names_the_plaintext(one: bytes, other: bytes) -> None:
    same = codec.hash_plaintext(codec.pad_plaintext(one)) == codec.hash_plaintext(codec.pad_plaintext(other))
    assert same == (one == other)


def test_a_frame_one_byte_over_the_limit_is_refused_before_it_is_read() -> None:
    frame = frames.sealed_question()
    assert codec.split_frame(frame, max_bytes=len(frame)).header == frames.header()
    with pytest.raises(RemoteError) as refused:
        codec.split_frame(frame, max_bytes=len(frame) - 1)
    assert refused.value.fault is Fault.TOO_BIG


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_refused_by_name(version: int) -> None:
    frame = frames.sealed_question()
    with pytest.raises(RemoteError) as refused:
        codec.split_frame(bytes([version]) + frame[1:])
    assert refused.value.fault is Fault.VERSION


def test_an_unknown_suite_is_refused_by_name() -> None:
    frame = frames.sealed_question()
    for suite in sorted(set(range(256)) - set(CipherSuite)):
        with pytest.raises(RemoteError) as refused:
            codec.split_frame(frame[:1] + bytes([suite]) + frame[2:])
        assert refused.value.fault is Fault.SUITE


@pytest.mark.parametrize("claimed", [0, 1, 257, 0xFFFF])
def test_a_header_of_a_false_length_is_refused(claimed: int) -> None:
    frame = frames.sealed_question()
    with pytest.raises(RemoteError) as refused:
        codec.split_frame(frame[:2] + claimed.to_bytes(2, "big") + frame[4:])
    assert refused.value.fault is Fault.MALFORMED


def test_a_header_may_not_eat_the_signature() -> None:
    clear = codec.encode_clear_part(CipherSuite.SIGNED, frames.header())
    assert codec.split_frame(clear + bytes(64)).body == b""
    with pytest.raises(RemoteError):
        codec.split_frame(clear + bytes(63))


def test_a_device_id_too_long_for_the_header_is_our_own_fault() -> None:
    with pytest.raises(LocalError, match="too long"):
        codec.encode_clear_part(CipherSuite.SEALED, frames.header(device="x" * 250))


def test_what_was_sent_does_not_end_up_whole_in_the_error() -> None:
    loud = codec.encode_wire_message(frames.question()).replace(b"UINT8", b"secre")
    with pytest.raises(RemoteError) as refused:
        codec.decode_escalation(loud)
    assert len(str(refused.value)) < 160
