"""Commands that an operation gives to a transport, the replies it gets, and when a request is sent again. No I/O.

An operation is a generator: it yields commands, is sent what came of each (`Request`: a `Reply`; `Open`: the `Reply`
whose body is then read by `Read`, as bytes that are empty at the end; `Pause`: None), and returns its result. A failed
exchange is thrown into it as `APIConnectionError`.
"""

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from skerry_client.errors import APIConnectionError, APIResponseValidationError, make_status_error

T = TypeVar("T")
RETRIED = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
MAX_TRIES = 3
FIRST_PAUSE_S = 0.5
MAX_RETRY_AFTER_S = 60.0


@dataclass(frozen=True)
class Request:
    """One exchange. `timeout_s`: for the whole reply; 0 = the transport's own.

    `safe`: may be sent again although the first may have arrived (a read, or one with an idempotency key).
    """

    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 0.0
    safe: bool = False

    @property
    def where(self) -> str:
        """Method and path, without the query."""
        return f"{self.method} {self.path.partition('?')[0]}"


@dataclass(frozen=True)
class Open:
    """Open a reply whose body comes piece by piece. `idle_s`: the longest silence before the stream counts as lost."""

    request: Request
    idle_s: float


@dataclass(frozen=True)
class Read:
    """Read the next piece of the opened reply."""


@dataclass(frozen=True)
class Pause:
    """Wait for a random time between these bounds, in seconds."""

    least_s: float
    most_s: float


@dataclass(frozen=True)
class Item(Generic[T]):
    """One value for the caller of an iteration."""

    value: T


@dataclass(frozen=True)
class Reply:
    """A reply: status, header names in lower case, body (empty of an opened one), and how long it took."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    elapsed_s: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the status is a 2xx."""
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES


Command = Request | Open | Read | Pause
Steps = Generator[Command, Any, T]
Items = Generator[Command | Item[T], Any, None]


def build_path(*parts: str, **query: object) -> str:
    """Return a path of quoted parts and a query; values that are None are left out, lists repeat their key."""
    asked = {key: value for key, value in query.items() if value is not None}
    path = "/".join(["", *(quote(part, safe="") for part in parts)])
    return f"{path}?{urlencode(asked, doseq=True)}" if asked else path


def send(request: Request) -> Steps[Reply]:
    """Send a request, again where that is harmless, and return its 2xx reply. APIStatusError, APIConnectionError.

    Sent again: what surely did not arrive, what is `safe`, and what was refused with 429 or 503 (nothing was done).
    """
    for tried in range(1, MAX_TRIES + 1):
        last = tried == MAX_TRIES
        try:
            reply: Reply = yield request
        except APIConnectionError as error:
            if last or (error.sent and not request.safe):
                raise
            yield _back_off(tried)
            continue
        if reply.ok:
            return reply
        wait_s = read_retry_after(reply)
        if last or reply.status not in RETRIED or wait_s is None or wait_s > MAX_RETRY_AFTER_S:
            raise make_status_error(reply.status, read_error_line(reply), request.where, wait_s)
        yield Pause(wait_s, wait_s * 1.25)
    raise AssertionError("unreachable")


def _back_off(tried: int) -> Pause:
    """Full jitter: any time up to one that doubles with each try."""
    return Pause(0.0, FIRST_PAUSE_S * 2 ** (tried - 1))


def fetch_object(request: Request) -> Steps[dict[str, Any]]:
    """Send a request and return the JSON object of its reply. APIResponseValidationError for anything else."""
    reply = yield from send(request)
    return parse_object(reply.body, request.where)


def parse_object(body: bytes | str, where: str) -> dict[str, Any]:
    """Parse a JSON object. APIResponseValidationError names where it came from."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise APIResponseValidationError(f"{where}: the reply is no JSON; is this a Skerry server?") from None
    if not isinstance(found, dict):
        raise APIResponseValidationError(f"{where}: the reply is no JSON object; is this a Skerry server?")
    return found


def read_error_line(reply: Reply) -> str:
    """Return the server's own line of a refusal: `{"error": line}`, or OpenAI's form; "" if there is none."""
    try:
        found = json.loads(reply.body)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    line = found.get("message", "") if isinstance(found, dict) else found
    return line if isinstance(line, str) else ""


def read_retry_after(reply: Reply) -> float | None:
    """Return the seconds of `Retry-After`; None without one. A date, which Skerry never sends, counts as none."""
    text = reply.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else None


def encode_json(value: object) -> bytes:
    """Encode a request's body. ValueError for NaN and infinities, which JSON has not."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


JSON_HEADERS: Mapping[str, str] = {"Content-Type": "application/json"}


def post_json(path: str, value: object = None, *, key: str = "") -> Request:
    """Return a POST of JSON; without a value it has no body. `key`: its Idempotency-Key, which makes it safe."""
    headers = {**(JSON_HEADERS if value is not None else {}), **({"Idempotency-Key": f'"{key}"'} if key else {})}
    body = encode_json(value) if value is not None else None
    return Request("POST", path, body, headers, safe=bool(key))


def advance(steps: Generator[Any, Any, Any], outcome: object) -> Any:
    """Tell an operation what came of its command, and return its next one. StopIteration at its end."""
    return steps.throw(outcome) if isinstance(outcome, APIConnectionError) else steps.send(outcome)
