"""Limits of the link's format, each at its edge: the last that is taken, and the first that is not."""

import msgspec
import pytest

from tests.wire.doubles import frames
from wire.errors import Fault, LocalError, RemoteError
from wire.protocol import codec, topics
from wire.protocol.codec import MAX_FRAME_BYTES, MAX_HEADER_BYTES, encode_clear_part, split_frame
from wire.protocol.messages import CipherSuite, FrameHeader, Prediction, TextUsage, Verdict
from wire.protocol.rollout import InstallReport, InstallState, RolloutCohort


def header_of(size: int) -> FrameHeader:
    """A header that is so long when encoded."""
    plain = msgspec.structs.replace(frames.header(1), device="d" * 100)
    missing = size - len(encode_clear_part(CipherSuite.SIGNED, plain)) + 4
    return msgspec.structs.replace(plain, device="d" * (100 + missing))


def clear_of(size: int) -> bytes:
    """Prefix and header of a frame whose header is so long, whatever the limit is."""
    encoded = msgspec.msgpack.encode(header_of(size))
    assert len(encoded) == size
    return bytes((1, CipherSuite.SIGNED)) + size.to_bytes(2, "big") + encoded


def fault_of(data: bytes) -> Fault | None:
    try:
        split_frame(data)
    except RemoteError as error:
        return error.fault
    return None


def test_a_header_has_at_most_256_bytes_on_both_sides():
    assert MAX_HEADER_BYTES == 256
    assert len(encode_clear_part(CipherSuite.SIGNED, header_of(256))) == 4 + 256
    with pytest.raises(LocalError, match="header of 257 bytes"):
        encode_clear_part(CipherSuite.SIGNED, header_of(257))
    assert fault_of(clear_of(256) + bytes(64)) is None
    assert fault_of(clear_of(257) + bytes(64)) is Fault.MALFORMED


def test_a_frame_may_end_with_its_header_and_not_before_it():
    whole = clear_of(200) + bytes(64)
    assert split_frame(whole).body == b""
    assert fault_of(whole[:-1]) is Fault.MALFORMED
    assert [fault_of(whole[:length]) for length in (0, 3, 4)] == [Fault.MALFORMED] * 3


def test_a_frame_has_at_most_128_kib_on_the_link():
    assert MAX_FRAME_BYTES == 128 * 1024
    clear = clear_of(200)
    longest = clear + bytes(MAX_FRAME_BYTES - len(clear))
    assert fault_of(longest) is None
    assert fault_of(longest + b"\0") is Fault.TOO_BIG


def test_a_device_id_has_at_most_64_characters_in_a_name_and_in_a_topic():
    tenant, device = "t" * 31, "d" * 31
    assert len(topics.join_device_id(tenant, device)) == topics.MAX_ID_CHARS == 64
    with pytest.raises(LocalError, match="65 characters"):
        topics.join_device_id(tenant, device + "d")
    assert topics.parse_up_topic(topics.build_topic("d" * 64, topics.TopicChannel.ASK))[0] == "d" * 64
    with pytest.raises(LocalError):
        topics.build_topic("d" * 65, topics.TopicChannel.ASK)
    shard = topics.compute_shard("d" * 65)
    with pytest.raises(RemoteError):
        topics.parse_up_topic(f"v1/{shard:02x}/{'d' * 65}/up/q")


@pytest.mark.parametrize(("length", "padded"), [(0, 64), (60, 64), (61, 128), (124, 128), (125, 192)])
def test_a_plaintext_is_padded_to_the_next_64_bytes_with_its_length(length, padded):
    assert len(codec.pad_plaintext(bytes(length))) == padded
    assert codec.unpad_plaintext(codec.pad_plaintext(b"x" * length)) == b"x" * length


def test_a_fixed_size_holds_four_bytes_less():
    assert len(codec.pad_plaintext(bytes(96), 100)) == 100
    with pytest.raises(LocalError):
        codec.pad_plaintext(bytes(97), 100)


def test_a_length_of_just_what_is_there_is_taken_and_one_more_is_not():
    assert codec.unpad_plaintext((3).to_bytes(4, "big") + b"abc") == b"abc"
    assert codec.unpad_plaintext(bytes(4)) == b""
    for bad in ((4).to_bytes(4, "big") + b"abc", (2).to_bytes(4, "big") + b"abc", bytes(3), b""):
        with pytest.raises(RemoteError):
            codec.unpad_plaintext(bad)


@pytest.mark.parametrize(("size", "padded"), [(1, 512), (508, 512), (509, 1024), (1020, 1024), (1021, 2048)])
def test_a_text_is_padded_to_the_next_power_of_two(size, padded):
    assert codec.choose_text_class(size) == padded


def usage(prompt: int, generated: int, cached: int) -> TextUsage:
    return TextUsage("llm@1", prompt, generated, cached)


def verdict(cost: TextUsage | None, text: str | None = "a") -> bytes:
    prediction = Prediction(0, 0.5, (), "m@1", text=text, usage=cost)
    return msgspec.msgpack.encode(Verdict(prediction, "hub-1", "local", 0.0, 0.0))


def test_a_usage_cannot_be_negative_nor_have_more_cached_than_prompt_tokens():
    for good in (usage(0, 0, 0), usage(5, 0, 5), usage(5, 7, 0)):
        assert codec.decode_verdict(verdict(good)).prediction.usage == good
    for bad in (usage(5, 0, 6), usage(5, -1, 0), usage(5, 0, -1), usage(-1, 0, 0)):
        with pytest.raises(RemoteError):
            codec.decode_verdict(verdict(bad))
    for half in (verdict(None), verdict(usage(1, 1, 1), None)):
        with pytest.raises(RemoteError):
            codec.decode_verdict(half)


@pytest.mark.parametrize("length", [0, 1, 120, 1000])
def test_the_reason_of_a_refusal_never_quotes_much(length):
    with pytest.raises(RemoteError) as refused:
        codec.decode_up_note(msgspec.msgpack.encode(("x" * length, 1)))
    assert len(str(refused.value)) < 200


def test_a_report_of_an_older_device_says_nothing_of_figures_and_of_a_trial_that_passed():
    report = InstallReport(7, 1, 1, "r1", "digits", InstallState.IDLE, None, 2, "2" * 64, 1)
    assert (report.cohort, report.quality, report.signals) == (RolloutCohort.CANDIDATE, None, None)
    assert (report.detail, report.trial_passed) == ("", False)
