"""Server-sent events (WHATWG HTML, section 9.2): a decoder, and a stream that goes on where it broke. No I/O."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from skerry_client.errors import APIConnectionError, APIResponseValidationError, make_status_error
from skerry_client.exchange.commands import (
    RETRIED,
    Command,
    Item,
    Items,
    Open,
    Pause,
    Read,
    Reply,
    Request,
    Steps,
    read_error_line,
)

T = TypeVar("T")
IDLE_S = 20.0  # the agent sends a comment every 5 s
FIRST_PAUSE_S = 0.25
MAX_PAUSE_S = 5.0
MAX_EVENT_CHARS = 1 << 20


@dataclass(frozen=True)
class ServerEvent:
    """One event of a stream."""

    id: str
    name: str
    data: str


class EventDecoder:
    """Decoder of a stream's bytes, fed in pieces of any size. `last_id`: of the last event that was whole."""

    def __init__(self) -> None:
        self.last_id = ""
        self._rest = bytearray()
        self._fields: dict[str, str] = {}
        self._data: list[str] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """Return the events that this piece completes. APIResponseValidationError for one beyond all measure."""
        events: list[ServerEvent] = []
        at = 0
        while (end := piece.find(b"\n", at)) >= 0:
            self._rest += piece[at:end]
            event = self._take_line(bytes(self._rest.removesuffix(b"\r")))
            if event is not None:
                events.append(event)
            self._rest.clear()
            at = end + 1
        self._rest += piece[at:]
        if self._size + len(self._rest) > MAX_EVENT_CHARS:
            raise APIResponseValidationError(f"an event of more than {MAX_EVENT_CHARS} characters came")
        return events

    def _take_line(self, line: bytes) -> ServerEvent | None:
        if not line:
            return self._end_event()
        name, _, value = line.decode(errors="replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._size += len(value) + 1
            self._data.append(value)
        elif name in ("id", "event"):
            self._fields[name] = value
        return None

    def _end_event(self) -> ServerEvent | None:
        fields, data = self._fields, self._data
        self._fields, self._data, self._size = {}, [], 0
        self.last_id = fields.get("id", self.last_id)
        return ServerEvent(self.last_id, fields.get("event", "message"), "\n".join(data)) if data else None


def follow_events(path: str, after: int | None, patience_s: float, read: Callable[[ServerEvent], T | None]) -> Items[T]:
    """Yield what `read` makes of the events behind number `after` (None: new ones), over every break of the connection.

    An event that came twice is given once; one of which `read` makes None is skipped. APIConnectionError after
    `patience_s` in which no stream could be had; APIStatusError if the server refuses.
    """
    patience, last = _Patience(patience_s), after
    while True:
        try:
            decoder = EventDecoder()
            yield from _open_stream(path, last)
            while piece := (yield Read()):
                patience.renew()
                last = yield from _give_events(decoder, piece, last, read)
        except APIConnectionError as error:
            patience.spend(error)
        yield patience.next_pause()


def persevere(begin: Callable[[], Steps[T]], patience_s: float) -> Steps[T]:
    """Obey an operation, anew while the server is away. APIConnectionError after `patience_s` of that."""
    patience = _Patience(patience_s)
    while True:
        try:
            return (yield from begin())
        except APIConnectionError as error:
            patience.spend(error)
        yield patience.next_pause()


class _Patience:
    """Seconds for which a server may be away, and the pauses between attempts, each twice as long as the last."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.renew()

    def renew(self) -> None:
        """The server answered: begin anew."""
        self._lost_s, self._pause_s = 0.0, FIRST_PAUSE_S

    def spend(self, error: APIConnectionError) -> None:
        """Count the seconds of a failed attempt. Raises its error when patience is at an end."""
        self._lost_s += error.elapsed_s
        if self._lost_s > self._patience_s:
            raise error

    def next_pause(self) -> Pause:
        """Pause before the next attempt, counted as lost."""
        pause = Pause(self._pause_s / 2, self._pause_s)
        self._lost_s, self._pause_s = self._lost_s + self._pause_s, min(MAX_PAUSE_S, self._pause_s * 2)
        return pause


def _give_events(
    decoder: EventDecoder, piece: bytes, last: int | None, read: Callable[[ServerEvent], T | None]
) -> Generator[Item[T], Any, int | None]:
    """Give what `read` makes of the events that a piece completes, those up to `last` apart; return the new last."""
    for event in decoder.feed(piece):
        number = _number_of(event.id)
        fresh, last = last is None or number > last, max(number, last or 0)
        if fresh and (value := read(event)) is not None:
            yield Item(value)
    return _number_of(decoder.last_id) if last is None and decoder.last_id else last  # where the stream began


def _open_stream(path: str, last: int | None) -> Generator[Command, Any, None]:
    """Open the stream. APIConnectionError if the server is busy or starting, APIStatusError if it refuses."""
    headers = {"Accept": "text/event-stream"} | ({} if last is None else {"Last-Event-ID": str(last)})
    reply: Reply = yield Open(Request("GET", path, headers=headers, safe=True), IDLE_S)
    refused = make_status_error(reply.status, read_error_line(reply), f"GET {path}")
    if reply.status in RETRIED:
        raise APIConnectionError(str(refused))
    if not reply.ok:
        raise refused
    if not reply.headers.get("content-type", "").startswith("text/event-stream"):
        raise APIResponseValidationError(f"GET {path}: the reply is no event stream; is this a Skerry agent?")


def _number_of(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise APIResponseValidationError("an event without a number came; is this a Skerry agent?")
    return int(text)
