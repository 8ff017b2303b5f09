"""Small JSON bodies, read strictly: bounded bytes and depth, no key twice, no unknown key, one error type."""

import json
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from wire.http.guards import read_body
from wire.http.merging_oip_oip import OipError

MAX_BYTES = 16 * 1024
WITHIN_S = 10.0

T = TypeVar("T")


async def read_json(request: web.Request, kind: type[T]) -> T:
    """The body as `kind` (a Struct that forbids unknown fields). OipError 400, 408 or 413 otherwise."""
    return parse(await read_body(request, MAX_BYTES, WITHIN_S), kind)


def parse(body: bytes, kind: type[T]) -> T:
    """OipError(400) says what is wrong, never what was sent."""
    try:
        json.loads(body, object_pairs_hook=_once)
        return msgspec.json.decode(body, type=kind)
    except RecursionError:
        raise OipError(400, "the JSON is nested too deeply") from None
    except msgspec.ValidationError as error:
        raise OipError(400, str(error)) from None
    except (ValueError, msgspec.DecodeError):  # not UTF-8, not JSON, a key twice
        raise OipError(400, "the body is not proper JSON, or a key stands there twice") from None


def answer(value: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """`value` (builtins or Structs) as JSON."""
    return web.Response(
        status=status, body=msgspec.json.encode(value), content_type="application/json", headers=headers
    )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two readers that disagree on which of two equal keys counts can be played against each other."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands there twice")
    return found
