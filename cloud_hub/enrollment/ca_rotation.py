"""Replaces the hub's CA while devices are connected: trust both, wait for renewals, then destroy the old one.

Rule: the old CA goes only when no living device depends on it, or a person says so and is told which ones are cut off.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from cloud_hub.registry.registry import Registry
from cloud_hub.security.authorities import Authorities, RotationError

Applied = Callable[[], Awaitable[None]]


async def nothing_runs() -> None:
    """For a hub that is stopped: its next start reads the files."""


class Rotation:
    """`applied` makes a running hub forget the old CA: its own certificates, the broker, the web API."""

    def __init__(self, authorities: Authorities, registry: Registry, applied: Applied = nothing_runs) -> None:
        self._authorities = authorities
        self._registry = registry
        self._applied = applied

    @property
    def ca_sha256(self) -> str:
        """Of the CA that invites name."""
        return self._authorities.sha256

    def status(self) -> dict[str, Any]:
        """`ca` and `coming` (SHA-256, "" = no rotation), `waiting_for` (devices that the old CA alone vouches for)."""
        coming = self._authorities.coming
        waiting = self._behind(coming.sha256) if coming else []
        return {"ca": self._authorities.sha256, "coming": coming.sha256 if coming else "", "waiting_for": waiting}

    def rotate(self, now: datetime) -> dict[str, Any]:
        """Begin. RotationError if one is under way. Nobody is disconnected: the broker finds the new CA by itself."""
        self._authorities.rotate(now)
        return self.status()

    async def finish(self, *, force: bool) -> dict[str, Any]:
        """End. RotationError if none is under way, or devices would be cut off and `force` is not set."""
        waiting = self.status()["waiting_for"]
        if waiting and not force:
            raise RotationError(f"{len(waiting)} devices have not renewed yet ({waiting[0]}, ...): wait, or --force")
        self._authorities.finish()
        await self._applied()
        return {**self.status(), "cut_off": waiting}

    def _behind(self, coming: str) -> list[str]:
        return [each.id for each in self._registry.devices() if not each.gone and each.authority != coming]
