import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from models.codec import CODECS, CodecError, decode, encode, payload_bytes, top
from wire.messages import DType, FieldSpec, Level, Tensor

shapes = array_shapes(min_dims=1, max_dims=4, max_side=5)


def spec(shape, high=255.0):
    return FieldSpec("features", DType.UINT8, tuple(shape), 0, high, Level.P2, "features")


@st.composite
def coded(draw):
    name = draw(st.sampled_from(sorted(CODECS)))
    shape = draw(shapes)
    return name, draw(arrays(np.uint8, shape, elements=st.integers(0, top(name))))


@given(coded())
def test_codes_come_back_as_they_went(case):
    name, codes = case
    tensor = encode(name, codes)
    back = decode(name, tensor, spec(codes.shape))
    assert back.dtype == np.uint8
    assert np.array_equal(back, codes)
    assert len(tensor.data) == payload_bytes(name, codes.shape) == tensor.shape[0]


tensors = st.builds(
    Tensor,
    st.sampled_from(DType),
    st.lists(st.integers(-3, 70), max_size=4).map(tuple),
    st.binary(max_size=70),
)
plausible = st.binary(min_size=1, max_size=70).map(lambda data: Tensor(DType.UINT8, (len(data),), data))


@given(st.sampled_from([*CODECS, "zip", "", "pack4 "]), tensors | plausible, shapes, st.integers(1, 255))
def test_an_arbitrary_tensor_gives_codes_in_range_or_a_codec_error(name, tensor, shape, high):
    try:
        codes = decode(name, tensor, spec(shape, high))
    except CodecError:
        return
    assert codes.shape == shape
    assert codes.max() <= high


@given(st.sampled_from(sorted(CODECS)), plausible, shapes)
def test_what_decodes_has_only_one_encoding(name, tensor, shape):
    try:
        codes = decode(name, tensor, spec(shape))
    except CodecError:
        return
    assert encode(name, codes) == tensor


def test_two_codes_share_a_byte_the_first_one_high():
    assert encode("pack4", np.array([1, 15, 7], np.uint8)).data == bytes((0x1F, 0x70))


def test_a_filled_spare_nibble_is_refused_as_a_hidden_channel():
    with pytest.raises(CodecError, match="spare"):
        decode("pack4", Tensor(DType.UINT8, (2,), bytes((0x1F, 0x71))), spec((3,)))


def test_a_code_above_the_codec_or_the_specification_is_refused():
    with pytest.raises(CodecError, match="16"):
        encode("pack4", np.array([16], np.uint8))
    with pytest.raises(CodecError, match="outside"):
        decode("pack4", encode("pack4", np.array([9, 8], np.uint8)), spec((2,), high=8))


@pytest.mark.parametrize("codes", [np.array([1.5]), np.array([3], np.int64), np.array([True])])
def test_only_bytes_are_codes(codes):
    with pytest.raises(CodecError, match="uint8"):
        encode("raw8", codes)


def test_a_view_with_strides_is_coded_in_its_own_order():
    codes = np.arange(12, dtype=np.uint8).reshape(3, 4).T
    assert np.array_equal(decode("pack4", encode("pack4", codes), spec((4, 3))), codes)


def test_an_unknown_codec_names_those_there_are():
    with pytest.raises(CodecError, match="pack4, raw8"):
        encode("zip", np.zeros(1, np.uint8))


def test_decoded_codes_belong_to_the_caller():
    codes = decode("raw8", encode("raw8", np.arange(4, dtype=np.uint8)), spec((4,)))
    codes[0] = 9
    assert math.prod(codes.shape) == 4
