"""Pictures of every usual form in the watched folder, and files that are broken or too large on purpose."""

import io
import json
import struct
import zlib

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from edge_agent.sources.feed import SampleFeed
from edge_agent.sources.files.folder import FolderWatcher
from models.bundle.preparation import PictureAxes, PictureChannels, PicturePreparation
from models.runtime.picture_files import decode_picture
from models.runtime.preparation import prepare_picture
from tests.edge_agent.doubles.api_double import MemoryAgent
from wire.process.logging import JsonLog

THREE = PicturePreparation(1, 3, channels=PictureChannels.GREY, order=PictureAxes.HW)
COLOURS = np.random.default_rng(3).integers(0, 256, (24, 32, 3), dtype=np.uint8)


class PictureAgent(MemoryAgent):
    """The double, with a model whose input is a grey picture of 1 x 3 pixels."""

    def __init__(self, preparation=THREE) -> None:
        super().__init__()
        made = self.runner.manifest
        spec = msgspec.structs.replace(made.input, shape=(1, 3))
        self.pictures = msgspec.structs.replace(made, input=spec, preparation=preparation)

    @property
    def manifest(self):
        return self.pictures

    async def infer(self, sample):
        return await super().infer(msgspec.structs.replace(sample, x=sample.x.reshape(3)))


def saved(image, format_, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, format_, **options)
    return file.getvalue()


def header_of(width: int, height: int) -> bytes:
    """A PNG of this size by its header, with one row of data."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")


RGB = Image.fromarray(COLOURS)
SOUND = {
    "a.jpg": saved(RGB, "JPEG", quality=95),
    "b.JPEG": saved(RGB.convert("L"), "JPEG", quality=95),
    "cmyk.jpg": saved(RGB.convert("CMYK"), "JPEG", quality=95),
    "progressive.jpg": saved(RGB, "JPEG", progressive=True),
    "rgb.png": saved(RGB, "PNG"),
    "palette.png": saved(RGB.quantize(64), "PNG"),
    "alpha.png": saved(RGB.convert("RGBA"), "PNG"),
    "bits.png": saved(RGB.convert("1"), "PNG"),
    "deep.png": saved(Image.fromarray(COLOURS[:, :, 0].astype(np.uint16) * 257), "PNG"),
    "e.tif": saved(RGB, "TIFF"),
    "f.tiff": saved(RGB, "TIFF", compression="tiff_lzw"),
}
BROKEN = {
    "cut.jpg": SOUND["a.jpg"][:300],
    "noise.jpg": bytes(range(256)) * 4,
    "empty.jpg": b"",
    "cut.tif": SOUND["e.tif"][:40],
    "bomb.png": header_of(10_000, 10_000),
    "bomb.tif": SOUND["e.tif"][:8] + bytes(8),
    "gif.png": saved(RGB.quantize(16), "GIF"),
}


async def watch(folder, agent, files):
    watcher = FolderWatcher(folder, SampleFeed(agent, "private"), 0.01, JsonLog(io.StringIO()))
    for name, data in files.items():
        (folder / name).write_bytes(data)
    await watcher.scan_once()
    await watcher.scan_once()
    return watcher


def told(folder, where, name):
    return json.loads((folder / where / f"{name}.json").read_text())


async def test_every_usual_form_of_a_picture_is_prepared_and_answered(tmp_path):
    agent = PictureAgent()
    watcher = await watch(tmp_path, agent, SOUND)
    assert {file.name for file in (tmp_path / "done").iterdir() if file.suffix != ".json"} == set(SOUND)
    wanted = prepare_picture(COLOURS, THREE).reshape(3)
    likes = [np.abs(sample.x - wanted).max() for sample in agent.samples]
    assert sorted(likes)[8] < 0.05  # one of red alone, one of black and white
    assert watcher.to_json()["answered"] == len(SOUND)


async def test_what_is_broken_or_too_large_goes_to_failed_with_one_line_and_is_counted(tmp_path):
    agent = PictureAgent()
    watcher = await watch(tmp_path, agent, {**BROKEN, "sound.jpg": SOUND["a.jpg"]})
    assert len(agent.samples) == 1
    lines = {name: told(tmp_path, "failed", name)["error"] for name in BROKEN}
    assert "10000 x 10000 pixels, at most" in lines["bomb.png"]
    assert "no JPEG, PNG or TIFF" in lines["noise.jpg"]
    assert "no JPEG, PNG or TIFF" in lines["gif.png"]
    assert "broken" in lines["cut.jpg"]
    assert not [line for line in lines.values() if "\n" in line or "defect" in line]
    assert watcher.to_json()["dropped"] == {"unfit": len(BROKEN)}


async def test_without_a_preparation_a_picture_other_than_the_very_sample_is_refused_by_what_to_do(tmp_path):
    await watch(tmp_path, PictureAgent(None), {"a.jpg": SOUND["a.jpg"], "b.png": SOUND["rgb.png"]})
    assert 'kind = "picture"' in told(tmp_path, "failed", "a.jpg")["error"]
    assert "model takes" in told(tmp_path, "failed", "b.png")["error"]


def test_a_picture_is_turned_as_its_camera_was_held_and_lies_on_white():
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    assert decode_picture(saved(RGB, "JPEG", exif=exif.tobytes())).shape == (32, 24, 3)
    clear = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    assert (decode_picture(saved(clear, "PNG")) == 255).all()


@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(SOUND)))
def test_no_damage_to_a_file_is_anything_but_a_picture_or_a_value_error(seed, name):
    rng = np.random.default_rng(seed)
    data = bytearray(SOUND[name])
    for place in rng.integers(0, len(data), 8):
        data[place] = rng.integers(0, 256)
    try:
        pixels = decode_picture(bytes(data[: rng.integers(1, len(data) + 1)]))
    except ValueError as error:
        pixels, said = np.zeros((1, 1, 1), np.uint8), str(error)
    else:
        said = ""
    assert "\n" not in said
    assert pixels.ndim == 3
    assert pixels.dtype == np.uint8


def test_the_header_alone_is_enough_to_refuse_a_picture():
    with pytest.raises(ValueError, match="5000 x 10001 pixels, at most 50000000 are read"):
        decode_picture(header_of(5000, 10_001))
