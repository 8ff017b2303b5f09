"""Benchmarks of encoders of the sizes of BERT-Large and ViT-Large: divided over two ranks against transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.harness.figures import Figure
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.sharded.engine import ShardedEngine
from cloud_hub.engine.types import EngineOptions
from models.bundle.bundle import Bundle
from models.bundle.hub_part import open_hub_part
from models.huggingface.importer import ImportRequest, import_checkpoint
from models.runtime.golden import pack_golden
from tests.models.doubles.checkpoints import LABELS, WORDS, draw_samples, expected_logits, sample_edge, save_checkpoint

LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
SIZES = {"bert": {**LARGE, "vocab_size": 30_522}, "vit": LARGE}
BUCKETS = (1, 2, 3, 4, 6, 8)
TOLERANCE = 1e-4
READY_S = 600.0
GOLDEN_TEXTS = 32
SHAPES = [EngineOptions(max_batch=8, tensor=t, pipeline=3 - t, devices=2, ready_s=READY_S) for t in (2, 1)]


def measure_encoders(folder: Path) -> list[Figure]:
    """The largest difference of a logit on every bucket, over two ranks each way."""
    return [_compare(folder / kind, kind) for kind in sorted(SIZES)]


def make_text_version(folder: Path, sizes: dict[str, int], length: int) -> Bundle:
    """Import a BERT of random weights as a hub model of texts of `length` tokens; `folder` holds all of it."""
    save_checkpoint(folder / "checkpoint", "bert", shard="300MB", noise=0.0, max_position_embeddings=512, **sizes)
    texts = np.random.default_rng(7).integers(0, WORDS, (GOLDEN_TEXTS, length))
    golden = pack_golden(texts, np.zeros((GOLDEN_TEXTS, LABELS)), {"features": texts.astype(np.uint8)})
    sample_edge(folder / "edge", "bert", length=length, golden=golden)
    return import_checkpoint(ImportRequest(folder / "checkpoint", folder / "edge", folder / "new"))


def _compare(folder: Path, kind: str) -> Figure:
    net = save_checkpoint(folder / "checkpoint", kind, shard="300MB", noise=0.0, **SIZES[kind])
    xs = [draw_samples(kind, batch) for batch in BUCKETS]
    wanted = [expected_logits(net, kind, x).numpy() for x in xs]
    del net
    sample_edge(folder / "edge", kind)
    made = import_checkpoint(ImportRequest(folder / "checkpoint", folder / "edge", folder / "new"))
    weight_bytes = open_hub_part(made.path, made.manifest).manifest.weight_bytes
    worst = 0.0
    for means in SHAPES:
        found = _answer(made.path, means, [x.numpy() for x in xs])
        worst = max([worst, *(float(np.abs(a - b).max()) for a, b in zip(found, wanted, strict=True))])
    terms = (
        f"{weight_bytes / (1 << 30):.2f} GiB, tensor 2 and pipeline 2, batches of {', '.join(map(str, BUCKETS))}, "
        f"short samples; largest difference of a logit {worst:.1e}",
    )
    return Figure(f"{kind}-large from its configuration: split against whole", worst, "", TOLERANCE, terms=terms)


def _answer(path: Path, means: EngineOptions, xs: list[Any]) -> list[npt.NDArray[np.float32]]:
    engine = open_engine(path, means)
    assert isinstance(engine, ShardedEngine)
    try:
        return [engine.gangs[0].run("whole", [x]) for x in xs]
    finally:
        engine.stop()
