"""What an engine says is wrong, in whatever form it says it, and whose fault that is.

Rule: a caller gets the engine's own message and status, in the form of OpenAI's interface; never its headers, its HTML
or bytes that are no text. Rule: what an engine says of a request takes nothing from others: what may be the engine's
fault has its replica checked (`policies.serving.replicas.CircuitBreaker`), and no more. Pure.
Sources: error bodies of vLLM 0.32 (old form: `object: error`), SGLang 0.5, llama.cpp's server, llama-cpp-python, TGI 3
(`error` is a text) and FastAPI (`detail`); RFC 9110, section 10.2.3 (`Retry-After` in seconds or as a date).
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum, auto

import msgspec

from cloud_hub.llm.errors import LlmError, encode_error

MAX_ERROR_BYTES = 64 * 1024
MAX_MESSAGE = 1000
RETRY_S = 5.0  # where the engine does not say when to ask again
MOST_RETRY_S = 3600.0
_HUBS_KEY = frozenset({401, 403})  # the engine refuses the hub, not the caller
_IN_BETWEEN = frozenset({502, 503, 504})  # of a proxy before the engine, or of one that is not up


class EngineFault(Enum):
    """Whose fault a failure may be.

    `REQUEST`: the request's, or nobody's (the engine is busy, it has no such operation): the replica stays as it is.
    `UNCLEAR`: either's: the replica is checked, and another one is asked once. `ENGINE`: most likely the engine's: the
    replica is checked, and others are asked.
    """

    REQUEST = auto()
    UNCLEAR = auto()
    ENGINE = auto()


class EngineReport(msgspec.Struct, frozen=True):
    """An error as the engine worded it. `status`: the one in its body, 0 = none; texts are "" where there is none."""

    message: str = ""
    code: str = ""
    param: str = ""
    status: int = 0


class ReplicaFailedError(Exception):
    """A replica that did not answer. `status`: what the caller gets if no other one does; `fault`: whose it may be.

    `lost`: the connection was lost: it may have been an idle one that the engine closed.
    """

    def __init__(
        self,
        message: str,
        status: int = 502,
        fault: EngineFault = EngineFault.ENGINE,
        *,
        lost: bool = False,
        param: str = "",
        retry_after_s: float = RETRY_S,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.fault = fault
        self.lost = lost
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def code(self) -> str:
        """What went wrong, as callers are told it."""
        if self.status == 404:
            return "engine_unknown"
        return {429: "engine_busy", 503: "engine_busy", 504: "engine_timeout"}.get(self.status, "engine_failed")

    def describe(self) -> LlmError:
        """Return what the caller is told."""
        return LlmError(self.status, str(self), code=self.code, param=self.param, retry_after_s=self.retry_after_s)


def read_report(body: bytes) -> EngineReport:
    """Read what an engine says is wrong, from the body of an answer or of an event; empty for what is no such thing.

    What is longer than an error is (`MAX_ERROR_BYTES`) is not read.
    """
    if len(body) > MAX_ERROR_BYTES:
        return EngineReport()
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return EngineReport()
    return _read_said(said) if isinstance(said, dict) else EngineReport()


def _read_said(said: Mapping[str, object]) -> EngineReport:
    inner = said.get("error")
    if isinstance(inner, dict):
        said = inner
    elif isinstance(inner, str):
        said = {**said, "message": inner}
    message = said.get("message") or said.get("detail") or ""
    if isinstance(message, list):  # FastAPI: one entry for each field that is wrong
        message = "; ".join(str(each.get("msg", "")) for each in message if isinstance(each, dict))
    code = said.get("code")
    return EngineReport(
        message=_clean_text(message),
        code=code[:64] if isinstance(code, str) and code.isprintable() else "",
        param=_clean_text(said.get("param"))[:64],
        status=code if isinstance(code, int) and not isinstance(code, bool) and 400 <= code <= 599 else 0,
    )


def _clean_text(value: object) -> str:
    """Return a text in one line, without what is not printable."""
    text = value[: 4 * MAX_MESSAGE] if isinstance(value, str) else ""
    line = " ".join("".join(each if each.isprintable() or each.isspace() else " " for each in text).split())
    return line[:MAX_MESSAGE]


def is_callers_fault(status: int) -> bool:
    """Whether a status says that the request itself is wrong, so that no other replica takes it either."""
    return 400 <= status < 500 and status not in _HUBS_KEY and status not in (404, 408, 429)


def encode_refusal(status: int, report: EngineReport) -> bytes:
    """Return the body that tells a caller what the engine says is wrong with its request."""
    message = report.message or f"the engine refuses the request with status {status}"
    return encode_error(status, message, report.code, report.param)


def describe_failure(status: int, report: EngineReport, retry_after: str, now: datetime) -> ReplicaFailedError:
    """Return the failure that a status other than 200 is, unless it is the caller's fault."""
    retry_after_s = parse_retry_after(retry_after, now)
    if status in _HUBS_KEY:
        return ReplicaFailedError("the engine refuses the hub's own key")
    if status == 429:
        message = report.message or "the engine is busy, ask again"
        return ReplicaFailedError(message, 429, EngineFault.REQUEST, retry_after_s=retry_after_s)
    if status == 404:  # callers can ask a chat model for embeddings; that the model is there is checked
        message = report.message or "the engine does not know the model, or not this operation"
        return ReplicaFailedError(message, 404, EngineFault.REQUEST, param=report.param)
    message = f"the engine failed: {report.message}" if report.message else f"the engine failed with status {status}"
    if status in _IN_BETWEEN or status < 500:
        passed = status if status in _IN_BETWEEN else 502
        return ReplicaFailedError(message, passed, EngineFault.ENGINE, retry_after_s=retry_after_s)
    return ReplicaFailedError(message, min(status, 599), EngineFault.UNCLEAR)


def describe_error_body(report: EngineReport) -> ReplicaFailedError:
    """Return the failure that an error inside an answer of status 200 is, in an event of a stream or as a whole."""
    status = report.status or 502
    if is_callers_fault(status):
        message = report.message or "the engine refuses the request"
        return ReplicaFailedError(message, status, EngineFault.REQUEST, param=report.param)
    message = f"the engine failed: {report.message}" if report.message else "the engine ended the answer with an error"
    passed = status if status >= 500 or status in (404, 429) else 502
    fault = EngineFault.REQUEST if status in (404, 429) else EngineFault.UNCLEAR
    return ReplicaFailedError(message, passed, fault, param=report.param)


def parse_retry_after(text: str, now: datetime) -> float:
    """Return the seconds of a `Retry-After` header, a number or a date; `RETRY_S` for none or nonsense."""
    text = text.strip()
    if text.isascii() and text.isdecimal() and len(text) <= 9:
        return min(MOST_RETRY_S, max(1.0, float(text)))
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return RETRY_S
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return min(MOST_RETRY_S, max(1.0, (at - now).total_seconds()))
