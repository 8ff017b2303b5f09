"""Small recorded videos, written with the library that the cameras are read with."""

from pathlib import Path

import av
import numpy as np


def draw_scene(width: int = 160, height: int = 120, *, place: int = 0) -> "np.ndarray":
    """A picture `[height, width, 3]` with a white square at `place` pixels from the left, on a fixed ground."""
    cells = np.random.default_rng(5).integers(40, 200, (6, 8, 3), dtype=np.uint8)
    scene = cells.repeat(-(-height // 6), 0).repeat(-(-width // 8), 1)[:height, :width].copy()
    scene[height // 4 : height // 2, place : place + width // 4] = 255
    return scene


def write_video(
    path: Path, frames: int = 20, *, moving: bool = True, size: tuple[int, int] = (160, 120), rate: int = 10
) -> Path:
    """Write H.264 frames at `path`; its suffix names the container, `.h264` none. `size`: width and height."""
    width, height = size
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=rate, options={"g": str(rate), "tune": "zerolatency"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            place = (number * width // 10) % (width * 3 // 4) if moving else 0
            frame = av.VideoFrame.from_ndarray(draw_scene(width, height, place=place), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path
