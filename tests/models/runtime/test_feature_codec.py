"""Tests of the feature codec: round trips, one encoding per code sequence, and only CodecError for hostile input."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from models.bundle.bit_packing import PACKINGS, RADICES
from models.runtime.feature_codec import (
    ANS,
    CODECS,
    CodecError,
    build_ans_tables,
    build_codec,
    codec_levels,
    open_codec,
    smallest_codec,
)
from models.runtime.runner import echo_manifest
from wire.protocol.messages import FieldSpec, SensitivityLevel, Tensor, TensorDType

shapes = array_shapes(min_dims=1, max_dims=4, max_side=7)
names = st.sampled_from(sorted(PACKINGS))


def spec(shape, high=255.0, name="features"):
    return FieldSpec(name, TensorDType.UINT8, tuple(shape), 0, high, SensitivityLevel.P2, "features")


def opened(name, shape, high=255.0):
    return build_codec(name, (spec(shape, high),))


@st.composite
def coded(draw):
    name = draw(names)
    shape = draw(shapes)
    return name, draw(arrays(np.uint8, shape, elements=st.integers(0, codec_levels(name) - 1)))


@given(coded())
def test_codes_come_back_as_they_went(case):
    name, codes = case
    codec = opened(name, codes.shape)
    tensor = codec.encode("features", codes)
    back = codec.decode("features", tensor)
    assert back.dtype == np.uint8
    assert np.array_equal(back, codes)
    assert len(tensor.data) == codec.payload_bytes("features") == codec.total_bytes == tensor.shape[0]


tensors = st.builds(
    Tensor,
    st.sampled_from(TensorDType),
    st.lists(st.integers(-3, 70), max_size=4).map(tuple),
    st.binary(max_size=70),
)


@st.composite
def fitting(draw):
    """A tensor of the right size, of arbitrary content."""
    name, shape = draw(names), draw(shapes)
    size = opened(name, shape).total_bytes
    return name, shape, Tensor(TensorDType.UINT8, (size,), draw(st.binary(min_size=size, max_size=size)))


@given(names, tensors, shapes)
def test_an_arbitrary_tensor_gives_codes_in_range_or_a_codec_error(name, tensor, shape):
    try:
        codes = opened(name, shape, 1).decode("features", tensor)
    except CodecError:
        return
    assert codes.shape == shape
    assert codes.max() <= 1


@given(fitting())
def test_what_decodes_has_only_one_encoding(case):
    name, shape, tensor = case
    try:
        codes = opened(name, shape).decode("features", tensor)
    except CodecError:
        return
    assert opened(name, shape).encode("features", codes) == tensor


@pytest.mark.parametrize("radix", RADICES)
def test_a_radix_needs_little_more_than_its_entropy(radix):
    bits = opened(f"base{radix}", (1000,)).total_bytes * 8 / 1000
    per_word = int(64 // math.log2(radix))
    assert math.log2(radix) <= bits < 64 / per_word + 0.02
    assert bits <= (radix - 1).bit_length()


@pytest.mark.parametrize(
    ("count", "name"),
    [(2, "pack1"), (5, "base5"), (6, "base6"), (8, "pack3"), (14, "pack4"), (17, "pack5"), (256, "pack8")],
)
def test_the_smallest_codec_for_a_number_of_levels(count, name):
    assert smallest_codec(count) == name
    assert codec_levels(smallest_codec(count)) >= count


def test_two_codes_share_a_byte_the_first_one_high():
    assert opened("pack4", (3,)).encode("features", np.array([1, 15, 7], np.uint8)).data == bytes((0x1F, 0x70))
    assert opened("pack3", (3,)).encode("features", np.array([1, 7, 2], np.uint8)).data == bytes((0b00111101, 0))


def test_a_radix_counts_from_the_first_code_up():
    assert opened("base5", (3,)).encode("features", np.array([1, 2, 3], np.uint8)).data == bytes((1 + 2 * 5 + 3 * 25,))


@pytest.mark.parametrize(("name", "data"), [("pack4", (0x1F, 0x71)), ("pack3", (0, 1)), ("base5", (125,))])
def test_filled_spare_room_is_refused_as_a_hidden_channel(name, data):
    with pytest.raises(CodecError, match=r"spare|too big"):
        opened(name, (3,)).decode("features", Tensor(TensorDType.UINT8, (len(data),), bytes(data)))


def test_a_code_above_the_codec_or_the_specification_is_refused():
    with pytest.raises(CodecError, match="16"):
        opened("pack4", (1,)).encode("features", np.array([16], np.uint8))
    tensor = opened("pack4", (2,)).encode("features", np.array([9, 8], np.uint8))
    with pytest.raises(CodecError, match="outside"):
        opened("pack4", (2,), high=8).decode("features", tensor)


@pytest.mark.parametrize("codes", [np.array([1.5]), np.array([3], np.int64), np.array([True]), np.zeros(2, np.uint8)])
def test_only_bytes_of_the_feature_s_shape_are_codes(codes):
    with pytest.raises(CodecError, match="uint8"):
        opened("pack8", (1,)).encode("features", codes)


def test_a_view_with_strides_is_coded_in_its_own_order():
    codes = np.arange(12, dtype=np.uint8).reshape(3, 4).T
    codec = opened("pack4", (4, 3))
    assert np.array_equal(codec.decode("features", codec.encode("features", codes)), codes)


@pytest.mark.parametrize("name", ["zip", "", "pack4 ", "raw8", "base4", "pack9"])
def test_an_unknown_codec_names_those_there_are(name):
    with pytest.raises(CodecError, match=r"pack1, .*base15, ans"):
        opened(name, (1,))


def test_an_unknown_feature_is_refused():
    with pytest.raises(CodecError, match="no feature"):
        opened("pack4", (1,)).encode("other", np.zeros(1, np.uint8))


def test_decoded_codes_belong_to_the_caller():
    for name in PACKINGS:
        codec = opened(name, (4,))
        codes = codec.decode("features", codec.encode("features", np.ones(4, np.uint8)))
        codes[0] = 0
        assert codes.sum() == 3


def test_several_features_have_a_form_each():
    codec = build_codec("base5", (spec((3,), 4), spec((2, 2), 4, "more")))
    sent = codec.encode("more", np.array([[1, 2], [3, 4]], np.uint8))
    assert codec.decode("more", sent).tolist() == [[1, 2], [3, 4]]
    assert codec.total_bytes == codec.payload_bytes("features") + codec.payload_bytes("more")


def test_a_manifest_opens_its_codec_without_reading_what_it_has_not():
    def nothing(name):
        raise AssertionError(name)

    assert open_codec(echo_manifest(6), nothing).total_bytes == 3
    assert ANS in CODECS


def test_tables_open_by_their_features():
    codes = np.random.default_rng(1).integers(0, 3, (50, 6)).astype(np.uint8)
    table = build_ans_tables(codes, 3)
    assert build_codec(ANS, (spec((2, 3), 2),), table).total_bytes < 6
    for features in ((spec((2, 3), 3),), (spec((5,), 2),), (spec((6,), 2), spec((6,), 2, "more")), ()):
        with pytest.raises(CodecError, match="table"):
            build_codec(ANS, features, table)
    assert build_codec(ANS, (spec((6,), 2), spec((6,), 2, "more")), table * 2).total_bytes < 12


@pytest.mark.parametrize("name", [*PACKINGS, ANS])
def test_a_batch_decodes_as_one_by_one_and_refuses_each_bad_tensor_alone(name):
    high = min(codec_levels(name), 9) - 2
    rng = np.random.default_rng(4)
    codes = rng.integers(0, high + 1, (40, 3, 7)).astype(np.uint8)
    wide = build_ans_tables(codes, high + 2) if name == ANS else b""
    codec = build_codec(name, (spec((3, 7), high),), wide)
    tensors = [codec.encode("features", one) for one in codes]
    size = len(tensors[0].data)
    tensors[3] = Tensor(TensorDType.UINT8, (size + 1,), tensors[3].data + b"\0")
    tensors[5] = Tensor(TensorDType.UINT8, (size,), b"\xff" * size)
    tensors[8] = Tensor(TensorDType.INT8, (size,), tensors[8].data)
    for batch in (tensors, tensors[5:6], tensors[:1], tensors[3:4]):
        found = codec.decode_batch("features", batch)
        assert found.codes.shape == (len(batch), 3, 7)
        for place, tensor in enumerate(batch):
            if place in found.faults:
                with pytest.raises(CodecError, match=re.escape(str(found.faults[place]))):
                    codec.decode("features", tensor)
            else:
                assert np.array_equal(found.codes[place], codec.decode("features", tensor))
    assert {3, 8} <= codec.decode_batch("features", tensors).faults.keys()


def test_a_batch_of_none_is_no_codes():
    assert opened("pack3", (2, 2)).decode_batch("features", ()).codes.shape == (0, 2, 2)
    with pytest.raises(CodecError, match="no feature"):
        opened("pack3", (2, 2)).decode_batch("other", ())


def test_random_payloads_in_a_batch_are_refused_exactly_where_they_are_alone():
    rng = np.random.default_rng(5)
    for name in PACKINGS:
        codec = opened(name, (5,), high=codec_levels(name) - 1)
        size = codec.total_bytes
        tensors = [Tensor(TensorDType.UINT8, (size,), rng.bytes(size)) for _ in range(50)]
        found = codec.decode_batch("features", tensors)
        for place, tensor in enumerate(tensors):
            if place in found.faults:
                with pytest.raises(CodecError):
                    codec.decode("features", tensor)
            else:
                assert np.array_equal(codec.decode("features", tensor), found.codes[place])
