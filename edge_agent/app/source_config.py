"""Sections of the agent's configuration that name sources of samples with a device behind them."""

import re
from typing import Self
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, model_validator

from edge_agent.sources.cameras.camera import CameraSettings
from wire.process.config import ConfigSection

NAME = r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,63})?$"
_V4L2 = re.compile(r"/dev/[A-Za-z0-9/_.-]{1,100}")
_SCHEMES = frozenset({"rtsp", "rtsps", "http", "https"})


class CameraSection(ConfigSection):
    """One camera. `url`: rtsp, rtsps, http or https (MJPEG), or a device file such as /dev/video0.

    `name`: in status and metrics; "" is camera-1, camera-2, .. `password_file`: its first kilobyte is the password.
    `motion`: share of the picture that has to change before the next answer; 0 answers still scenes too.
    """

    model_config = ConfigDict(allow_inf_nan=False)
    url: str = Field(min_length=1, max_length=2000)
    name: str = Field(default="", pattern=NAME)
    user: str = Field(default="", max_length=200)
    password_file: str = ""
    data_class: str = Field(default="", pattern=NAME)
    frames_per_s: float = Field(default=2.0, gt=0, le=120)
    motion: float = Field(default=0.01, ge=0, le=1)
    silent_after_s: float = Field(default=10.0, ge=1, le=600)

    @model_validator(mode="after")
    def _check_url(self) -> Self:
        """The address is of a known kind and holds no password; its text is not repeated in errors."""
        if _V4L2.fullmatch(self.url):
            return self
        try:
            parts = urlsplit(self.url)
            known = parts.scheme in _SCHEMES and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            known = False
        if not known or re.search(r"[\s\x00-\x1f]", self.url):
            raise ValueError("url: rtsp://, rtsps://, http:// or https:// and a host, or a device such as /dev/video0")
        if "@" in parts.netloc:
            raise ValueError("url: user and password do not belong into it: give user and password_file")
        return self

    def to_settings(self, number: int) -> CameraSettings:
        """The settings of the camera, which is the `number`-th, counted from 1."""
        return CameraSettings(
            name=self.name or f"camera-{number}", url=self.url, user=self.user, password_file=self.password_file,
            frames_per_s=self.frames_per_s, motion=self.motion, silent_after_s=self.silent_after_s,
        )  # fmt: skip
