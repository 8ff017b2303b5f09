"""Idempotency-Keys of web inference: a request repeated under one is computed once, and answered alike.

Rule: a key belongs to its tenant and one payload. Only answers are kept, for a day and within bounds: in memory by a
hub that is alone (`MemoryKeys`), in the database of a region by hubs that share one (`region_idempotency`).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import msgspec

from wire.protocol.messages import Prediction

LIFE_S = 86_400.0
MAX_KEYS = 4096
MAX_ROWS = 65_536  # predictions remembered, of all keys together

RequestKey = tuple[str, str]  # tenant, key


class NewRequest(msgspec.Struct, frozen=True):
    """A new request: compute it, then call `finish` or `abandon`."""


class RequestRunning(msgspec.Struct, frozen=True):
    """The same request is being computed right now."""


class KeyConflict(msgspec.Struct, frozen=True):
    """The key was used before with another payload."""


class StoredAnswer(msgspec.Struct, frozen=True):
    """The request was answered before, with these predictions."""

    predictions: tuple[Prediction, ...]


KeyStatus = NewRequest | RequestRunning | KeyConflict | StoredAnswer


class KeysUnavailableError(Exception):
    """Nobody can say now whether a request is new."""


class RequestKeys(Protocol):
    """What is known of each key. `begin` and `finish` raise KeysUnavailableError where that cannot be said."""

    async def begin(self, name: RequestKey, fingerprint: bytes) -> KeyStatus:
        """Register a request under its key, or say what is known of it."""
        ...

    async def finish(self, name: RequestKey, predictions: tuple[Prediction, ...]) -> KeyStatus:
        """Keep the answer of a request; returns the one that is kept."""
        ...

    def abandon(self, name: RequestKey) -> None:
        """Free the key: the request failed."""
        ...

    async def run(self) -> None:
        """Forget what is old, until cancelled."""
        ...


class _KnownKey(msgspec.Struct):
    """One remembered key and, once computed, its answer."""

    fingerprint: bytes
    until_s: float
    answer: tuple[Prediction, ...] | None = None


class MemoryKeys:
    """The keys of one hub, in memory. `now`: in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._known: OrderedDict[RequestKey, _KnownKey] = OrderedDict()
        self._rows = 0

    def __len__(self) -> int:
        return len(self._known)

    @property
    def rows(self) -> int:
        """Predictions that are kept, of all keys together."""
        return self._rows

    async def run(self) -> None:
        """Wait until cancelled: what is old goes when its place is needed."""
        await asyncio.Event().wait()

    async def begin(self, name: RequestKey, fingerprint: bytes) -> KeyStatus:
        """Register a request under its key, or say what is known of it."""
        now = self._now()
        known = self._known.get(name)
        if known is not None and known.answer is not None and known.until_s <= now:
            self._forget(name)
            known = None
        if known is None:
            self._known[name] = _KnownKey(fingerprint, now + LIFE_S)
            self._drop_oldest()
            return NewRequest()
        if known.fingerprint != fingerprint:
            return KeyConflict()
        return RequestRunning() if known.answer is None else StoredAnswer(known.answer)

    async def finish(self, name: RequestKey, predictions: tuple[Prediction, ...]) -> KeyStatus:
        """Keep the answer of a request for `LIFE_S`."""
        known = self._known.get(name)
        if known is not None:
            known.answer, known.until_s = predictions, self._now() + LIFE_S
            self._rows += len(predictions)
            self._known.move_to_end(name)
            self._drop_oldest()
        return StoredAnswer(predictions)

    def abandon(self, name: RequestKey) -> None:
        """Free the key: the request failed."""
        self._forget(name)

    def _forget(self, name: RequestKey) -> None:
        known = self._known.pop(name, None)
        self._rows -= len(known.answer or ()) if known else 0

    def _drop_oldest(self) -> None:
        """Forget the oldest answers above the bounds; running requests stay, the queue bounds them."""
        while len(self._known) > MAX_KEYS or self._rows > MAX_ROWS:
            oldest = next((name for name, known in self._known.items() if known.answer is not None), None)
            if oldest is None:
                return
            self._forget(oldest)
