"""What the web API asks of the hub's records: forget a subject, count verdicts, sign that something was done.

Rule: an erasure is answered when it is on disk. Two that ask for the same share one.
"""

import asyncio
from collections.abc import Callable

from cloud_hub.aggregates import Tally
from cloud_hub.envelopes import HubEnvelopes
from cloud_hub.retention import Erase, Tombstone
from cloud_hub.store import Job, StoreError, read_aside


class Archive:
    """`submit` puts an erasure into the next job for the store, whose fate comes back by `done` or `failed`."""

    def __init__(self, url: str, envelopes: HubEnvelopes, submit: Callable[[Erase], None]) -> None:
        self._url = url
        self._envelopes = envelopes
        self._submit = submit
        self._under_way: dict[Erase, asyncio.Future[Tombstone]] = {}

    async def erase(self, wish: Erase) -> Tombstone:
        """Forget a subject, on disk and in memory. StoreError if that could not be written: then nothing was."""
        future = self._under_way.get(wish)
        if future is None:
            future = self._under_way[wish] = asyncio.get_running_loop().create_future()
            self._submit(wish)
        return await asyncio.shield(future)

    async def tallies(self) -> list[Tally]:
        """Counts as they lie in the store; `aggregates.published` says what of them may be shown."""
        return await asyncio.to_thread(read_aside, self._url)

    def testify(self, text: bytes) -> bytes:
        """The hub's signature that something was done."""
        return self._envelopes.testify(text)

    def done(self, wish: Erase, stone: Tombstone) -> None:
        self._under_way.pop(wish).set_result(stone)

    def failed(self, job: Job, error: str) -> None:
        for wish in job.erases:
            self._under_way.pop(wish).set_exception(StoreError(error))
