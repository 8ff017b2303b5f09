"""Sections of the agent's configuration that name sources of samples with a device behind them."""

import re
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from wire.process.config import ConfigSection

if TYPE_CHECKING:
    from edge_agent.sources.cameras.camera import CameraSettings

NAME = r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,63})?\Z"
_V4L2 = re.compile(r"/dev/[A-Za-z0-9/_.-]{1,100}")
_SCHEMES = frozenset({"rtsp", "rtsps", "http", "https"})


class CameraSection(ConfigSection, frozen=True):
    """One camera. `url`: rtsp, rtsps, http or https (MJPEG), or a device file such as /dev/video0.

    `name`: in status and metrics; "" is camera-1, camera-2, .. `password_file`: its first kilobyte is the password.
    `motion`: share of the picture that has to change before the next answer; 0 answers still scenes too.
    """

    url: Annotated[str, Meta(min_length=1, max_length=2000)]
    name: Annotated[str, Meta(pattern=NAME)] = ""
    user: Annotated[str, Meta(max_length=200)] = ""
    password_file: str = ""
    data_class: Annotated[str, Meta(pattern=NAME)] = ""
    frames_per_s: Annotated[float, Meta(gt=0, le=120)] = 2.0
    motion: Annotated[float, Meta(ge=0, le=1)] = 0.01
    silent_after_s: Annotated[float, Meta(ge=1, le=600)] = 10.0

    def __post_init__(self) -> None:
        """The address is of a known kind and holds no password; its text is not repeated in errors."""
        if _V4L2.fullmatch(self.url):
            return
        try:
            parts = urlsplit(self.url)
            known = parts.scheme in _SCHEMES and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            known = False
        if not known or re.search(r"[\s\x00-\x1f]", self.url):
            raise ValueError("url: rtsp://, rtsps://, http:// or https:// and a host, or a device such as /dev/video0")
        if "@" in parts.netloc:
            raise ValueError("url: user and password do not belong into it: give user and password_file")

    def to_settings(self, number: int) -> "CameraSettings":
        """The settings of the camera, which is the `number`-th, counted from 1."""
        from edge_agent.sources.cameras.camera import CameraSettings  # noqa: PLC0415 - where there is a camera

        return CameraSettings(
            name=self.name or f"camera-{number}", url=self.url, user=self.user, password_file=self.password_file,
            frames_per_s=self.frames_per_s, motion=self.motion, silent_after_s=self.silent_after_s,
        )  # fmt: skip
