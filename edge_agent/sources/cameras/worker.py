"""Process that decodes one camera: frames in, samples out; started by `camera.py`, and killed by it when it hangs.

A process of its own, because decoders are C code that reads what a network sends: what they do there, and how long it
takes, cannot hold or end the agent. Rule: only fixed words and names of errors are told, never a message of theirs,
which may hold the address with its password.
"""

import os
import resource
import select
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import av
import av.error
import msgspec
import numpy as np

from edge_agent.sources.cameras.messages import (
    ROOM,
    CameraCounts,
    CameraEnd,
    CameraJob,
    CameraMessage,
    CameraPicture,
    CameraSize,
    encode_camera_message,
)
from edge_agent.sources.cameras.motion import Grey, MotionGate, shrink_grey
from edge_agent.sources.counts import DropReason
from models.bundle.preparation import PicturePreparation, parse_preparation
from models.runtime.preparation import MAX_PICTURE_PIXELS, prepare_picture

MAX_MEMORY_BYTES = 2 << 30  # of address space: a hostile stream may ask the decoder for any size
MAX_GARBLED = 200  # broken packets in a row; then the camera is opened anew
_COUNTS_EVERY_S = 1.0
_EARLY = 0.5  # share of the pause between two pictures by which one may come too early
_LUMA_FIRST = ("yuv", "yuvj", "nv12", "nv21", "gray")  # formats whose first plane is the brightness, 8 bits each


class CameraDecoder:
    """Decodes one stream and decides about each frame: still, above the rate, no room, or sent."""

    def __init__(self, job: CameraJob, to_agent: int, from_agent: int) -> None:
        self._job = job
        self._out = to_agent
        self._in = from_agent
        preparation = parse_preparation(job.preparation)
        if not isinstance(preparation, PicturePreparation):
            raise TypeError("a camera's pictures are prepared as pictures")
        self._preparation = preparation
        self._gate = MotionGate(job.motion)
        self._counts: Counter[str] = Counter()
        self._begun_at = self._told_at = time.monotonic()
        self._next_at = 0.0
        self._room = 0
        self._size = (0, 0)

    def run(self) -> str:
        """Decode until the stream ends, and return the reason."""
        job = self._job
        with av.open(
            job.url, format=job.format or None, options=dict(job.options), timeout=(job.timeout_s, job.timeout_s)
        ) as container:
            if not container.streams.video:
                return "no_video"
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            for frame in self._decode_frames(container, stream):
                self._take_frame(frame)
                self._tell_counts()
        return "ended"

    def _decode_frames(self, container: Any, stream: Any) -> Iterator[Any]:
        """Frames of the stream. Broken packets are counted; too many in a row end it with `InvalidDataError`."""
        broken = 0
        for packet in container.demux(stream):
            if stream.codec_context.width * stream.codec_context.height > MAX_PICTURE_PIXELS:
                raise OverflowError
            try:
                frames = packet.decode()
            except av.error.InvalidDataError:
                self._counts[DropReason.GARBLED.value] += 1
                broken += 1
                if broken > MAX_GARBLED:
                    raise
                self._tell_counts()
                continue
            broken = 0 if frames else broken
            yield from frames

    def _take_frame(self, frame: Any) -> None:
        now = time.monotonic()
        if (frame.width, frame.height) != self._size:
            self._size = (frame.width, frame.height)
            self._send(CameraSize(*self._size))
        if frame.is_corrupt:
            self._counts[DropReason.GARBLED.value] += 1
            return
        pause = 1 / self._job.frames_per_s
        if now < self._next_at - _EARLY * pause:
            self._counts[DropReason.PACED.value] += 1
            return
        self._next_at = max(self._next_at, now) + pause
        cells = shrink_grey(_read_grey(frame))
        if self._gate.is_still(cells):
            self._counts[DropReason.STILL.value] += 1
            return
        if not self._has_room():
            self._counts[DropReason.NEWER.value] += 1
            return
        self._room -= 1
        self._gate.note_passed(cells)
        pixels = frame.to_ndarray(format="rgb24")
        sample = prepare_picture(pixels, self._preparation, self._job.dtype)
        self._send(CameraPicture(sample.tobytes()))

    def _has_room(self) -> bool:
        """Whether the agent takes a picture now. SystemExit when the agent is gone."""
        while select.select([self._in], [], [], 0)[0]:
            given = os.read(self._in, 64)
            if not given:
                raise SystemExit(0)
            self._room += given.count(ROOM)
        return self._room > 0

    def _tell_counts(self) -> None:
        now = time.monotonic()
        if now - self._told_at >= _COUNTS_EVERY_S:
            self._told_at = now
            self._send(CameraCounts(dict(self._counts)))
            self._counts.clear()
            self._has_room()  # notices an agent that is gone

    def _send(self, message: CameraMessage) -> None:
        data = memoryview(encode_camera_message(message))
        while data:
            data = data[os.write(self._out, data) :]

    def name_error(self, error: BaseException) -> str:
        """A fixed word for an error of the libraries, or its class name.

        They call a server that is silent or no server at all invalid data: before the first frame the time tells.
        """
        word = _REASONS.get(type(error).__name__, type(error).__name__)
        if word != "garbled" or self._size != (0, 0):
            return word
        return "silent" if time.monotonic() - self._begun_at >= self._job.timeout_s else "no_stream"

    def finish(self, reason: str) -> None:
        """Tell what was counted last, and why it ends."""
        self._send(CameraCounts(dict(self._counts)))
        self._send(CameraEnd(reason))


def _read_grey(frame: Any) -> Grey:
    """Brightness of a frame `[height, width]`, without a copy where its format has it as a plane."""
    if frame.format.name.startswith(_LUMA_FIRST) and frame.format.components[0].bits == 8 and frame.format.is_planar:
        plane = frame.planes[0]
        rows: Grey = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
        return rows[: frame.height, : frame.width]
    grey: Grey = frame.to_ndarray(format="gray")
    return grey


def run_camera(to_agent: int, from_agent: int) -> None:
    """Read the job and do it; the last message says why it ended."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    av.logging.set_level(None)
    line = b""
    while not line.endswith(b"\n"):
        given = os.read(from_agent, 1)
        if not given:
            return
        line += given
    decoder = CameraDecoder(msgspec.json.decode(line, type=CameraJob), to_agent, from_agent)
    try:
        reason = decoder.run()
    except (av.error.FFmpegError, OSError, ValueError, MemoryError, OverflowError) as error:
        reason = decoder.name_error(error)
    decoder.finish(reason)


_REASONS = {
    "ConnectionRefusedError": "refused",
    "HTTPUnauthorizedError": "unauthorised",
    "HTTPForbiddenError": "unauthorised",
    "HTTPNotFoundError": "not_found",
    "FileNotFoundError": "not_found",
    "InvalidDataError": "garbled",
    "TimeoutError": "silent",
    "ExitError": "silent",
    "EOFError": "ended",
    "ConnectionResetError": "ended",
    "BrokenPipeError": "ended",
    "OverflowError": "too_large",
    "MemoryError": "too_large",
}

if __name__ == "__main__":
    run_camera(sys.stdout.fileno(), sys.stdin.fileno())
