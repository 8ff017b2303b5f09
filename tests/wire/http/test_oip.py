"""Open Inference Protocol codec: round trips, and no exception but OipError."""

import contextlib
import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.random_inputs import COUNTS, random_inputs, try_parser
from wire.http import oip
from wire.http.oip import InferResponse, OipError, TensorSpec
from wire.http.tensors import make_text_tensor

NUMERIC = sorted(set(oip.NUMPY_DTYPES) - {oip.BYTES_DATATYPE})
SPEC = (TensorSpec("x", "FP32", (-1, 3)),)


def one_input(**changes: Any) -> bytes:
    return json.dumps(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3], **changes}]}
    ).encode()


def with_binary(data: bytes, size: int | None = None, shape: Any = (1, 3), datatype: str = "FP32") -> tuple[bytes, str]:
    head = {
        "name": "x",
        "datatype": datatype,
        "shape": shape,
        "parameters": {"binary_data_size": len(data) if size is None else size},
    }
    text = json.dumps({"inputs": [head]}).encode()
    return text + data, str(len(text))


def refused(body: bytes, length: str | None = None, specs: Any = SPEC) -> str:
    with pytest.raises(OipError) as caught:
        oip.validate_inputs(oip.parse_infer_request(body, length), specs, 8)
    assert caught.value.status == 400
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 300
    return line


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    dtype = oip.NUMPY_DTYPES[draw(st.sampled_from(NUMERIC))]
    shape = draw(hnp.array_shapes(max_dims=3, max_side=4))
    return draw(hnp.arrays(dtype, shape, elements=hnp.from_dtype(dtype, allow_nan=False)))


@given(arrays(), st.booleans())
def test_a_tensor_comes_back_as_it_was_in_either_form(array, binary):
    request = oip.InferRequest("id", {}, (oip.WantedOutput("y", binary),), False, {})
    reply = oip.encode_infer_response(InferResponse("m", "1", "id", {"y": array}, {}), request)
    head = json.loads(reply.body[: reply.header_length or None])
    output = head["outputs"][0]
    if array.dtype.kind == "f" and not binary and not np.isfinite(array).all():
        return  # JSON has no infinity
    body = json.dumps({"inputs": [output]}).encode()
    tail = reply.body[reply.header_length :] if reply.header_length else b""
    parsed = oip.parse_infer_request(body + tail, str(len(body)) if binary else None).inputs["y"]
    assert parsed.dtype == array.dtype
    assert parsed.shape == array.shape
    assert parsed.tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()


@given(st.lists(st.text(), min_size=1, max_size=5), st.booleans())
def test_texts_come_back_as_they_were_in_either_form(texts, binary):
    array = make_text_tensor(texts)
    request = oip.InferRequest("", {}, (oip.WantedOutput("t", binary),), False, {})
    reply = oip.encode_infer_response(InferResponse("m", "1", "", {"t": array}, {}), request)
    output = json.loads(reply.body[: reply.header_length or None])["outputs"][0]
    body = json.dumps({"inputs": [output]}).encode()
    tail = reply.body[reply.header_length :] if reply.header_length else b""
    parsed = oip.parse_infer_request(body + tail, str(len(body)) if binary else None).inputs["t"]
    assert parsed.tolist() == [text.encode() for text in texts]


def test_our_own_request_is_read_back():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    sent = oip.encode_infer_request({"x": x}, {"data_class": "open"})
    request = oip.parse_infer_request(sent.body, sent.headers()[oip.HEADER_LENGTH])
    assert (oip.validate_inputs(request, SPEC, 8)["x"] == x).all()
    assert request.parameters == {"data_class": "open"}
    assert request.binary_default


@given(st.binary(max_size=300), st.none() | st.integers(0, 400).map(str))
def test_arbitrary_bytes_raise_one_error_type(body, length):
    with contextlib.suppress(OipError):
        oip.parse_infer_request(body, length)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(
    st.fixed_dictionaries(
        {
            "name": st.text(max_size=5),
            "datatype": st.sampled_from([*oip.NUMPY_DTYPES, "FP7"]),
            "shape": st.lists(st.integers(), max_size=3),
        },
        optional={"data": _json, "parameters": st.dictionaries(st.sampled_from(["binary_data_size", "z"]), _json)},
    ),
    st.binary(max_size=40),
)
def test_arbitrary_tensors_raise_one_error_type(tensor, tail):
    head = json.dumps({"inputs": [tensor]}).encode()
    try:
        request = oip.parse_infer_request(head + tail, str(len(head)))
    except OipError:
        return
    array = request.inputs[tensor["name"]]
    assert list(array.shape) == tensor["shape"]
    assert array.dtype == oip.NUMPY_DTYPES[tensor["datatype"]]


OIP_WORDS = [
    b'"inputs"', b'"name"', b'"x"', b'"datatype"', b'"FP32"', b'"BYTES"', b'"BOOL"', b'"UINT64"', b'"shape"', b'"data"',
    b'"parameters"', b'"outputs"', b'"binary_data_size"', b'"binary_data_output"', b'"classification"', b'"id"',
    b"null", b"true", b"[", b"]", b"{", b"}", b":", b"[0,2147483647,2147483647,2147483647]", b"18446744073709551615",
]  # fmt: skip
_OUTPUTS = [{"name": "y", "parameters": {"binary_data": True}}, {"name": "z"}]
_TENSOR = json.loads(one_input())["inputs"][0]
OIP_BODIES = [
    one_input(),
    one_input(shape=[2, 3], data=[[1, 2, 3], [4, 5, 6.5]]),
    one_input(datatype="BYTES", data=["a", "\u00e9", "\ud83d\ude00"]),
    one_input(datatype="UINT64", data=[0, 2**63, 2**64 - 1]),
    one_input(datatype="BOOL", data=[True, False, True]),
    json.dumps({"id": "q", "inputs": [_TENSOR], "outputs": _OUTPUTS, "parameters": {"timeout": 5}}).encode(),
]
OIP_BINARY = [
    body[: int(length)] + b"|" + body[int(length) :]
    for body, length in (
        with_binary(np.arange(3, dtype="<f4").tobytes()),
        with_binary(b"\2\0\0\0ab\1\0\0\0c", shape=(2,), datatype="BYTES"),
        with_binary(b"\1\0\1", datatype="BOOL"),
    )
]


def infer(body: bytes, length: str | None = None) -> None:
    """A request as a server treats it: parsed, compared with its model, answered in the form that it wants."""
    request = oip.parse_infer_request(body, length)
    outputs = {"y": np.zeros((1, 2), np.float32), "z": make_text_tensor(["one"])}
    oip.encode_infer_response(InferResponse("m", "1", request.id, outputs, {}), request)
    oip.validate_inputs(request, SPEC, 8)


def infer_binary(data: bytes) -> None:
    """`data`: the JSON and the bytes behind it, a stroke between them; without one, the length in front of the JSON."""
    head, stroke, tail = data.partition(b"|")
    length = str(len(head)) if stroke else head[:3].decode("latin-1")
    infer(head + tail, length)


@pytest.mark.parametrize("count", COUNTS)
def test_random_json_requests_are_answered_or_refused_with_one_error_type(count):
    assert try_parser(infer, OipError, random_inputs(count, OIP_BODIES, OIP_WORDS))


@pytest.mark.parametrize("count", COUNTS)
def test_random_binary_requests_are_answered_or_refused_with_one_error_type(count):
    assert try_parser(infer_binary, OipError, random_inputs(count, OIP_BINARY, OIP_WORDS))


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs":[],"\xff":1}',
        b'{"inputs":[],"z":"\xff"}',
        one_input()[:-3] + b',"\xff":1}]}',
        one_input(parameters={"z": 1}).replace(b'"z"', b'"\xff"'),
        one_input(datatype="BYTES", data=["z"]).replace(b'"z"', b'"\xff"'),
    ],
)
def test_a_request_that_is_not_utf8_anywhere_is_refused_so(body):
    assert refused(body) == "the request is not UTF-8"


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "BOOL"])
def test_an_empty_tensor_of_a_huge_shape_is_refused(datatype, binary):
    """numpy makes no array of it, although it holds nothing: this was an HTTP 500."""
    shape = [0, 2**31 - 1, 2**31 - 1, 2**31 - 1]
    body, length = (
        with_binary(b"", 0, shape, datatype) if binary else (one_input(datatype=datatype, shape=shape, data=[]), None)
    )
    assert refused(body, length) == "input 'x': shape [0,2147483647,2147483647,2147483647] is too large"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"shape": [1, 4]}, "input 'x': shape [1,4] wants 4 values, the data has shape [3]"),
        ({"shape": [3]}, "input 'x': shape [3], expected [-1,3]"),
        ({"shape": [1] * 5000}, "input 'x': a shape of 5000 axes, at most 16 are taken"),
        ({"shape": [-1, 3]}, "input 'x': shape [-1,3] is not a shape"),
        ({"shape": [0, 2**40], "data": []}, "input 'x': shape [0,1099511627776] is not a shape"),
        ({"shape": [0, 3], "data": []}, "input 'x': a batch of 0, accepted are 1 to 8"),
        ({"shape": [9, 3], "data": [0] * 27}, "input 'x': a batch of 9, accepted are 1 to 8"),
        ({"datatype": "FP64"}, "input 'x': datatype FP64, expected FP32"),
        ({"datatype": "fp32"}, "input 'x': unknown datatype 'fp32'"),
        ({"data": ["1", "2", "3"]}, "input 'x': the data is not FP32"),
        ({"data": [True, False, True]}, "input 'x': the data is not FP32"),
        ({"data": [[1], [2, 3]]}, "input 'x': the data is not a regular list of values"),
        ({"data": [1, 2, None]}, "input 'x': the data is not FP32"),
        ({"data": [1, 2, True]}, "input 'x': the data is not FP32"),
        ({"data": [1, 2, [], 3]}, "input 'x': the data is not a regular list of values"),
        ({"data": [[], [], []]}, "input 'x': shape [1,3] wants 3 values, the data has shape [3,0]"),
        ({"data": [1, 2, 1e300]}, "input 'x': a value is not a finite number"),
        ({"data": [[1, 2, 3]], "shape": [3, 1]}, "input 'x': shape [3,1] wants 3 values, the data has shape [1,3]"),
        ({"name": "y"}, "unknown input 'y', this model takes x"),
        ({"parameters": {"shared_memory_region": "r"}}, "input 'x': shared memory is not offered here"),
        ({"parameters": {"binary_data_size": 12}}, "input 'x': has both data and binary_data_size"),
        ({"parameters": {"binary_data_size": True}}, "input 'x': binary_data_size is not a size"),
    ],
)
def test_a_wrong_input_is_refused_by_name(changes, line):
    assert refused(one_input(**changes)) == line


def test_numbers_of_many_pieces_are_read_as_one_list_whatever_their_form():
    values = np.arange(60_000).reshape(20, 3000) % 251
    for datatype in ("UINT8", "INT64", "FP32"):
        for data in (values.tolist(), values.ravel().tolist()):
            body = one_input(datatype=datatype, shape=[20, 3000], data=data)
            found = oip.parse_infer_request(body, None).inputs["x"]
            assert np.array_equal(found, values)


@pytest.mark.parametrize(
    ("shape", "data", "line"),
    [
        ([70_000], ["a"] * 70_000, "70000 texts, at most 65536 are taken in one tensor"),
        ([2], ["a"] * 70_000, "shape [2] wants 2 texts, and nothing else"),
        ([2], [[]] * 70_000, "shape [2] wants 2 texts, and nothing else"),
        ([2], ["a", {}], "shape [2] wants 2 texts, and nothing else"),
    ],
)
def test_texts_are_counted_before_they_are_decoded(shape, data, line):
    assert refused(one_input(datatype="BYTES", shape=shape, data=data)) == f"input 'x': {line}"


def test_nan_is_refused_in_either_form():
    assert (
        refused(*with_binary(np.array([1, np.nan, 2], "<f4").tobytes())) == "input 'x': a value is not a finite number"
    )
    assert "not inference JSON" in refused(one_input().replace(b"2", b"NaN"))


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        ("INT8", [1, 2, 128]),
        ("UINT8", [0, -1, 2]),
        ("INT64", [0, 1, 2**63]),
        ("INT32", [1, 2, 1.5]),
        ("UINT64", [0, 1, 2**64]),
    ],
)
def test_a_number_that_does_not_fit_is_refused_not_wrapped(datatype, data):
    spec = (TensorSpec("x", datatype, (-1, 3)),)
    assert refused(one_input(datatype=datatype, data=data), specs=spec).startswith("input 'x': ")


@pytest.mark.parametrize(
    ("size", "data"), [(12, b"\0" * 11), (12, b"\0" * 13), (11, b"\0" * 11), (16, b"\0" * 16), (0, b"")]
)
def test_binary_data_of_the_wrong_size_is_refused(size, data):
    assert "bytes" in refused(*with_binary(data, size))


def test_a_bool_byte_is_zero_or_one():
    assert refused(*with_binary(b"\0\1\2", datatype="BOOL")) == "input 'x': a BOOL byte is neither 0 nor 1"


def test_a_text_that_ends_outside_is_refused():
    assert "outside" in refused(*with_binary(b"\xff\xff\xff\x7fab", shape=[1], datatype="BYTES"))


@pytest.mark.parametrize("length", ["-1", "x", "²", "", "99999", "9" * 40])
def test_a_header_length_that_lies_is_refused(length):
    assert oip.HEADER_LENGTH in refused(one_input(), length)


def test_a_request_of_more_keys_than_any_needs_is_refused_before_it_is_decoded():
    keys = {str(number): 1 for number in range(oip.MAX_KEYS)}
    line = refused(json.dumps({"inputs": [], "parameters": keys}).encode())
    assert line == f"the request has {oip.MAX_KEYS + 2} keys, at most {oip.MAX_KEYS} are taken"


def test_an_input_that_stands_there_twice_is_refused():
    tensor = json.loads(one_input())["inputs"][0]
    assert refused(json.dumps({"inputs": [tensor, tensor]}).encode()) == "input 'x': is named twice"


def test_a_missing_input_and_different_batches_are_named():
    assert refused(b'{"inputs":[]}') == "input 'x' is missing"
    specs = (TensorSpec("a", "INT8", (-1,)), TensorSpec("b", "INT8", (-1,)))
    tensors = [{"name": n, "datatype": "INT8", "shape": [s], "data": [0] * s} for n, s in (("a", 1), ("b", 2))]
    body = json.dumps({"inputs": tensors}).encode()
    assert refused(body, specs=specs) == "the inputs have different batch sizes: [1, 2]"


def test_a_bomb_of_brackets_is_refused():
    # Python 3.14 goes as deep as the stack allows: there the shorter bomb is refused where it ends.
    assert re.search("nested|truncated", refused(b'{"z":' + b"[" * 100_000))
    assert "nested" in refused(b'{"z":' + b"[" * 4_000_000)
    deep = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":' + b"[" * 900 + b"1" + b"]" * 900 + b"}]}"
    assert refused(deep).startswith("input 'x': the data is n")


def test_control_characters_of_a_name_do_not_reach_the_line():
    assert refused(one_input(name="x\n\x1b[31mred" + "y" * 200)).startswith("unknown input 'x??[31mredyyy")


@pytest.mark.parametrize(
    "output",
    [
        {"name": "nope"},
        {"name": "y", "parameters": {"classification": 3}},
        {"name": "y", "parameters": {"binary_data": 1}},
    ],
)
def test_an_output_that_is_not_there_is_refused(output):
    body = json.dumps({**json.loads(one_input()), "outputs": [output]}).encode()
    with pytest.raises(OipError) as caught:  # noqa: PT012 - one is refused when read, another when written
        request = oip.parse_infer_request(body)
        oip.encode_infer_response(InferResponse("m", "1", "", {"y": np.zeros(1)}, {}), request)
    assert caught.value.status == 400


def test_metadata_names_what_a_client_needs():
    card = oip.ModelMetadata("m", ("1", "2"), "p", SPEC, (TensorSpec("y", "INT64", (-1,)),))
    assert oip.build_model_metadata(card) == {
        "name": "m",
        "versions": ["1", "2"],
        "platform": "p",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": (-1, 3)}],
        "outputs": [{"name": "y", "datatype": "INT64", "shape": (-1,)}],
    }
    assert oip.build_server_metadata("s", "1")["extensions"] == ["binary_tensor_data"]


def test_large_and_small_unsigned_integers_stand_in_one_tensor():
    tensor = b'{"inputs":[{"name":"y","datatype":"UINT64","shape":[2],"data":[9223372036854775809,0]}]}'
    assert oip.parse_infer_request(tensor, None).inputs["y"].tolist() == [(1 << 63) + 1, 0]
