"""Tells owners that their jobs have ended: CloudEvents in structured JSON, posted to the webhook that a job names.

Rule: an ending is told at least once, under one event id, until it is taken or its tries are used up. Rule: no
connection is made to an inward address, whatever a name resolves to, and no redirect is followed.
Source: CloudEvents 1.0.2, JSON format and HTTP protocol binding (structured mode).
"""

import asyncio
import contextlib
import random
import socket
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

import aiohttp
import msgspec
from aiohttp import AddrInfoType

from cloud_hub.jobs.addresses import is_outward
from cloud_hub.jobs.hook_table import AT_ONCE, ClaimHooks, SettleHook
from cloud_hub.jobs.runner import JobStore, WorkFailedError
from cloud_hub.jobs.sealing import JobVault
from cloud_hub.jobs.states import Job, describe_job
from cloud_hub.region.vault import WrongRegionKeyError
from policies.monitoring.backoff import compute_delay

MAX_TRIES = 8
RETRY_BASE_S = 2.0
RETRY_CAP_S = 900.0
TIMEOUT_S = 10.0
LOOK_S = 2.0


class InwardAddressError(OSError):
    """A webhook's name stands for an address inside the hub's own network."""


class HookSender(Protocol):
    """Posts an event; implemented by `HttpHooks`."""

    async def post(self, url: str, event: bytes) -> bool:
        """Return whether it was taken (2xx)."""

    async def close(self) -> None:
        """Close open connections."""


class HttpHooks:
    """Posts over HTTP(S). `inwards`: also to addresses of this machine and its network."""

    def __init__(self, *, inwards: bool, timeout_s: float = TIMEOUT_S) -> None:
        self._inwards = inwards
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, event: bytes) -> bool:
        """Return whether it was taken (2xx); a redirect is none, and of an answer nothing but the status is read."""
        if self._session is None:
            connector = aiohttp.TCPConnector(socket_factory=self._make_socket, force_close=True)
            limit = aiohttp.ClientTimeout(total=self._timeout_s)
            self._session = aiohttp.ClientSession(connector=connector, timeout=limit, trust_env=False)
        headers = {"Content-Type": "application/cloudevents+json; charset=utf-8"}
        try:
            async with self._session.post(url, data=event, headers=headers, allow_redirects=False) as response:
                return response.ok and response.status < 300
        except (aiohttp.ClientError, OSError, ValueError):
            return False

    def _make_socket(self, info: AddrInfoType) -> socket.socket:
        """Make the socket of a connection. InwardAddressError for an address that is not to be connected to."""
        family, kind, protocol, _, address = info
        if not (self._inwards or is_outward(str(address[0]))):
            raise InwardAddressError("the address is inside the hub's own network")
        return socket.socket(family, kind, protocol)

    async def close(self) -> None:
        """Close open connections."""
        if self._session is not None:
            await self._session.close()


class HookRunner:
    """Tells endings until cancelled. `hub`: its name; `now`: hub time in seconds."""

    def __init__(
        self, store: JobStore, sender: HookSender, vault: JobVault, hub: str, now: Callable[[], float]
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._store = store
        self._sender = sender
        self._vault = vault
        self._hub = hub
        self._now = now
        self._wake = asyncio.Event()
        self._telling: set[asyncio.Task[None]] = set()
        self._named = True  # whether any job names a webhook, as far as is known

    def expect(self) -> None:
        """A job that names a webhook was handed over."""
        self._named = True
        self._wake.set()

    async def run(self) -> None:
        """Tell what is due, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._take_turn(group)
                    await self._sleep()
        finally:
            await self._sender.close()

    async def _sleep(self) -> None:
        try:
            async with asyncio.timeout(LOOK_S):
                await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(0.05)
        except TimeoutError:
            return

    async def _take_turn(self, group: asyncio.TaskGroup) -> None:
        """Begin to tell what is due; an owner that is slow keeps nothing but its own place."""
        terms = self._store.terms
        if terms == {} or len(self._telling) >= AT_ONCE or not (self._named or self._store.shared):
            return
        work = ClaimHooks(None if terms is None else frozenset(terms), int(self._now() * 1000))
        try:
            due, _ = await self._store.run_work(work)
        except WorkFailedError:
            return
        for job in due:
            task = group.create_task(self._tell(job), name=f"job-told-{job.id}")
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _tell(self, job: Job) -> None:
        try:
            url = self._vault.open_hook(job.id, job.hook or b"")
        except WrongRegionKeyError:
            url = ""
        taken = bool(url) and await self._sender.post(url, encode_event(job, self._hub))
        with contextlib.suppress(WorkFailedError):  # then it is told again once it is held no longer
            await self._settle(job, taken=taken, last=not url or job.notify_tries >= MAX_TRIES)

    async def _settle(self, job: Job, *, taken: bool, last: bool) -> None:
        ends = taken or last
        self.counts["jobs.told" if taken else "jobs.untold" if last else "jobs.told_again"] += 1
        delay_s = compute_delay(job.notify_tries, random.random(), RETRY_BASE_S, RETRY_CAP_S)  # noqa: S311 - jitter
        again_ms = None if ends else int((self._now() + delay_s) * 1000)
        await self._store.run_work(SettleHook(job, again_ms))


def encode_event(job: Job, hub: str) -> bytes:
    """Return the CloudEvent that a job has ended; its id is the same each time it is sent. The answer is not in it."""
    ended_ms = job.ended_ms or 0
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": f"{job.id}-{ended_ms}",
        "source": f"/skerry/hubs/{hub}",
        "type": f"skerry.job.{job.state.value}",
        "subject": f"/v1/jobs/{job.id}",
        "time": datetime.fromtimestamp(ended_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "datacontenttype": "application/json",
        "data": describe_job(job),
    }
    return msgspec.json.encode(event)
