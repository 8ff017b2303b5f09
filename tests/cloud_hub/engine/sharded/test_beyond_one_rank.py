"""A model whose weights are larger than the memory of one rank: by design it is divided, and answers as the whole."""

import numpy as np
import pytest

from benchmarks.sharding.nets import LENGTH, PIECE, bundle_of, transformer
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.sharded.engine import ShardedEngine
from cloud_hub.engine.torch import TorchEngine
from cloud_hub.engine.types import EngineOptions, WorkItem
from models.bundle.hub_part import open_hub_part
from models.bundle.manifest import BundleError

MIB = 1 << 20
PROCESS_BYTES = 256 * MIB  # of a rank beside its weights and activations, as the placement counts it

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("ranks", [2, 4])
def test_weights_larger_than_a_ranks_memory_are_divided_and_the_answers_are_those_of_the_whole(tmp_path, ranks):
    made = bundle_of(tmp_path, transformer())
    weight_bytes = open_hub_part(made.path, made.manifest).manifest.weight_bytes
    room = weight_bytes * 5 // (4 * ranks)  # a share and a quarter of it
    assert room < weight_bytes
    chance = np.random.default_rng(5)
    asked = [WorkItem({"features": chance.integers(0, 16, (LENGTH, PIECE)).astype(np.uint8)}) for _ in range(2)]
    whole = open_engine(made.path, EngineOptions(max_batch=2))
    assert isinstance(whole, TorchEngine)
    wanted = [prediction.scores for prediction in whole.infer(asked)]
    whole.stop()
    with pytest.raises(BundleError, match="it does not fit"):
        open_engine(made.path, EngineOptions(max_batch=2, devices=1, memory_bytes=PROCESS_BYTES + room))
    small = EngineOptions(max_batch=2, devices=ranks, memory_bytes=PROCESS_BYTES + room, ready_s=240)
    divided = open_engine(made.path, small)
    try:
        assert isinstance(divided, ShardedEngine)
        group = divided.gangs[0].rank_group
        assert group is not None
        assert len(group.ready) == ranks
        assert max(rank.shard_bytes for rank in group.ready) <= room < weight_bytes
        assert sum(rank.shard_bytes for rank in group.ready) >= weight_bytes - (1 << 20)
        found = [prediction.scores for prediction in divided.infer(asked)]
    finally:
        divided.stop()
    assert np.allclose(found, wanted, atol=1e-5)
