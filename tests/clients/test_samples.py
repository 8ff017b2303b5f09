"""What people have as a sample becomes exactly what the server's own parser reads, or is refused in one line."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from skerry_client import ModelInput, SampleError
from skerry_client.exchange.commands import encode_json
from skerry_client.inference import HEADER_LENGTH, ServedModel, build_inference, build_json_inference
from skerry_client.samples import encode_sample
from wire.http import oip
from wire.http.tensors import NUMPY_DTYPES

GREY = ModelInput("picture", "FP32", (1, 2, 3), 0.0, 1.0)
COLOUR = ModelInput("picture", "FP32", (3, 2, 2), -1.0, 1.0)
TEXT = ModelInput("text_input", "BYTES", ())


def sent(spec, *samples):
    """The tensor that a server reads of a request, by both of its forms, which must agree."""
    request = build_inference(ServedModel("m", "1", spec), samples, {})
    binary = oip.parse_infer_request(request.body or b"", request.headers[HEADER_LENGTH]).inputs[spec.name]
    plain = encode_json(build_json_inference(ServedModel("m", "1", spec), samples))
    assert np.array_equal(oip.parse_infer_request(plain).inputs[spec.name], binary)
    return binary


@given(st.data())
def test_an_array_arrives_as_it_is(data):
    datatype = data.draw(st.sampled_from(sorted(set(NUMPY_DTYPES) - {"BYTES", "FP16"})))
    dtype = NUMPY_DTYPES[datatype]
    elements = arrays.from_dtype(dtype, allow_nan=False, allow_infinity=False)
    sample = data.draw(arrays.arrays(dtype, arrays.array_shapes(max_dims=3, max_side=4), elements=elements))
    spec = ModelInput("x", datatype, sample.shape)
    assert np.array_equal(sent(spec, sample)[0], sample)
    assert np.array_equal(sent(spec, sample.tolist(), sample[None])[1], sample)
    assert np.array_equal(
        sent(spec, torch.from_numpy(sample) if dtype.itemsize == 4 and dtype.kind != "u" else sample)[0], sample
    )


def test_an_array_in_another_order_of_memory_or_bytes_arrives_as_it_is():
    sample = (np.arange(6, dtype=">f8") / 8).reshape(2, 3).T.reshape(1, 2, 3, order="F")
    assert np.array_equal(sent(GREY, sample)[0], sample)


@given(st.lists(st.text(min_size=1).filter(lambda text: text.isprintable()), min_size=1, max_size=4))
def test_texts_arrive_as_they_are(texts):
    assert [each.decode() for each in sent(TEXT, *texts)] == texts
    assert encode_sample(texts[0].encode(), TEXT) == encode_sample(texts[0], TEXT)


def test_a_picture_is_scaled_into_the_models_range_channels_first():
    picture = Image.new("RGB", (2, 2))
    picture.putdata([(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)])
    assert sent(COLOUR, picture)[0].tolist() == [[[1, -1], [-1, 1]], [[-1, 1], [-1, 1]], [[-1, -1], [1, 1]]]
    last = ModelInput("picture", "UINT8", (2, 2, 3))
    assert np.array_equal(sent(last, picture)[0], np.asarray(picture))
    assert sent(GREY, Image.new("L", (3, 2), 51))[0].tolist() == [[[pytest.approx(0.2)] * 3] * 2]


@pytest.mark.parametrize("form", ["PNG", "BMP", "WEBP"])
def test_the_file_of_a_picture_is_decoded(form):
    picture, file = Image.new("L", (3, 2), 255), io.BytesIO()
    picture.save(file, form, lossless=True)
    assert encode_sample(file.getvalue(), GREY) == encode_sample(picture, GREY)


def test_bytes_of_the_right_number_are_the_values_themselves():
    data = (np.arange(6, dtype="<f4") / 8).tobytes()
    assert (
        encode_sample(data, GREY)
        == encode_sample(bytearray(data), GREY)
        == encode_sample(memoryview(data), GREY)
        == data
    )


@pytest.mark.parametrize(
    ("sample", "spec", "line"),
    [
        (Image.new("L", (2, 3)), GREY, "a picture of 2 x 3 came, the model takes 3 x 2: picture.resize((3, 2))"),
        (Image.new("L", (3, 2)), ModelInput("x", "FP32", (1, 2, 3)), "does not say the range of its values"),
        (Image.new("L", (3, 2)), ModelInput("x", "FP32", (9,)), "FP32 [9], which is no grey or RGB picture"),
        (b"\x89PNG\r\n broken", GREY, "the picture cannot be decoded"),
        (b"12345", GREY, "5 bytes came, FP32 [1, 2, 3] takes 24"),
        ("words", GREY, "a text came, the model takes FP32 [1, 2, 3]"),
        (np.zeros((2, 3)), GREY, "one sample has shape [1, 2, 3], [2, 3] came"),
        (np.array([["a"] * 3] * 2)[None], GREY, "an array of <U1 came"),
        (np.array([0.5]), ModelInput("x", "INT64", (1,)), "an array of float64 came, the model takes INT64 [1]"),
        (np.array([300]), ModelInput("x", "UINT8", (1,)), "a value of the array does not fit UINT8"),
        ([300], ModelInput("x", "UINT8", (1,)), "a value is not UINT8"),
        ([0.5], ModelInput("x", "INT64", (1,)), "a value is not INT64"),
        ([[1, 2, 3], [1, 2]], ModelInput("x", "INT64", (2, 3)), "different lengths"),
        ([["a"]], ModelInput("x", "FP32", (1, 1)), "a value is not FP32"),
        ({}, GREY, "dict is no sample; the model takes FP32 [1, 2, 3]"),
        (7, TEXT, "int came, the model takes a text"),
        ([1], ModelInput("x", "BF16", (1,)), "does not know the datatype BF16; update it"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line_that_says_what_does(sample, spec, line):
    with pytest.raises(SampleError) as refused:
        encode_sample(sample, spec)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


FORMS = [
    pytest.param(lambda values: values, id="array"),
    pytest.param(lambda values: values.tolist(), id="lists"),
    pytest.param(lambda values: values.tobytes(), id="bytes"),
    pytest.param(torch.from_numpy, id="tensor"),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", [(0, 0, 0), (0, 1, 2)])
@pytest.mark.parametrize(
    ("value", "said"),
    [(np.nan, "NaN or infinite"), (np.inf, "NaN or infinite"), (-np.inf, "NaN or infinite"), (1.5, "takes 0 to 1")],
)
def test_values_that_the_model_does_not_take_are_refused_before_they_are_sent(form, place, value, said):
    values = np.full(GREY.shape, 0.5, np.float32)
    encode_sample(form(values), GREY)
    values[place] = value
    with pytest.raises(SampleError, match=said):
        encode_sample(form(values), GREY)


def test_a_picture_as_numbers_of_0_to_255_is_refused_where_the_model_takes_0_to_1():
    with pytest.raises(SampleError, match="values of 0 to 255 came, the model takes 0 to 1"):
        encode_sample(np.array([[[0, 1, 2], [3, 4, 255]]], np.uint8), GREY)
