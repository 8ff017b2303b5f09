"""Routes of jobs: `POST /v1/jobs` hands work over, `GET`, `DELETE` and `.../requeue` ask what became of it.

Rule: a job is checked as an inference request is before it is stored, and answered for once it is. Rule: what belongs
to another tenant looks exactly like what does not exist.
"""

import math
from collections.abc import Awaitable
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from sqlalchemy.exc import SQLAlchemyError

from cloud_hub.api.auth import caller_of
from cloud_hub.api.interface import ApiContext
from cloud_hub.api.oip import read_idempotency_key
from cloud_hub.api.routing import Route, RouteAccess, answer_json
from cloud_hub.core.web_requests import InferRefusedError
from cloud_hub.database.errors import explain_fault
from cloud_hub.jobs.addresses import MAX_URL, check_hook
from cloud_hub.jobs.desk import JobConflictError, JobDesk, JobOrder, JobView
from cloud_hub.jobs.quota import JobQuotaError
from cloud_hub.jobs.runner import WorkFailedError
from cloud_hub.jobs.states import OPEN, Job, JobState, describe_job
from cloud_hub.registry.access import Caller, Scope
from policies.serving.fair_queue import extract_tenant
from wire.http.guards import error_response, read_body
from wire.http.oip import OipError
from wire.http.strict_json import parse_strict_json

MAX_LISTED = 1000
MAX_CUSTOM_ID = 64
_DEVICE = r"^([a-z0-9-]{1,64})?$"
_SUBJECT = r"^([0-9a-f]{64})?$"
_NO_SUCH = "no such job"
_UNWRITTEN = "nothing was changed: the hub cannot write, ask again"

T = TypeVar("T")


class JobRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a job.

    `model`: `NAME` or `NAME@VERSION`; `request`: an inference request of the Open Inference Protocol in JSON, or of a
    language model the body of a chat, a completion or an embedding; `custom_id`: the caller's own name of the job;
    `timeout_s`: its own time, 0 = the hub's default; `webhook`: URL that is told of its end, "" = none. `device`,
    `subject`: the device and the keyed hash (hex) of the person that it is about, so that an erasure finds it.
    """

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    request: msgspec.Raw
    timeout_s: Annotated[float, msgspec.Meta(ge=0, le=7 * 86_400)] = 0.0
    webhook: Annotated[str, msgspec.Meta(max_length=MAX_URL)] = ""
    device: Annotated[str, msgspec.Meta(pattern=_DEVICE)] = ""
    subject: Annotated[str, msgspec.Meta(pattern=_SUBJECT)] = ""
    custom_id: Annotated[str, msgspec.Meta(max_length=MAX_CUSTOM_ID)] = ""


_decoder = msgspec.json.Decoder(JobRequest)
_JOB = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "state": {"type": "string", "enum": [state.value for state in JobState]},
        "why": {"type": "string"},
        "answer": {"type": "object"},
    },
}
_JOBS = {"type": "object", "properties": {"jobs": {"type": "array", "items": _JOB}, "next": {"type": "string"}}}
_LISTED = {
    "state": {"type": "string", "enum": [state.value for state in JobState]},
    "after": {"type": "string"},
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LISTED, "default": 100},
}


class JobRoutes:
    """The routes. `body`: the largest body in bytes, and the seconds it may take to arrive."""

    def __init__(self, context: ApiContext, desk: JobDesk, body: tuple[int, float]) -> None:
        self._inference = context.inference
        self._hub = context.hub
        self._desk = desk
        self._body = body

    def routes(self) -> list[Route]:
        """Return the routes of this group."""
        one = "/v1/jobs/{job}"
        submit = _route("POST", "/v1/jobs", self.submit, "Hand over a job: answered 202 once it is stored")
        listed = _route("GET", "/v1/jobs", self.list, "Jobs, the oldest first")
        return [
            replace(submit, takes=JobRequest, status=202),
            replace(listed, parameters=_LISTED, gives=_JOBS),
            _route("GET", one, self.show, "What became of a job, and its answer"),
            _route("DELETE", one, self.cancel, "Cancel a job that has not ended"),
            _route("POST", one + "/requeue", self.requeue, "Queue a dead job again"),
        ]

    async def submit(self, request: web.Request) -> web.Response:
        """Store a job: 202 with its `Location`.

        400 wrong shape, 404 no such model, 413 too large, 422 the key was another request's, 429 too many open, 503
        busy, stopping or not written.
        """
        caller = caller_of(request)
        refused = self.refuse_early(caller)
        if refused is not None:
            return refused
        key = read_idempotency_key(request)
        payload = await read_body(request, *self._body)
        order = self.read_order(payload, caller, key)
        try:
            job: Job = await self._desk.submit(order)
        except JobConflictError:
            raise OipError(422, "this Idempotency-Key came with another job before") from None
        except JobQuotaError as error:
            return refuse_quota(error)
        except (WorkFailedError, SQLAlchemyError):
            return error_response(503, "the job was not stored: the hub cannot write, ask again", {"Retry-After": "5"})
        return answer_json(describe_job(job), 202, {"Location": f"/v1/jobs/{job.id}"})

    def refuse_early(self, caller: Caller) -> web.Response | None:
        """Return the refusal of a hub that stops, or cannot even read; None = go on."""
        if self._hub.status()["draining"]:
            response = error_response(503, "the hub is stopping, ask again", {"Retry-After": "5"})
            response.force_close()
            return response
        try:
            self._inference.check_overload(caller.tenant)
        except InferRefusedError:
            return error_response(503, "the hub is busy, ask again", {"Retry-After": "1"})
        return None

    def read_order(self, payload: bytes, caller: Caller, key: str = "") -> JobOrder:
        """Return the order that a body is. OipError(400, 403 or 404) says what is wrong with it."""
        asked = parse_job_request(payload)
        if asked.subject and not asked.device:
            raise OipError(400, "subject: a subject is named by the device that knows it: add device")
        if asked.device and not caller.sees_tenant(extract_tenant(asked.device)):
            raise OipError(403, "this key belongs to another tenant")
        if asked.webhook:
            check_hook(asked.webhook, inwards=self._desk.settings.webhooks_inwards)
        body = bytes(asked.request)
        self._desk.check(asked.model, body, caller.tenant)
        return JobOrder(
            tenant=caller.tenant,
            caller=caller.name,
            model=asked.model,
            body=body,
            timeout_s=asked.timeout_s or self._desk.settings.timeout_s,
            key=key,
            payload=payload,
            device=asked.device,
            subject=bytes.fromhex(asked.subject) or None,
            webhook=asked.webhook,
            custom_id=asked.custom_id,
        )

    async def list(self, request: web.Request) -> web.Response:
        """Answer with jobs: 200; 400 for a state or a number that is none."""
        states = [_read_state(text) for text in request.query.getall("state", [])]
        limit = _read_limit(request.query.get("limit", "100"))
        tenant, after = caller_of(request).tenant, request.query.get("after", "")[:64]
        found = await ask_desk(self._desk.list(tenant, states, after, limit))
        following = found[-1].id if len(found) == limit else ""
        return answer_json({"jobs": [describe_job(job) for job in found], "next": following})

    async def show(self, request: web.Request) -> web.Response:
        """Answer with a job: 200, with its answer if there is one; 404."""
        view = await ask_desk(self._desk.show(*_name_job(request)))
        if view is None:
            raise OipError(404, _NO_SUCH)
        return answer_json(_describe_view(view), headers={"Cache-Control": "no-store"})

    async def cancel(self, request: web.Request) -> web.Response:
        """Cancel a job: 200; 404; 409 if it has ended."""
        before = await ask_desk(self._desk.cancel(*_name_job(request)))
        if before is None:
            raise OipError(404, _NO_SUCH)
        if before.state not in OPEN:
            raise OipError(409, f"the job has ended already: it is {before.state}")
        return await self.show(request)

    async def requeue(self, request: web.Request) -> web.Response:
        """Queue a dead job again: 200; 404; 409 if it is not dead."""
        before = await ask_desk(self._desk.requeue(*_name_job(request)))
        if before is None:
            raise OipError(404, _NO_SUCH)
        if before.state is not JobState.DEAD:
            raise OipError(409, f"only a dead job is queued again: this one is {before.state}")
        return await self.show(request)


def _route(method: str, path: str, handler: Handler, says: str) -> Route:
    return Route(method, path, handler, says, RouteAccess.KEY, scope=Scope.INFER, gives=_JOB, tag="jobs")


def parse_job_request(payload: bytes) -> JobRequest:
    """Parse the body of a job. OipError(400) says what is wrong, never what was sent.

    Its `request`, which may be long, is left for the protocol's own parser; duplicate keys are looked for in the rest.
    """
    try:
        asked = _decoder.decode(payload)
        parse_strict_json(payload.replace(bytes(asked.request), b"null", 1))
    except RecursionError:
        raise OipError(400, "the JSON is nested too deeply") from None
    except msgspec.ValidationError as error:
        raise OipError(400, str(error)) from None
    except (ValueError, msgspec.DecodeError):
        raise OipError(400, "the body is not valid JSON, or has a duplicate key") from None
    return asked


def refuse_quota(error: JobQuotaError) -> web.Response:
    """Return the answer to a tenant that has as many open jobs as it may: 429, with the time to ask again."""
    return error_response(429, str(error), {"Retry-After": str(math.ceil(error.retry_after_s))})


async def ask_desk(work: Awaitable[T]) -> T:
    """Return what the desk says. OipError(503) with the fault if the database cannot be asked now."""
    try:
        return await work
    except WorkFailedError:
        raise OipError(503, _UNWRITTEN) from None
    except SQLAlchemyError as error:
        raise OipError(503, f"{explain_fault(error)}, ask again") from None


def _name_job(request: web.Request) -> tuple[str, str]:
    return request.match_info["job"][:64], caller_of(request).tenant


def _describe_view(view: JobView) -> dict[str, Any]:
    answer = {"answer": msgspec.Raw(view.answer)} if view.answer is not None else {}
    return {**describe_job(view.job), **answer}


def _read_state(text: str) -> JobState:
    if text not in {state.value for state in JobState}:
        raise OipError(400, f"state is one of {', '.join(JobState)}")
    return JobState(text)


def _read_limit(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= MAX_LISTED):
        raise OipError(400, f"limit is a whole number from 1 to {MAX_LISTED}")
    return int(text)
