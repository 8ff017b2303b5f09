"""A folder of pictures becomes a bundle that says how its samples are made, and calibration makes them the same way."""

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from models.bundle.bundle import open_bundle
from models.bundle.preparation import PictureChannels, PictureFit, PicturePreparation, encode_preparation
from models.cli.models import app
from models.forge.data import digits
from models.forge.data.types import ForgeError
from models.forge.pipeline.loading import load_data
from models.runtime.picture_files import decode_picture
from models.runtime.preparation import prepare_picture
from tests.models.conftest import KEPT
from tests.models.conftest import forge as forge_tiny
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


def test_a_folder_of_pictures_is_prepared_as_a_device_does_it(home):
    asked = PicturePreparation(16, 20, fit=PictureFit.COVER, mean=(0.5,), std=(0.25,))
    data = load_data("pictures:photos", home, asked)
    assert data.labels == ("apple", "leaf")
    made = np.concatenate([part.x[0] for part in (data.training, data.calibration, data.heldout)])
    own = {
        prepare_picture(decode_picture(file.read_bytes()), asked).tobytes() for file in (home / "photos").rglob("*.*g")
    }
    assert {sample.tobytes() for sample in made} == own
    assert data.training.x[0].shape[1:] == (3, 16, 20)


@pytest.mark.further
@pytest.mark.timeout(900)
def test_a_bundle_says_how_its_samples_were_made_and_calibration_reads_pictures_so(run, home):
    grey = PicturePreparation(8, 8, channels=PictureChannels.GREY)
    forge_tiny(home / "tiny-3", kept=True, preparation=encode_preparation(grey).decode())
    bundle = open_bundle(home / "tiny-3")
    assert bundle.manifest.preparation == grey
    x, y = digits.load_training()
    for number, (sample, label) in enumerate(zip(x[:300, 0], y[:300], strict=True)):
        folder = home / "digits" / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.rint(sample * 255).astype(np.uint8)).save(folder / f"{number}.png")
    told = run("calibrate", "tiny-3", "--data", "pictures:digits", "--max-share", "0.2", "--json")
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["threshold"] >= 0
    (home / "digits" / "ten").mkdir()
    code, line = refusal(run("calibrate", "tiny-3", "--data", "pictures:digits", "--max-share", "0.2"))
    assert (code, "'ten' is no label" in line) == (ExitCode.SAMPLE, True)


def test_a_preparation_that_makes_other_samples_than_the_data_has_is_refused(home):
    wide = PicturePreparation(9, 8, channels=PictureChannels.GREY)
    with pytest.raises(ForgeError, match=r"it makes float32 \[1, 9, 8\], the data has FP32 \[1, 8, 8\]"):
        forge_tiny(home / "wide", preparation=encode_preparation(wide).decode())
