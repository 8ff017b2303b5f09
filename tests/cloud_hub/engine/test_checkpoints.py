"""A hub serves a Hugging Face version: shards as others wrote them, behind an edge part of ours."""

import numpy as np
import pytest
import torch

from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.sharded.engine import ShardedEngine
from cloud_hub.engine.types import EngineOptions, WorkItem
from models.bundle.hub_part import open_hub_part
from models.bundle.manifest import BundleError
from models.huggingface.importer import ImportRequest, import_checkpoint
from tests.examples import further
from tests.models.doubles.checkpoints import draw_samples, expected_logits, sample_edge, save_checkpoint

pytest.importorskip("transformers")


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.further)])
@pytest.mark.parametrize("kind", [further("bert"), "vit"])
def test_a_hub_answers_as_transformers_does_from_the_checkpoints_own_shards(tmp_path, kind, ranks):
    net = save_checkpoint(tmp_path / "checkpoint", kind)
    sample_edge(tmp_path / "edge", kind)
    made = import_checkpoint(ImportRequest(tmp_path / "checkpoint", tmp_path / "edge", tmp_path / f"{kind}@2"))
    x = draw_samples(kind, 3)
    wanted = torch.softmax(expected_logits(net, kind, x).double(), 1).numpy()
    engine = open_engine(made.path, EngineOptions(max_batch=4, tensor=ranks, devices=ranks, replicas=1))
    try:
        assert isinstance(engine, ShardedEngine) is (ranks > 1)
        found = engine.infer([WorkItem(raw=sample) for sample in x.numpy()])
    finally:
        engine.stop()
    assert np.allclose([prediction.scores for prediction in found], wanted, atol=1e-5)
    assert {prediction.model for prediction in found} == {f"{kind}@2"}


@pytest.mark.further
def test_a_shard_that_was_changed_after_the_import_is_not_served(tmp_path):
    """Shards are linked: who changes the checkpoint in place changes the version's file, and its digest says so."""
    save_checkpoint(tmp_path / "checkpoint", "vit")
    sample_edge(tmp_path / "edge", "vit")
    made = import_checkpoint(ImportRequest(tmp_path / "checkpoint", tmp_path / "edge", tmp_path / "vit@2"))
    name = open_hub_part(made.path, made.manifest).manifest.weights[0]
    with (tmp_path / "checkpoint" / name).open("r+b") as shard:
        shard.seek(-4, 2)
        shard.write(b"\x00\x00\x80\x3f")
    with pytest.raises(BundleError, match=rf"vit@2: {name}: its content is not what the manifest promises"):
        open_engine(made.path, EngineOptions(max_batch=4))
