"""Tests of the sandboxed first load with its limits, and what the child may not do."""

import io
import re
import resource
import signal
import subprocess
import sys
import time
import zipfile
from hashlib import sha256
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.bundle.bundle import open_bundle
from models.bundle.manifest import CODEC_FILE, EDGE_FILE, GOLDEN_FILE
from models.runtime.codec_steps import StepClass, StepSettings, build_step_tables
from models.runtime.feature_codec import ANS, ANS_STEPS, build_ans_tables
from models.runtime.golden import SCORES, pack_golden
from models.runtime.runner import echo_manifest
from models.verification.sandbox import FirstLoadReport, LoadOutcome, SandboxLimits, interpret_exit, run_first_load
from tests import ROOT
from tests.examples import further, mark_further
from tests.models.bundles import write_bundle
from tests.models.conftest import LABELS, contents, echo_graph, make, model
from tests.models.doubles.hostile import HOSTILE, tensor
from wire.protocol.rollout import InstallFailure

SECONDS, MEGABYTES = 2.0, 512
CASE_23 = [
    "external data",
    "operator of an own domain",
    "opset too new",
    "Loop bomb",
    "10^9 elements that are not there",
    "zero elements",
    "cyclic graph",
]


def spent():
    """Processor time of all children so far, seconds: on a busy machine the wall clock measures the others."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def echo_with(nodes, weights=()):
    """The echo graph whose logits went through `nodes`, from `scores` to `logits`."""
    features = [
        helper.make_node("Mul", ["scores", "levels"], ["wide"]),
        helper.make_node("Round", ["wide"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["features"], to=TensorProto.UINT8),
    ]
    return model([*nodes, *features], [*weights, numpy_helper.from_array(np.array(15, np.float32), "levels")])


def scaled_by(value):
    return echo_with(
        [helper.make_node("Mul", ["scores", "scale"], ["logits"])],
        [numpy_helper.from_array(np.full(LABELS, value, np.float32), "scale")],
    )


def grown(size, times=0):
    """A square of zeros made from constants, multiplied with itself `times` times, and added to the scores as zero."""
    names = ["square", *(f"power{i}" for i in range(times))]
    nodes = [helper.make_node("ConstantOfShape", ["sides"], ["zeros"])]
    nodes.append(helper.make_node("Add", ["zeros", "first"], ["square"]))  # of a sample: cannot be computed beforehand
    nodes += [helper.make_node("MatMul", [a, "square"], [b]) for a, b in pairwise(names)]
    nodes.append(helper.make_node("ReduceSum", [names[-1]], ["sum"], keepdims=0))
    nodes.append(helper.make_node("Mul", ["sum", "nought"], ["zero"]))
    nodes.append(helper.make_node("Add", ["scores", "zero"], ["logits"]))
    nodes.insert(0, helper.make_node("ReduceMax", ["scores"], ["first"], keepdims=0))
    weights = {"sides": np.array([size, size], np.int64), "nought": np.float32(0)}
    return echo_with(nodes, [numpy_helper.from_array(np.asarray(v), k) for k, v in weights.items()])


DRAWN = np.random.default_rng(4).integers(0, 16, (20, LABELS)).astype(np.uint8)


@pytest.mark.parametrize(
    ("codec", "sound"),
    [
        further(ANS, build_ans_tables(DRAWN, 16)),
        (ANS_STEPS, build_step_tables(DRAWN, StepSettings(16, 8, 9, (StepClass(LABELS),)))),
    ],
)
def test_a_bundle_with_tables_passes_in_a_child_that_can_open_no_file(tmp_path, codec, sound):
    manifest = msgspec.structs.replace(echo_manifest(LABELS), codec=codec, codec_file=CODEC_FILE)
    for tables, outcome in ((sound, LoadOutcome.SOUND), (b"no tables", LoadOutcome.UNFIT)):
        found = run_first_load(write_bundle(tmp_path / "b", manifest, {**contents(), CODEC_FILE: tables}))
        assert found.outcome is outcome, found.detail


def test_a_sound_bundle_passes_and_says_how_quick_and_big_it_is(made):
    found = run_first_load(made)
    assert found.passed
    assert found.failure is None
    assert (found.outcome, found.detail) == (LoadOutcome.SOUND, "")
    assert found.edge == sha256(echo_graph()).hexdigest()
    assert found.graph is not None
    assert found.graph.operators == ("Cast", "Mul", "Round")
    assert found.golden is not None
    assert found.golden.labels_equal == found.golden.samples == 8
    assert 0 < found.p50_us <= found.p95_us
    assert 0 < found.model_bytes < found.rss_bytes < MEGABYTES << 20


@pytest.mark.parametrize("name", mark_further(CASE_23, CASE_23[:1]))
def test_a_hostile_graph_is_refused_in_the_child_within_2_s_and_512_mb(tmp_path, name):
    data, _ = HOSTILE[name]
    made, before = make(tmp_path / "b", data), spent()
    found = run_first_load(made)
    assert (found.outcome, found.failure) == (LoadOutcome.REFUSED, InstallFailure.INTEGRITY)
    assert found.detail.startswith("edge.onnx: ")
    assert found.lint_ms < SECONDS * 1e3
    assert spent() - before < SECONDS  # starting the child included
    assert 0 < found.rss_bytes < MEGABYTES << 20


@pytest.mark.further
def test_a_graph_that_grows_beyond_512_mb_dies_instead(tmp_path):
    found = run_first_load(make(tmp_path / "b", grown(20_000)))  # 1.6 GB
    assert found.failure is InstallFailure.SELF_TEST
    assert found.outcome in {LoadOutcome.MEMORY, LoadOutcome.UNFIT}
    assert found.rss_bytes < MEGABYTES << 20


@pytest.mark.further
def test_a_graph_that_computes_for_ever_is_stopped_by_its_processor_time(tmp_path):
    begun = time.monotonic()
    found = run_first_load(make(tmp_path / "b", grown(1_500, 4_000)), SandboxLimits(cpu_s=2, wall_s=40.0))
    assert (found.outcome, found.failure) == (LoadOutcome.TIME, InstallFailure.SELF_TEST)
    assert time.monotonic() - begun < 40


@pytest.mark.further
def test_a_graph_that_computes_for_ever_is_stopped_by_the_clock(tmp_path):
    found = run_first_load(make(tmp_path / "b", grown(1_500, 4_000)), SandboxLimits(wall_s=0.3))
    assert (found.outcome, found.failure) == (LoadOutcome.TIME, InstallFailure.SELF_TEST)
    assert "0.3 s in all" in found.detail


@pytest.mark.parametrize("value", [np.nan, further(np.inf), further(-np.inf)])
def test_weights_that_are_no_numbers_pass_the_lint_and_fail_the_self_test(tmp_path, value):
    found = run_first_load(make(tmp_path / "b", scaled_by(value)))
    assert found.graph is not None
    assert (found.outcome, found.failure) == (LoadOutcome.DIFFERENT, InstallFailure.SELF_TEST)
    assert found.golden is not None
    assert found.golden.scores_moved is None


@pytest.mark.further
def test_garbage_weights_fail_the_self_test(tmp_path):
    found = run_first_load(make(tmp_path / "b", scaled_by(-3.0)))
    assert (found.outcome, found.failure) == (LoadOutcome.DIFFERENT, InstallFailure.SELF_TEST)


def test_what_is_swapped_on_disk_after_the_check_is_not_what_is_loaded(tmp_path):
    verified = open_bundle(make(tmp_path / "b").path)
    (verified.path / EDGE_FILE).write_bytes(scaled_by(-1.0))
    (verified.path / GOLDEN_FILE).write_bytes(b"")
    found = run_first_load(verified)
    assert found.passed
    assert found.edge == verified.manifest.files[EDGE_FILE] == sha256(echo_graph()).hexdigest()
    assert found.edge != sha256((verified.path / EDGE_FILE).read_bytes()).hexdigest()


@pytest.mark.further
def test_nor_is_anything_read_when_all_of_it_is_gone(tmp_path):
    verified = make(tmp_path / "b")
    for path in verified.path.iterdir():
        path.unlink()
    assert run_first_load(verified).passed


MISMATCHED = {
    "outputs of other names": (echo_graph(outputs=("scores_out", "features")), "not as its manifest says"),
    "another input": (echo_graph(labels=8), "does not run: .*invalid dimensions for input: scores"),
}


@pytest.mark.further
def test_a_graph_that_does_not_run_is_unfit(tmp_path):
    to = tensor("to", [1], 7, int64_data=[7])
    edge = echo_with([helper.make_node("Reshape", ["scores", "to"], ["logits"])], [to])
    found = run_first_load(make(tmp_path / "b", edge))
    assert (found.outcome, found.failure) == (LoadOutcome.UNFIT, InstallFailure.SELF_TEST)
    assert re.search("does not run|cannot load", found.detail)


@pytest.mark.parametrize("name", mark_further(MISMATCHED, ["another input"]))
def test_a_graph_that_differs_from_its_own_manifest_is_incompatible(tmp_path, name):
    edge, words = MISMATCHED[name]
    found = run_first_load(make(tmp_path / "b", edge))
    assert (found.outcome, found.failure) == (LoadOutcome.MISMATCHED, InstallFailure.INCOMPATIBLE)
    assert re.search(words, found.detail)
    assert "\n" not in found.detail


def golden_of(samples, scores=None):
    codes = np.zeros((len(samples), LABELS), np.uint8)
    scores = np.full((len(samples), LABELS), 0.1) if scores is None else scores
    return pack_golden(samples, scores, {"features": codes})


def bomb():
    """A golden set of a few kilobytes that says it is 2 GB."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file, file.open(SCORES + ".npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": False, "shape": (1 << 29,)})
    return packed.getvalue()


@pytest.mark.parametrize(
    "golden", [further(b""), further(b"PK"), further(golden_of(np.full((2, LABELS), 7.0, np.float32))), bomb()]
)
def test_a_golden_set_that_is_none_harms_nobody(tmp_path, golden):
    made = write_bundle(tmp_path / "b", echo_manifest(LABELS), {**contents(), GOLDEN_FILE: golden})
    found = run_first_load(made)
    assert found.failure is InstallFailure.SELF_TEST
    assert found.outcome in {LoadOutcome.UNFIT, LoadOutcome.MEMORY}
    assert found.rss_bytes < MEGABYTES << 20


@pytest.mark.parametrize(
    ("code", "line", "outcome"),
    [
        (0, b"", LoadOutcome.CRASHED),
        (0, b"no json", LoadOutcome.CRASHED),
        (0, b'{"outcome": "splendid"}', LoadOutcome.CRASHED),
        (0, b'{"outcome": "sound"', LoadOutcome.CRASHED),
        (1, b'{"outcome": "sound"}', LoadOutcome.CRASHED),
        (-signal.SIGSEGV, b'{"outcome": "sound"}', LoadOutcome.CRASHED),
        (-signal.SIGKILL, b"", LoadOutcome.CRASHED),
        (-signal.SIGPROF, b"", LoadOutcome.TIME),
        (-signal.SIGXCPU, b"", LoadOutcome.TIME),
        (-signal.SIGALRM, b"", LoadOutcome.TIME),
        (0, b'{"outcome": "sound"}\n', LoadOutcome.SOUND),
    ],
)
def test_the_parent_believes_only_a_good_end_and_a_whole_line(code, line, outcome):
    found = interpret_exit(code, line, SandboxLimits())
    assert found.outcome is outcome
    assert found.passed == (outcome is LoadOutcome.SOUND)
    assert isinstance(found, FirstLoadReport)


PROBE = """
import errno, os, resource, socket, sys
sys.path.append(sys.argv[1])
from models.verification.sandbox import SandboxLimits
from models.verification.sandbox_child import MemoryGauge, confine_process
gauge, first_to_die = MemoryGauge(), os.open("/proc/self/oom_score_adj", os.O_RDONLY)
confine_process(SandboxLimits(), gauge.read_memory().size)
def refused(what):
    try:
        what()
    except OSError as error:
        return errno.errorcode[error.errno]
    except MemoryError:
        return "MemoryError"
    return "allowed"
print(refused(lambda: open("/etc/passwd")))
print(refused(lambda: socket.socket()))
print(refused(lambda: bytearray(600 << 20)))
print(refused(lambda: os.write(1, b"x" * 100_000) > 65_536 and 1 / 0))
limits = resource.getrlimit(resource.RLIMIT_NPROC), resource.getrlimit(resource.RLIMIT_CORE)
print(*limits, gauge.read_memory().resident > 0)
print(os.pread(first_to_die, 8, 0).decode().strip())
"""


def test_the_child_can_open_no_file_and_no_socket_and_grows_only_so_far(tmp_path):
    """On a file, because a pipe knows no limit of size."""
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-I", "-c", PROBE, str(ROOT)], stdout=out, check=False, timeout=60)
    said = (tmp_path / "out").read_bytes()
    assert len(said) == 65_536
    assert said.strip(b"x") == b""
    probe = PROBE.replace("print(refused(lambda: os.write(1", "(lambda: (0, (1")
    done = subprocess.run([sys.executable, "-I", "-c", probe, str(ROOT)], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:4] == ["EMFILE", "EMFILE", "MemoryError", "(0, 0) (0, 0) True"]
    assert done.stdout.split("\n")[4] == "1000"


@pytest.mark.further
def test_nothing_of_the_current_folder_or_the_environment_is_run(made, tmp_path):
    """A folder full of traps: the child must not import them, and must not see what the agent knows."""
    for trap in ("models.py", "numpy.py", "msgspec.py", "sitecustomize.py"):
        (tmp_path / trap).write_text("raise SystemExit('trapped')\n")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import os; from models.bundle.bundle import open_bundle\n"
        "from models.verification.sandbox import run_first_load\n"
        "os.environ['PYTHONPATH'] = os.getcwd()\n"
        "print(run_first_load(open_bundle(sys.argv[2])).outcome)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(ROOT), str(made.path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "sound"
