"""Web requests that come twice under one Idempotency-Key: computed once, answered alike. Pure.

Rule: a key belongs to its tenant and to one payload. Only an answer is kept, for a day and within bounds; what failed
may be tried again. Kept in memory alone: an inference changes nothing, so a hub that restarted may compute it again.
"""

from collections import OrderedDict

import msgspec

from wire.protocol.messages import Prediction

LIFE_S = 86_400.0
MAX_KEYS = 4096
MAX_ROWS = 65_536  # predictions kept, of all keys together

_Name = tuple[str, str]  # tenant, key


class Begun(msgspec.Struct, frozen=True):
    """It is new: compute it, then `finish` or `abandon`."""


class Running(msgspec.Struct, frozen=True):
    """The same request is being computed."""


class Differs(msgspec.Struct, frozen=True):
    """Another payload came under this key before."""


class Stored(msgspec.Struct, frozen=True):
    predictions: tuple[Prediction, ...]


class _Known(msgspec.Struct):
    fingerprint: bytes
    until_s: float
    answer: tuple[Prediction, ...] | None = None


class Idempotency:
    """Owns what is remembered of keys. Times in seconds on one clock."""

    def __init__(self) -> None:
        self._known: OrderedDict[_Name, _Known] = OrderedDict()
        self._rows = 0

    def __len__(self) -> int:
        return len(self._known)

    def begin(self, name: _Name, fingerprint: bytes, now: float) -> Begun | Running | Differs | Stored:
        known = self._known.get(name)
        if known is not None and known.answer is not None and known.until_s <= now:
            self.abandon(name)
            known = None
        if known is None:
            self._known[name] = _Known(fingerprint, now + LIFE_S)
            self._bound()
            return Begun()
        if known.fingerprint != fingerprint:
            return Differs()
        return Running() if known.answer is None else Stored(known.answer)

    def finish(self, name: _Name, predictions: tuple[Prediction, ...], now: float) -> None:
        known = self._known.get(name)
        if known is not None:
            known.answer, known.until_s = predictions, now + LIFE_S
            self._rows += len(predictions)
            self._known.move_to_end(name)
            self._bound()

    def abandon(self, name: _Name) -> None:
        """There is no answer to keep: the key is free again."""
        known = self._known.pop(name, None)
        self._rows -= len(known.answer or ()) if known else 0

    def _bound(self) -> None:
        """The oldest answers go first; what is running stays, it is bounded by the queue."""
        while len(self._known) > MAX_KEYS or self._rows > MAX_ROWS:
            oldest = next((name for name, known in self._known.items() if known.answer is not None), None)
            if oldest is None:
                return
            self.abandon(oldest)
