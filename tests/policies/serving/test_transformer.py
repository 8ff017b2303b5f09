"""Sizes of transformers from their shape: known models, and laws that hold for every shape."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.serving.placement import GIB, DeviceMemory, Placement, PlacementRequest, list_layouts, place_model
from policies.serving.transformer import (
    DecoderLoad,
    LatentAttention,
    TransformerShape,
    count_cache_bytes,
    count_line_bytes,
    count_parameters,
    estimate_need,
    list_needs,
)

LLAMA_70B = TransformerShape(80, 8192, 64, 8, 128, 28_672, 128_256)
MIXTRAL = TransformerShape(32, 4096, 32, 8, 128, 14_336, 32_000, experts=8, active_experts=2, expert_width=14_336)
DEEPSEEK_V3 = TransformerShape(
    61, 7168, 128, 128, 192, 18_432, 129_280, experts=256, active_experts=8, expert_width=2048, shared_width=2048,
    dense_layers=3, latent=LatentAttention(512, 1536, 128, 64, 128),
)  # fmt: skip
LOAD = DecoderLoad(16, 8192)


def test_known_models_have_the_parameters_that_their_makers_state():
    assert count_parameters(LLAMA_70B).total == pytest.approx(70.55e9, rel=1e-3)
    counted = count_parameters(MIXTRAL)
    assert counted.total == pytest.approx(46.7e9, rel=2e-3)
    assert counted.active == pytest.approx(12.9e9, rel=3e-3)


def test_a_latent_cache_is_small_and_each_rank_of_a_tensor_division_has_all_of_it():
    counted = count_parameters(DEEPSEEK_V3)
    assert counted.total == pytest.approx(671e9, rel=1e-3)
    assert counted.active == pytest.approx(37e9, rel=2e-2)
    assert count_cache_bytes(DEEPSEEK_V3, DecoderLoad(1, 1)) == 61 * (512 + 64) * 2
    assert count_cache_bytes(DEEPSEEK_V3, DecoderLoad(1, 1), tensor=8) == 61 * (512 + 64) * 2


def test_keys_and_values_of_a_70b_model_take_320_kib_a_token():
    assert count_cache_bytes(LLAMA_70B, DecoderLoad(1, 1)) == 320 * 1024
    assert count_cache_bytes(LLAMA_70B, DecoderLoad(1, 1), tensor=4, pipeline=2) == 40 * 1024
    assert count_cache_bytes(LLAMA_70B, DecoderLoad(1, 1), tensor=16) == 40 * 1024, "a head is not divided"


def test_tensor_parallel_across_nodes_would_send_hundreds_of_times_more_than_a_pipeline():
    pipeline, tensor = count_line_bytes(LLAMA_70B, 8, 2)
    assert pipeline == 16 * 1024
    assert tensor > 100 * pipeline


def test_a_model_too_large_for_a_node_becomes_stages_across_nodes_with_tensor_inside():
    devices = DeviceMemory(8, 40 * GIB, GIB, nodes=2)
    found = place_model(list_needs(LLAMA_70B, LOAD, 141e9, list_layouts(8)), devices, PlacementRequest())
    assert isinstance(found, Placement)
    assert found.need.tensor <= 4 < found.need.ranks
    assert found.why.endswith("stages across 2 nodes, tensor inside each")


shapes = st.builds(
    TransformerShape, layers=st.integers(1, 100), width=st.integers(64, 16_384), heads=st.sampled_from([8, 16, 64]),
    kv_heads=st.sampled_from([1, 2, 8]), head_width=st.sampled_from([64, 128]), feed_width=st.integers(64, 65_536),
    vocabulary=st.integers(1, 300_000), tied=st.booleans(), experts=st.sampled_from([0, 8, 128]),
    active_experts=st.integers(1, 8), expert_width=st.integers(64, 4096),
)  # fmt: skip
loads = st.builds(DecoderLoad, st.integers(1, 64), st.integers(1, 32_768))


@given(shapes, loads, st.sampled_from([2, 4, 8]), st.integers(2, 8))
def test_more_ranks_never_need_more_each_and_together_hold_all_weights(shape, load, tensor, pipeline):
    held = count_parameters(shape).total * 2
    one = estimate_need(shape, load, held, (1, 1))
    assert one.weight_bytes == pytest.approx(held, abs=2)
    for layout in ((tensor, 1), (1, pipeline), (tensor, pipeline)):
        each = estimate_need(shape, load, held, layout)
        assert each.weight_bytes <= one.weight_bytes
        assert each.cache_bytes <= one.cache_bytes
        assert each.weight_bytes * each.ranks >= held - each.ranks


@given(shapes)
def test_a_token_never_meets_more_than_there_is_and_all_without_experts(shape):
    counted = count_parameters(shape)
    assert 0 < counted.active <= counted.total
    plain = count_parameters(msgspec.structs.replace(shape, experts=0))
    assert plain.active == plain.total


@given(shapes, loads, st.integers(1, 4), st.sampled_from([1, 2, 4, 8]), st.integers(2, 200))
def test_what_is_placed_fits_and_a_tensor_division_stays_inside_a_node(shape, load, nodes, each, gib):
    devices = DeviceMemory(nodes * each, gib * GIB, GIB, nodes)
    needs = list_needs(shape, load, count_parameters(shape).total * 2, list_layouts(devices.count))
    found = place_model(needs, devices, PlacementRequest())
    if isinstance(found, Placement):
        assert found.need.bytes <= devices.room
        assert found.need.tensor <= each
        assert found.devices <= devices.count
        assert not [
            need
            for need in needs
            if need.ranks < found.need.ranks
            and need.bytes <= devices.room
            and devices.count_nodes(need.tensor, need.pipeline)
        ]
