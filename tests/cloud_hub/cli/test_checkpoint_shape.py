"""Sizes of checkpoints from their configurations, against the networks that transformers builds of them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cloud_hub.cli.checkpoint_shape import known_families, read_planned_checkpoint
from policies.serving.computing import Precision
from policies.serving.transformer import count_parameters
from tests import ROOT
from wire.process.exit_codes import ExitCode, ExitError

SMALL = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 200}
DECODER = {**SMALL, "num_key_value_heads": 2, "vocab_size": 500, "max_position_embeddings": 128}
EXPERTS = {**DECODER, "num_local_experts": 6, "num_experts_per_tok": 2}
LATENT = {
    **DECODER, "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 48, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 12, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 40, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", DECODER),
    "mistral": ("MistralForCausalLM", DECODER),
    "qwen2": ("Qwen2ForCausalLM", DECODER),
    "qwen3": ("Qwen3ForCausalLM", {**DECODER, "head_dim": 32, "tie_word_embeddings": True}),
    "gemma": ("GemmaForCausalLM", {**DECODER, "head_dim": 16}),
    "gemma2": ("Gemma2ForCausalLM", {**DECODER, "head_dim": 16}),
    "olmo2": ("Olmo2ForCausalLM", DECODER),
    "mixtral": ("MixtralForCausalLM", EXPERTS),
    "olmoe": ("OlmoeForCausalLM", {**DECODER, "num_experts": 6, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        {**EXPERTS, "head_dim": 16, "moe_intermediate_size": 100, "mlp_only_layers": [1]},
    ),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        {**EXPERTS, "num_experts": 6, "moe_intermediate_size": 100, "shared_expert_intermediate_size": 72},
    ),
    "deepseek_v2": ("DeepseekV2ForCausalLM", {**LATENT, "q_lora_rank": None}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", LATENT),
    "bert": ("BertForSequenceClassification", {**SMALL, "vocab_size": 500, "max_position_embeddings": 128}),
    "roberta": ("RobertaForSequenceClassification", {**SMALL, "vocab_size": 500, "max_position_embeddings": 128}),
    "vit": ("ViTForImageClassification", {**SMALL, "image_size": 32, "patch_size": 8}),
}
TOLERANCE = 0.03  # biases of projections and norms of some families are not counted; a fraction of a percent when large


def write_config(folder: Path, family: str, config: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": family, **config}))
    return folder


@pytest.mark.further
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_parameters_are_those_of_the_network_that_transformers_builds(tmp_path, family):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    kind, options = FAMILIES[family]
    config = transformers.AutoConfig.for_model(family, **options)
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        net = getattr(transformers, kind)(config)
    wanted = sum(parameter.numel() for parameter in net.parameters())
    planned = read_planned_checkpoint(tmp_path)
    assert planned.counted
    assert count_parameters(planned.shape).total == pytest.approx(wanted, rel=TOLERANCE)


def test_sizes_of_files_go_before_what_is_counted(tmp_path):
    folder = write_config(tmp_path / "net", "llama", {**DECODER, "torch_dtype": "bfloat16"})
    (folder / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 12345}, "weight_map": {}}')
    planned = read_planned_checkpoint(folder)
    assert (planned.weight_bytes, planned.counted, planned.stored) == (12345, False, Precision.BFLOAT16)


@pytest.mark.parametrize(
    ("family", "config", "why"),
    [
        ("falcon", DECODER, "layers of 'falcon' are not known here; known are bert, "),
        ("llama", {**DECODER, "kv_lora_rank": 512}, "are not known here"),
        ("llama", {key: value for key, value in DECODER.items() if key != "vocab_size"}, "has no usable 'vocab_size'"),
        ("deepseek_v3", DECODER, "has no usable 'kv_lora_rank'"),
        ("llama", {**DECODER, "num_hidden_layers": "many"}, "has no usable 'num_hidden_layers'"),
        ("llama", {**DECODER, "num_attention_heads": 0}, "has no usable 'num_attention_heads'"),
        ("llama", {**DECODER, "dtype": "int3"}, "has no usable 'int3'"),
    ],
)
def test_a_configuration_that_does_not_say_its_size_is_one_line(tmp_path, family, config, why):
    with pytest.raises(ExitError) as caught:
        read_planned_checkpoint(write_config(tmp_path / "net", family, config))
    assert caught.value.code == ExitCode.MODEL
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


LEFT_OUT = (
    *("tie_word_embeddings", "num_key_value_heads", "head_dim", "num_experts_per_tok", "moe_intermediate_size"),
    "shared_expert_intermediate_size",
)


@pytest.mark.further
@pytest.mark.parametrize("family", sorted(set(known_families()) - {"deepseek_v2", "deepseek_v3"}))
def test_what_a_configuration_leaves_out_is_the_familys_own_default(tmp_path, family):
    transformers = pytest.importorskip("transformers")
    given = {**SMALL, "vocab_size": 500, "max_position_embeddings": 128, "image_size": 32, "patch_size": 8}
    config = transformers.AutoConfig.for_model(family, **given)
    whole = {name: getattr(config, name) for name in LEFT_OUT if getattr(config, name, None) is not None}
    if getattr(config, "num_experts", None):
        whole["num_experts"] = config.num_experts
    left_out, said = (
        read_planned_checkpoint(write_config(tmp_path / each, family, {**given, **more})).shape
        for each, more in (("short", {}), ("long", whole))
    )
    assert left_out == said


def test_every_family_that_is_known_stands_on_the_page():
    (listed,) = re.findall(r"\(families: ([^)]*)\)", (ROOT / "docs" / "engines.md").read_text(encoding="utf-8"))
    assert listed.split(", ") == list(known_families())


LLAMA_8B = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("packing", "name", "gigabytes"),
    [
        (None, "", 16.06),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq, 4 bits", 5.73),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "gptq, 8 bits", 9.08),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes, 4 bits", 6.03),
        ({"quant_method": "fp8"}, "fp8, 8 bits", 9.08),
    ],
)
def test_quantised_weights_count_with_their_bits(tmp_path, packing, name: str, gigabytes: float):
    config = LLAMA_8B if packing is None else {**LLAMA_8B, "quantization_config": packing}
    planned = read_planned_checkpoint(write_config(tmp_path, "llama", config))
    assert planned.quantised == name
    assert planned.weight_bytes == pytest.approx(gigabytes * 1e9, rel=0.01)


def test_weights_quantised_in_a_way_that_is_not_known_are_refused(tmp_path):
    folder = write_config(tmp_path, "llama", {**LLAMA_8B, "quantization_config": {"quant_method": "own"}})
    with pytest.raises(ExitError, match="'own' are not known here; known are awq"):
        read_planned_checkpoint(folder)
