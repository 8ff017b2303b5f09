"""The closed value that says how raw material becomes a sample: in manifests, in configurations, compared."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle.manifest import BundleError, InputSpec, decode_manifest, encode_manifest
from models.bundle.preparation import (
    PictureAxes,
    PictureChannels,
    PictureFit,
    PicturePreparation,
    check_preparation,
    complete_preparation,
    decode_preparation,
    encode_preparation,
    find_difference,
    parse_preparation,
    preparation_shape,
)
from models.runtime.runner import echo_manifest
from wire.protocol.messages import TensorDType


@st.composite
def preparations(draw):
    channels = draw(st.sampled_from(PictureChannels))
    orders = PictureAxes if channels is PictureChannels.GREY else (PictureAxes.CHW, PictureAxes.HWC)
    count = 1 if channels is PictureChannels.GREY else 3
    per_channel = st.one_of(st.just(0), st.just(1), st.just(count))
    numbers = st.floats(-4, 4, width=32)
    corners = sorted(draw(st.lists(st.floats(0, 1, width=16), min_size=2, max_size=2, unique=True)))
    crop = draw(st.sampled_from([(), (corners[0], 0.0, corners[1], 1.0), (0.0, corners[0], 1.0, corners[1])]))
    many, few = draw(per_channel), draw(per_channel)
    return PicturePreparation(
        height=draw(st.integers(1, 40)),
        width=draw(st.integers(1, 40)),
        fit=draw(st.sampled_from(PictureFit)),
        crop=crop,
        fill=draw(st.integers(0, 255)),
        channels=channels,
        order=draw(st.sampled_from(orders)),
        mean=tuple(draw(numbers) for _ in range(many)),
        std=tuple(draw(st.floats(0.125, 4, width=32)) for _ in range(few)),
    )


SOUND = PicturePreparation(8, 8, channels=PictureChannels.GREY)


def manifest_of(preparation, shape=None):
    shape = shape or preparation_shape(preparation)
    spec = InputSpec("scores", TensorDType.FP32, shape, -40.0, 40.0)
    return msgspec.structs.replace(echo_manifest(), input=spec, preparation=preparation)


@given(preparations())
def test_what_a_manifest_says_of_its_samples_comes_back_as_it_was_written(preparation):
    manifest = manifest_of(preparation)
    assert decode_manifest(encode_manifest(manifest)) == manifest
    read = decode_manifest(encode_manifest(manifest)).preparation
    assert read is not None
    assert encode_preparation(read) == encode_preparation(preparation)


def test_a_bundle_without_a_preparation_has_no_such_key_so_that_older_agents_read_it():
    assert "preparation" not in json.loads(encode_manifest(echo_manifest()))


@given(preparations(), preparations())
def test_two_encodings_are_the_same_exactly_where_no_key_differs(one, other):
    assert (encode_preparation(one) == encode_preparation(other)) == (find_difference(one, other) == "")


def test_whole_numbers_and_others_of_one_value_have_one_encoding():
    assert encode_preparation(parse_preparation({"kind": "picture", "white": 1})) == encode_preparation(
        parse_preparation({"kind": "picture", "white": 1.0})
    )


@given(preparations())
def test_sizes_left_out_are_the_models(preparation):
    open_ = msgspec.structs.replace(preparation, height=0, width=0)
    assert complete_preparation(open_, preparation_shape(preparation)) == preparation


@pytest.mark.parametrize("shape", [(8,), (1, 8), (2, 8, 8), (8, 8, 1), (1, 8, 9), (1, 1, 8, 8)])
def test_a_preparation_that_makes_something_else_than_the_models_input_is_refused(shape):
    with pytest.raises(ValueError, match=r"the model takes \["):
        complete_preparation(SOUND, shape)
    with pytest.raises(BundleError, match="preparation"):
        decode_manifest(encode_manifest(manifest_of(SOUND, shape)))


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({}, "kind is missing"),
        ({"kind": "smell"}, "kind"),
        ({"kind": "picture", "hight": 3}, "hight"),
        ({"kind": "picture", "fit": "squeeze"}, "fit"),
        ({"kind": "picture", "height": -1}, "height"),
        ({"kind": "picture", "width": 100_000}, "width"),
        ({"kind": "picture", "crop": [0, 0, 1]}, "crop"),
        ({"kind": "picture", "crop": [0.5, 0, 0.5, 1]}, "crop"),
        ({"kind": "picture", "fill": 256}, "fill"),
        ({"kind": "picture", "order": "hw"}, "order"),
        ({"kind": "picture", "std": [0]}, "std"),
        ({"kind": "picture", "std": [1, 2]}, "std"),
        ({"kind": "picture", "mean": [float("nan")]}, "mean"),
        ({"kind": "picture", "white": 0}, "white"),
    ],
)
def test_an_impossible_input_section_is_refused_by_the_name_of_its_key(values, line):
    with pytest.raises(ValueError, match=line) as error:
        parse_preparation(values)
    assert "\n" not in str(error.value)


def test_a_manifest_needs_the_sizes_that_a_configuration_may_leave_out():
    check_preparation(PicturePreparation())
    with pytest.raises(ValueError, match="height"):
        check_preparation(PicturePreparation(), complete=True)


def test_a_preparation_that_is_nested_too_deeply_is_refused_in_one_line():
    with pytest.raises(ValueError, match="the JSON is nested too deeply"):
        decode_preparation(b'{"kind":' + b"[" * 100_000)
