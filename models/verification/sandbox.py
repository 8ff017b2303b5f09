"""The first load of a bundle that arrived: in a child process that may do nothing else, and dies rather than grow.

Law: the child is handed the verified bytes themselves and opens no file; the parent believes nothing but how it ended
and one line of bounded length. A bundle passes if its graph passes the lint, loads, and answers its golden set as it
did when it was made.

The limits are the kernel's: address space, processor time, open files (none), processes (none), file size (none) and a
wall clock in both processes. They need Linux; elsewhere the two clocks remain. They bound a defect of the runtime, and
make an exploit poor in means; they are no sandbox against code that runs with this user's rights.
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
from models.runtime.codec import tables_of
from wire.process.files import PACKAGES_FOLDER
from wire.protocol.rollout import Failure

MEMORY_BYTES = 512 << 20
MAX_REPORT_BYTES = 1 << 16
GRACE_S = 2.0  # the child's own clock strikes first
LENGTH_BYTES = 8
# the folder we run from goes behind the installed packages; -I keeps the current folder and the environment out
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); from models.verification.sandbox_child import main; main(sys.argv[2])"
)
_CLOCKS = frozenset({signal.SIGPROF, signal.SIGXCPU, signal.SIGALRM})  # of the lint, of the processor, of the wall
_KEPT_ENVIRONMENT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


class Limits(msgspec.Struct, frozen=True):
    """What the child may use. `memory_bytes`: resident, at its highest; `lint_s`, `cpu_s`: processor time."""

    memory_bytes: int = MEMORY_BYTES
    lint_s: int = 2
    cpu_s: int = 60
    wall_s: float = 120.0


class Outcome(StrEnum):
    SOUND = "sound"
    REFUSED = "refused"  # by the lint: the runtime never saw it
    UNFIT = "unfit"  # it does not load, does not run, or is not what its manifest says
    DIFFERENT = "different"  # it runs, and answers otherwise than it did when it was made
    MEMORY = "memory"
    TIME = "time"
    CRASHED = "crashed"


class Golden(msgspec.Struct, frozen=True):
    """As `GoldenCheck`. `scores_moved` None: not a number."""

    samples: int
    labels_equal: int
    scores_moved: float | None
    codes_equal: float
    codes_moved: int


class Graph(msgspec.Struct, frozen=True):
    """What the lint found the graph to consist of."""

    ir_version: int
    opset: int
    nodes: int
    tensors: int
    weight_bytes: int
    operators: tuple[str, ...]


class FirstLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How it went. `edge`: SHA-256 of the very bytes the child loaded. `*_ms`: processor time of a stage, milliseconds.

    `p50_us`, `p95_us`: one sample, one thread, wall clock. `rss_bytes`: the child at its highest; `model_bytes`: what
    of it came with the model.
    """

    outcome: Outcome
    detail: str = ""
    edge: str = ""
    graph: Graph | None = None
    golden: Golden | None = None
    lint_ms: float = 0.0
    load_ms: float = 0.0
    p50_us: float = 0.0
    p95_us: float = 0.0
    rss_bytes: int = 0
    model_bytes: int = 0

    @property
    def passed(self) -> bool:
        return self.outcome is Outcome.SOUND

    @property
    def failure(self) -> Failure | None:
        """The class for the report to the hub; None if it passed."""
        if self.passed:
            return None
        return Failure.INTEGRITY if self.outcome is Outcome.REFUSED else Failure.SELF_TEST


class Handed(NamedTuple):
    """What the child gets, in this order, each behind its length."""

    manifest: bytes
    edge: bytes
    golden: bytes
    tables: bytes  # of the codec; often none


def first_load(bundle: Bundle, limits: Limits | None = None) -> FirstLoad:
    """Load and try a verified bundle in a child of its own. Blocks; ends within `limits.wall_s` and `GRACE_S`.

    Never raises for what is in the bundle. OSError if no process can be started.
    """
    limits = limits or Limits()
    manifest = bundle.manifest
    handed = Handed(
        encode_manifest(manifest),
        bundle.read(EDGE_FILE),
        bundle.read(manifest.golden),
        tables_of(manifest, bundle.read),
    )
    with _sealed(handed) as file:
        found = _run(file, limits)
    if found.passed and found.edge != manifest.files[EDGE_FILE]:
        return FirstLoad(outcome=Outcome.CRASHED, detail="the child speaks of other bytes than it was given")
    return found


@contextmanager
def _sealed(handed: Handed) -> Iterator[BinaryIO]:
    with _nameless() as file:
        for part in handed:
            file.write(len(part).to_bytes(LENGTH_BYTES, "big"))
            file.write(part)
        file.flush()
        if sys.platform == "linux":  # from here on nobody can change a byte of it, this process neither
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        file.seek(0)
        yield file


def _nameless() -> BinaryIO:
    """A file that has no name: in memory where the kernel can do that."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("skerry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "w+b")
    else:  # noqa: RET505 - so mypy knows the platforms apart
        return tempfile.TemporaryFile()


def _run(handed: BinaryIO, limits: Limits) -> FirstLoad:
    command = [sys.executable, "-I", "-B", "-c", _BOOT, str(PACKAGES_FOLDER), msgspec.json.encode(limits).decode()]
    with _nameless() as report:  # bounded by the child's limit on file sizes; a pipe would have to be drained
        child = subprocess.Popen(
            command,
            stdin=handed,
            stdout=report,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=_environment(),
            start_new_session=True,
        )
        try:
            code = child.wait(limits.wall_s + GRACE_S)
        except subprocess.TimeoutExpired:
            code = -signal.SIGALRM
        finally:
            _end(child)
        return judge_end(code, os.pread(report.fileno(), MAX_REPORT_BYTES, 0), limits)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.kill()
        child.wait()


def _environment() -> dict[str, str]:
    """Nothing of ours but where the shared libraries are; one thread, so that memory is the model's."""
    kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    return {**kept, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


def judge_end(code: int, line: bytes, limits: Limits) -> FirstLoad:
    if code == 0:
        try:
            return msgspec.json.decode(line, type=FirstLoad)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return FirstLoad(outcome=Outcome.CRASHED, detail="the child reported nothing that can be read")
    if -code in _CLOCKS:
        spent = f"{limits.lint_s} s for the lint, {limits.cpu_s} s of processor or {limits.wall_s:g} s in all"
        return FirstLoad(outcome=Outcome.TIME, detail=f"took more than {spent}")
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return FirstLoad(outcome=Outcome.CRASHED, detail=f"the child ended with {how}")
