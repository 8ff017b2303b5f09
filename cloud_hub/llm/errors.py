"""Refusals and failures of language-model requests, in the form in which OpenAI's interface tells them.

Source: OpenAI API reference, "Error codes"; `{"error": {"message", "type", "param", "code"}}`.
"""

import math
from enum import StrEnum

import msgspec

from wire.http.openapi import TEXT, Schema


class LlmErrorType(StrEnum):
    """Value of `error.type`: whose fault it is, as clients of OpenAI's interface know it."""

    INVALID_REQUEST = "invalid_request_error"
    AUTHENTICATION = "authentication_error"
    PERMISSION = "permission_error"
    NOT_FOUND = "not_found_error"
    RATE_LIMIT = "rate_limit_error"
    SERVER = "server_error"


_TYPES = {
    401: LlmErrorType.AUTHENTICATION,
    403: LlmErrorType.PERMISSION,
    404: LlmErrorType.NOT_FOUND,
    429: LlmErrorType.RATE_LIMIT,
}


class LlmError(Exception):
    """A request that is not answered: HTTP status, one line, and for 429 and 503 when to ask again.

    `code`: one word for programs; `param`: the field of the request that is wrong, "" = none. `retry_after_s` 0 =
    asking again is no use.
    """

    def __init__(
        self, status: int, message: str, *, code: str = "", param: str = "", retry_after_s: float = 0.0
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """Return the response headers: `Retry-After` in whole seconds, at least 1, where asking again helps."""
        return {"Retry-After": str(max(1, math.ceil(self.retry_after_s)))} if self.status in (429, 503) else {}

    def encode(self) -> bytes:
        """Encode the response body."""
        return encode_error(self.status, str(self), self.code, self.param)


def encode_error(status: int, message: str, code: str = "", param: str = "") -> bytes:
    """Encode an error as OpenAI's interface has it. `status` decides its type."""
    kind = _TYPES.get(status) or (LlmErrorType.SERVER if status >= 500 else LlmErrorType.INVALID_REQUEST)
    told = {"message": message, "type": kind.value, "param": param or None, "code": code or None}
    return msgspec.json.encode({"error": told})


LLM_ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {"message": TEXT, "type": TEXT},
        }
    },
}
