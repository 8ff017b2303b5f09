"""Server-sent events of open pages: each is told when what it shows may have changed, and fetches itself again.

Rule: an event says that something moved, never what: what a page may show is decided where it is made. A session that
is over ends its stream within a second.
Rule: where there are too many streams, one of the tenant or key that has most ends for one that has fewer.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from cloud_hub.api.auth import caller_of
from cloud_hub.console.pages import LiveDigest, Viewer
from cloud_hub.registry.access import Caller
from wire.http.oip import OipError

LIVE_PATH = "/live"
LOOK_S = 1.0
BEAT_S = 15.0  # an idle stream says so, which also finds out a browser that has gone
MAX_STREAMS = 200
_RETRY = b"retry: 1500\n\n"


class OpenStream:
    """A stream of a holder. `displaced`: it has to end, because another holder had fewer."""

    def __init__(self, holder: str) -> None:
        self.holder = holder
        self.displaced = False


class StreamPlaces:
    """Places for streams, divided among their holders: none has more than an even share while others want theirs."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._streams: dict[OpenStream, None] = {}  # oldest first
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._streams)

    def enter(self, holder: str) -> OpenStream | None:
        """Return a new stream of this holder; None if there is no place and no holder has two more than it."""
        if len(self._streams) >= self._most:
            largest, count = self._counts.most_common(1)[0]
            if count < self._counts[holder] + 2:
                return None
            oldest = next(each for each in self._streams if each.holder == largest)
            oldest.displaced = True
            self.leave(oldest)
        stream = OpenStream(holder)
        self._streams[stream] = None
        self._counts[holder] += 1
        return stream

    def leave(self, stream: OpenStream) -> None:
        """Give the stream's place away; nothing happens if it was displaced before."""
        if stream in self._streams:
            del self._streams[stream]
            self._counts[stream.holder] -= 1
            self._counts += Counter()  # without those that have none


def name_holder(caller: Caller) -> str:
    """Return whose places a caller's streams take: its tenant's, or those of its key for the whole hub."""
    return f"tenant {caller.tenant}" if caller.tenant else caller.name


class LiveFeed:
    """Streams of changes. `topics`: by name, as in `PageGroup`; `still_valid`: whether the caller's key still is."""

    def __init__(
        self, topics: Mapping[str, LiveDigest], still_valid: Callable[[web.Request], bool], look_s: float = LOOK_S
    ) -> None:
        self._topics = topics
        self._still_valid = still_valid
        self._look_s = look_s
        self._places = StreamPlaces(MAX_STREAMS)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Answer with events `moved` of one topic (`?topic=fleet`, `?topic=device:ID`).

        404 for an unknown topic, 503 while too many streams are open of which this caller has its share: a page then
        asks now and then.
        """
        name, _, about = request.query.get("topic", "").partition(":")
        digest = self._topics.get(name)
        if digest is None:
            raise OipError(404, "there is no such topic")
        place = self._places.enter(name_holder(caller_of(request)))
        if place is None:
            raise OipError(503, f"{MAX_STREAMS} pages are open already")
        task = asyncio.current_task()
        assert task is not None  # a handler always runs in one
        self._tasks.add(task)
        try:
            return await self._follow(request, lambda: digest(about, Viewer(caller_of(request))), place)
        finally:
            self._tasks.discard(task)
            self._places.leave(place)

    async def close(self) -> None:
        """End every stream, at shutdown: the pages find the hub again by themselves."""
        for task in self._tasks:
            task.cancel()

    async def _follow(self, request: web.Request, look: Callable[[], object], place: OpenStream) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        with contextlib.suppress(ConnectionError):  # the browser may be gone before it begins
            await response.prepare(request)
            seen, quiet_s = look(), 0.0
            await response.write(_RETRY + b"event: open\ndata:\n\n")
            while not place.displaced and self._still_valid(request):
                await asyncio.sleep(self._look_s)
                now, quiet_s = look(), quiet_s + self._look_s
                if now != seen:
                    await response.write(b"event: moved\ndata:\n\n")
                elif quiet_s >= BEAT_S:
                    await response.write(b": beat\n\n")
                quiet_s = 0.0 if now != seen or quiet_s >= BEAT_S else quiet_s
                seen = now
            if not place.displaced:  # else the page tries again by itself, and asks now and then meanwhile
                await response.write(b"event: ended\ndata:\n\n")
        return response
