"""A camera as a source of samples: RTSP, MJPEG over HTTP, or V4L2, decoded by a process of its own (`worker`).

Rule: the newest picture wins, a still scene is answered once, and a camera that is silent has its process killed and
started again. Nothing of the address is logged or shown.
"""

import asyncio
import contextlib
import os
import sys
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec
import numpy as np

from edge_agent.question.records import NoModelError
from edge_agent.sources.cameras.messages import (
    LENGTH_BYTES,
    MAX_MESSAGE_BYTES,
    ROOM,
    CameraCounts,
    CameraEnd,
    CameraJob,
    CameraMessage,
    CameraPicture,
    decode_camera_message,
)
from edge_agent.sources.counts import DropReason
from edge_agent.sources.feed import PreparationError, SampleFeed
from edge_agent.sources.source import Intake, Overflow, Reading, SourceError
from models.bundle.manifest import InputSpec
from models.bundle.preparation import PicturePreparation, Preparation, preparation_shape
from models.runtime.feature_codec import NUMPY_DTYPES
from models.runtime.runner import Sample as SampleArray
from models.runtime.runner import SampleError, check_values
from wire.process.files import PACKAGES_FOLDER
from wire.process.logging import JsonLog, safe_name

WORKER = "edge_agent.sources.cameras.worker"
MAX_PASSWORD_BYTES = 1024
_START_S = 10.0  # for the process to come up, beside the camera's own time
_PROTOCOLS = {
    "rtsp": "rtsp,rtp,srtp,udp,tcp",
    "rtsps": "rtsps,rtsp,rtp,srtp,udp,tcp,tls",
    "http": "http,tcp",
    "https": "https,http,tls,tcp",
}
_HTTP_FORMATS = "mpjpeg,mjpeg,jpeg_pipe,mpegts"  # none that names further addresses, as a playlist does


class CameraSettings(msgspec.Struct, frozen=True):
    """Settings of one camera, as `[[camera]]` has them. `silent_after_s`: without a picture the camera is away."""

    name: str
    url: str
    user: str = ""
    password_file: str = ""
    frames_per_s: float = 2.0
    motion: float = 0.01
    silent_after_s: float = 10.0


class Camera:
    """One camera, a `SampleSource`."""

    def __init__(self, settings: CameraSettings, feed: SampleFeed, log: JsonLog) -> None:
        self.name = settings.name
        self.overflow = Overflow.NEWEST
        self.queue_size = 1
        self.parallel = 1
        self._settings = settings
        self._feed = feed
        self._log = log
        self._arrived = asyncio.Event()
        self._sized = False

    async def run(self, intake: Intake) -> None:
        """Decode and pass on until the camera goes away; a model that wants other samples gets another process."""
        while True:
            await self._play(intake)

    async def _play(self, intake: Intake) -> None:
        """Run one process until another model answers."""
        self._arrived, self._sized = asyncio.Event(), False
        preparation, spec = self._find_input()
        child = await self._start_process(make_camera_job(self._settings, preparation, spec))
        room = asyncio.create_task(self._give_room(child, intake), name=f"room of {self.name}")
        try:
            while self._find_input() == (preparation, spec):
                async with asyncio.timeout(self._settings.silent_after_s + _START_S):
                    message = await _read_message(child)
                await self._take_message(message, intake, spec, preparation)
        except TimeoutError:
            raise SourceError("silent") from None
        finally:
            room.cancel()
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
            await child.wait()

    def _find_input(self) -> tuple[Preparation, InputSpec]:
        """What the model that answers now wants. SourceError while nobody says how pictures become its samples."""
        try:
            preparation = self._feed.preparation
            spec = self._feed.manifest.input
        except NoModelError:
            raise SourceError(DropReason.NO_MODEL.value) from None
        except PreparationError:
            raise SourceError(DropReason.UNPREPARED.value) from None
        if not isinstance(preparation, PicturePreparation):
            raise SourceError(DropReason.UNPREPARED.value)
        return preparation, spec

    async def _start_process(self, job: CameraJob) -> asyncio.subprocess.Process:
        pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        try:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", WORKER, stdin=pipe, stdout=pipe, stderr=nowhere, cwd=PACKAGES_FOLDER,
                env=environment,
            )  # fmt: skip
        except OSError:
            raise SourceError("no_process") from None
        assert child.stdin is not None
        child.stdin.write(msgspec.json.encode(job) + b"\n")
        return child

    async def _take_message(
        self, message: CameraMessage, intake: Intake, spec: InputSpec, preparation: Preparation
    ) -> None:
        match message:
            case CameraPicture():
                self._arrived.set()
                await intake.put(Reading(partial(_parse_picture, message.sample, spec, preparation)))
            case CameraCounts():
                for reason, count in message.dropped.items():
                    intake.skip(DropReason(reason), count)
            case CameraEnd():
                raise SourceError(str(safe_name(message.reason)))
            case _:
                intake.note_alive()
                if self._sized:
                    intake.note_size_change()
                self._sized = True
                self._log.info("camera_size", source=safe_name(self.name), width=message.width, height=message.height)

    async def _give_room(self, child: asyncio.subprocess.Process, intake: Intake) -> None:
        """Tell the process of each place that becomes free; a picture is prepared only where there is one."""
        assert child.stdin is not None
        with contextlib.suppress(ConnectionError):
            while True:
                await intake.wait_for_room()
                self._arrived.clear()
                child.stdin.write(ROOM)
                await child.stdin.drain()
                await self._arrived.wait()


def make_camera_job(settings: CameraSettings, preparation: Preparation, spec: InputSpec) -> CameraJob:
    """The job of the decoding process. SourceError if the password's file cannot be read."""
    url, format_, options = settings.url, "v4l2", {}
    scheme = urlsplit(settings.url).scheme
    if scheme:
        url = _add_credentials(settings)
        options = {"protocol_whitelist": _PROTOCOLS[scheme]}
        format_ = ""
    if scheme.startswith("rtsp"):
        options |= {"rtsp_transport": "tcp", "allowed_media_types": "video", "analyzeduration": "2000000"}
        format_ = "rtsp"
    elif scheme:
        options |= {"format_whitelist": _HTTP_FORMATS}
    return CameraJob(
        url=url, format=format_, options=options, frames_per_s=settings.frames_per_s, motion=settings.motion,
        preparation=msgspec.to_builtins(preparation), dtype=spec.dtype, timeout_s=settings.silent_after_s,
    )  # fmt: skip


def _add_credentials(settings: CameraSettings) -> str:
    """The address with user and password in it, as the libraries take them."""
    if not settings.user:
        return settings.url
    password = ""
    if settings.password_file:
        try:
            password = Path(settings.password_file).read_text(encoding="utf-8-sig")[:MAX_PASSWORD_BYTES].strip()
        except (OSError, UnicodeDecodeError):
            raise SourceError("password_file") from None
    parts = urlsplit(settings.url)
    user = f"{quote(settings.user, safe='')}:{quote(password, safe='')}"
    return parts._replace(netloc=f"{user}@{parts.netloc}").geturl()


async def _read_message(child: asyncio.subprocess.Process) -> CameraMessage:
    """The process's next message. SourceError if it has ended, or sends what is none."""
    assert child.stdout is not None
    try:
        size = int.from_bytes(await child.stdout.readexactly(LENGTH_BYTES), "big")
        if size > MAX_MESSAGE_BYTES:
            raise SourceError("crashed")
        return decode_camera_message(await child.stdout.readexactly(size))
    except (asyncio.IncompleteReadError, ValueError):
        raise SourceError("crashed") from None


def _parse_picture(data: bytes, made_for: InputSpec, preparation: Preparation, spec: InputSpec) -> SampleArray:
    """The sample that the process prepared. SampleError if another model answers by now, or a value is out of range."""
    if spec != made_for:
        raise SampleError("prepared for the model before")
    array = np.frombuffer(data, NUMPY_DTYPES[spec.dtype])
    if array.size != int(np.prod(preparation_shape(preparation))):
        raise SampleError("not of the model's shape")
    sample: SampleArray = array.reshape(spec.shape)
    check_values(sample, spec)
    return sample
