"""Shape and size of a transformer in Hugging Face's form, from its config.json and, where they are there, its files.

Rule: only families whose layers are known are counted from a configuration; sizes of files go before what is counted.
Nothing is loaded and no code of the folder is run.
"""

from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from cloud_hub.cli.weight_packing import WeightPacking, read_weight_packing
from models.forge.data.types import ForgeError
from models.huggingface.checkpoint import CONFIG_FILE, INDEX_FILE, read_json
from policies.serving.computing import Precision
from policies.serving.transformer import LatentAttention, TransformerShape, count_parameters
from wire.process.exit_codes import ExitCode, ExitError

_DECODERS = {
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen2_moe",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "olmo2",
    "olmoe",
}
_LATENT_DECODERS = {"deepseek_v2", "deepseek_v3"}
# What the configuration classes of transformers take where a key is left out; else as a Llama has it.
_DEFAULTS: dict[str, dict[str, int | bool]] = {
    "gemma": {"tie_word_embeddings": True, "head_dim": 256, "num_key_value_heads": 16},
    "gemma2": {"tie_word_embeddings": True, "head_dim": 256, "num_key_value_heads": 4},
    "mistral": {"num_key_value_heads": 8},
    "mixtral": {"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 64, "num_experts_per_tok": 8},
    "qwen2": {"num_key_value_heads": 32},
    "qwen2_moe": {
        "num_key_value_heads": 16,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
    },
    "qwen3": {"head_dim": 128, "num_key_value_heads": 32},
    "qwen3_moe": {
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
}
_TEXT_ENCODERS = {"bert", "roberta", "xlm-roberta"}
_PICTURE_ENCODERS = {"vit", "deit"}
_STORED = {"float32": Precision.FLOAT32, "bfloat16": Precision.BFLOAT16, "float16": Precision.FLOAT16}


class PlannedCheckpoint(NamedTuple):
    """A checkpoint to plan for. `length`: tokens of one sample of an encoder, the longest context of a decoder.

    `weight_bytes`: as they are stored, in `stored`; `counted`: from the configuration, for no file says it.
    `quantised`: method and bits of quantised weights, such as "awq, 4 bits", "" where they are as `stored` says.
    """

    name: str
    shape: TransformerShape
    length: int
    stored: Precision
    weight_bytes: int
    counted: bool
    quantised: str = ""


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a checkpoint rather than a bundle."""
    return (folder / CONFIG_FILE).is_file()


def read_planned_checkpoint(folder: Path) -> PlannedCheckpoint:
    """Read what a plan needs of a checkpoint. ExitError(MODEL), one line, if its size cannot be known."""
    try:
        config = read_json(folder / CONFIG_FILE)
        shape, length = _read_shape(config)
        stored = _STORED[str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")]
        held = _read_stored_bytes(folder)
        packing = read_weight_packing(config)
    except ForgeError as error:
        raise ExitError(ExitCode.MODEL, str(error)) from None
    except KeyError as error:
        raise ExitError(ExitCode.MODEL, f"{folder / CONFIG_FILE}: has no usable {error}") from None
    size = held or round(_count_bytes(shape, stored, packing))
    return PlannedCheckpoint(
        folder.resolve().name, shape, length, stored, size, not held, packing.name if packing else ""
    )


def known_families() -> tuple[str, ...]:
    """Families whose layers can be counted, as `model_type` names them, in order of name."""
    return tuple(sorted(_DECODERS | _LATENT_DECODERS | _TEXT_ENCODERS | _PICTURE_ENCODERS))


def _count_bytes(shape: TransformerShape, stored: Precision, packing: WeightPacking | None) -> float:
    """Bytes of all weights: of quantised ones the layers' matrices are packed, embeddings and the head are not."""
    total = count_parameters(shape).total
    if packing is None:
        return total * stored.weight_bytes
    plain = count_parameters(replace(shape, layers=0, dense_layers=0, experts=0)).total
    return (total - plain) * packing.bits / 8 + plain * stored.weight_bytes


def _read_shape(config: dict[str, Any]) -> tuple[TransformerShape, int]:
    """Read the shape, and the tokens of a sample. KeyError with the key that is missing or no whole number."""
    family = str(config.get("model_type", ""))
    config = {**_DEFAULTS.get(family, {}), **{key: value for key, value in config.items() if value is not None}}
    known = known_families()
    if family not in known or ("kv_lora_rank" in config and family not in _LATENT_DECODERS):
        raise ForgeError(f"layers of {family[:40]!r} are not known here; known are {', '.join(known)}")
    width, heads = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    shape = TransformerShape(
        layers=_number(config, "num_hidden_layers"), width=width, heads=heads, kv_heads=heads,
        head_width=width // heads, feed_width=_number(config, "intermediate_size"), vocabulary=0, gated=False,
        biases=True, decoder=False,
    )  # fmt: skip
    if family in _PICTURE_ENCODERS:
        return _add_pictures(shape, config)
    if family in _TEXT_ENCODERS:
        return _add_text(shape, config)
    made, length = _add_decoder(shape, config)
    return (_add_latent(made, config) if family in _LATENT_DECODERS else made), length


def _add_pictures(shape: TransformerShape, config: dict[str, Any]) -> tuple[TransformerShape, int]:
    side, piece = _number(config, "image_size"), _number(config, "patch_size")
    length = (side // piece) ** 2 + 1
    patches = piece * piece * _number(config, "num_channels", 3) * shape.width
    return replace(shape, fixed_parameters=patches + (length + 4) * shape.width), length


def _add_text(shape: TransformerShape, config: dict[str, Any]) -> tuple[TransformerShape, int]:
    length = _number(config, "max_position_embeddings")
    rows = length + _number(config, "type_vocab_size", 2) + 3
    return replace(
        shape, vocabulary=_number(config, "vocab_size"), fixed_parameters=(rows + shape.width) * shape.width
    ), length


def _add_decoder(shape: TransformerShape, config: dict[str, Any]) -> tuple[TransformerShape, int]:
    heads = _number(config, "num_key_value_heads", shape.heads)
    experts = _number(config, "num_local_experts", _number(config, "num_experts", 0))
    made = replace(
        shape, kv_heads=heads, head_width=_number(config, "head_dim", shape.head_width), gated=True, biases=False,
        decoder=True, vocabulary=_number(config, "vocab_size"), tied=bool(config.get("tie_word_embeddings")),
    )  # fmt: skip
    if experts:
        step = max(1, _number(config, "decoder_sparse_step", 1))
        plain = {at for at in config.get("mlp_only_layers") or () if isinstance(at, int)}
        sparse = sum((at + 1) % step == 0 and at not in plain for at in range(shape.layers))
        made = replace(
            made, experts=experts, active_experts=_number(config, "num_experts_per_tok"),
            expert_width=_number(config, "moe_intermediate_size", shape.feed_width),
            shared_width=_number(config, "shared_expert_intermediate_size", 0), dense_layers=shape.layers - sparse,
        )  # fmt: skip
    return made, _number(config, "max_position_embeddings")


def _add_latent(shape: TransformerShape, config: dict[str, Any]) -> TransformerShape:
    """Add the attention and the experts of DeepSeek's families: the first layers have none, every other one has."""
    latent = LatentAttention(
        cache_rank=_number(config, "kv_lora_rank"), query_rank=_number(config, "q_lora_rank", 0),
        plain_width=_number(config, "qk_nope_head_dim"), rotary_width=_number(config, "qk_rope_head_dim"),
        value_width=_number(config, "v_head_dim"),
    )  # fmt: skip
    made = replace(shape, latent=latent, kv_heads=shape.heads, head_width=latent.plain_width + latent.rotary_width)
    if not config.get("n_routed_experts"):
        return made
    width = _number(config, "moe_intermediate_size")
    return replace(
        made, experts=_number(config, "n_routed_experts"), active_experts=_number(config, "num_experts_per_tok"),
        expert_width=width, shared_width=_number(config, "n_shared_experts", 0) * width,
        dense_layers=min(shape.layers, _number(config, "first_k_dense_replace", 0)),
    )  # fmt: skip


_REQUIRED = -1


def _number(config: dict[str, Any], key: str, default: int = _REQUIRED) -> int:
    """A whole number above 0 of a configuration; KeyError if there is none and no default."""
    found = config.get(key)
    if found is None and default != _REQUIRED:
        return default
    if not isinstance(found, int) or isinstance(found, bool) or found < min(1, abs(default)):
        raise KeyError(key)
    return found


def _read_stored_bytes(folder: Path) -> int:
    """Bytes of the weights as the index or the files' headers say; 0 if there are no files."""
    if (folder / INDEX_FILE).exists():
        told = read_json(folder / INDEX_FILE).get("metadata")
        size = told.get("total_size") if isinstance(told, dict) else None
        return size if isinstance(size, int) and size > 0 else 0
    return sum(_read_tensor_bytes(path) for path in sorted(folder.glob("*.safetensors")))


def _read_tensor_bytes(path: Path) -> int:
    """Bytes of the tensors of one file: what lies behind its header."""
    with path.open("rb") as file:
        head = int.from_bytes(file.read(8), "little")
    return max(0, path.stat().st_size - 8 - head)
