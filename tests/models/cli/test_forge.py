"""Tests of `skerry models forge` on a user's package: each mistake gives one line and its own exit code."""

import json

import pytest
from typer.testing import CliRunner

from models.cli.models import app
from tests.models.conftest import KEPT
from wire.process.exit_codes import ExitCode, ExitError

PACKAGE = """
import numpy as np, torch
from torch import nn

x = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))

def values():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

def samples():
    return x, y, ("no", "yes")

def measured():
    return x, (x[:, 0] * 2 + x[:, 1]).astype(np.float32)

def holes():
    return np.where(np.arange(300)[:, None] == 5, np.nan, x).astype(np.float32), y

def few():
    return x[:20], y[:20]

def wide():
    return x, y + 5, ("no", "yes")

def broken():
    raise RuntimeError("weights.bin is missing")

number = 7
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    (folder / "their_nets.py").write_text(PACKAGE)
    return folder


@pytest.fixture
def forge(home, monkeypatch):
    monkeypatch.chdir(home)

    def run(model, data, *flags, out="out"):
        fixed = ["--effort", "quick", "--threads", "1", "--precision", "int8-weights", "--cache", str(KEPT)]
        arguments = ["forge", f"their_nets:{model}", "--data", f"their_nets:{data}", "--out", str(home / out), *fixed]
        return CliRunner().invoke(app, [*arguments, *map(str, flags)], env={"COLUMNS": "160", "NO_COLOR": "1"})

    return run


@pytest.mark.further
def test_a_users_model_becomes_a_bundle_whose_facts_are_printed_as_json(forge, home):
    done = forge("build", "samples", "--json", out="mine-7")
    assert done.exit_code == 0, done.exception
    told = json.loads(done.stdout)
    assert told["manifest"]["name"] == "mine"
    assert told["manifest"]["provenance"]["model"] == "their_nets:build"
    assert (home / "mine-7.report" / "report.html").is_file()
    assert told["payoff"]["raw_bytes"] == 24
    assert told["payoff"]["warnings"]


@pytest.mark.further
def test_a_forge_run_says_first_that_asking_does_not_pay_and_strict_fails(forge, home):
    done = forge("build", "samples", out="mine-7")
    assert done.exit_code == 0, done.exception
    warned = done.stderr.splitlines()
    assert any(line.startswith("warning: ") and "for a raw sample of 24 B" in line for line in warned)
    assert "95 % intervals" in done.stdout
    assert "gain by asking" in done.stdout
    page = (home / "mine-7.report" / "report.html").read_text()
    assert page.index('class="warning"') < page.index('class="cards"')
    strict = forge("build", "samples", "--strict", out="mine-7")
    assert isinstance(strict.exception, ExitError)
    assert strict.exception.code is ExitCode.CHECK_FAILED


@pytest.mark.heavy
def test_a_regressor_goes_the_same_way(forge):
    done = forge("values", "measured", "--cut", "1.relu", "--name", "level")
    assert done.exit_code == 0, done.exception
    assert "rmse" in done.stdout
    assert "level@1" in done.stdout


WRONG = {
    "their_nets has no bild; did you mean build": ("bild", "samples", (), ExitCode.MODEL),
    "weights.bin is missing": ("broken", "samples", (), ExitCode.MODEL),
    "not a torch.nn.Module": ("few", "samples", (), ExitCode.MODEL),
    "row 5, column 0 of x is NaN": ("build", "holes", (), ExitCode.SAMPLE),
    "at least 10": ("build", "few", (), ExitCode.SAMPLE),
    "out of range": ("build", "wide", (), ExitCode.SAMPLE),
    "has 1 outputs, but the data has 2 labels": ("values", "samples", (), ExitCode.MODEL),
    "no such cut; there are": ("build", "samples", ("--cut", "4.relu"), ExitCode.CONFIG),
    "each choose the threshold": ("build", "samples", ("--max-share", 0.1, "--max-risk", 0.1), ExitCode.CONFIG),
    "a share in 0..1": ("build", "samples", ("--max-loss", 7), ExitCode.CONFIG),
    "target 'abacus' is not known": ("build", "samples", ("--target", "abacus"), ExitCode.MODEL),
    "--precision int3": ("build", "samples", ("--precision", "int3"), ExitCode.CONFIG),
    "cannot show a risk of 0.01": ("build", "samples", ("--max-risk", 0.01), ExitCode.SAMPLE),
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_wrong_is_said_in_one_line_with_its_own_code(words, forge, home):
    model, data, flags, code = WRONG[words]
    done = forge(model, data, *flags, out="never")
    assert isinstance(done.exception, ExitError), done.exception
    assert words in str(done.exception)
    assert done.exception.code is code
    assert "\n" not in str(done.exception)
    assert not (home / "never").exists()


def test_limits_that_no_cut_meets_show_what_was_measured(forge, home):
    done = forge("build", "samples", "--target-ms", 1e-6, out="never")
    assert isinstance(done.exception, ExitError)
    assert "the quickest head" in str(done.exception)
    assert "measured so far, and kept" in done.stderr
    assert not (home / "never").exists()


@pytest.mark.further
def test_a_path_below_a_file_is_refused_before_any_work(forge, home):
    (home / "file").write_text("")
    done = forge("build", "samples", "--cut", "1.relu", out="file/below")
    assert isinstance(done.exception, ExitError)
    assert done.exception.code is ExitCode.USAGE
