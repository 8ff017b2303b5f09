"""Administration routes of the web API: invites, devices, hub status and CA rotation. They always need a key.

Rule: a route changes one thing and answers with what it is now; nothing here shows a key or a token, but for the one
invite that was just asked for.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from aiohttp import web

from cloud_hub.api.auth import caller_of, require_tenant
from cloud_hub.api.interface import ApiContext
from cloud_hub.api.routing import Route, RouteAccess, answer_json, read_json
from cloud_hub.enrollment.ca_rotation import CaRotation
from cloud_hub.enrollment.enrollment import encode_invite
from cloud_hub.registry.access import Scope
from cloud_hub.registry.device_states import DeviceState
from cloud_hub.registry.health import judge_health
from cloud_hub.registry.presence import DeviceActivity
from cloud_hub.registry.registry import (
    MAX_HARDWARE,
    MAX_HARDWARE_CHARS,
    DeviceInvitation,
    EnrolledDevice,
    Invite,
    Registry,
    RegistryError,
)
from cloud_hub.security.authorities import RotationError
from cloud_hub.security.authority import chain_contains, utc_now
from cloud_hub.storage.question_history import HOUR_MS, MINUTE_MS
from wire.http.access import ServerAccess
from wire.http.oip import OipError, shorten_name
from wire.http.openapi import ApiLink
from wire.protocol.topics import DEVICE_ID_PATTERN, MAX_ID_CHARS

MAX_INVITE_S = 30 * 86_400.0
MIN_INVITE_S = 1.0
DRAIN_S = 86_400.0
DEFAULT_HOURS = 24
MAX_HOURS = 9 * 24  # so long are endings kept
_HOURS = {"type": "integer", "minimum": 1, "maximum": MAX_HOURS, "default": DEFAULT_HOURS}
_Word = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": f"^[ -~]{{1,{MAX_HARDWARE_CHARS}}}$"})]
_OptionalWord = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": f"^[ -~]{{0,{MAX_HARDWARE_CHARS}}}$"})]


class InviteRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/admin/invites`.

    `device` is a whole id, `tenant--name`; `expires_s`: seconds for which the invite may be used, one second to 30
    days. `hardware`, `replace`: see `registry.DeviceInvitation`.
    """

    device: Annotated[
        str, msgspec.Meta(extra_json_schema={"pattern": f"^{DEVICE_ID_PATTERN}$", "maxLength": MAX_ID_CHARS})
    ]
    expires_s: Annotated[float, msgspec.Meta(ge=MIN_INVITE_S, le=MAX_INVITE_S)] = 3600.0
    hardware: Annotated[tuple[_Word, ...], msgspec.Meta(extra_json_schema={"maxItems": MAX_HARDWARE})] = ()
    replace: bool = False
    device_class: _OptionalWord = ""
    region: _OptionalWord = ""


class StateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/admin/devices/{device}/state`.

    `drain_s`: for how many seconds a retiring device still gets the verdicts it is owed.
    """

    state: DeviceState
    drain_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_INVITE_S)] = DRAIN_S


class CaStep(StrEnum):
    """Step of a CA rotation."""

    ROTATE = "rotate"
    FINISH = "finish"


class CaRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/admin/ca`. `force`: finish even though devices will be cut off."""

    step: CaStep
    force: bool = False


class AdminRoutes:
    """Routes for operators: invites, devices, status and the CA.

    `access` is where the API listens: its TLS chain must contain the hub's CA, or devices would refuse the hub.
    """

    def __init__(self, context: ApiContext, access: ServerAccess) -> None:
        self._context = context
        self._registry = context.registry
        self._now_ms = context.now_ms
        self._access = access
        self._url = ""

    def set_url(self, url: str) -> None:
        """Set the URL that invites carry from now on: the API is open."""
        self._url = url

    def routes(self) -> list[Route]:
        """Return the routes of this group."""
        key, whole, read, operate = RouteAccess.KEY, RouteAccess.HUB_KEY, Scope.READ, Scope.OPERATE
        device, turn_ca = "/v1/admin/devices/{device}", "Replace the CA, or finish replacing it"
        return [
            Route("GET", "/v1/admin/status", self.status, "Status of the hub", whole, scope=read),
            Route(
                "POST", "/v1/admin/invites", self.create_invite, "A one-time invite for a device", key, scope=operate,
                takes=InviteRequest, status=201, tag="devices",
            ),
            Route(
                "GET", "/v1/admin/devices", self.list_devices, "The devices", key, scope=read, tag="devices",
                links=(ApiLink(f"GET {device}", {"device": "/devices/0/device"}),),
            ),
            Route("GET", device, self.show_device, "One device", key, scope=read, tag="devices"),
            Route(
                "GET", device + "/questions", self.list_questions, "What became of a device's questions",
                key, scope=read, tag="devices", parameters={"hours": _HOURS},
            ),
            Route(
                "POST", device + "/state", self.set_state, "Suspend, revoke, retire a device, or let it in again",
                key, scope=operate, takes=StateRequest, tag="devices",
            ),
            Route("GET", "/v1/admin/ca", self.show_ca, "The hub's CA", whole, scope=read),
            Route("POST", "/v1/admin/ca", self.step_ca, turn_ca, whole, scope=Scope.ADMIN, takes=CaRequest),
        ]  # fmt: skip

    async def status(self, _request: web.Request) -> web.Response:
        """Answer with the hub's status, and `alarms`: what a person has to look at."""
        context = self._context
        more = {
            "open_invites": await context.work.run(self._registry.count_open_invites, self._now_ms()),
            "enrolments": dict(context.issuer.counts),
            "renewals": dict(context.renewals.counts),
            "alarms": {
                "clone_suspect": self._registry.list_suspects(),
                "ledger_flaw": sorted(context.ledger.flawed) if context.ledger else [],
            },
        }
        return answer_json({**context.hub.status(), **context.reload_status(), **more})

    async def create_invite(self, request: web.Request) -> web.Response:
        """Create a one-time invite: 201 with its text.

        400 bad request, 409 if devices would refuse the configured TLS chain, 503 while the API is starting.
        """
        asked = await read_json(request, InviteRequest)
        require_tenant(request, _tenant_of(asked.device))
        if not self._url:
            raise OipError(503, "the hub is still starting, ask again")
        ca = self._context.rotation.ca_sha256
        if self._access.tls and not chain_contains(Path(self._access.tls_cert), ca):
            raise OipError(409, "devices would refuse this hub: the chain in api.tls_cert lacks the hub's own CA")
        welcome = DeviceInvitation(asked.device, asked.hardware, asked.replace, asked.device_class, asked.region)
        try:
            invite = await self._context.work.run(self._registry.invite, welcome, self._now_ms(), asked.expires_s)
        except RegistryError as error:
            raise OipError(400, str(error)) from None
        trust = InviteTrust(self._url, ca, self._context.root_sha256(), self._now_ms())
        return answer_json(invite_json(invite, trust), 201, {"Cache-Control": "no-store"})

    async def list_devices(self, request: web.Request) -> web.Response:
        """Answer with the devices of the caller's tenant."""
        caller = caller_of(request)
        shown = [device for device in self._registry.devices() if caller.sees_tenant(device.tenant)]
        return answer_json({"devices": [self._describe_device(device) for device in shown]})

    def _describe_device(self, device: EnrolledDevice) -> dict[str, Any]:
        return describe_device(self._context, device)

    async def show_device(self, request: web.Request) -> web.Response:
        """Answer with one device; 404 if it is unknown or another tenant's."""
        return answer_json(self._describe_device(self._find_device(request)))

    async def list_questions(self, request: web.Request) -> web.Response:
        """Answer with a device's newest questions of the last `hours`, and counts by hour; of one hour, by minute."""
        device, hours = self._find_device(request), read_hours(request)
        since_ms = self._now_ms() - hours * HOUR_MS
        period_ms = MINUTE_MS if hours == 1 else HOUR_MS
        return answer_json(await self._context.store.read_history(device.id, since_ms, period_ms))

    async def set_state(self, request: web.Request) -> web.Response:
        """Change a device's state: 200 with the device, 409 if its state may not change so.

        One that is gone is evicted.
        """
        known = self._find_device(request)
        asked = await read_json(request, StateRequest)
        try:
            changed = await self._context.work.run(change_state, self._registry, known.id, asked, self._now_ms())
        except RegistryError as error:
            raise OipError(409, str(error)) from None
        if changed.gone:
            self._context.evict(changed.id)
        return answer_json(self._describe_device(changed))

    async def show_ca(self, _request: web.Request) -> web.Response:
        """Answer with the CA and the state of its rotation."""
        return answer_json(self._context.rotation.status())

    async def step_ca(self, request: web.Request) -> web.Response:
        """Take one step of a CA rotation: 200 with its state, 409 if the step cannot be taken."""
        asked = await read_json(request, CaRequest)
        fault = self._context.clock_fault()
        if fault:
            raise OipError(503, fault)
        try:
            return answer_json(await step_rotation(self._context.rotation, asked))
        except RotationError as error:
            raise OipError(409, str(error)) from None

    def _find_device(self, request: web.Request) -> EnrolledDevice:
        """Return the device in the path. OipError(404) if it is unknown or another tenant's."""
        device = self._registry.device(request.match_info["device"])
        if device is None or not caller_of(request).sees_tenant(device.tenant):
            raise OipError(404, f"no device '{shorten_name(request.match_info['device'])}'")
        return device


def read_hours(request: web.Request) -> int:
    """Return the number of hours that a query asks for. OipError(400) for another text."""
    text = request.query.get("hours", str(DEFAULT_HOURS))
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= MAX_HOURS):
        raise OipError(400, f"hours is a whole number from 1 to {MAX_HOURS}")
    return int(text)


def _tenant_of(device: str) -> str:
    """Return the tenant of an id, "" if it names none."""
    return device.partition("--")[0] if "--" in device else ""


class InviteTrust(NamedTuple):
    """What an invite carries beside its token: URL, hashes of CA and TUF root, and hub time in ms."""

    url: str
    ca_sha256: str
    root_sha256: str
    made_ms: int


def invite_json(invite: Invite, trust: InviteTrust) -> dict[str, Any]:
    """Return an invite as the API and the CLI show it; `updates`: whether the device will get any."""
    text = encode_invite(
        trust.url,
        trust.ca_sha256,
        invite.token,
        invite.device,
        root_sha256=trust.root_sha256,
        made_ms=trust.made_ms,
    )
    updates = bool(trust.root_sha256)
    return {"invite": text, "device": invite.device, "expires_ms": invite.expires_ms, "updates": updates}


def change_state(registry: Registry, device: str, asked: StateRequest, now_ms: int) -> EnrolledDevice:
    """Change a device's state; retiring without time to drain is being retired.

    RegistryError if it may not change so.
    """
    state = asked.state
    if state is DeviceState.RETIRING and not asked.drain_s:
        state = DeviceState.RETIRED
    return registry.set_state(device, state, now_ms, drain_s=asked.drain_s)


async def step_rotation(rotation: CaRotation, asked: CaRequest) -> dict[str, Any]:
    """Take one step of a CA rotation. RotationError if it cannot be taken."""
    if asked.step is CaStep.ROTATE:
        return await rotation.rotate(utc_now())
    return await rotation.finish(force=asked.force)


def describe_device(context: ApiContext, device: EnrolledDevice) -> dict[str, Any]:
    """Return a device as the API shows it now, with its health."""
    activity = context.hub.device_activity(device.id)
    flawed = context.ledger is not None and device.id in context.ledger.flawed
    health = judge_health(device, activity, context.now_ms(), flawed=flawed)
    return {**device_json(device, activity), "health": health.value}


def device_json(device: EnrolledDevice, activity: DeviceActivity) -> dict[str, Any]:
    """Return a device as the API and the CLI show it; times in ms since 1970, 0 = never; `online` null: not known."""
    return {
        "device": device.id,
        "tenant": device.tenant,
        "state": device.state.value,
        "online": activity.online,
        "last_seen_ms": activity.last_seen_ms,
        "models": activity.models,
        "agent": activity.agent,
        "why": device.why,
        "enrolled_ms": device.enrolled_ms,
        "changed_ms": device.changed_ms,
        "retire_at_ms": device.retire_at_ms,
        "certificate_serial": device.serial,
        "certificate_ends_ms": device.certificate_ends_ms,
        "authority": device.authority,
        "hardware": device.hardware,
        "device_class": device.device_class,
        "region": device.region,
        "ledger_sha256": device.ledger,
    }
