"""Sandboxed first load of a bundle: a child process with resource limits lints, loads and tests it.

Rule: the child is handed the verified bytes themselves and opens no file; the parent believes nothing but how it ended
and one line of bounded length. A bundle passes if its graph passes the lint, loads, and answers its golden set as it
did when it was made.

The limits are the kernel's: address space, processor time, open files (none), processes (none), file size (none) and a
wall clock in both processes. They need Linux; elsewhere the two clocks remain. They bound a defect of the runtime, and
leave an exploit few means; they are no sandbox against code that runs with this user's rights.
"""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import BinaryIO, NamedTuple

import msgspec

from models.bundle.bundle import Bundle
from models.bundle.manifest import EDGE_FILE, encode_manifest
from models.runtime.feature_codec import read_codec_tables
from wire.process.files import PACKAGES_FOLDER
from wire.protocol.rollout import InstallFailure

MEMORY_BYTES = 512 << 20
MAX_REPORT_BYTES = 1 << 16
GRACE_S = 2.0  # after `wall_s`: the child's own timer fires first
LENGTH_BYTES = 8
# our folder goes behind the installed packages; -I keeps the current folder and PYTHON* variables out
_CHILD_CODE = (
    "import sys; sys.path.append(sys.argv[1]); from models.verification.sandbox_child import main; main(sys.argv[2])"
)
_TIMER_SIGNALS = frozenset({signal.SIGPROF, signal.SIGXCPU, signal.SIGALRM})  # timers: lint, processor time, wall clock
_KEPT_ENVIRONMENT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


class SandboxLimits(msgspec.Struct, frozen=True):
    """Resource limits of the child process.

    `memory_bytes`: resident, at its highest; `lint_s`, `cpu_s`: processor time in seconds; `wall_s`: in all.
    """

    memory_bytes: int = MEMORY_BYTES
    lint_s: int = 2
    cpu_s: int = 60
    wall_s: float = 120.0


class LoadOutcome(StrEnum):
    """Outcome of a first load: `sound`, or the stage and the limit at which it ended."""

    SOUND = "sound"
    REFUSED = "refused"  # by the lint: no runtime loaded it
    UNFIT = "unfit"  # it does not load or run, or its golden set or tables are none
    MISMATCHED = "mismatched"  # the graph differs from its own manifest: other inputs or outputs, types or shapes
    DIFFERENT = "different"  # it runs, and answers otherwise than it did when it was made
    MEMORY = "memory"
    TIME = "time"
    CRASHED = "crashed"


_FAILURES = {LoadOutcome.REFUSED: InstallFailure.INTEGRITY, LoadOutcome.MISMATCHED: InstallFailure.INCOMPATIBLE}


class GoldenFigures(msgspec.Struct, frozen=True):
    """Figures of the golden check, as `GoldenCheck`. `scores_moved` None: not a number."""

    samples: int
    labels_equal: int
    scores_moved: float | None
    codes_equal: float
    codes_moved: int


class GraphSummary(msgspec.Struct, frozen=True):
    """Summary of the graph by the lint: versions, counts, bytes of weights, operator names."""

    ir_version: int
    opset: int
    nodes: int
    tensors: int
    weight_bytes: int
    operators: tuple[str, ...]


class FirstLoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report of a first load: outcome, detail of one line, figures of graph and golden set, times and memory.

    `edge`: SHA-256 of the very bytes the child loaded. `*_ms`: processor time of a stage, milliseconds. `p50_us`,
    `p95_us`: one sample, one thread, wall clock, microseconds. `rss_bytes`: the child at its highest; `model_bytes`:
    what of it came with the model.
    """

    outcome: LoadOutcome
    detail: str = ""
    edge: str = ""
    graph: GraphSummary | None = None
    golden: GoldenFigures | None = None
    lint_ms: float = 0.0
    load_ms: float = 0.0
    p50_us: float = 0.0
    p95_us: float = 0.0
    rss_bytes: int = 0
    model_bytes: int = 0

    @property
    def passed(self) -> bool:
        """True if the bundle may be used."""
        return self.outcome is LoadOutcome.SOUND

    @property
    def failure(self) -> InstallFailure | None:
        """Failure class for the report to the hub; None if it passed."""
        if self.passed:
            return None
        return _FAILURES.get(self.outcome, InstallFailure.SELF_TEST)


class SandboxInput(NamedTuple):
    """Input of the child: files of the bundle in this order, each behind its length (8 bytes, big-endian)."""

    manifest: bytes
    edge: bytes
    golden: bytes
    tables: bytes  # of the codec; often none


def run_first_load(bundle: Bundle, limits: SandboxLimits | None = None) -> FirstLoadReport:
    """Load and test a verified bundle in a child process. Blocks; ends within `limits.wall_s` and `GRACE_S`.

    Never raises for what is in the bundle: that is in the report. OSError if no process can be started.
    """
    limits = limits or SandboxLimits()
    manifest = bundle.manifest
    handed = SandboxInput(
        encode_manifest(manifest),
        bundle.read_file(EDGE_FILE),
        bundle.read_file(manifest.golden),
        read_codec_tables(manifest, bundle.read_file),
    )
    with _sealed_file(handed) as file:
        found = _run_child(file, limits)
    if found.passed and found.edge != manifest.files[EDGE_FILE]:
        return FirstLoadReport(
            outcome=LoadOutcome.CRASHED, detail="the child reported the digest of another file than it was given"
        )
    return found


@contextmanager
def _sealed_file(handed: SandboxInput) -> Iterator[BinaryIO]:
    """Write the child's input into a file without a name, sealed against writing."""
    with _create_nameless_file() as file:
        for part in handed:
            file.write(len(part).to_bytes(LENGTH_BYTES, "big"))
            file.write(part)
        file.flush()
        if sys.platform == "linux":  # from here on nobody can change a byte of it, this process neither
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        file.seek(0)
        yield file


def _create_nameless_file() -> BinaryIO:
    """Create a file that has no name: in memory where the kernel can do that."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("skerry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "w+b")
    else:  # noqa: RET505 - so mypy knows the platforms apart
        return tempfile.TemporaryFile()


def _run_child(handed: BinaryIO, limits: SandboxLimits) -> FirstLoadReport:
    command = [
        sys.executable,
        "-I",
        "-B",
        "-c",
        _CHILD_CODE,
        str(PACKAGES_FOLDER),
        msgspec.json.encode(limits).decode(),
    ]
    # bounded by the child's limit on file sizes; a pipe would have to be drained
    with _create_nameless_file() as report:
        child = subprocess.Popen(
            command,
            stdin=handed,
            stdout=report,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=_child_environment(),
            start_new_session=True,
        )
        try:
            code = child.wait(limits.wall_s + GRACE_S)
        except subprocess.TimeoutExpired:
            code = -signal.SIGALRM
        finally:
            _kill_child(child)
        return interpret_exit(code, os.pread(report.fileno(), MAX_REPORT_BYTES, 0), limits)


def _kill_child(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.kill()
        child.wait()


def _child_environment() -> dict[str, str]:
    """Return the child's environment: where the shared libraries are, and one thread, so that memory is the model's."""
    kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    return {**kept, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


def interpret_exit(code: int, line: bytes, limits: SandboxLimits) -> FirstLoadReport:
    """Turn the child's exit code and its line into a report; negative codes are signals, as `subprocess` has them.

    A signal of one of the clocks means TIME; any other end without a readable line means CRASHED.
    """
    if code == 0:
        try:
            return msgspec.json.decode(line, type=FirstLoadReport)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return FirstLoadReport(outcome=LoadOutcome.CRASHED, detail="the child's report cannot be read")
    if -code in _TIMER_SIGNALS:
        spent = f"{limits.lint_s} s for the lint, {limits.cpu_s} s of processor or {limits.wall_s:g} s in all"
        return FirstLoadReport(outcome=LoadOutcome.TIME, detail=f"took more than {spent}")
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return FirstLoadReport(outcome=LoadOutcome.CRASHED, detail=f"the child ended with {how}")
