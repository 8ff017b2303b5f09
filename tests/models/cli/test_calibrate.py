"""Tests of `skerry models calibrate` on a bundle whose hub is better than the edge by a known amount: no training."""

import json
import re
import sys
from functools import cache

import numpy as np
import pytest
from torch import Tensor, arange, nn, zeros
from typer.testing import CliRunner

from models.bundle.manifest import HUB_FILE, HUB_GRAPH_FILE
from models.bundle.thresholds import decode_thresholds
from models.cli.models import app
from models.graph.hub_model import TAIL, WHOLE, encode_graphs, export_graph
from models.runtime.runner import echo_manifest
from tests.models.bundles import write_bundle
from tests.models.conftest import LABELS, contents
from wire.process.exit_codes import ExitCode, ExitError

DATA = """
from types import SimpleNamespace

import numpy as np

def samples():
    \"\"\"The largest score is the label, the first counted 0.25 higher: the hub knows that, the edge does not.\"\"\"
    rng = np.random.default_rng(0)
    x = rng.random((4000, 10)).astype(np.float32)
    higher = x.copy()
    higher[:, 0] += 0.25
    y = higher.argmax(1)
    return x, y, [str(i) for i in range(10)]

def lost():
    \"\"\"Where the edge is right nearly always, and the hub's advice is wrong.\"\"\"
    x, _, labels = samples()
    return x, x.argmax(1), labels

def drifted():
    \"\"\"Training and calibration as the edge knows them; held out is wrong in one of four.\"\"\"
    x, _, labels = samples()
    y = x.argmax(1)
    y[3400::4] = (y[3400::4] + 1) % 10
    parts = (slice(0, 2400), slice(2400, 3400), slice(3400, 4000))
    made = [SimpleNamespace(x=x[rows], y=y[rows]) for rows in parts]
    return SimpleNamespace(training=made[0], calibration=made[1], heldout=made[2], labels=labels)

def outside():
    x, y, labels = samples()
    y[::5] = -1
    return x, y, labels

def renamed():
    x, y, _ = samples()
    return x, y, [f"n{i}" for i in range(10)]

def wild():
    x, y, labels = samples()
    return x * 9, y, labels
"""


class Hub(nn.Module):
    """Knows that the first score counts 0.25 more; `levels`: of its input, in which a score of 1 is that many."""

    def __init__(self, levels: float) -> None:
        super().__init__()
        self.levels = levels

    def forward(self, scores: Tensor) -> Tensor:
        return (scores + 0.25 * self.levels * (arange(LABELS) == 0)) * (300 / self.levels)


@cache
def hub_files() -> tuple[bytes, bytes]:
    graphs = {TAIL: export_graph(Hub(15), (zeros(2, LABELS),)), WHOLE: export_graph(Hub(1), (zeros(2, LABELS),))}
    return encode_graphs(graphs)


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    (tmp_path / "calibrate_own_data.py").write_text(DATA)
    monkeypatch.chdir(tmp_path)
    files = contents()
    files[HUB_GRAPH_FILE], files[HUB_FILE] = hub_files()
    write_bundle(tmp_path / "bundle", echo_manifest(), files)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path / "bundle"
    sys.modules.pop("calibrate_own_data", None)  # each test has a module of its own by this name


def run(bundle, *flags, data="samples"):
    arguments = ["calibrate", str(bundle), "--data", f"calibrate_own_data:{data}", *flags]
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "120", "NO_COLOR": "1"})


def stopped(result):
    assert isinstance(result.exception, ExitError)
    assert "\n" not in str(result.exception)
    return result.exception.code


def test_one_line_to_paste_comes_first_then_the_frontier_and_a_file(bundle):
    found = run(bundle, "--max-share", "0.2", "--class", "camera")
    assert found.exit_code == 0, found.exception
    first = found.stdout.splitlines()[0]
    written = decode_thresholds((bundle.parent / "echo.calibration.json").read_bytes())
    entry = written.classes["camera"]
    assert first == f"threshold = {entry.threshold:g}"
    assert abs(entry.figures.asked - 0.2) < 0.05
    assert re.search(r"pair \d\d\.\d\d% \(\d\d\.\d to \d\d\.\d %\), escalating \d\d\.\d% \(", found.stdout)
    for word in ("edge only", "all asked", "given model", "lossless", "oracle", "20.0%", "50.0%"):
        assert word in found.stdout


def test_a_second_class_joins_the_file_and_a_promise_is_kept_with_it(bundle):
    assert run(bundle, "--max-share", "0.2", "--class", "camera").exit_code == 0
    found = run(bundle, "--max-risk", "0.3", "--confidence", "0.9", "--class", "gateway", "--json")
    assert found.exit_code == 0, found.exception
    told = json.loads(found.stdout)
    assert told["calibration"]["counter"] == 2
    assert set(told["calibration"]["classes"]) == {"camera", "gateway"}
    promise = told["calibration"]["classes"]["gateway"]["guarantee"]
    assert (promise["max_risk"], promise["confidence"], promise["threshold"]) == (0.3, 0.9, told["threshold"])


def test_samples_of_no_label_count_and_are_told_of(bundle):
    found = run(bundle, "--max-share", "0.3", "--json", data="outside")
    assert found.exit_code == 0, found.exception
    told = json.loads(found.stdout)
    assert 0 <= told["unscoped_asked"] <= 1
    assert told["frontier"]["edge"] < 0.85


@pytest.mark.parametrize(
    ("flags", "data", "code"),
    [
        (["--max-share", "0.2"], "renamed", ExitCode.SAMPLE),
        (["--max-share", "0.2"], "nothing", ExitCode.SAMPLE),
        (["--max-share", "0.2"], "wild", ExitCode.SAMPLE),
        (["--max-share", "2"], "samples", ExitCode.USAGE),
        ([], "samples", ExitCode.USAGE),
        (["--max-share", "0.2", "--max-risk", "0.1"], "samples", ExitCode.USAGE),
        (["--max-risk", "0.1", "--risk-of", "x"], "samples", ExitCode.USAGE),
        (["--max-risk", "0.00001"], "samples", ExitCode.CHECK_FAILED),
        (["--max-risk", "0"], "samples", ExitCode.CHECK_FAILED),
        (["--target-accuracy", "0.9999"], "samples", ExitCode.CHECK_FAILED),
        (["--max-share", "0.2", "--class", "../x"], "samples", ExitCode.CONFIG),
        (["--max-share", "0.2", "--out", "/proc/nothing/x.json"], "samples", ExitCode.DISK),
    ],
)
def test_what_cannot_be_done_ends_with_one_line_and_its_code(bundle, flags, data, code):
    assert stopped(run(bundle, *flags, data=data)) == code
    assert not (bundle.parent / "echo.calibration.json").exists()


def test_a_file_of_something_else_is_not_overwritten(bundle):
    path = bundle.parent / "echo.calibration.json"
    path.write_text("my notes")
    assert stopped(run(bundle, "--max-share", "0.2")) == ExitCode.CONFIG
    assert path.read_text() == "my notes"


def test_the_edge_that_runs_is_the_one_that_was_measured(bundle):
    """Without questions the pair is the edge; with nearly nothing but questions it is the hub."""
    told = [json.loads(run(bundle, "--max-share", share, "--json").stdout) for share in ("0", "1")]
    none, all_ = (one["calibration"]["classes"]["any"]["figures"] for one in told)
    assert (none["asked"], none["pair"]) == (pytest.approx(0, abs=0.01), pytest.approx(none["edge"], abs=0.01))
    assert all_["asked"] > 0.8
    assert np.isclose(all_["pair"], told[1]["frontier"]["hub"], atol=0.01)


def test_nobody_is_asked_where_asking_gains_nothing_whatever_share_is_allowed(bundle):
    found = run(bundle, "--max-share", "0.25", "--json", data="lost")
    told = json.loads(found.stdout)
    assert told["threshold"] == 0
    assert "asking the hub does not pay: nobody is asked" in told["warnings"][0]
    assert "warning: asking the hub does not pay" in found.stderr
    assert told["calibration"]["classes"]["any"]["figures"]["asked"] == 0


def test_a_risk_that_held_out_samples_break_is_said_and_strict_ends_with_its_code(bundle):
    """The promise was 2 % wrong; 25 % of the held-out answers are, for they are not drawn as the calibration was."""
    found = run(bundle, "--max-risk", "0.02", "--strict", data="drifted")
    assert stopped(found) == ExitCode.CHECK_FAILED
    assert "the risk is above what was guaranteed: 25" in str(found.exception)
    assert "where at most 2.0% was" in str(found.exception)
    assert (bundle.parent / "echo.calibration.json").exists()
    assert run(bundle, "--max-risk", "0.02", data="drifted").exit_code == 0
