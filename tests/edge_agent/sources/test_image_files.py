"""Samples from files, `.npy` and `.png`.

Read exactly, or refused by name; no byte of a file can do more than that.
"""

import io
import os
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.sources.files import image_files
from edge_agent.sources.files.image_files import PngError, parse_sample_file
from models.bundle.manifest import InputSpec
from models.runtime.feature_codec import NUMPY_DTYPES
from models.runtime.runner import SampleError
from tests.random_inputs import COUNTS, random_inputs, try_parser
from wire.protocol.messages import TensorDType

SPEC = InputSpec("scores", TensorDType.FP32, (3,), 0.0, 1.0)
GREY = InputSpec("image", TensorDType.FP32, (1, 4, 5), -1.0, 1.0)
RGB = InputSpec("image", TensorDType.UINT8, (4, 5, 3), 0, 255)


def npy(array: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(array), **options)
    return stream.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")


def header(width: int, height: int, colour: int, depth: int = 8, rest: bytes = b"\0\0\0") -> bytes:
    return chunk(b"IHDR", width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes((depth, colour)) + rest)


def encode(image: Any, filters: list[int]) -> bytes:
    """A PNG by the book, written from the specification and not from the decoder: one filter type per row."""
    height, width, channels = image.shape
    flat = image.reshape(height, -1).astype(int)
    rows = b""
    for y in range(height):
        row, up = flat[y], flat[y - 1] if y else np.zeros_like(flat[0])
        left = np.concatenate([np.zeros(channels, int), row[:-channels]])
        corner = np.concatenate([np.zeros(channels, int), up[:-channels]])
        guess = left + up - corner
        a, b, c = abs(guess - left), abs(guess - up), abs(guess - corner)
        paeth = np.where((a <= b) & (a <= c), left, np.where(b <= c, up, corner))
        predicted = (0 * row, left, up, (left + up) // 2, paeth)[filters[y]]
        rows += bytes([filters[y]]) + ((row - predicted) % 256).astype(np.uint8).tobytes()
    packed = zlib.compress(rows)
    body = chunk(b"tEXt", b"k\0v") + chunk(b"IDAT", packed[:7]) + chunk(b"IDAT", packed[7:])
    return b"\x89PNG\r\n\x1a\n" + header(width, height, 0 if channels == 1 else 2) + body + chunk(b"IEND", b"")


@given(st.data(), st.sampled_from([1, 3]), st.integers(1, 6), st.integers(1, 6))
def test_every_row_filter_is_undone(data, channels, height, width):
    pixels = data.draw(st.binary(min_size=height * width * channels, max_size=height * width * channels))
    image = np.frombuffer(pixels, np.uint8).reshape(height, width, channels)
    filters = data.draw(st.lists(st.integers(0, 4), min_size=height, max_size=height))
    assert (image_files.decode_png(encode(image, filters), image.shape) == image).all()


IMAGE = np.arange(20, dtype=np.uint8).reshape(4, 5, 1) * 12
PICTURE = encode(IMAGE, [0, 1, 2, 4])


@given(st.integers(0, len(PICTURE) - 1), st.integers(1, 255))
def test_every_flipped_byte_of_a_png_is_found(at, flip):
    damaged = PICTURE[:at] + bytes([PICTURE[at] ^ flip]) + PICTURE[at + 1 :]
    with pytest.raises(PngError):
        image_files.decode_png(damaged, (4, 5, 1))


@given(st.integers(0, len(PICTURE) - 1))
def test_a_png_that_ends_early_is_refused(end):
    with pytest.raises(PngError):
        image_files.decode_png(PICTURE[:end], (4, 5, 1))


SIGNATURE = PICTURE[:8]
END = chunk(b"IEND", b"")
BOMB = chunk(b"IDAT", zlib.compress(bytes(50_000_000), level=1))


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (SIGNATURE + header(5, 4, 0) + BOMB + END, "not of the size"),
        (SIGNATURE + header(5, 4, 0) + chunk(b"IDAT", zlib.compress(bytes(5))) + END, "not of the size"),
        (SIGNATURE + header(5, 4, 0) + chunk(b"IDAT", b"no zlib") + END, "image data is damaged"),
        (SIGNATURE + header(5, 4, 0) + chunk(b"IDAT", zlib.compress(b"\5" + bytes(23))) + END, "unknown row filter"),
        (SIGNATURE + header(60_000, 60_000, 0) + END, "60000 x 60000 grey pixels, the model takes 5 x 4 grey"),
        (SIGNATURE + header(5, 4, 2) + END, "5 x 4 RGB pixels, the model takes 5 x 4 grey"),
        (SIGNATURE + header(5, 4, 3) + END, "a palette"),
        (SIGNATURE + header(5, 4, 6) + END, "transparency"),
        (SIGNATURE + header(5, 4, 9) + END, "unknown colours"),
        (SIGNATURE + header(5, 4, 0, 16) + END, "16 bits"),
        (SIGNATURE + header(5, 4, 0, rest=b"\0\0\1") + END, "interlaced"),
        (SIGNATURE + END, "header is missing"),
        (SIGNATURE, "header is missing"),
        (SIGNATURE + header(5, 4, 0) + chunk(b"XXXX", b"") + END, "critical extension"),
        (b"GIF89a", "this is no PNG file"),
        (b"", "this is no PNG file"),
    ],
)
def test_a_png_of_another_form_is_refused_by_name(data, line):
    with pytest.raises(SampleError, match=line):
        parse_sample_file("x.png", data, GREY)


def test_a_png_becomes_the_models_range_shape_and_type():
    x = parse_sample_file("x.PNG", PICTURE, GREY)
    assert x.shape == (1, 4, 5)
    assert x.dtype == np.float32
    assert np.allclose(x[0], IMAGE[..., 0] / 255 * 2 - 1, atol=1e-6)
    colours = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    assert (parse_sample_file("x.png", encode(colours, [1] * 4), RGB) == colours).all()
    with pytest.raises(SampleError, match="no grey or RGB image"):
        parse_sample_file("x.png", PICTURE, SPEC)


@pytest.mark.parametrize("fortran", [False, True])
def test_an_array_file_is_taken_as_it_is(fortran):
    x = np.linspace(-1, 1, 20, dtype=np.float32).reshape(1, 4, 5)
    read = parse_sample_file("x.npy", npy(np.asfortranarray(x) if fortran else x), GREY)
    assert (read == x).all()
    assert read.flags.c_contiguous


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("evil",)


HUGE = npy(np.zeros(3, np.float32)).replace(b"(3,), }         ", b"(30000000000,), }")


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (npy(np.zeros(3)), r"float64 \[3\], the model takes float32 \[3\]"),
        (npy(np.zeros((1, 3), np.float32)), r"float32 \[1, 3\], the model"),
        (npy(np.zeros(3, ">f4")), "the model takes float32"),
        (npy([Evil(), Evil(), Evil()], allow_pickle=True), "object"),
        (npy(np.zeros(3, np.float32))[:-1], "cut short"),
        (npy(np.zeros(3, np.float32)) + b"x", "something follows"),
        (HUGE, "30000000000"),
        (b"\x93NUMPY", "no sound .npy"),
        (b"\x93NUMPY\x01\x00\xff\xff{", "no sound .npy"),
        (b"PK\x03\x04", "no sound .npy"),
        (b"", "no sound .npy"),
    ],
)
def test_an_array_file_of_another_form_is_refused_by_name(data, line):
    with pytest.raises(SampleError, match=line):
        parse_sample_file("x.npy", data, SPEC)


HOSTILE_NPY = [
    b"\x93NUMPY\x01\x00\x10\x00{'descr': (((((((",
    b"\x93NUMPY\x01\x00\x06\x00'''\nab",
    npy(np.zeros(3, np.float32)).replace(b"(3,)", b"(\xff,)"),
    npy(np.zeros(3, np.float32)).replace(b"'<f4'", b"'<f3'"),
    npy(np.zeros(3, np.float32)).replace(b"'<f4'", b"[1<2]"),
    npy(np.zeros(3, np.float32)).replace(b"'descr'", b"'shape'"),
    npy(np.zeros(3, np.float32)).replace(b"(3,)", b"(9999999999999999999999,)"),
    b"\x93NUMPY\x01\x00\xff\xff{" + b" " * 65533 + b"}",
]


@pytest.mark.parametrize("data", HOSTILE_NPY)
def test_no_header_of_an_array_file_raises_anything_but_a_sample_error(data):
    """NumPy's own reader raises `tokenize.TokenError` for the first two, and more that nobody lists."""
    with pytest.raises(SampleError, match=r"npy file|type '<f3'"):
        parse_sample_file("x.npy", data, SPEC)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("dtype", list(TensorDType))
def test_array_files_of_every_version_and_type_are_read_as_numpy_wrote_them(dtype, version):
    x = np.arange(6).reshape(2, 3).astype(NUMPY_DTYPES[dtype])
    spec = InputSpec("x", dtype, (2, 3), 0, 9)
    assert (parse_sample_file("x.npy", npy(x, version=version), spec) == x).all()
    empty = b"{'shape': (2,3), 'fortran_order' :False ,\n'descr':'%s'}\n" % x.dtype.str.encode()  # another writer's
    data = b"\x93NUMPY\x01\x00" + len(empty).to_bytes(2, "little") + empty + x.tobytes()
    assert (parse_sample_file("x.npy", data, spec) == x).all()


NPY_WORDS = [
    b"'descr'",
    b"'<f4'",
    b"'fortran_order'",
    b"True",
    b"False",
    b"(3,)",
    b"()",
    b"3L",
    b"# coding: x\n",
    b"{",
    b"}",
]
NPY_FILES = [npy(np.zeros(3, np.float32)), npy(np.ones((2, 3))), npy(np.zeros(1, [("a", "<i2")])), *HOSTILE_NPY[:7]]


@pytest.mark.parametrize("count", COUNTS)
def test_random_array_files_are_samples_or_sample_errors(count):
    inputs = random_inputs(count, NPY_FILES, NPY_WORDS)
    try_parser(lambda data: parse_sample_file("x.npy", data, SPEC), SampleError, inputs)


@pytest.mark.parametrize("count", COUNTS)
def test_random_pictures_are_samples_or_sample_errors(count):
    inputs = random_inputs(count, [PICTURE, encode(IMAGE, [3, 1, 0, 2])], [b"IHDR", b"IDAT", b"IEND"])
    assert try_parser(lambda data: parse_sample_file("x.png", _seal_chunks(data), GREY), SampleError, inputs)


def _seal_chunks(data: bytes) -> bytes:
    """The same with every chunk's checksum made good, where a chunk can be found: what is behind it is tried too."""
    sealed, at = data[:8], 8
    while at + 12 <= len(data):
        size = min(int.from_bytes(data[at : at + 4], "big"), len(data) - at - 12)
        sealed += chunk(data[at + 4 : at + 8], data[at + 8 : at + 8 + size])
        at += 12 + size
    return sealed


@given(st.binary(max_size=200), st.sampled_from(["x.npy", "x.png", "x.txt"]))
def test_arbitrary_bytes_are_refused_with_one_error_type(data, name):
    for prefix in (b"", b"\x93NUMPY\x01\x00", SIGNATURE, b"\x93NUMPY\x02\x00"):
        with pytest.raises(SampleError):
            parse_sample_file(name, prefix + data, SPEC)
