"""A folder of pictures becomes a bundle that says how its samples are made, and calibration makes them the same way."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from models.bundle.bundle import open_bundle
from models.bundle.preparation import PictureFit, PicturePreparation
from models.cli.models import app
from models.runtime.onnx_runner import OnnxRunner
from models.runtime.picture_files import decode_picture
from models.runtime.preparation import prepare_picture
from tests.models.conftest import KEPT
from wire.process.exit_codes import ExitCode, ExitError

NET = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    wide = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(60, 16), nn.ReLU())
    return nn.Sequential(*wide, nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
"""
INPUT = '[input]\nkind = "picture"\nheight = 16\nwidth = 20\nfit = "cover"\nmean = [0.5]\nstd = [0.25]\n'
COLOURS = {"apple": (200, 40, 30), "leaf": (40, 180, 60)}


def draw(colour, seed, size) -> Image.Image:
    noise = np.random.default_rng(seed).normal(0, 30, (size[1], size[0], 3))
    return Image.fromarray(np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "picture_nets.py").write_text(NET)
    (folder / "input.toml").write_text(INPUT)
    for name, colour in COLOURS.items():
        (folder / "photos" / name).mkdir(parents=True)
        for seed in range(60):
            suffix = ("jpg", "png")[seed % 2]
            size = ((48, 32), (30, 40))[seed % 2]
            draw(colour, seed, size).save(folder / "photos" / name / f"{seed}.{suffix}")
    return folder


@pytest.fixture
def run(home, monkeypatch):
    monkeypatch.chdir(home)

    def run(*words):
        return CliRunner().invoke(app, [str(word) for word in words])

    return run


def forge(run, *words, out="net-1"):
    flags = ("--out", out, "--effort", "quick", "--cut", "3.relu", "--cache", KEPT, "--precision", "int8-weights")
    return run("forge", "picture_nets:build", *flags, *words)


def refusal(done) -> tuple[ExitCode, str]:
    assert isinstance(done.exception, ExitError), done.output
    return done.exception.code, str(done.exception)


def test_what_cannot_be_a_folder_of_pictures_is_one_line(run, home):
    code, line = refusal(forge(run, "--data", "pictures:photos"))
    assert (code, "--input FILE" in line) == (ExitCode.SAMPLE, True)
    code, line = refusal(forge(run, "--data", "pictures:photos/apple", "--input", "input.toml"))
    assert (code, "a folder for each label" in line) == (ExitCode.SAMPLE, True)
    (home / "wrong.toml").write_text('kind = "picture"\n')
    code, line = refusal(forge(run, "--data", "pictures:photos", "--input", "wrong.toml"))
    assert (code, "height" in line) == (ExitCode.CONFIG, True)
    (home / "photos" / "leaf" / "broken.jpg").write_bytes(b"\xff\xd8\xff no")
    code, line = refusal(forge(run, "--data", "pictures:photos", "--input", "input.toml"))
    (home / "photos" / "leaf" / "broken.jpg").unlink()
    assert (code, "leaf/broken.jpg" in line) == (ExitCode.SAMPLE, True)


@pytest.mark.further
@pytest.mark.timeout(600)
def test_forge_calibration_and_agent_make_the_same_sample_of_a_picture(run, home):
    done = forge(run, "--data", "pictures:photos", "--input", "input.toml")
    assert done.exit_code == 0, done.output
    bundle = open_bundle(home / "net-1")
    made = bundle.manifest.preparation
    assert made == PicturePreparation(16, 20, fit=PictureFit.COVER, mean=(0.5,), std=(0.25,))
    assert bundle.manifest.labels == ("apple", "leaf")
    assert (bundle.manifest.input.low, bundle.manifest.input.high) <= (-2.0, 2.0)
    runner = OnnxRunner(bundle)
    for name in ("apple/0.jpg", "leaf/1.png"):
        pixels = decode_picture((home / "photos" / name).read_bytes())
        runner.infer_one(prepare_picture(pixels, made))  # within the range of the manifest
    told = run("calibrate", "net-1", "--data", "pictures:photos", "--max-share", "0.2", "--json")
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["threshold"] >= 0
    (home / "photos" / "stone").mkdir()
    code, line = refusal(run("calibrate", "net-1", "--data", "pictures:photos", "--max-share", "0.2"))
    (home / "photos" / "stone").rmdir()
    assert (code, "'stone' is no label" in line) == (ExitCode.SAMPLE, True)
