"""Benchmarks of loading: a hub model of 6 GiB in one process and over two ranks, its memory and its time.

`python -m benchmarks.large.loading FOLDER RANKS BYTES` is one start, in a process of its own: it prints JSON. Files are
dropped from the page cache before each start and each plain reading, so that both read the disk. A virtual machine may
give free memory back to its host within seconds (free page reporting), and pays some twenty times the usual price for
touching it again: a start would pay it and a reading, whose pages were freed a moment ago, would not. So `BYTES` of
memory are touched and freed just before the start's clock begins.
"""

import json
import mmap
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.harness.figures import Figure, find_median
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.sharded.engine import ShardedEngine
from cloud_hub.engine.sharded.rank import measure_private_bytes
from cloud_hub.engine.types import EngineOptions
from models.bundle.hub_part import open_hub_part
from tests.live.doubles.stack import LAYER_BYTES, make_stack_version

GIB = 1 << 30
LAYERS = 6 * GIB // LAYER_BYTES
ROUNDS = 3
READY_S = 1800.0
_SAMPLE_S = 0.05
_PIECE = 8 << 20


def measure_one_process(folder: Path) -> list[Figure]:
    """Peak private memory of a start over its weights, and its time over reading the files once."""
    files, size = _make_weights(folder)
    starts, reads = [], []
    for _ in range(ROUNDS):
        reads.append(time_reading(files))
        starts.append(_start_apart(folder / "echo@1", 1, (files, size)))
    peak = max(start["peak_bytes"] for start in starts)
    spent, read, backed = (
        find_median(each) for each in ([s["seconds"] for s in starts], reads, [s["backed_s"] for s in starts])
    )
    terms = (
        f"weights {size / GIB:.2f} GiB, peak {peak / GIB:.2f} GiB above the imports",
        f"start {spent:.1f} s, reading {read:.1f} s, medians of {ROUNDS} in turns, page cache dropped before each",
        f"memory of the size of the weights was touched and freed before each start, which took {backed:.1f} s",
    )
    return [
        Figure("hub start, 6 GiB in one process: peak private memory over weights", peak / size, "x", 1.1, terms=terms),
        Figure("hub start, 6 GiB in one process: time over reading the file once", spent / read, "x", 1.5),
    ]


def measure_two_ranks(folder: Path) -> list[Figure]:
    """Private memory of each of two ranks over its shard, and of the whole group over all weights."""
    files, size = _make_weights(folder)
    start = _start_apart(folder / "echo@1", 2, (files, size))
    worst = max(private / shard for private, shard in start["ranks"])
    group = start["group_bytes"]
    terms = (
        f"private {', '.join(f'{private / GIB:.2f} of {shard / GIB:.2f} GiB' for private, shard in start['ranks'])}",
        f"ready in {start['seconds']:.1f} s",
    )
    return [
        Figure("hub start, 6 GiB, two ranks: private memory of a rank over its shard", worst, "x", 1.1, terms=terms),
        Figure("the same: hub, fork server and ranks together over the weights", group / size, "x", 1.1),
    ]


def _make_weights(folder: Path) -> tuple[list[Path], int]:
    """Write the version; its files of weights and the bytes of these."""
    made = make_stack_version(folder, LAYERS, sparse=False)
    os.sync()
    part = open_hub_part(made.path, made.manifest)
    files = [part.path / name for name in part.manifest.weights]
    return files, sum(file.stat().st_size for file in files)


def drop_pages(files: list[Path]) -> None:
    """Ask the kernel to forget the contents of files."""
    for file in files:
        handle = os.open(file, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def time_reading(files: list[Path]) -> float:
    """Seconds that reading every file once takes, into one buffer."""
    drop_pages(files)
    buffer, started = bytearray(_PIECE), time.perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - started


def _start_apart(path: Path, ranks: int, weights: tuple[list[Path], int]) -> dict[str, Any]:
    """Start an engine in a process of its own; what it measured. `weights`: files and their bytes."""
    files, size = weights
    drop_pages(files)
    words = [sys.executable, "-m", "benchmarks.large.loading", str(path), str(ranks), str(size)]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def back_memory(size: int) -> float:
    """Touch and free so many bytes of memory, so that the host of a virtual machine gives it back; seconds it took."""
    began = time.perf_counter()
    with mmap.mmap(-1, size) as fresh:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            fresh.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, size, mmap.PAGESIZE):
            fresh[at] = 1
    return time.perf_counter() - began


class _PeakMeter(threading.Thread):
    """The most private memory that this process had, looked at every 50 ms."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = measure_private_bytes()
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(_SAMPLE_S):
            self.peak = max(self.peak, measure_private_bytes())


def main() -> None:
    """Start an engine of the folder in `argv`, answer once, and print what it took."""
    path, ranks, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    import cloud_hub.engine.torch  # noqa: F401, PLC0415 - what is imported is no part of a start

    backed_s = back_memory(size)
    baseline, meter, started = measure_private_bytes(), _PeakMeter(), time.perf_counter()
    meter.start()
    options = EngineOptions(max_batch=1, tensor=ranks, pipeline=1, replicas=1, devices=ranks, ready_s=READY_S)
    engine = open_engine(path, options)
    seconds = time.perf_counter() - started
    engine.infer([engine.sample()])
    meter.ended.set()
    meter.join()
    found: dict[str, Any] = {"seconds": seconds, "backed_s": backed_s, "peak_bytes": max(0, meter.peak - baseline)}
    if isinstance(engine, ShardedEngine):
        gang, server = engine.gangs[0].rank_group, engine.gangs[0].fork_server_pid
        assert gang is not None
        found["ranks"] = [(rank.private_bytes, rank.shard_bytes) for rank in gang.ready]
        found["group_bytes"] = sum(measure_private_bytes(pid) for pid in (os.getpid(), server, *gang.pids))
    engine.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
