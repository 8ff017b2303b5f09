"""Tells the fleet that the update repository has something new: an empty message to each device, which then looks.

Rule: a hint carries no trust and nothing rests on it: one that is lost costs a device half an hour. A fleet is told
little by little, so that it does not come to fetch all at once.
"""

import asyncio
from collections.abc import Callable

from cloud_hub.repository.repository import Repository
from wire.process.exit_codes import ExitError
from wire.process.logging import Log

LOOK_S = 1.0
DEVICES_PER_S = 20.0


class Herald:
    """`devices` names those to be told, `hint` tells one. Publishing needs no running hub, so the folder is watched."""

    def __init__(
        self, repository: Repository, devices: Callable[[], tuple[str, ...]], hint: Callable[[str], None], log: Log
    ) -> None:
        self._repository = repository
        self._devices = devices
        self._hint = hint
        self._log = log
        self._known = self._version()

    async def run(self, look_s: float = LOOK_S, per_s: float = DEVICES_PER_S) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(look_s)
            if self._is_news():
                await self._tell(per_s)

    async def _tell(self, per_s: float) -> None:
        devices = self._devices()
        self._log.info("hinting", devices=len(devices))
        for device in devices:
            self._hint(device)
            await asyncio.sleep(1 / per_s)

    def _is_news(self) -> bool:
        """A snapshot that only was signed again is news too: a hint too many costs a device one small request."""
        before, self._known = self._known, self._version()
        return self._known > before

    def _version(self) -> int:
        """Of the newest snapshot; 0 while there is none, or while another process is at work on it."""
        try:
            return self._repository.snapshot_version()
        except ExitError:
            return 0
