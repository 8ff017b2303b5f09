"""Device routes of the web API: enrolment, certificate renewal, retirement, erasure; and the aggregates for operators.

Rule: these need no bearer token: the invite or the device's identity key is the proof, and a rate limit comes before
any proof is checked. Renewal has a limit of its own, so that a flood of enrolments cannot keep devices from renewing;
and every caller has a share of each limit, so that no device keeps another from anything.
Rule: an erasure is answered when it is on disk, with a tombstone that the hub signed.
"""

import time

from aiohttp import web

from cloud_hub.api.auth import refuse_unheard
from cloud_hub.api.interface import ApiContext
from cloud_hub.api.routing import Route, RouteAccess, answer_json, read_json
from cloud_hub.enrollment.enrollment import EnrolRequest, Rejection
from cloud_hub.enrollment.erasure import EraseRequest, ErasureService, attach_signature, build_tombstone
from cloud_hub.enrollment.rate_limit import AttemptLimiter
from cloud_hub.enrollment.renewal import DeviceRetireRequest, RenewRequest
from cloud_hub.registry.access import Scope
from cloud_hub.storage.jobs import StoreError, UnfinishedErasureError
from cloud_hub.storage.retention import publish_tallies
from wire.http.guards import error_response


class EnrollRoutes:
    """Route `POST /v1/enrol`.

    `gate` limits attempts by address on the monotonic clock; a wrong invite is charged to its sender.
    """

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._issuer = context.issuer
        self._gate = context.gates.enrol
        self._now_ms = context.now_ms

    def routes(self) -> list[Route]:
        """Return the route of this group."""
        says = "Enrol a device: an invite and proof of its keys for a certificate"
        return [
            Route(
                "POST",
                "/v1/enrol",
                self.enrol,
                says,
                RouteAccess.OPEN,
                scope=Scope.OPERATE,
                takes=EnrolRequest,
                tag="devices",
            )
        ]

    async def enrol(self, request: web.Request) -> web.Response:
        """Enrol a device: 200 with the signed reply; 400 bad request, 403 bad invite, 429 too many tries."""
        address = _address_of(request)
        if not self._gate.admit_attempt(address, time.monotonic()):
            return error_response(429, "too many enrolments are tried, wait a minute", {"Retry-After": "60"})
        asked = await read_json(request, EnrolRequest)
        refusal = _refuse_unsure(self._context)
        if refusal is not None:
            return refusal
        reply = await self._context.work.run(self._issuer.enrol_device, asked, self._now_ms())
        if not isinstance(reply, Rejection):
            return answer_json(reply, headers={"Cache-Control": "no-store"})
        if reply.invite:
            self._gate.record_failure(address, time.monotonic())
        return error_response(403 if reply.invite else 400, reply.error)


_NO_STORE = {"Cache-Control": "no-store"}


class RenewRoutes:
    """Routes `POST /v1/renew` and `POST /v1/retire`.

    `gates.renew` limits attempts by address and device on the monotonic clock, apart from enrolments.
    """

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._renewals = context.renewals
        self._gate = context.gates.renew
        self._now_ms = context.now_ms

    def routes(self) -> list[Route]:
        """Return the routes of this group."""
        renews, retires = "Renew a device's certificate", "Retire a device"
        scope, tag = Scope.OPERATE, "devices"
        return [
            Route("POST", "/v1/renew", self.renew, renews, RouteAccess.OPEN, scope=scope, takes=RenewRequest, tag=tag),
            Route(
                "POST",
                "/v1/retire",
                self.retire,
                retires,
                RouteAccess.OPEN,
                scope=scope,
                takes=DeviceRetireRequest,
                tag=tag,
            ),
        ]

    async def renew(self, request: web.Request) -> web.Response:
        """Renew a certificate: 200 with the signed reply; 400 bad request, 403 not this device, 429 too many tries."""
        asked = await read_json(request, RenewRequest)
        if not self._gate.admit_attempt(_address_of(request), time.monotonic(), asked.device):
            return _refuse_rate()
        refusal = _refuse_unsure(self._context)
        if refusal is not None:
            return refusal
        run = self._context.work.run
        reply = await run(self._renewals.renew, asked, self._now_ms(), time.monotonic())
        return self._answer_reply(request, asked.device, reply)

    async def retire(self, request: web.Request) -> web.Response:
        """Retire a device: 200 once it is retired; 403 if it is not this device, or a person has to decide."""
        asked = await read_json(request, DeviceRetireRequest)
        if not self._gate.admit_attempt(_address_of(request), time.monotonic(), asked.device):
            return _refuse_rate()
        reply = await self._context.work.run(self._renewals.retire, asked, self._now_ms())
        return self._answer_reply(request, asked.device, reply)

    def _answer_reply(self, request: web.Request, device: str, reply: object) -> web.Response:
        """Answer with the reply, or with a refusal; what the proof was is noted of the device at this address."""
        _record_proof(self._gate, request, device, reply)
        if not isinstance(reply, Rejection):
            return answer_json(reply, headers=_NO_STORE)
        if reply.kind == "rate":
            return _refuse_rate()
        return error_response(400 if reply.kind == "request" else 403, reply.error)


def _refuse_unsure(context: ApiContext) -> web.Response | None:
    """Refuse a certificate where this hub may not know what others revoked, or what time it is; None: it does."""
    if not context.hears_region():
        return refuse_unheard()
    fault = context.clock_fault()
    return error_response(503, fault, {"Retry-After": "60"}) if fault else None


def _record_proof(gate: AttemptLimiter, request: web.Request, device: str, reply: object) -> None:
    """Charge a wrong proof to its sender; after a right one the device has a share of its own at this address."""
    if isinstance(reply, Rejection) and reply.invite:
        gate.record_failure(_address_of(request), time.monotonic(), device)
    else:
        gate.record_proof(_address_of(request), device)


def _address_of(request: web.Request) -> str:
    return request.remote or "unix"


def _refuse_rate() -> web.Response:
    return error_response(429, "too many requests, wait a minute", {"Retry-After": "60"})


DAY_MS = 86_400_000


class ErasureRoutes:
    """Routes `POST /v1/erase` and `GET /v1/admin/aggregates`. Erasure shares the rate limit of renewals."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._erasures = ErasureService(context.registry)

    def routes(self) -> list[Route]:
        """Return the routes of this group."""
        erases, left = "Erase a subject's data for a device", "Verdict counts by label, model and past day"
        return [
            Route(
                "POST",
                "/v1/erase",
                self.erase,
                erases,
                RouteAccess.OPEN,
                scope=Scope.OPERATE,
                takes=EraseRequest,
                tag="devices",
            ),
            Route("GET", "/v1/admin/aggregates", self.list_aggregates, left, RouteAccess.HUB_KEY, scope=Scope.READ),
        ]

    async def erase(self, request: web.Request) -> web.Response:
        """Erase a subject: 200 with the tombstone.

        403 if it is not this device, 429 too many tries, 503 if it could not be written.
        """
        gate, body = self._context.gates.renew, await read_json(request, EraseRequest)
        if not gate.admit_attempt(_address_of(request), time.monotonic(), body.device):
            return _refuse_rate()
        asked = self._erasures.check_request(body, self._context.now_ms())
        _record_proof(gate, request, body.device, asked)
        if isinstance(asked, Rejection):
            return error_response(403, asked.error)
        try:
            done = await self._context.store.erase_subject(asked)
        except StoreError:
            return error_response(503, "nothing was erased: the hub cannot write, ask again", {"Retry-After": "10"})
        except UnfinishedErasureError as error:
            line = f"erased, but a file of the hub still holds it: {error}; ask again"
            return error_response(503, line, {"Retry-After": "10"})
        facts = self._context.hub.status()
        text = build_tombstone(done, str(facts["hub"]), str(facts["region"]))
        return answer_json(
            attach_signature(text, self._context.store.sign_statement(text)), headers={"Cache-Control": "no-store"}
        )

    async def list_aggregates(self, _request: web.Request) -> web.Response:
        """Answer with verdict counts by label, model and day.

        Rare labels are left out: see `cloud_hub.storage.retention`.
        """
        tallies = await self._context.store.read_tallies()
        return answer_json({"aggregates": publish_tallies(tallies, self._context.now_ms() // DAY_MS)})
