"""Encoders of the sizes of BERT-Large and ViT-Large, random weights: divided, they answer as transformers does."""

import pytest
import torch

from models.bundle.hub_part import open_hub_part
from models.bundle.manifest import HUB_GRAPH_FILE
from models.huggingface.importer import ImportRequest, import_checkpoint
from models.sharding.program import ParallelShape
from tests.models.doubles.checkpoints import draw_samples, expected_logits, sample_edge, save_checkpoint
from tests.models.doubles.spread import Spread

pytest.importorskip("transformers")
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
SIZES = {"bert": {**LARGE, "vocab_size": 30_522}, "vit": LARGE}
BATCHES = (1, 2, 3)


@pytest.mark.parametrize("kind", sorted(SIZES))
def test_a_large_encoder_over_two_ranks_answers_as_transformers_does(tmp_path, kind):
    net = save_checkpoint(tmp_path / "checkpoint", kind, shard="300MB", noise=0.0, **SIZES[kind])
    xs = [draw_samples(kind, batch) for batch in BATCHES]
    wanted = [expected_logits(net, kind, x) for x in xs]
    del net
    sample_edge(tmp_path / "edge", kind)
    made = import_checkpoint(ImportRequest(tmp_path / "checkpoint", tmp_path / "edge", tmp_path / "new"))
    part = open_hub_part(made.path, made.manifest)
    assert part.manifest.weight_bytes > 1 << 30
    files = [str(part.path / name) for name in part.manifest.weights]
    for shape in (ParallelShape(2, 1), ParallelShape(1, 2)):
        found = Spread(part.read_file(HUB_GRAPH_FILE), files, shape).answers("whole", xs)[0]
        for one, other in zip(found, wanted, strict=True):
            assert torch.allclose(one, other, atol=1e-4, rtol=1e-4)
