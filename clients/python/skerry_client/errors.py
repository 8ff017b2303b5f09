"""Errors of the client, under the names that clients of web APIs have: one class for each kind of refusal.

Rule: every error is one line that says what to do; a reply's text is shortened and made printable first.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skerry_client.answers import Answer

MAX_ERROR_CHARS = 300


class SkerryError(Exception):
    """Base of every error of this client."""


class SampleError(SkerryError, ValueError):
    """A sample that does not fit the model's input; nothing was sent."""


class ArgumentError(SkerryError, ValueError):
    """An argument of a call that means nothing, such as a negative time; nothing was sent."""


class APIConnectionError(SkerryError):
    """Nobody answers, or the connection broke before the whole reply was there.

    `sent`: whether the request may have reached the server. `elapsed_s`: how long the attempt took.
    """

    def __init__(self, line: str, *, sent: bool = False, elapsed_s: float = 0.0) -> None:
        super().__init__(line)
        self.sent = sent
        self.elapsed_s = elapsed_s


class APITimeoutError(APIConnectionError):
    """The server did not answer in time."""


class APIResponseValidationError(SkerryError):
    """A reply of another schema than this client knows: the server is of another version, or no Skerry server."""


class APIStatusError(SkerryError):
    """A reply with an error status. `status_code`; `message`: the server's own line; `retry_after_s`: if it says so."""

    def __init__(self, status_code: int, message: str, where: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(f"{where}: {status_code}: {message}" if where else f"{status_code}: {message}")
        self.status_code = status_code
        self.message = message
        self.retry_after_s = retry_after_s


class BadRequestError(APIStatusError):
    """400: the request does not fit the model or the protocol."""


class AuthenticationError(APIStatusError):
    """401: no valid token; give `token` or `token_file`."""


class PermissionDeniedError(APIStatusError):
    """403: the token lacks the scope or the tenant, or the server does not serve this host name."""


class NotFoundError(APIStatusError):
    """404: no such model, answer, job or device, or another tenant's."""


class ConflictError(APIStatusError):
    """409: what is asked for does not go with the present state."""


class UnprocessableEntityError(APIStatusError):
    """422: the idempotency key came with another payload before."""


class RateLimitError(APIStatusError):
    """429: more than this caller's share; `retry_after_s` says when to come again."""


class ServiceUnavailableError(APIStatusError):
    """503: no model yet, disabled by policy, busy or stopping."""


class InternalServerError(APIStatusError):
    """Any other 5xx: a defect of the server, or its engine."""


class UnsureError(SkerryError):
    """Asked for a sure answer: the device was unsure and the hub did not answer in time. `answer`: the device's own."""

    def __init__(self, answer: "Answer") -> None:
        super().__init__(
            f"the device is unsure of {answer.answer_id} (confidence {answer.confidence:.2f}, {answer.reason}) and no "
            "correction came in time; it stands in `answer`, and a correction may still follow"
        )
        self.answer = answer


_CLASSES: Mapping[int, type[APIStatusError]] = {
    HTTPStatus.BAD_REQUEST: BadRequestError,
    HTTPStatus.UNAUTHORIZED: AuthenticationError,
    HTTPStatus.FORBIDDEN: PermissionDeniedError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.CONFLICT: ConflictError,
    HTTPStatus.UNPROCESSABLE_ENTITY: UnprocessableEntityError,
    HTTPStatus.TOO_MANY_REQUESTS: RateLimitError,
    HTTPStatus.SERVICE_UNAVAILABLE: ServiceUnavailableError,
}


def check_seconds(name: str, seconds: float) -> None:
    """Check an argument that is a time. ArgumentError if it is negative or no number."""
    if not seconds >= 0:  # true of NaN
        raise ArgumentError(f"{name}={seconds!r}: a time of 0 seconds or more")


def make_status_error(status: int, message: str, where: str, retry_after_s: float | None = None) -> APIStatusError:
    """Return the error of a status. `message`: the server's line; `where`: method and path."""
    kind = _CLASSES.get(status, InternalServerError if status >= HTTPStatus.INTERNAL_SERVER_ERROR else APIStatusError)
    known = status in {each.value for each in HTTPStatus}
    phrase = HTTPStatus(status).phrase.lower() if known else "no reason was given"
    return kind(status, make_printable(message) or phrase, where, retry_after_s)


def make_printable(text: str) -> str:
    """One line of another machine's text: printable and of at most `MAX_ERROR_CHARS` characters."""
    return "".join(c if c.isprintable() else "?" for c in text.strip()[:MAX_ERROR_CHARS])
