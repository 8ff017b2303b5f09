"""The process that decodes one camera, on recorded and on hostile streams: each ends with a word that says why."""

import asyncio
import contextlib
import os
import random
import sys
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edge_agent.sources.cameras.camera import WORKER
from edge_agent.sources.cameras.messages import (
    LENGTH_BYTES,
    ROOM,
    CameraCounts,
    CameraEnd,
    CameraJob,
    CameraMessage,
    CameraPicture,
    CameraSize,
    decode_camera_message,
)
from models.bundle.preparation import PictureAxes, PictureChannels, PicturePreparation
from models.runtime.preparation import prepare_picture
from tests import ROOT
from tests.edge_agent.doubles.videos import draw_scene, write_video
from tests.examples import further
from wire.protocol.messages import TensorDType

PREPARATION = PicturePreparation(12, 16, channels=PictureChannels.GREY, order=PictureAxes.HW)
FAST = 1e9  # frames a second: a file is read as quickly as it can be


def job(url: Path | str, **changes: object) -> CameraJob:
    plain = CameraJob(
        url=str(url), format="", options={}, frames_per_s=FAST, motion=0.0,
        preparation=msgspec.to_builtins(PREPARATION), dtype=TensorDType.FP32, timeout_s=60.0,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


class Played:
    """What a process sent until it ended."""

    def __init__(self, messages: list[CameraMessage]) -> None:
        self.pictures = [each.sample for each in messages if isinstance(each, CameraPicture)]
        self.sizes = [(each.width, each.height) for each in messages if isinstance(each, CameraSize)]
        self.ends = [each.reason for each in messages if isinstance(each, CameraEnd)]
        self.dropped: Counter[str] = Counter()
        for each in messages:
            if isinstance(each, CameraCounts):
                self.dropped.update(each.dropped)


async def start(asked: CameraJob) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(sys.executable, "-m", WORKER, stdin=pipe, stdout=pipe, cwd=ROOT)
    assert child.stdin is not None
    child.stdin.write(msgspec.json.encode(asked) + b"\n")
    return child


async def play(asked: CameraJob, room: int = 1000) -> Played:
    child = await start(asked)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(ROOM * room)
    messages: list[CameraMessage] = []
    async with asyncio.timeout(60):
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                size = int.from_bytes(await child.stdout.readexactly(LENGTH_BYTES), "big")
                messages.append(decode_camera_message(await child.stdout.readexactly(size)))
        assert await child.wait() == 0
    return Played(messages)


async def test_every_frame_becomes_the_sample_that_the_forge_would_make_of_it(tmp_path):
    played = await play(job(write_video(tmp_path / "a.mkv", 10)))
    assert (len(played.pictures), played.sizes, played.ends) == (10, [(160, 120)], ["ended"])
    first = np.frombuffer(played.pictures[0], np.float32).reshape(12, 16)
    own = prepare_picture(draw_scene(), PREPARATION)
    assert np.abs(first - own).mean() < 0.03  # H.264 is lossy


@pytest.mark.further
async def test_a_still_scene_is_sent_once_and_the_rest_is_counted(tmp_path):
    played = await play(job(write_video(tmp_path / "a.mkv", 15, moving=False), motion=0.01))
    assert (len(played.pictures), played.dropped) == (1, {"still": 14})


@pytest.mark.further
async def test_frames_without_room_and_frames_above_the_rate_are_counted(
    tmp_path,
):
    video = write_video(tmp_path / "a.mkv", 15)
    busy = await play(job(video), room=2)
    assert (len(busy.pictures), busy.dropped) == (2, {"newer": 13})
    paced = await play(job(video, frames_per_s=0.01))
    assert (len(paced.pictures), paced.dropped) == (1, {"paced": 14})


@pytest.mark.further
async def test_a_camera_that_changes_its_size_is_prepared_alike_before_and_after(tmp_path):
    parts = [
        write_video(tmp_path / f"{width}.h264", 6, size=(width, height)) for width, height in ((160, 120), (96, 64))
    ]
    (tmp_path / "both.h264").write_bytes(b"".join(part.read_bytes() for part in parts))
    played = await play(job(tmp_path / "both.h264"))
    assert played.sizes == [(160, 120), (96, 64)]
    assert len(played.pictures) + played.dropped["garbled"] == 12
    assert {len(sample) for sample in played.pictures} == {12 * 16 * 4}


@pytest.mark.further
async def test_garbage_in_the_middle_of_a_stream_is_counted_and_the_rest_is_read(tmp_path):
    data = bytearray(write_video(tmp_path / "a.h264", 40).read_bytes())
    rng = random.Random(3)
    for _ in range(30):
        data[rng.randrange(len(data) // 4, len(data) // 2)] ^= 0xFF
    (tmp_path / "a.h264").write_bytes(data)
    played = await play(job(tmp_path / "a.h264"))
    assert played.ends == ["ended"]
    assert len(played.pictures) >= 15
    assert len(played.pictures) + played.dropped["garbled"] <= 41


@pytest.mark.parametrize(
    ("content", "reason"),
    [further(os.urandom(5000), "no_stream"), further(b"", "no_stream"), further(None, "not_found")],
    ids=["noise", "empty", "none"],
)
async def test_what_is_no_stream_ends_with_a_word(tmp_path, content, reason):
    if content is not None:
        (tmp_path / "x.mkv").write_bytes(content)
    assert (await play(job(tmp_path / "x.mkv"))).ends == [reason]


@pytest.mark.further
async def test_a_device_that_is_no_camera_ends_with_a_word():
    """There is no V4L2 loopback without a kernel module: what is tested is the device that is not there, or is none."""
    assert (await play(job("/dev/video99", format="v4l2"))).ends == ["not_found"]
    assert (await play(job("/dev/null", format="v4l2"))).ends[0]


@pytest.mark.parametrize(
    ("said", "reason"),
    [further(None, "silent"), further(b"", "no_stream"), (b"\xff\x00garbage\r\n" * 400, "no_stream")],
    ids=["silence", "close", "garbage"],
)
async def test_a_host_that_is_no_rtsp_server_ends_with_a_word(said, reason):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if said is None:
            await reader.read()
        with contextlib.suppress(ConnectionError):
            writer.write(said or b"")
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        options = {"rtsp_transport": "tcp"}
        asked = job(
            f"rtsp://127.0.0.1:{port}/x", format="rtsp", options=options, timeout_s=1.0 if said is None else 60.0
        )
        assert (await play(asked)).ends == [reason]


async def test_the_process_ends_with_its_agent(tmp_path):
    os.mkfifo(tmp_path / "pipe.h264")
    child = await start(job(tmp_path / "pipe.h264"))
    data = write_video(tmp_path / "a.h264", 30).read_bytes()
    assert child.stdin is not None
    handle = await asyncio.to_thread(os.open, tmp_path / "pipe.h264", os.O_WRONLY)
    try:
        child.stdin.close()
        async with asyncio.timeout(90):
            with contextlib.suppress(BrokenPipeError):
                while True:  # a camera that goes on for ever
                    await asyncio.to_thread(os.write, handle, data)
            await child.wait()
    finally:
        os.close(handle)
