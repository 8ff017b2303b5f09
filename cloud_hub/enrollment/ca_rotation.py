"""Rotation of the hub's CA while devices are connected: trust both, wait for renewals, then destroy the old one.

Rule: the old CA goes only when no living device depends on it, or when a person forces it and is shown which devices
are cut off.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from cloud_hub.registry.registry import Registry
from cloud_hub.security.authorities import RotatingAuthority, RotationError

ReloadHook = Callable[[], Awaitable[None]]


async def skip_reload() -> None:
    """Do nothing, for a hub that is stopped: its next start reads the files."""


class CaRotation:
    """A CA rotation.

    `added` makes a running hub's broker trust the new CA, `applied` makes broker, web API and hub forget the old one.
    """

    def __init__(
        self,
        authorities: RotatingAuthority,
        registry: Registry,
        added: ReloadHook = skip_reload,
        applied: ReloadHook = skip_reload,
    ) -> None:
        self._authorities = authorities
        self._registry = registry
        self._added = added
        self._applied = applied

    @property
    def ca_sha256(self) -> str:
        """SHA-256 of the CA that invites name, hex."""
        return self._authorities.sha256

    def status(self) -> dict[str, Any]:
        """Return the state of the rotation as JSON-able fields.

        `ca` and `coming`: SHA-256 of the present and the next CA, "" = no rotation. `waiting_for`: ids of the devices
        that only the old CA vouches for.
        """
        coming = self._authorities.coming
        waiting = self._devices_behind(coming.sha256) if coming else []
        return {"ca": self._authorities.sha256, "coming": coming.sha256 if coming else "", "waiting_for": waiting}

    def expiry(self) -> dict[str, datetime]:
        """Return when the CA ends (`ca`), and the next one while there is one (`ca_next`)."""
        coming = self._authorities.coming
        return {"ca": self._authorities.current.ends, **({"ca_next": coming.ends} if coming else {})}

    async def rotate(self, now: datetime) -> dict[str, Any]:
        """Begin a rotation. RotationError if one is under way.

        No device is disconnected, but by a broker that has to restart for its WebSocket listener.
        """
        self._authorities.begin_rotation(now)
        await self._added()
        return self.status()

    async def finish(self, *, force: bool) -> dict[str, Any]:
        """End the rotation.

        RotationError if none is under way, or if devices would be cut off and `force` is not set.
        """
        waiting = self.status()["waiting_for"]
        if waiting and not force:
            raise RotationError(f"{len(waiting)} devices have not renewed yet ({waiting[0]}, ...): wait, or --force")
        self._authorities.finish_rotation()
        await self._applied()
        return {**self.status(), "cut_off": waiting}

    def _devices_behind(self, coming: str) -> list[str]:
        return [each.id for each in self._registry.devices() if not each.gone and each.authority != coming]
