"""Sizes of a transformer from its shape alone: weights, experts, key-value cache, and the memory of each rank. Pure.

Rule: what is counted is what engines hold: all experts of a layer in memory, those that answer a token for its time;
keys and values of every layer for each token of each sequence. Families whose layers are built otherwise are not
guessed at. Sources: Vaswani et al. 2017 (layers), Ainslie et al. 2023 (key-value heads), Shazeer et al. 2017 (experts).
"""

from collections.abc import Iterable

import msgspec

from policies.serving.placement import MemoryNeed

_ACTIVATION_BYTES = 4  # of one number of an activation: engines keep some in float32
_ENCODER_TOKENS = 2  # tensors of hidden size alive beside those of the feed-forward layer


class LatentAttention(msgspec.Struct, frozen=True):
    """Attention that keeps one latent vector of a token for all heads, and one rotary key beside it.

    `cache_rank`: numbers of the latent vector; `query_rank`: of that of queries, 0 = queries have none. Widths of a
    head: `plain_width` and `rotary_width` of its queries and keys, `value_width` of its values. Source: DeepSeek-AI
    2024 (DeepSeek-V2, section 2.1).
    """

    cache_rank: int
    query_rank: int
    plain_width: int
    rotary_width: int
    value_width: int


class TransformerShape(msgspec.Struct, frozen=True):
    """Shape of a transformer; `experts` 0 = every layer has one feed-forward network.

    `gated`: three matrices in a feed-forward network (SwiGLU), else two; `biases`: in its linear layers;
    `expert_width`: of one expert's network; `shared_width`: of the network that answers every token beside the experts;
    `dense_layers`: how many layers have no experts; `fixed_parameters`: embeddings of positions and patches, and heads.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    feed_width: int
    vocabulary: int
    tied: bool = False
    gated: bool = True
    biases: bool = False
    decoder: bool = True
    experts: int = 0
    active_experts: int = 0
    expert_width: int = 0
    shared_width: int = 0
    dense_layers: int = 0
    fixed_parameters: int = 0
    latent: LatentAttention | None = None


class DecoderLoad(msgspec.Struct, frozen=True):
    """What a decoder is asked to hold: `sequences` of `context` tokens each; `tokens` that are computed at once."""

    sequences: int
    context: int
    tokens: int = 2048
    cache_number_bytes: int = 2


class ParameterCount(msgspec.Struct, frozen=True):
    """Numbers of a model: all of them, and those that one token meets."""

    total: int
    active: int


def count_parameters(shape: TransformerShape) -> ParameterCount:
    """Count the parameters. Norms are counted as two vectors a layer, which is exact to a few thousand numbers."""
    sparse = shape.layers - shape.dense_layers if shape.experts else 0
    dense = (shape.layers - sparse) * _count_network(shape, shape.feed_width)
    every = shape.layers * _count_attention(shape) + dense + _count_ends(shape)
    one = _count_network(shape, shape.expert_width)
    always = _count_network(shape, shape.shared_width) + shape.width * shape.experts  # and the router
    return ParameterCount(
        every + sparse * (shape.experts * one + always), every + sparse * (shape.active_experts * one + always)
    )


def _count_ends(shape: TransformerShape) -> int:
    """Count what lies before the first layer and behind the last one."""
    tables = 2 if shape.decoder and not shape.tied else 1
    return tables * shape.vocabulary * shape.width + shape.fixed_parameters


def _count_attention(shape: TransformerShape) -> int:
    """Count the projections and the two norms of a layer."""
    if shape.latent:
        return _count_latent_attention(shape, shape.latent) + 2 * shape.width
    queries, keys = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    biases = queries + 2 * keys + shape.width if shape.biases else 0
    return 2 * shape.width * queries + 2 * shape.width * keys + biases + 2 * shape.width * (2 if shape.biases else 1)


def _count_latent_attention(shape: TransformerShape, latent: LatentAttention) -> int:
    """Count the projections down to the latent vectors and up from them, that of the output, and the inner norms."""
    query_width = shape.heads * (latent.plain_width + latent.rotary_width)
    queries = shape.width * query_width
    if latent.query_rank:
        queries = latent.query_rank * (shape.width + query_width + 1)
    down = shape.width * (latent.cache_rank + latent.rotary_width) + latent.cache_rank
    up = latent.cache_rank * shape.heads * (latent.plain_width + latent.value_width)
    return queries + down + up + shape.heads * latent.value_width * shape.width


def _count_network(shape: TransformerShape, feed_width: int) -> int:
    """Count the matrices of one feed-forward network; 0 for width 0."""
    matrices = 3 if shape.gated else 2
    biases = feed_width + shape.width if shape.biases and feed_width else 0
    return matrices * shape.width * feed_width + biases


def count_cache_bytes(shape: TransformerShape, load: DecoderLoad, tensor: int = 1, pipeline: int = 1) -> int:
    """Count the bytes of keys and values that the fullest rank holds.

    A key-value head is never divided; a latent vector is every head's, so that each rank of a tensor division has it.
    """
    layers, heads = _ceil_divide(shape.layers, pipeline), _ceil_divide(shape.kv_heads, tensor)
    latent = shape.latent
    numbers = latent.cache_rank + latent.rotary_width if latent else 2 * heads * shape.head_width
    return layers * numbers * load.sequences * load.context * load.cache_number_bytes


def list_needs(
    shape: TransformerShape, load: DecoderLoad, weight_bytes: float, layouts: Iterable[tuple[int, int]]
) -> tuple[MemoryNeed, ...]:
    """List the memory of each (tensor, pipeline) layout that engines can run.

    It divides the heads, the key-value heads too or copies each equally often, and has a layer for each stage.
    `weight_bytes`: of all weights together.
    """
    return tuple(
        estimate_need(shape, load, weight_bytes, pair)
        for pair in layouts
        if _divides_heads(shape, pair[0]) and pair[1] <= shape.layers
    )


def _divides_heads(shape: TransformerShape, tensor: int) -> bool:
    return shape.heads % tensor == 0 and 0 in (shape.kv_heads % tensor, tensor % shape.kv_heads)


def estimate_need(
    shape: TransformerShape, load: DecoderLoad, weight_bytes: float, layout: tuple[int, int]
) -> MemoryNeed:
    """Estimate the memory of the fullest rank of one layout: the stage with most layers, and an embedding."""
    tensor, pipeline = layout
    counted = count_parameters(shape)
    number_bytes = weight_bytes / max(1, counted.total)
    ends = _count_ends(shape)
    if pipeline > 1 and shape.decoder:
        ends = (
            shape.vocabulary * shape.width + shape.fixed_parameters
        )  # the first stage has one table, the last another
    share = _ceil_divide(shape.layers, pipeline) / shape.layers
    held = ((counted.total - _count_ends(shape)) * share + ends) * number_bytes / tensor
    cache = count_cache_bytes(shape, load, tensor, pipeline) if shape.decoder else 0
    return MemoryNeed(tensor, pipeline, _round_up(held), count_activation_bytes(shape, load, tensor), cache)


def count_activation_bytes(shape: TransformerShape, load: DecoderLoad, tensor: int = 1) -> int:
    """Count what is alive at once while `tokens` are computed: the widest layer, and scores of the vocabulary."""
    feed = max(shape.feed_width, shape.expert_width * shape.active_experts + shape.shared_width)
    wide = _ceil_divide(feed * (2 if shape.gated else 1) + 3 * shape.heads * shape.head_width, tensor)
    alive = load.tokens * (wide + _ENCODER_TOKENS * shape.width)
    scores = load.sequences * _ceil_divide(shape.vocabulary, tensor) if shape.decoder else 0
    return (alive + scores) * _ACTIVATION_BYTES


def count_line_bytes(shape: TransformerShape, tensor: int, number_bytes: int) -> tuple[int, int]:
    """Count the bytes of one token that cross the line between nodes: (a pipeline's, a tensor division's).

    A stage hands on one vector; a tensor division adds up two vectors in each layer, each sent about twice (ring).
    """
    handed = shape.width * number_bytes
    return handed, 2 * shape.layers * handed * 2 * (tensor - 1) // max(1, tensor)


def _ceil_divide(count: int, parts: int) -> int:
    return -(-count // parts)


def _round_up(count: float) -> int:
    return int(-(-count // 1))
