"""Benchmark of a BERT-Large divided by tensors over two ranks: by our splitter, and by DTensor as transformers does it.

transformers ships no plan for BERT or ViT (`base_model_tp_plan`): the plan here is the usual one, written for it. Its
ranks are processes on gloo with one thread each, as ours are.
"""

import multiprocessing
import tempfile
import time
from fnmatch import fnmatch
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.harness.figures import Figure, find_median
from benchmarks.large.encoders import SIZES
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.sharded.engine import ShardedEngine, ShardedGraphRunner
from cloud_hub.engine.types import EngineOptions
from models.huggingface.importer import ImportRequest, import_checkpoint
from tests.models.doubles.checkpoints import WORDS, sample_edge, save_checkpoint

RANKS, LENGTH, BATCH, ROUNDS, STEPS = 2, 64, 2, 6, 3
TOLERANCE = 1e-4
READY_S = 600.0
_LAYER = "bert.encoder.layer.*"
PLAN = {
    **{f"{_LAYER}.attention.self.{each}": "colwise" for each in ("query", "key", "value")},
    f"{_LAYER}.attention.output.dense": "rowwise",
    f"{_LAYER}.intermediate.dense": "colwise",
    "bert.encoder.layer.[0-9].output.dense": "rowwise",
    "bert.encoder.layer.[0-9][0-9].output.dense": "rowwise",
}


class DTensorModel:
    """Checkpoint of Hugging Face over two processes by transformers' `tp_plan`; leave it with `with`."""

    def __init__(self, checkpoint: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="skerry-dtensor-")
        store = str(Path(self._folder.name) / "store")
        self._pipes: list[Connection] = []
        self._ranks = []
        for at in range(RANKS):
            ours, theirs = context.Pipe()
            self._pipes.append(ours)
            self._ranks.append(context.Process(target=_run_rank, args=(checkpoint, at, store, theirs), daemon=True))
            self._ranks[-1].start()
            theirs.close()

    def step(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        for pipe in self._pipes:
            pipe.send(ids)
        answers: list[Any] = [pipe.recv() for pipe in self._pipes]
        found: npt.NDArray[np.float32] = answers[0]
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe, rank in zip(self._pipes, self._ranks, strict=True):
            pipe.close()
            rank.kill()
            rank.join()
        self._folder.cleanup()


def _run_rank(checkpoint: Path, at: int, store: str, pipe: Connection) -> None:
    import transformers  # noqa: PLC0415 - seconds, and a development extra
    from transformers.integrations.tensor_parallel import apply_tensor_parallelism  # noqa: PLC0415

    library: Any = transformers
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=FileStore(store, RANKS), rank=at, world_size=RANKS)
    net = library.BertForSequenceClassification.from_pretrained(checkpoint).eval()
    apply_tensor_parallelism(net, init_device_mesh("cpu", (RANKS,)), _expand_plan(net))
    with torch.inference_mode():
        while True:
            try:
                ids = torch.from_numpy(pipe.recv())
            except EOFError:
                return
            pipe.send(net(input_ids=ids, attention_mask=ids.ne(0).long()).logits.numpy())


def _expand_plan(net: torch.nn.Module) -> dict[str, str]:
    """The plan for every layer of the network and for its parameters, as transformers itself expands one."""
    found: dict[str, str] = {}
    for name, module in net.named_modules():
        style = next((style for pattern, style in PLAN.items() if fnmatch(name, pattern)), "")
        if style:
            found |= {name: style} | {f"{name}.{own}": style for own, _ in module.named_parameters()}
    return found


def measure_tensor_parallel(folder: Path) -> list[Figure]:
    """Time of a step of our ranks over that of DTensor's, in turns, and how far their answers differ."""
    sizes = SIZES["bert"] | {"max_position_embeddings": LENGTH}
    save_checkpoint(folder / "checkpoint", "bert", shard="300MB", noise=0.0, **sizes)
    sample_edge(folder / "edge", "bert", length=LENGTH)
    path = import_checkpoint(ImportRequest(folder / "checkpoint", folder / "edge", folder / "new")).path
    engine = open_engine(path, EngineOptions(max_batch=BATCH, tensor=RANKS, devices=RANKS, ready_s=READY_S))
    assert isinstance(engine, ShardedEngine)
    try:
        with DTensorModel(folder / "checkpoint") as other:
            ours, theirs, apart = _time_in_turns(engine.gangs[0], other)
        last = engine.gangs[0].last
    finally:
        engine.stop()
    ratio = find_median(ours) / find_median(theirs)
    terms = (
        f"{find_median(ours) * 1e3:.0f} ms over {find_median(theirs) * 1e3:.0f} ms, {BATCH} texts of {LENGTH} tokens, "
        f"float32, {len(ours)} steps each in turns; collectives of ours so far {last.meetings if last else {}}",
    )
    return [
        Figure("BERT-Large, tensor 2: step over that of transformers' plan by DTensor", ratio, "x", 1.0, terms=terms),
        Figure("the same: largest difference of a logit", apart, "", TOLERANCE, terms=(f"{apart:.1e}",)),
    ]


def _time_in_turns(gang: ShardedGraphRunner, other: DTensorModel) -> tuple[list[float], list[float], float]:
    """Seconds of steps of both, and the largest difference between their answers."""
    chance, ours, theirs, apart = np.random.default_rng(3), list[float](), list[float](), 0.0
    for turn in range(ROUNDS + 1):
        ids = chance.integers(1, WORDS, (BATCH, LENGTH))
        apart = max(apart, float(np.abs(gang.run("whole", [ids]) - other.step(ids)).max()))
        for step, seconds in ((lambda x: gang.run("whole", [x]), ours), (other.step, theirs)):
            seconds.extend(_time_steps(step, ids) if turn else [])  # the first round warms both
    return ours, theirs, apart


def _time_steps(step: Any, ids: npt.NDArray[np.int64]) -> list[float]:
    taken = []
    for _ in range(STEPS):
        began = time.perf_counter()
        step(ids)
        taken.append(time.perf_counter() - began)
    return taken
