"""Child process of the sandboxed first load: reads a bundle from standard input, tests it, writes one line and exits.

Rule: everything it will ever need is imported before it limits itself, and it limits itself before it reads a byte.
From then on it can open no file, start no process, and grow and run only so far.
"""

import io
import math
import os
import resource
import signal
import statistics
import sys
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
import numpy as np

from models.bundle.bundle import Bundle
from models.bundle.manifest import EDGE_FILE, BundleError, decode_manifest
from models.runtime import codec_ans, codec_steps  # noqa: F401 - the steps: no file can be opened when a bundle has them
from models.runtime.feature_codec import CodecError
from models.runtime.golden import GoldenCheck, check_golden, golden_samples, pack_golden
from models.runtime.onnx_runner import ORT_ERRORS, ManifestMismatchError, OnnxRunner
from models.runtime.runner import Runner, SampleError
from models.verification.lint import LintError, lint_graph
from models.verification.sandbox import (
    LENGTH_BYTES,
    MAX_REPORT_BYTES,
    FirstLoadReport,
    GoldenFigures,
    GraphSummary,
    LoadOutcome,
    SandboxInput,
    SandboxLimits,
)

TIMED_RUNS, TIMED_S = 200, 1.0
MAX_DETAIL_CHARS = 300
_PROC_STATUS = Path("/proc/self/status")
_OOM_SCORE = Path("/proc/self/oom_score_adj")
_KIB = 1024


def main(limits_json: str) -> None:
    """Entry point of the child. Never returns: exit code 0 with a line of JSON, or death by a signal."""
    limits = msgspec.json.decode(limits_json, type=SandboxLimits)
    gauge = MemoryGauge()
    _preload_libraries()
    confine_process(limits, gauge.read_memory().size)
    try:
        found = _try_bundle(sys.stdin.buffer, limits, gauge)
    except MemoryError:
        found = FirstLoadReport(outcome=LoadOutcome.MEMORY, detail=f"takes more than {limits.memory_bytes >> 20} MiB")
    found = msgspec.structs.replace(found, rss_bytes=gauge.read_memory().highest)
    os.write(sys.stdout.fileno(), msgspec.json.encode(found) + b"\n")
    os._exit(0)  # skip the runtime's teardown: a crash there would say nothing about the model


def _preload_libraries() -> None:
    """Use each library once, since some import parts when first used and no file can be opened later."""
    with suppress(CodecError):  # without the library, only a bundle that needs it is unfit
        codec_ans.load_library()
    packed = pack_golden(np.zeros((1, 2), np.float32), np.zeros((1, 2)), {})
    with np.load(io.BytesIO(packed), allow_pickle=False) as file:
        for name in file.files:
            np.abs(file[name]).max()


class ProcessMemory(NamedTuple):
    """Memory of this process in bytes; zeros where the kernel does not say."""

    size: int = 0
    resident: int = 0
    highest: int = 0


class MemoryGauge:
    """Memory gauge of this process: keeps /proc/self/status open.

    `getrusage` would report the parent's peak, which survives the exec.
    """

    def __init__(self) -> None:
        self._file = os.open(_PROC_STATUS, os.O_RDONLY | os.O_CLOEXEC) if _PROC_STATUS.exists() else -1

    def read_memory(self) -> ProcessMemory:
        """Read address space, resident memory and its peak."""
        if self._file < 0:
            return ProcessMemory()
        lines = os.pread(self._file, 1 << 14, 0).decode("ascii", "replace").splitlines()
        found = dict(line.split(":", 1) for line in lines if line.startswith("Vm"))
        return ProcessMemory(*(int(found[name].split()[0]) * _KIB for name in ("VmSize", "VmRSS", "VmHWM")))


def confine_process(limits: SandboxLimits, size_bytes: int) -> None:
    """Set every limit of this process, for good. `size_bytes`: address space in use, 0 if that is not known."""
    signal.setitimer(signal.ITIMER_REAL, limits.wall_s)
    with suppress(OSError):  # if the machine runs out of memory, the kernel kills this process before the agent
        _OOM_SCORE.write_text("1000", encoding="ascii")
    for which, most in (
        (resource.RLIMIT_CORE, 0),  # a core dump would hold samples
        (resource.RLIMIT_FSIZE, MAX_REPORT_BYTES),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        with suppress(OSError, ValueError):  # a limit this kernel does not have
            resource.setrlimit(which, (most, most))
    # the soft limit sends SIGXCPU, which tells the parent why; the hard one kills
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 1))
    if size_bytes:
        # libraries may have mapped more than they use: leave at least half of what is allowed
        most = max(limits.memory_bytes, size_bytes + limits.memory_bytes // 2)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _try_bundle(source: BinaryIO, limits: SandboxLimits, gauge: MemoryGauge) -> FirstLoadReport:
    """Lint, load and test the bundle from `source`; the lint has a processor-time limit of its own."""
    bundle = _receive_bundle(source)
    edge = sha256(bundle.read_file(EDGE_FILE)).hexdigest()
    signal.setitimer(signal.ITIMER_PROF, limits.lint_s)
    begun = time.thread_time()
    try:
        graph = GraphSummary(*lint_graph(bundle.read_file(EDGE_FILE)))
    except LintError as error:
        return FirstLoadReport(
            outcome=LoadOutcome.REFUSED, detail=_format_error(error), edge=edge, lint_ms=_elapsed_ms(begun)
        )
    signal.setitimer(signal.ITIMER_PROF, 0)
    found = FirstLoadReport(outcome=LoadOutcome.UNFIT, edge=edge, graph=graph, lint_ms=_elapsed_ms(begun))
    try:
        return _load_and_test(bundle, found, gauge)
    except ManifestMismatchError as error:
        return msgspec.structs.replace(found, outcome=LoadOutcome.MISMATCHED, detail=_format_error(error))
    except (BundleError, SampleError, *ORT_ERRORS) as error:
        return msgspec.structs.replace(found, detail=_format_error(error))


def _load_and_test(bundle: Bundle, found: FirstLoadReport, gauge: MemoryGauge) -> FirstLoadReport:
    """Load the graph, run the golden set, measure latency and memory."""
    before, begun = gauge.read_memory().resident, time.thread_time()
    runner = OnnxRunner(bundle, cpu_only=True)  # another processor's driver would open files
    load_ms = _elapsed_ms(begun)
    check = check_golden(bundle, runner)
    p50_us, p95_us = _measure_latency(bundle, runner) if check.passed else (0.0, 0.0)
    return msgspec.structs.replace(
        found,
        outcome=LoadOutcome.SOUND if check.passed else LoadOutcome.DIFFERENT,
        detail="" if check.passed else "its answers to the golden set differ from those of its making",
        golden=_golden_figures(check),
        load_ms=load_ms,
        p50_us=p50_us,
        p95_us=p95_us,
        model_bytes=max(0, gauge.read_memory().resident - before),
    )


def _receive_bundle(source: BinaryIO) -> Bundle:
    """Read the bundle from the parent, without the files that no device loads.

    The parent has verified what it sends.
    """
    handed = SandboxInput(
        *(
            _read_exactly(source, int.from_bytes(_read_exactly(source, LENGTH_BYTES), "big"))
            for _ in SandboxInput._fields
        )
    )
    manifest = decode_manifest(handed.manifest)
    contents = {EDGE_FILE: handed.edge, manifest.golden: handed.golden}
    contents |= {manifest.codec_file: handed.tables} if manifest.codec_file else {}
    for name, data in contents.items():
        if sha256(data).hexdigest() != manifest.files[name]:
            raise BundleError(f"{name}: its SHA-256 is not the manifest's")
    return Bundle(Path(), manifest, sha256(handed.manifest).hexdigest(), contents, b"")


def _read_exactly(source: BinaryIO, size: int) -> bytes:
    data = source.read(size)
    if len(data) != size:
        raise EOFError("the input of the child ends too early")
    return data


def _measure_latency(bundle: Bundle, runner: Runner) -> tuple[float, float]:
    """Measure the latency of one sample over the golden set: (median, 95th percentile) in microseconds."""
    samples = golden_samples(bundle)
    times: list[float] = []
    end = time.perf_counter() + TIMED_S
    while len(times) < TIMED_RUNS and (len(times) < 2 or time.perf_counter() < end):
        begun = time.perf_counter()
        runner.infer_one(samples[len(times) % len(samples)])
        times.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(times), statistics.quantiles(times, n=20)[-1]


def _golden_figures(check: GoldenCheck) -> GoldenFigures:
    moved = check.scores_moved if math.isfinite(check.scores_moved) else None
    return GoldenFigures(check.samples, check.labels_equal, moved, check.codes_equal, check.codes_moved)


def _format_error(error: BaseException) -> str:
    """Return the first line of an error's text, which may quote the file, harmless for people and logs."""
    return ascii((str(error).splitlines() or [type(error).__name__])[0][:MAX_DETAIL_CHARS])[1:-1]


def _elapsed_ms(begun: float) -> float:
    return round((time.thread_time() - begun) * 1e3, 3)
