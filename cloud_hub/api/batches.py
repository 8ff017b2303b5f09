"""Routes of batches: `POST /v1/batches` takes a file of jobs as JSON lines; progress, answers, and cancelling.

Rule: a file counts as a whole: what is wrong with one line refuses all of it, in one line that names it.
"""

import asyncio
from collections.abc import AsyncIterator

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from sqlalchemy.exc import SQLAlchemyError

from cloud_hub.api.auth import caller_of
from cloud_hub.api.interface import ApiContext
from cloud_hub.api.jobs import JobRoutes, ask_desk, refuse_quota
from cloud_hub.api.oip import read_idempotency_key
from cloud_hub.api.routing import Route, RouteAccess, answer_json
from cloud_hub.jobs.batches import RECEIVE_S, BatchDesk, BatchReceivingError, describe_batch
from cloud_hub.jobs.desk import JobConflictError, JobDesk
from cloud_hub.jobs.quota import JobQuotaError
from cloud_hub.jobs.runner import WorkFailedError
from cloud_hub.registry.access import Scope
from wire.http.guards import error_response
from wire.http.oip import OipError

_NO_SUCH = "no such batch"
_LINES = "application/x-ndjson"
_FILE = {"required": True, "content": {_LINES: {"schema": {"type": "string"}}}}
_BATCH = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "state": {"type": "string", "enum": ["receiving", "running", "ended"]},
        "lines": {"type": "integer"},
        "ended": {"type": "integer"},
        "jobs": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
}


class BatchRoutes:
    """The routes. `jobs`: those of single jobs, which a line is read by; `idle_s`: for the next bytes to arrive."""

    def __init__(self, desk: BatchDesk, jobs: JobRoutes, idle_s: float) -> None:
        self._desk = desk
        self._jobs = jobs
        self._idle_s = idle_s

    def routes(self) -> list[Route]:
        """Return the routes of this group."""
        one = "/v1/batches/{batch}"
        return [
            Route(
                "POST", "/v1/batches", self.submit, "Hand over a file of jobs, a line each", RouteAccess.KEY,
                scope=Scope.INFER, takes=_FILE, gives=_BATCH, status=202, tag="jobs",
            ),
            _route("GET", one, self.show, "Progress of a batch"),
            _route("DELETE", one, self.cancel, "Cancel what has not ended of a batch"),
            Route(
                "GET", one + "/answers", self.list_answers, "Answers of a batch as JSON lines, after a line",
                RouteAccess.KEY, scope=Scope.INFER, plain=_LINES, tag="jobs",
                parameters={"after": {"type": "integer", "minimum": 0, "default": 0}},
            ),
        ]  # fmt: skip

    async def submit(self, request: web.Request) -> web.Response:
        """Store a file: 202 with its `Location`.

        400, 403, 404 or 413 with the line that is wrong, 408 too slow, 409 or 422 Idempotency-Key, 429 too many
        open, 503 as for a job.
        """
        caller, key = caller_of(request), read_idempotency_key(request)
        refused = self._jobs.refuse_early(caller)
        if refused is not None:
            return refused
        try:
            batch = await self._desk.submit(
                self._read_chunks(request), lambda line: self._jobs.read_order(line, caller), caller.tenant, key
            )
        except JobConflictError:
            raise OipError(422, "this Idempotency-Key came with another file before") from None
        except BatchReceivingError:
            headers = {"Retry-After": "5"}
            return error_response(409, "a file with this Idempotency-Key is coming in, ask again", headers)
        except JobQuotaError as error:
            return refuse_quota(error)
        except (WorkFailedError, SQLAlchemyError):
            return error_response(503, "nothing was stored: the hub cannot write, ask again", {"Retry-After": "5"})
        view = await ask_desk(self._desk.show(batch.id, ""))
        told = describe_batch(view) if view is not None else {"id": batch.id}
        return answer_json(told, 202, {"Location": f"/v1/batches/{batch.id}"})

    async def _read_chunks(self, request: web.Request) -> AsyncIterator[bytes]:
        """Yield the body as it comes. OipError(408) if it stops, or takes too long, 400 if the caller hangs up."""
        until = asyncio.get_running_loop().time() + RECEIVE_S * 0.9
        while True:
            left_s = until - asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(max(0.0, min(self._idle_s, left_s))):
                    chunk = await request.content.readany()
            except TimeoutError:
                raise OipError(408, "the file did not come in time") from None
            except ConnectionError:
                raise OipError(400, "the caller hung up before the end of its file") from None
            if not chunk:
                return
            yield chunk

    async def show(self, request: web.Request) -> web.Response:
        """Answer with the progress of a batch: 200; 404."""
        view = await ask_desk(self._desk.show(request.match_info["batch"][:64], caller_of(request).tenant))
        if view is None:
            raise OipError(404, _NO_SUCH)
        return answer_json(describe_batch(view), headers={"Cache-Control": "no-store"})

    async def cancel(self, request: web.Request) -> web.Response:
        """Cancel what has not ended: 200 with the progress; 404; 409 if everything has."""
        count = await ask_desk(self._desk.cancel(request.match_info["batch"][:64], caller_of(request).tenant))
        if count is None:
            raise OipError(404, _NO_SUCH)
        if not count:
            raise OipError(409, "every job of the batch has ended already")
        return await self.show(request)

    async def list_answers(self, request: web.Request) -> web.Response:
        """Answer with JSON lines of at most 1,000 answers, in the order of the file: 200; 400; 404."""
        text = request.query.get("after", "0")
        if not (text.isascii() and text.isdecimal() and len(text) <= 9):
            raise OipError(400, "after is the number of a line")
        tenant = caller_of(request).tenant
        found = await ask_desk(self._desk.list_answers(request.match_info["batch"][:64], tenant, int(text)))
        if found is None:
            raise OipError(404, _NO_SUCH)
        lines = [
            msgspec.json.encode(
                {"line": job.line, "job": job.id, "custom_id": job.custom_id, "answer": msgspec.Raw(answer)}
            )
            + b"\n"
            for job, answer in found
        ]
        return web.Response(body=b"".join(lines), content_type=_LINES, headers={"Cache-Control": "no-store"})


def list_job_routes(context: ApiContext, desk: JobDesk, body: tuple[int, float]) -> list[Route]:
    """Return the routes of jobs and batches. `body`: largest body, or line of a file, and the seconds it may take."""
    jobs = JobRoutes(context, desk, body)
    limits = msgspec.structs.replace(desk.settings.batches, max_line_bytes=body[0])
    return [*jobs.routes(), *BatchRoutes(BatchDesk(desk, limits), jobs, body[1]).routes()]


def _route(method: str, path: str, handler: Handler, says: str) -> Route:
    return Route(method, path, handler, says, RouteAccess.KEY, scope=Scope.INFER, gives=_BATCH, tag="jobs")
