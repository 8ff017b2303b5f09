"""Learned bottleneck: features of any shape become few whole numbers and are restored in the tail's shape."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.forge.partition.layout import AxisOrder, FeatureLayout
from models.forge.training.bottleneck import (
    BottleneckDecoder,
    BottleneckEncoder,
    Codebook,
    choose_codebook,
    round_straight_through,
)

GRID = FeatureLayout(AxisOrder.GRID, ((6, 12, 12),), (6, 12, 12))
WORDS = FeatureLayout(AxisOrder.CHANNELS_LAST, ((17, 8),), (8, 1, 17))
SIGNAL = FeatureLayout(AxisOrder.CHANNELS_FIRST, ((4, 50),), (4, 1, 50))
NUMBERS = FeatureLayout(AxisOrder.NUMBERS, ((12,),), (12,))
SEVERAL = FeatureLayout(AxisOrder.NUMBERS, ((3, 4), (5,)), (17,))
KINDS = [GRID, WORDS, SIGNAL, NUMBERS, SEVERAL]


def _features(feature: FeatureLayout, count: int = 6) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(count, *shape) for shape in feature.shapes)


@pytest.mark.parametrize("feature", KINDS, ids=str)
@pytest.mark.parametrize("spatial", [True, False])
def test_codes_of_any_features_are_whole_numbers_and_come_back_as_features(feature, spatial):
    codebook = choose_codebook(feature, 24, spatial=spatial)
    encoder, decoder = BottleneckEncoder(feature, codebook, 50_000).eval(), BottleneckDecoder(codebook, feature).eval()
    codes = encoder(*_features(feature))
    assert codes.shape == (6, *codebook.shape)
    assert torch.equal(codes, codes.round())
    assert 0 <= codes.min() <= codes.max() <= codebook.levels - 1
    back = decoder(codes)
    back = back if isinstance(back, tuple) else (back,)
    assert [tuple(value.shape[1:]) for value in back] == list(feature.shapes)


@given(st.sampled_from(KINDS), st.integers(1, 300), st.booleans())
def test_a_chosen_codebook_fits_the_bytes_asked_for(feature, max_bytes, spatial):
    codebook = choose_codebook(feature, max_bytes, spatial=spatial)
    assert codebook.payload_bytes <= max_bytes
    assert 2 <= codebook.levels <= 256
    assert math.prod(codebook.shape) >= 1


def test_the_encoder_stays_within_the_arithmetic_it_is_given():
    small = sum(p.numel() for p in BottleneckEncoder(GRID, Codebook((4, 6, 6), 4), 60_000).parameters())
    large = sum(p.numel() for p in BottleneckEncoder(GRID, Codebook((4, 6, 6), 4), 3_000_000).parameters())
    assert small * 4 < large


def test_learning_goes_through_the_rounding():
    levels = torch.tensor([0.2, 1.7], requires_grad=True)
    round_straight_through(levels).sum().backward()
    assert levels.grad is not None
    assert levels.grad.tolist() == [1.0, 1.0]


def test_a_decoder_may_enter_at_features_of_another_size_than_the_encoder_left():
    codebook = choose_codebook(GRID, 30)
    later = FeatureLayout(AxisOrder.GRID, ((10, 3, 3),), (10, 3, 3))
    assert BottleneckDecoder(codebook, later)(torch.zeros(2, *codebook.shape)).shape == (2, 10, 3, 3)


@pytest.mark.parametrize("spatial", [True, False], ids=["grid", "vector"])
@pytest.mark.parametrize("max_bytes", [12, 64, 200, 512, 1024])
def test_codes_use_the_bytes_that_they_are_allowed(spatial, max_bytes):
    """Once codes of a vector ended at 12 B and codes of a grid at 480 B, whatever was asked for."""
    feature = FeatureLayout(AxisOrder.GRID, ((64, 14, 14),), (64, 14, 14))
    assert 0.7 * max_bytes <= choose_codebook(feature, max_bytes, spatial=spatial).payload_bytes <= max_bytes


def test_a_narrow_vector_takes_more_levels_where_it_may_not_take_more_codes():
    assert choose_codebook(NUMBERS, 12) == Codebook((12,), 128)
    assert choose_codebook(NUMBERS, 3) == Codebook((12,), 4)
