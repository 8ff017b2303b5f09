"""Tests of entropy coding: shorter than packing, one length for all samples, and only canonical payloads accepted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models.runtime.codec_ans import COUNT_SUM, _shortest_payload, decode_ans, encode_ans, read_ans_tables
from models.runtime.feature_codec import ANS, CodecError, build_ans_tables, build_codec
from wire.protocol.messages import FieldSpec, SensitivityLevel, Tensor, TensorDType

POSITIONS, LEVELS = 40, 5


def drawn(count, seed=7, positions=POSITIONS):
    """Codes that lean to one level, a different one at each position."""
    rng = np.random.default_rng(seed)
    off = rng.geometric(0.65, (count, positions)) - 1
    return ((np.arange(positions) + off.clip(0, LEVELS - 1)) % LEVELS).astype(np.uint8)


TRAINING = drawn(400)
FILE = build_ans_tables(TRAINING, LEVELS)
(TABLE,) = read_ans_tables(FILE)
codes_of_any_kind = arrays(np.uint8, POSITIONS, elements=st.integers(0, LEVELS - 1))


def test_it_beats_packing_and_holds_nearly_every_sample_exactly():
    fresh = drawn(1000, seed=8)
    exact = sum(np.array_equal(decode_ans(encode_ans(row, TABLE), TABLE), row) for row in fresh)
    assert TABLE.capped_bytes <= POSITIONS * np.log2(LEVELS) / 8 + 1 < POSITIONS * 3 / 8
    assert exact >= 985


@given(codes_of_any_kind)
def test_every_payload_has_one_length_and_one_meaning(codes):
    payload = encode_ans(codes, TABLE)
    assert len(payload) == TABLE.capped_bytes
    found = decode_ans(payload, TABLE)
    assert encode_ans(found, TABLE) == payload
    kept = int((found != codes).argmax()) if (found != codes).any() else POSITIONS
    assert np.array_equal(found[:kept], codes[:kept])
    assert np.array_equal(found[kept:], np.where(np.arange(POSITIONS) >= kept, TABLE.likely, codes)[kept:])


def test_the_least_likely_sample_loses_its_end_and_not_its_beginning():
    rare = TABLE.probabilities.argmin(1).astype(np.uint8)
    found = decode_ans(encode_ans(rare, TABLE), TABLE)
    assert np.array_equal(found[:8], rare[:8])
    assert np.array_equal(found[-8:], TABLE.likely[-8:])


@given(st.integers(1, 60), st.integers(2, 9), st.integers(0, 2**32 - 1))
def test_with_room_enough_every_code_comes_back(positions, levels, seed):
    rng = np.random.default_rng(seed)
    seen = rng.integers(0, levels, (3, positions)).astype(np.uint8)
    table = read_ans_tables(build_ans_tables(seen, levels))[0]._replace(capped_bytes=2 * positions + 8)
    codes = rng.integers(0, levels, positions).astype(np.uint8)
    assert np.array_equal(decode_ans(encode_ans(codes, table), table), codes)


@given(st.binary(min_size=TABLE.capped_bytes, max_size=TABLE.capped_bytes))
def test_garbage_is_a_codec_error_or_exactly_what_its_codes_encode_to(data):
    try:
        codes = decode_ans(data, TABLE)
    except CodecError:
        return
    assert encode_ans(codes, TABLE) == data


@given(codes_of_any_kind, st.integers(0, TABLE.capped_bytes * 8 - 1))
def test_a_flipped_bit_never_gives_a_second_form(codes, bit):
    payload = bytearray(encode_ans(codes, TABLE))
    payload[bit // 8] ^= 1 << bit % 8
    try:
        found = decode_ans(bytes(payload), TABLE)
    except CodecError:
        return
    assert encode_ans(found, TABLE) == payload
    assert not np.array_equal(found, decode_ans(encode_ans(codes, TABLE), TABLE))


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda data: FILE[:60] + data))
def test_arbitrary_tables_are_refused(data):
    if data:
        with pytest.raises(CodecError):
            read_ans_tables(data)


@given(st.integers(0, len(FILE) - 1), st.integers(1, 255))
def test_a_damaged_table_is_refused_or_still_codes_every_sample(at, change):
    damaged = bytearray(FILE)
    damaged[at] ^= change
    try:
        (table,) = read_ans_tables(bytes(damaged))
    except CodecError:
        return
    row = TRAINING[0]
    assert len(encode_ans(row, table)) == table.capped_bytes


@pytest.mark.parametrize("size", [1, 21, 22, 30, len(FILE) - 1, len(FILE) + 1])
def test_tables_that_end_too_early_or_go_on_are_refused(size):
    with pytest.raises(CodecError):
        read_ans_tables((FILE + b"\0")[:size])


def test_counts_are_whole_complete_and_leave_nothing_impossible():
    counts = TABLE.probabilities * COUNT_SUM
    assert (counts == np.rint(counts)).all()
    assert (counts.sum(1) == COUNT_SUM).all()
    assert counts.min() >= 1


def test_the_form_is_the_same_on_every_machine_and_with_every_edition_of_the_library():
    table = read_ans_tables(build_ans_tables(np.arange(60, dtype=np.uint8).reshape(6, 10) % 4, 4, 1.0))[0]
    assert encode_ans(np.array([0, 1, 2, 3, 0, 1, 2, 3, 3, 3], np.uint8), table).hex() == "29c1"


def test_equal_codes_make_equal_tables():
    assert build_ans_tables(drawn(400), LEVELS) == FILE
    assert build_ans_tables(drawn(400).reshape(400, 8, 5), LEVELS) == FILE


@pytest.mark.parametrize(
    ("codes", "levels"),
    [
        (np.zeros((0, 3), np.uint8), 3),
        (np.zeros((2, 3), np.int64), 3),
        (np.full((2, 3), 3, np.uint8), 3),
        (np.zeros((2, 3), np.uint8), 1),
        (np.zeros((2, 3), np.uint8), 257),
    ],
)
def test_no_table_is_made_of_what_are_no_codes(codes, levels):
    with pytest.raises(CodecError):
        build_ans_tables(codes, levels)


def test_the_shortest_form_is_shorter_than_whole_words():
    sizes = [len(_shortest_payload(row.astype(np.int32), TABLE.probabilities)) for row in TRAINING]
    assert len({size % 4 for size in sizes}) == 4
    bits = -np.log2(np.take_along_axis(TABLE.probabilities[None], TRAINING[..., None].astype(int), 2)).sum((1, 2))
    assert np.mean(sizes) < bits.mean() / 8 + 1.2


def test_on_the_link_it_is_a_codec_like_the_others():
    spec = FieldSpec("features", TensorDType.UINT8, (8, 5), 0, LEVELS - 1, SensitivityLevel.P2, "features")
    codec = build_codec(ANS, (spec,), FILE)
    row = TRAINING[0].reshape(8, 5)
    tensor = codec.encode("features", row)
    assert tensor.shape == (codec.total_bytes,) == (TABLE.capped_bytes,)
    assert np.array_equal(codec.decode("features", tensor), row)
    with pytest.raises(CodecError):
        codec.decode("features", Tensor(TensorDType.UINT8, tensor.shape, b"\xff" * TABLE.capped_bytes))
    with pytest.raises(CodecError):
        codec.encode("features", np.full((8, 5), LEVELS, np.uint8))
