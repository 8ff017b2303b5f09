"""Pictures into samples: exact, of the model's shape, close to Pillow's filter of the same name."""

import hashlib

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from models.bundle.preparation import (
    PictureAxes,
    PictureChannels,
    PictureFit,
    PicturePreparation,
    preparation_shape,
)
from models.runtime.preparation import convert_grey, prepare_picture
from models.runtime.resampling import resize_pixels
from tests.models.bundle.test_preparation import preparations
from wire.protocol.messages import TensorDType

SIDES = st.integers(1, 60)


@st.composite
def pictures(draw):
    seed, height, width = draw(st.integers(0, 999)), draw(SIDES), draw(SIDES)
    channels = draw(st.sampled_from([1, 3]))
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


@given(pictures(), preparations())
def test_any_picture_becomes_a_sample_of_the_shape_that_the_preparation_names(picture, preparation):
    sample = prepare_picture(picture, preparation)
    assert sample.shape == preparation_shape(preparation)
    assert sample.dtype == np.float32
    assert np.isfinite(sample).all()
    assert sample.flags.c_contiguous


@given(pictures(), SIDES, SIDES)
def test_resizing_stays_within_one_step_of_pillows_bilinear_filter(picture, height, width):
    image = Image.fromarray(picture[:, :, 0])
    theirs = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR)).astype(int)
    ours = resize_pixels(picture[:, :, :1], height, width)[:, :, 0].astype(int)
    assert np.abs(ours - theirs).max() <= 2  # theirs rounds the columns first


@given(st.integers(0, 255), SIDES, SIDES, preparations())
def test_a_picture_of_one_colour_stays_of_that_colour(value, height, width, preparation):
    flat = msgspec.structs.replace(preparation, fit=PictureFit.STRETCH, mean=(), std=())
    sample = prepare_picture(np.full((height, width, 3), value, np.uint8), flat)
    assert np.array_equal(np.unique(sample), [np.float32(value / 255)])


def test_a_fixed_picture_becomes_these_very_bytes_on_every_machine():
    rng = np.random.default_rng(7)
    picture = (rng.random((97, 131, 3)) * 256).astype(np.uint8)
    asked = PicturePreparation(24, 32, fit=PictureFit.LETTERBOX, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    digest = hashlib.sha256(prepare_picture(picture, asked).astype("<f4").tobytes()).hexdigest()
    assert digest == "fbbf7bf9f0e9d31e8397d88688b7fffaf85f9d66f6a4a3d533627a2e2b54ae11"


def test_grey_is_the_luma_that_pillow_computes():
    picture = np.random.default_rng(1).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    assert np.array_equal(convert_grey(picture)[:, :, 0], np.asarray(Image.fromarray(picture).convert("L")))


def test_letterbox_keeps_all_and_cover_fills_all():
    picture = np.full((10, 40, 1), 200, np.uint8)
    picture[:, :4], picture[:, -4:] = 100, 100  # the ends
    asked = PicturePreparation(20, 20, channels=PictureChannels.GREY, order=PictureAxes.HW, fill=7, white=255)
    boxed = prepare_picture(picture, msgspec.structs.replace(asked, fit=PictureFit.LETTERBOX))
    assert (boxed[:7] == 7).all()
    assert (boxed[-7:] == 7).all()
    assert (boxed[8:12, 0] == 100).all()
    covered = prepare_picture(picture, msgspec.structs.replace(asked, fit=PictureFit.COVER))
    assert (covered == 200).all()


def test_a_crop_is_cut_before_anything_else():
    picture = np.zeros((8, 8, 3), np.uint8)
    picture[:4, 4:] = (10, 20, 30)
    asked = PicturePreparation(4, 4, crop=(0.5, 0.0, 1.0, 0.5), order=PictureAxes.HWC, white=255)
    assert prepare_picture(picture, asked)[0, 0].tolist() == [10, 20, 30]
    turned = msgspec.structs.replace(asked, channels=PictureChannels.BGR)
    assert prepare_picture(picture, turned)[0, 0].tolist() == [30, 20, 10]


def test_a_model_of_bytes_gets_the_pixels_themselves():
    picture = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    asked = PicturePreparation(8, 8, order=PictureAxes.HWC, white=255)
    sample = prepare_picture(picture, asked, TensorDType.UINT8)
    assert sample.dtype == np.uint8
    assert np.array_equal(sample, picture)


@pytest.mark.parametrize(
    "picture",
    [
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
    ],
)
def test_what_is_no_picture_is_refused(picture):
    with pytest.raises(ValueError, match="no grey or RGB picture"):
        prepare_picture(picture, PicturePreparation(8, 8))
    with pytest.raises(ValueError, match="cannot become"):
        prepare_picture(np.zeros((4, 4, 3), np.uint8), PicturePreparation(8, 8), TensorDType.INT64)
