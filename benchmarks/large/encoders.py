"""Benchmarks of encoders of the sizes of BERT-Large and ViT-Large: divided over two ranks against transformers."""

from pathlib import Path

from benchmarks.harness.figures import Figure
from models.bundle.hub_part import open_hub_part
from models.bundle.manifest import HUB_GRAPH_FILE
from models.huggingface.importer import ImportRequest, import_checkpoint
from models.sharding.program import ParallelShape
from tests.models.doubles.checkpoints import draw_samples, expected_logits, sample_edge, save_checkpoint
from tests.models.doubles.spread import Spread

LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
SIZES = {"bert": {**LARGE, "vocab_size": 30_522}, "vit": LARGE}
BUCKETS = (1, 2, 3, 4, 6, 8)
TOLERANCE = 1e-4
SHAPES = (ParallelShape(2, 1), ParallelShape(1, 2))


def measure_encoders(folder: Path) -> list[Figure]:
    """The largest difference of a logit on every bucket, ranks as threads."""
    return [_compare(folder / kind, kind) for kind in sorted(SIZES)]


def _compare(folder: Path, kind: str) -> Figure:
    net = save_checkpoint(folder / "checkpoint", kind, shard="300MB", noise=0.0, **SIZES[kind])
    xs = [draw_samples(kind, batch) for batch in BUCKETS]
    wanted = [expected_logits(net, kind, x) for x in xs]
    del net
    sample_edge(folder / "edge", kind)
    made = import_checkpoint(ImportRequest(folder / "checkpoint", folder / "edge", folder / "new"))
    part = open_hub_part(made.path, made.manifest)
    files = [str(part.path / name) for name in part.manifest.weights]
    worst = 0.0
    for shape in SHAPES:
        found = Spread(part.read_file(HUB_GRAPH_FILE), files, shape).answers("whole", xs)[0]
        worst = max([worst, *(float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True))])
    terms = (
        f"{part.manifest.weight_bytes / (1 << 30):.2f} GiB, tensor 2 and pipeline 2, batches of"
        f" {', '.join(map(str, BUCKETS))}, short samples",
    )
    return Figure(f"{kind}-large from its configuration: split against whole", worst, "", TOLERANCE, terms=terms)
