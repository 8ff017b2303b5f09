"""Networks of transformers with experts, and those that read a text at its end token, as hub graphs."""

from typing import Any

import pytest
import torch

from models.graph.hub_model import decode_graphs, encode_graphs, export_graph
from models.huggingface.architecture import TextClassifier
from models.sharding.program import ParallelShape
from tests.models.doubles.spread import Spread

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.further  # each is built and traced in seconds
TOLERANCE = 1e-5
DECODER = {
    "hidden_size": 32,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "vocab_size": 100,
    "num_labels": 3,
    "pad_token_id": 0,
}
PAIR = {
    "d_model": 32,
    "vocab_size": 100,
    "num_labels": 3,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
}
T5 = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 1,
    "num_heads": 4,
    "vocab_size": 100,
    "num_labels": 3,
    "decoder_start_token_id": 0,
}
KINDS = {
    "Mixtral": {**DECODER, "num_local_experts": 4},
    "Qwen3Moe": {**DECODER, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128},
    "GptOss": {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
    "T5": T5,
    "Bart": PAIR,
}


def build(kind: str) -> tuple[TextClassifier, Any]:
    """A classifier with weights of a seed, and its configuration."""
    torch.manual_seed(5)
    config = getattr(transformers, f"{kind}Config")(**KINDS[kind])
    net = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()
    return TextClassifier(net, 0).eval(), net.config


def draw_ids(count: int, end: int) -> torch.Tensor:
    """Texts of 12 tokens with one end token each, at any place; what follows is padding."""
    ids = torch.randint(3, 90, (count, 12))
    for row, place in enumerate(torch.randint(4, 12, (count,)).tolist()):
        ids[row, place] = end
        ids[row, place + 1 :] = 0
    return ids


@pytest.mark.parametrize("kind", KINDS)
def test_a_net_of_transformers_answers_as_it_does_itself_whole_and_over_ranks(kind, tmp_path):
    module, config = build(kind)
    end = config.eos_token_id or 2
    graph, weights = encode_graphs({"whole": export_graph(module, (draw_ids(2, end),))})
    served = decode_graphs(graph, [weights], "whole")
    (tmp_path / "weights.safetensors").write_bytes(weights)
    for count in (1, 4, 9):
        ids = draw_ids(count, end)
        with torch.no_grad():
            wanted = module(ids)
        assert torch.allclose(served(ids), wanted, atol=TOLERANCE, rtol=TOLERANCE)
        over = Spread(graph, [str(tmp_path / "weights.safetensors")], ParallelShape(2, 1))
        (found,), _ = over.answers("whole", [ids])
        assert torch.allclose(found, wanted, atol=TOLERANCE, rtol=TOLERANCE)
    experts = [piece for piece in over.made.stage_pieces(0) if len(over.form.weights[piece.name].shape) == 3]
    assert {piece.axis for piece in experts if over.form.weights[piece.name].shape[0] == 4} <= {0}
    assert bool(experts) == (kind in ("Mixtral", "Qwen3Moe", "GptOss"))


def test_a_net_computes_its_experts_in_its_own_way_again_after_it_was_traced():
    module, config = build("Mixtral")
    before = config._experts_implementation
    export_graph(module, (draw_ids(2, 2),))
    assert config._experts_implementation == before
