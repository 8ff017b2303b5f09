"""Session eviction: ends the broker session of a device whose keys no longer count, by connecting under its client id.

Rule: the broker is neither reloaded nor restarted for this (docs/adr/0008): a client id is taken over, and the
session with its queue is gone (MQTT 5, section 3.1.4). What a device sends afterwards is refused by the registry, and
it is evicted again, at most once in ten seconds.
"""

import asyncio
import ssl
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from cloud_hub.registry.registry import EnrolledDevice, Registry
from cloud_hub.security.authorities import RotatingAuthority
from cloud_hub.security.authority import utc_now
from wire.process.logging import JsonLog, safe_name
from wire.transport.base import LinkLostError, Transport

EVICT_INTERVAL_S = 10.0
MAX_WAITING = 1024

TakeOver = Callable[[str], Awaitable[Transport]]


class SessionEvictor:
    """The device registry as the hub's core sees it on every message; a device that is gone but still sends is evicted.

    `take_over` connects under a device's client id. `counts`: evictions and failed ones.
    """

    def __init__(self, registry: Registry, take_over: TakeOver, log: JsonLog) -> None:
        self._registry = registry
        self._take_over = take_over
        self._log = log
        self._waiting: dict[str, None] = {}  # in order
        self._last: dict[str, float] = {}
        self._wake = asyncio.Event()
        self.counts: Counter[str] = Counter()

    def device(self, device: str, /) -> EnrolledDevice | None:
        """Return a device from the registry, None if unknown; one that is gone is evicted too."""
        found = self._registry.device(device)
        if found is not None and found.gone:
            self.queue_eviction(device)
        return found

    def suspect(self, device: str, now_ms: int, /) -> bool:
        """Mark a device as cloned, if the registry agrees, and log it."""
        suspected = self._registry.suspect(device, now_ms)
        if suspected:
            self._log.error("clone_suspect", device=safe_name(device))
        return suspected

    def queue_eviction(self, device: str) -> None:
        """Queue a device for eviction, unless that happened within the last ten seconds or too many wait."""
        now = time.monotonic()
        if now - self._last.get(device, -EVICT_INTERVAL_S) < EVICT_INTERVAL_S or len(self._waiting) >= MAX_WAITING:
            return
        self._last[device] = now  # bounded: devices that enrolled once
        self._waiting[device] = None
        self._wake.set()

    async def run(self) -> None:
        """Evict queued devices until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                device = next(iter(self._waiting))
                del self._waiting[device]
                await self._evict_session(device)

    async def _evict_session(self, device: str) -> None:
        try:
            stand_in = await self._take_over(device)
        except (LinkLostError, OSError):
            self.counts["eviction_failed"] += 1  # no broker, no session
            return
        await stand_in.close()
        self.counts["evictions"] += 1
        self._log.info("evicted", device=safe_name(device))


def build_stand_in_context(authorities: RotatingAuthority, folder: Path, device: str) -> ssl.SSLContext:
    """Build a TLS context under a device's name: a certificate of five minutes, on disk only while it is read."""
    context = ssl.create_default_context(cafile=authorities.trusted_file)
    with tempfile.TemporaryDirectory(dir=folder) as private:
        pair = authorities.current.issue_stand_in(Path(private), device, utc_now())
        context.load_cert_chain(pair.certificate, pair.key)
    return context
