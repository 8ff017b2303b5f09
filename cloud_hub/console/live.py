"""Server-sent events of open pages: each is told when what it shows may have changed, and fetches itself again.

Rule: an event says that something moved, never what: what a page may show is decided where it is made. A session that
is over ends its stream within a second.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from cloud_hub.api.auth import caller_of
from cloud_hub.console.pages import LiveDigest, Viewer
from wire.http.oip import OipError

LIVE_PATH = "/live"
LOOK_S = 1.0
BEAT_S = 15.0  # an idle stream says so, which also finds out a browser that has gone
MAX_STREAMS = 200
_RETRY = b"retry: 1500\n\n"


class LiveFeed:
    """Streams of changes. `topics`: by name, as in `PageGroup`; `still_valid`: whether the caller's key still is."""

    def __init__(
        self, topics: Mapping[str, LiveDigest], still_valid: Callable[[web.Request], bool], look_s: float = LOOK_S
    ) -> None:
        self._topics = topics
        self._still_valid = still_valid
        self._look_s = look_s
        self._streams: set[asyncio.Task[Any]] = set()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Answer with events `moved` of one topic (`?topic=fleet`, `?topic=device:ID`).

        404 for an unknown topic, 503 while too many streams are open: a page then asks now and then.
        """
        name, _, about = request.query.get("topic", "").partition(":")
        digest = self._topics.get(name)
        if digest is None:
            raise OipError(404, "there is no such topic")
        if len(self._streams) >= MAX_STREAMS:
            raise OipError(503, f"{MAX_STREAMS} pages are open already")
        task = asyncio.current_task()
        assert task is not None  # a handler always runs in one
        self._streams.add(task)
        try:
            return await self._follow(request, lambda: digest(about, Viewer(caller_of(request))))
        finally:
            self._streams.discard(task)

    async def close(self) -> None:
        """End every stream, at shutdown: the pages find the hub again by themselves."""
        for task in self._streams:
            task.cancel()

    async def _follow(self, request: web.Request, look: Callable[[], object]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        with contextlib.suppress(ConnectionError):  # the browser may be gone before it begins
            await response.prepare(request)
            seen, quiet_s = look(), 0.0
            await response.write(_RETRY + b"event: open\ndata:\n\n")
            while self._still_valid(request):
                await asyncio.sleep(self._look_s)
                now, quiet_s = look(), quiet_s + self._look_s
                if now != seen:
                    await response.write(b"event: moved\ndata:\n\n")
                elif quiet_s >= BEAT_S:
                    await response.write(b": beat\n\n")
                quiet_s = 0.0 if now != seen or quiet_s >= BEAT_S else quiet_s
                seen = now
            await response.write(b"event: ended\ndata:\n\n")
        return response
