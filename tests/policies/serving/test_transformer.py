"""Sizes of transformers from their shape: known models, and laws that hold for every shape."""

from collections.abc import Iterator
from math import ceil, prod

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.serving.placement import GIB, DeviceMemory, Placement, PlacementRequest, list_layouts, place_model
from policies.serving.transformer import (
    DecoderLoad,
    LatentAttention,
    TransformerShape,
    count_activation_bytes,
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


latents = st.builds(
    LatentAttention, st.integers(1, 64), st.sampled_from([0, 48]), st.integers(1, 32), st.integers(1, 16),
    st.integers(1, 32),
)  # fmt: skip
odd_shapes = st.builds(
    TransformerShape, layers=st.integers(4, 12), width=st.integers(8, 64), heads=st.sampled_from([4, 6, 8]),
    kv_heads=st.sampled_from([1, 2, 4]), head_width=st.integers(2, 16), feed_width=st.integers(8, 99),
    vocabulary=st.integers(1, 500), tied=st.booleans(), gated=st.booleans(), biases=st.booleans(),
    decoder=st.booleans(), experts=st.sampled_from([0, 4]), active_experts=st.integers(1, 3),
    expert_width=st.integers(1, 50), shared_width=st.sampled_from([0, 20]), dense_layers=st.integers(0, 3),
    fixed_parameters=st.integers(0, 100), latent=st.none() | latents,
)  # fmt: skip


def list_attention(shape: TransformerShape) -> Iterator[tuple[int, ...]]:
    """Tensors of one layer's attention and norms, as a checkpoint lists them."""
    width, latent = shape.width, shape.latent
    yield from [(width,), (width,)]  # norms
    if latent is None:
        sides = [(shape.heads, width), (shape.kv_heads, width), (shape.kv_heads, width)]
        yield from ((width, heads, shape.head_width) for heads, _ in sides)
        yield (shape.heads, shape.head_width, width)
        if shape.biases:  # of queries, keys, values, the output and both norms
            yield from ((heads, shape.head_width) for heads, _ in sides)
            yield from [(width,), (width,), (width,)]
        return
    query = shape.heads * (latent.plain_width + latent.rotary_width)
    if latent.query_rank:
        yield from [(width, latent.query_rank), (latent.query_rank,), (latent.query_rank, query)]
    else:
        yield (width, query)
    yield from [(width, latent.cache_rank + latent.rotary_width), (latent.cache_rank,)]
    yield (latent.cache_rank, shape.heads, latent.plain_width + latent.value_width)
    yield (shape.heads, latent.value_width, width)


def list_network(shape: TransformerShape, feed: int) -> Iterator[tuple[int, ...]]:
    """Tensors of a feed-forward network."""
    yield from [(shape.width, feed)] * (2 if shape.gated else 1)
    yield (feed, shape.width)
    if shape.biases and feed:
        yield from [(feed,), (shape.width,)]


def list_tensors(shape: TransformerShape, experts: int) -> Iterator[tuple[int, ...]]:
    """Tensors of all layers, with so many experts in each that has some."""
    for layer in range(shape.layers):
        yield from list_attention(shape)
        if not shape.experts or layer < shape.dense_layers:
            yield from list_network(shape, shape.feed_width)
            continue
        yield (shape.width, shape.experts)  # the router
        yield from list_network(shape, shape.shared_width)
        for _ in range(experts):
            yield from list_network(shape, shape.expert_width)


def list_ends(shape: TransformerShape) -> Iterator[tuple[int, ...]]:
    yield (shape.vocabulary, shape.width)
    if shape.decoder and not shape.tied:
        yield (shape.vocabulary, shape.width)
    yield (shape.fixed_parameters,)


@given(odd_shapes)
def test_every_tensor_of_a_checkpoint_is_counted_once(shape):
    ends = sum(map(prod, list_ends(shape)))
    counted = count_parameters(shape)
    assert counted.total == ends + sum(map(prod, list_tensors(shape, shape.experts)))
    assert counted.active == ends + sum(map(prod, list_tensors(shape, shape.active_experts if shape.experts else 0)))


@given(odd_shapes, loads, st.sampled_from([1, 2, 4]), st.integers(1, 4))
def test_the_fullest_rank_holds_its_layers_one_table_its_caches_and_what_is_alive(shape, load, tensor, pipeline):
    load = msgspec.structs.replace(load, tokens=7, cache_number_bytes=2)
    need = estimate_need(shape, load, count_parameters(shape).total * 4.0, (tensor, pipeline))
    layers = ceil(shape.layers / pipeline)
    ends = sum(map(prod, list_ends(shape)))
    if pipeline > 1 and shape.decoder:
        ends = shape.vocabulary * shape.width + shape.fixed_parameters
    body = sum(map(prod, list_tensors(shape, shape.experts))) * layers / shape.layers
    assert need.weight_bytes == pytest.approx((body + ends) * 4 / tensor, abs=1.001, rel=1e-9)
    numbers = 2 * ceil(shape.kv_heads / tensor) * shape.head_width
    if shape.latent:
        numbers = shape.latent.cache_rank + shape.latent.rotary_width
    held = layers * load.sequences * load.context * numbers * 2
    assert need.cache_bytes == (held if shape.decoder else 0)
    feed = max(shape.feed_width, shape.expert_width * shape.active_experts + shape.shared_width)
    inner = (2 * feed if shape.gated else feed) + 3 * shape.heads * shape.head_width
    scores = load.sequences * ceil(shape.vocabulary / tensor) if shape.decoder else 0
    alive = 7 * (ceil(inner / tensor) + 2 * shape.width) + scores
    assert need.activation_bytes == count_activation_bytes(shape, load, tensor) == 4 * alive


@given(odd_shapes, loads)
def test_a_layout_is_listed_if_each_rank_has_whole_heads_and_each_stage_a_layer(shape, load):
    layouts = [(tensor, pipeline) for tensor in (1, 2, 3, 4, 8) for pipeline in (1, 2, shape.layers, shape.layers + 1)]
    heads, keys = shape.heads, shape.kv_heads
    even = [t for t in (1, 2, 3, 4, 8) if heads % t == 0 and (keys % t == 0 or t % keys == 0)]
    listed = [(need.tensor, need.pipeline) for need in list_needs(shape, load, 1e6, layouts)]
    assert listed == [(t, p) for t, p in layouts if t in even and p <= shape.layers]


@given(odd_shapes, st.integers(1, 8), st.sampled_from([1, 2, 4]))
def test_a_ring_sends_each_of_two_vectors_of_a_layer_almost_twice(shape, tensor, number_bytes):
    pipeline, ring = count_line_bytes(shape, tensor, number_bytes)
    assert pipeline == shape.width * number_bytes
    assert ring == int(shape.layers * 2 * pipeline * 2 * (tensor - 1) / tensor)
