"""Tests of `skerry models cuts` on a user's package: the names, shares and sizes of a model's cuts, in seconds."""

import json

import pytest
from typer.testing import CliRunner

from models.cli.models import app
from wire.process.exit_codes import ExitCode, ExitError

PACKAGE = """
import numpy as np, torch
from torch import nn

x = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))

def wide():
    return nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 2))

class Odd(nn.Module):
    def forward(self, x):
        return torch.special.i0(x)

def odd():
    return nn.Sequential(nn.Linear(6, 16), Odd(), nn.Linear(16, 2))

def samples():
    return x, y, ("no", "yes")

def holes():
    return np.where(np.arange(300)[:, None] == 5, np.nan, x).astype(np.float32), y
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuts")
    (folder / "cut_nets.py").write_text(PACKAGE)
    return folder


@pytest.fixture
def run(home, monkeypatch):
    monkeypatch.chdir(home)

    def call(model, data, *flags):
        arguments = ["cuts", f"cut_nets:{model}", "--data", f"cut_nets:{data}", *flags]
        return CliRunner().invoke(app, arguments, env={"COLUMNS": "160", "NO_COLOR": "1"})

    return call


def test_the_cuts_of_a_model_are_listed_by_depth_with_their_sizes(run):
    done = run("build", "samples", "--json")
    assert done.exit_code == 0, done.exception
    told = json.loads(done.stdout)
    total = 6 * 16 + 16 * 8 + 8 * 2
    assert told["macs"] == total
    assert told["sample_bytes"] == 24
    assert [(row["cut"], row["shapes"], row["raw_bytes"]) for row in told["cuts"]] == [
        ("1.relu", [[16]], 64),
        ("3.relu", [[8]], 32),
    ]
    assert [row["share"] for row in told["cuts"]] == pytest.approx([96 / total, 224 / total], abs=1e-5)
    assert "coded_bytes" not in told["cuts"][0]


def test_a_table_names_each_cut_with_its_share_and_shapes(run):
    done = run("build", "samples")
    assert "1.relu" in done.stdout
    assert "40.0%" in done.stdout
    assert "[16]" in done.stdout
    assert "240 multiply-accumulates and 24 B of input a sample" in done.stdout


@pytest.mark.further
def test_measured_cuts_have_bytes_and_accuracy_beside_their_sizes(run):
    done = run("build", "samples", "--measure", "--effort", "quick", "--json")
    assert done.exit_code == 0, done.exception
    for row in json.loads(done.stdout)["cuts"]:
        assert 0 < row["coded_bytes"] < row["raw_bytes"]
        assert row["lost"] == pytest.approx(row["whole"] - row["accuracy"])
        assert row["head_us"] > 0


@pytest.mark.parametrize(
    ("model", "data", "code", "says"),
    [
        ("odd", "samples", ExitCode.MODEL, "the hub does not run the operation aten.special_i0.default"),
        ("wide", "samples", ExitCode.MODEL, "does not run on a batch"),
        ("missing", "samples", ExitCode.MODEL, "has no missing"),
        ("build", "holes", ExitCode.SAMPLE, "data"),
    ],
)
def test_what_cannot_be_cut_is_one_line_with_its_exit_code(run, model, data, code, says):
    done = run(model, data)
    assert isinstance(done.exception, ExitError)
    assert done.exception.code is code
    assert says in str(done.exception)
    assert "\n" not in str(done.exception)
