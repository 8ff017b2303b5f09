"""Fuzzing of the wire codec. Rule: on arbitrary bytes every decoder returns or raises `RemoteError`, nothing else."""

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.wire.doubles import frames
from wire.errors import RemoteError
from wire.protocol import codec

DECODERS = (codec.decode_escalation, codec.decode_verdict, codec.decode_up_note, codec.decode_down_note)
QUESTION = codec.encode_wire_message(frames.question())
FRAME = frames.sealed_question()


def refuses_or_answers(data: bytes) -> None:
    for decode in (*DECODERS, codec.unpad_plaintext, codec.split_frame):
        with suppress(RemoteError):  # any other exception ends the test
            decode(data)


@given(st.binary(max_size=400))
@example(b"")
@example(b"\x9a\xa1q\xa2\xff\xfe")  # a string that is not UTF-8
@example(b"\x93\xa1\xff")  # a tag that is not UTF-8
@example(b"\x91" * 100_000)  # deep
@example(b"\xdd\xff\xff\xff\xff")  # an array of four thousand million
@example(b"\xc6\xff\xff\xff\xff")  # a string of four gigabytes
def test_noise_is_refused_with_one_error_type(data: bytes) -> None:
    refuses_or_answers(data)


@given(frames.strangers)
def test_well_formed_msgpack_of_another_shape_is_refused_with_one_error_type(data: bytes) -> None:
    refuses_or_answers(data)


@given(frames.messages.flatmap(lambda message: frames.mutated(codec.encode_wire_message(message))))
def test_a_mutated_message_is_refused_with_one_error_type(data: bytes) -> None:
    refuses_or_answers(data)


@given(frames.mutated(FRAME))
def test_a_mutated_frame_is_refused_with_one_error_type(data: bytes) -> None:
    refuses_or_answers(data)


@given(frames.strangers)
def test_any_header_inside_a_valid_frame_is_refused_with_one_error_type(header: bytes) -> None:
    refuses_or_answers(FRAME[:2] + len(header).to_bytes(2, "big") + header + bytes(100))


@pytest.mark.parametrize("decode", DECODERS)
def test_every_truncation_of_a_message_is_refused(decode) -> None:
    for end in range(len(QUESTION)):
        with pytest.raises(RemoteError):
            decode(QUESTION[:end])


def test_bytes_after_a_message_are_refused() -> None:
    with pytest.raises(RemoteError):
        codec.decode_escalation(QUESTION + b"\x00")


def test_a_field_too_many_is_refused() -> None:
    longer = bytes([QUESTION[0] + 1]) + QUESTION[1:] + b"\x00"
    with pytest.raises(RemoteError):
        codec.decode_escalation(longer)
