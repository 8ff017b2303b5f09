"""What a web request wants beside its samples: headers and the protocol's parameters become one `Wish`.

Rule: a parameter that is not known or not of its type is refused by name; a damaged traceparent is no traceparent, as
W3C Trace Context 4.3 says.
"""

import re
import secrets
from collections.abc import Mapping
from hashlib import sha256

from aiohttp import web

from cloud_hub.core.merging_web_requests_requests import Wish
from cloud_hub.registry.access import Caller
from wire.http.merging_oip_oip import OipError, Parameter, short
from wire.process.tracing import place

MAX_TIMEOUT_US = 3_600_000_000
_HARMLESS = frozenset({"priority", "timeout", "sequence_id", "sequence_start", "sequence_end"})
NOTHING = Wish()
_KEY = re.compile(r'"?([\x21\x23-\x7e]{1,128})"?')  # RFC 9651 string, or the same without its quotes


def wish_of(request: web.Request, parameters: Mapping[str, Parameter], caller: Caller, body: bytes) -> Wish:
    """OipError(400) names what is wrong."""
    for key in parameters:
        if key not in _HARMLESS:
            raise OipError(400, f"unknown parameter '{short(key)}': the hub takes priority and timeout")
    key = _idempotency(request)
    fingerprint = sha256(request.path.encode(errors="surrogateescape") + b"\n" + body).digest() if key else b""
    return Wish(
        tenant=caller.tenant,
        priority=_whole(parameters, "priority", 2**32 - 1),
        timeout_s=_whole(parameters, "timeout", MAX_TIMEOUT_US) / 1e6,
        trace=entered(request.headers.get("traceparent", "")),
        idempotency=key,
        fingerprint=fingerprint,
        flow=caller.name,
    )


def entered(traceparent: str) -> str:
    """The traceparent of what the hub does below the caller's span; "" if there is none, or none to be recorded."""
    given = place(traceparent)
    return f"00-{given.trace}-{secrets.token_hex(8)}-01" if given else ""


def span_of(traceparent: str) -> str:
    """The span that a traceparent of ours names."""
    return traceparent[36:52]


def _idempotency(request: web.Request) -> str:
    """The key; "" where none came."""
    found = request.headers.getall("Idempotency-Key", [])
    if not found:
        return ""
    match = _KEY.fullmatch(found[0].strip()) if len(found) == 1 else None
    if match is None:
        raise OipError(400, "Idempotency-Key is one string of 1 to 128 visible ASCII characters")
    return match[1]


def _whole(parameters: Mapping[str, Parameter], name: str, most: int) -> int:
    value = parameters.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise OipError(400, f"parameter '{name}' is a whole number from 0 to {most}")
    return value
