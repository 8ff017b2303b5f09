"""Public read-only routes of the web API: the TUF update repository (`/tuf/...`) and the ledger log (`/v1/ledger/...`).

Rule: only names the repository itself could have made are looked up, so no path leaves its folders. A download goes on
by Range where it stopped, has to move at 1 KB/s, and 64 at once are enough: further ones get 503.
Rule: files of hub parts are for other hubs, which show a key of the whole hub's operator; others see none.
Rule: checkpoints and proofs hold hashes alone and are open to all; which device signed what needs a key.
"""

import asyncio
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from cloud_hub.api.auth import caller_of
from cloud_hub.api.routing import Route, RouteAccess, answer_json
from cloud_hub.registry.access import Scope
from cloud_hub.storage.ledger_service import LedgerLogService, encode_base64
from models.signing.roles import is_repository_path
from wire.http.guards import error_response
from wire.http.oip import OipError
from wire.protocol.topics import extract_tenant

RETRY_S = 30
CHUNK_BYTES = 1 << 18
IMMUTABLE = "public, max-age=86400, immutable"
UNSHARED = "private, no-store"  # what only a key's holder may read stays in no cache
_METADATA = re.compile(r"(?:timestamp|[1-9]\d{0,15}\.[a-z0-9][a-z0-9_.-]{0,80})\.json")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_HASHED = re.compile(r"(.{1,300}/)([0-9a-f]{64})\.([^/]{1,255})")


class ByteRange(NamedTuple):
    """Byte range of a file: `start` up to, not including, `stop` of `size`."""

    start: int
    stop: int
    size: int


class DownloadLimits(NamedTuple):
    """Limits of downloads: how many at once, and how fast each has to move once its first minute is over."""

    downloads: int = 64
    grace_s: float = 60.0
    bytes_per_s: float = 1024.0


class TufRoutes:
    """Routes below `/tuf`: metadata and targets of the update repository for devices and mirrors, hub parts for hubs.

    `folder` holds `metadata`, `targets` and `parts`; where it is empty everything is 404. Targets and parts are named
    by their SHA-256 and never change, so caches may keep targets for a day.
    """

    def __init__(self, folder: Path, limits: DownloadLimits | None = None) -> None:
        self._folder = folder
        self._limits = limits or DownloadLimits()
        self._downloads = 0

    def routes(self) -> list[Route]:
        """Return the routes of this group."""
        describe = partial(Route, "GET", plain="application/octet-stream", tag="updates")
        says, part = "A file of the update repository", "A file of a hub part, by its SHA-256, for another hub"
        named = {"digest": {"type": "string", "pattern": "^[0-9a-f]{64}$"}}
        return [
            describe("/tuf/metadata/{name}", self.send_metadata, says, RouteAccess.OPEN, scope=Scope.READ),
            describe("/tuf/targets/{path:.+}", self.send_target, says, RouteAccess.OPEN, scope=Scope.READ),
            describe("/tuf/parts/{digest}", self.send_part, part, RouteAccess.HIDDEN, Scope.OPERATE, parameters=named),
        ]

    async def send_metadata(self, request: web.Request) -> web.StreamResponse:
        """Send a metadata file. Numbered files never change and may be cached; the timestamp may not.

        404 for every name that the repository could not have made.
        """
        name = request.match_info["name"]
        path = self._folder / "metadata" / name
        if not _METADATA.fullmatch(name) or not path.is_file():
            raise OipError(404, "no such metadata")
        keep = "no-cache" if name == "timestamp.json" else IMMUTABLE
        return web.FileResponse(path, headers=_file_headers("application/json", keep))

    async def send_target(self, request: web.Request) -> web.StreamResponse:
        """Send a target, or the rest of one (Range). 503 while 64 others download."""
        match = _HASHED.fullmatch(request.match_info["path"])
        path = self._folder / "targets" / request.match_info["path"]
        if not match or not is_repository_path(match[1] + match[3]) or not path.is_file():
            raise OipError(404, "no such target")
        return await self._send_file(request, path, match[2], IMMUTABLE)

    async def send_part(self, request: web.Request) -> web.StreamResponse:
        """Send a file of a hub part, or the rest of one (Range). 503 while 64 others download."""
        digest = request.match_info["digest"]
        path = self._folder / "parts" / digest
        if not _DIGEST.fullmatch(digest) or not path.is_file():
            raise OipError(404, "no such thing")
        return await self._send_file(request, path, digest, UNSHARED)

    async def _send_file(self, request: web.Request, path: Path, digest: str, keep: str) -> web.StreamResponse:
        """Send a file that never changes, as one of at most so many downloads at once; 503 beyond."""
        if self._downloads >= self._limits.downloads:
            return error_response(503, "too many downloads at once: try again later", {"Retry-After": str(RETRY_S)})
        self._downloads += 1
        try:
            return await self._send_range(request, path, digest, keep)
        finally:
            self._downloads -= 1

    async def _send_range(self, request: web.Request, path: Path, digest: str, keep: str) -> web.StreamResponse:
        """Answer 200, 206, 304 or 416 (RFC 9110, 13 and 14).

        The ETag is the content's hash: the same on every mirror.
        """
        size = path.stat().st_size
        headers = {
            **_file_headers("application/octet-stream", keep),
            "ETag": f'"{digest}"',
            "Accept-Ranges": "bytes",
        }
        if any(tag.value in (digest, "*") for tag in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        part = _parse_range(request, size, digest)
        if part is None:
            return web.Response(status=416, headers={**headers, "Content-Range": f"bytes */{size}"})
        response = web.StreamResponse(status=200 if part.stop - part.start == size else 206, headers=headers)
        response.content_length = part.stop - part.start
        if response.status == 206:
            response.headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{size}"
        pieces = _read_pieces(path, part) if request.method != "HEAD" else iter(())
        within_s = self._limits.grace_s + (part.stop - part.start) / self._limits.bytes_per_s
        await _send_pieces(request, response, pieces, within_s)
        return response


async def _send_pieces(
    request: web.Request, response: web.StreamResponse, pieces: Iterator[bytes], within_s: float
) -> None:
    """Send the pieces; the connection is cut where the reader is too slow or gone.

    `within_s`: seconds for the whole of it.
    """
    try:
        async with asyncio.timeout(within_s):
            await response.prepare(request)
            while piece := await asyncio.to_thread(next, pieces, b""):  # a large file is not in the page cache
                await response.write(piece)
            await response.write_eof()
    except (TimeoutError, ConnectionError):
        if request.transport is not None:
            request.transport.abort()


def _read_pieces(path: Path, part: ByteRange) -> Iterator[bytes]:
    """Yield the bytes of a range in chunks of 256 KiB."""
    left = part.stop - part.start
    with path.open("rb") as file:
        file.seek(part.start)
        while left > 0 and (piece := file.read(min(CHUNK_BYTES, left))):
            yield piece
            left -= len(piece)


def _parse_range(request: web.Request, size: int, digest: str) -> ByteRange | None:
    """Return the requested range, None if it lies outside. If-Range for another file gets the whole file."""
    if request.headers.get("If-Range", f'"{digest}"') != f'"{digest}"':
        return ByteRange(0, size, size)
    try:
        start, stop, _ = request.http_range.indices(size)
    except ValueError:  # several ranges, or no proper one: it may be ignored
        return ByteRange(0, size, size)
    return ByteRange(start, stop, size) if start < stop else None


def _file_headers(kind: str, keep: str) -> dict[str, str]:
    """Return the headers of a file: content type, caching, no sniffing."""
    return {"Content-Type": kind, "Cache-Control": keep, "X-Content-Type-Options": "nosniff"}


_MAX_DIGITS = 18
_NUMBER = {"type": "integer", "minimum": 0, "maximum": 10**_MAX_DIGITS - 1}


class LedgerRoutes:
    """Routes of the log of the devices' ledger heads, for anyone who checks that it only grows.

    `clerk` None: this hub keeps no log, and every route is 404.
    """

    def __init__(self, clerk: LedgerLogService | None) -> None:
        self._clerk = clerk

    def routes(self) -> list[Route]:
        """Return the routes of this group."""
        grown = "Proof that the log only grew from `first` to `second` heads (RFC 9162, 2.1.4)"
        held = "Proof that a leaf is in the log when it had `size` heads (RFC 9162, 2.1.3)"
        said = "The heads that a device has signed, as they stand in the log"
        shown = "A device's newest heads with whether each is proven, and what it spent"
        return [
            Route(
                "GET", "/v1/ledger/checkpoint", self.show_checkpoint, "The log's size and root, signed (C2SP)",
                RouteAccess.OPEN, plain="text/plain",
            ),
            Route(
                "GET", "/v1/ledger/consistency", self.prove_consistency, grown, RouteAccess.OPEN,
                parameters={"first": _NUMBER, "second": _NUMBER},
            ),
            Route(
                "GET", "/v1/ledger/inclusion", self.prove_inclusion, held, RouteAccess.OPEN,
                parameters={"index": _NUMBER, "size": _NUMBER},
            ),
            Route(
                "GET", "/v1/admin/ledger/{device}", self.list_heads, said, RouteAccess.KEY, scope=Scope.READ,
                parameters={"after": {**_NUMBER, "default": -1}},
            ),
            Route("GET", "/v1/admin/ledger/{device}/state", self.show_state, shown, RouteAccess.KEY, scope=Scope.READ),
        ]  # fmt: skip

    async def show_checkpoint(self, _request: web.Request) -> web.Response:
        """Answer with the signed checkpoint of the log (C2SP tlog-checkpoint)."""
        return web.Response(text=await self._log_service.sign_checkpoint(), headers={"Cache-Control": "no-store"})

    async def prove_consistency(self, request: web.Request) -> web.Response:
        """Answer with a consistency proof between two sizes (RFC 9162, 2.1.4); 404 if there is none."""
        first, second = _parse_number(request, "first"), _parse_number(request, "second")
        try:
            proof = await self._log_service.query_log(lambda log: log.prove_consistency(first, second))
        except ValueError as error:
            raise OipError(404, str(error)) from None
        return answer_json({"first": first, "second": second, "proof": [encode_base64(each) for each in proof]})

    async def prove_inclusion(self, request: web.Request) -> web.Response:
        """Answer with an inclusion proof of a leaf (RFC 9162, 2.1.3); 404 if there is none."""
        index, size = _parse_number(request, "index"), _parse_number(request, "size")
        try:
            proof = await self._log_service.query_log(lambda log: log.prove_inclusion(index, size))
        except ValueError as error:
            raise OipError(404, str(error)) from None
        return answer_json({"index": index, "size": size, "proof": [encode_base64(each) for each in proof]})

    async def show_state(self, request: web.Request) -> web.Response:
        """Answer with a device's newest heads, whether each is proven, and its spending; 404 of another tenant's."""
        device = request.match_info["device"]
        if not caller_of(request).sees_tenant(extract_tenant(device)):
            raise OipError(404, "no such device")
        return answer_json(await self._log_service.describe_ledger(device))

    async def list_heads(self, request: web.Request) -> web.Response:
        """Answer with a device's heads after the index `after`, each with its proof against one signed checkpoint."""
        device, after = request.match_info["device"], _parse_number(request, "after", -1)
        if not caller_of(request).sees_tenant(extract_tenant(device)):
            raise OipError(404, "no such device")
        return answer_json(await self._log_service.export_heads(device, after))

    @property
    def _log_service(self) -> LedgerLogService:
        """The log service; OipError(404) if this hub keeps no log."""
        if self._clerk is None:
            raise OipError(404, "this hub keeps no log")
        return self._clerk


def _parse_number(request: web.Request, key: str, otherwise: int | None = None) -> int:
    """Return a whole number from the query, `otherwise` if absent. OipError(400) if it is none."""
    text = request.query.get(key, "")
    if not text and otherwise is not None:
        return otherwise
    if not text.isascii() or not text.isdecimal() or len(text) > _MAX_DIGITS:
        raise OipError(400, f"{key}: a whole number is needed")
    return int(text)
