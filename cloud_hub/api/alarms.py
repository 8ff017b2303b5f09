"""Route `GET /v1/admin/alarms`: everything that a person has to look at now, in one list.

Rule: an alarm is a fact that the hub's services state; nothing is guessed, and what is not known is not an alarm.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum

import msgspec
from aiohttp import web

from cloud_hub.api.interface import ApiContext
from cloud_hub.api.monitoring import STOPPED_ALARM_MS, STOPPED_STATES, WAITING_STATES
from cloud_hub.api.routing import Route, answer_json
from cloud_hub.registry.access import Scope

ROLE_NOTICE_DAYS = 7


class AlarmLevel(StrEnum):
    """How much it matters. URGENT: something does not work, or may be an attack; WARNING: it will, or waits."""

    URGENT = "urgent"
    WARNING = "warning"


class Alarm(msgspec.Struct, frozen=True):
    """One alarm. `kind`: a fixed word; `about`: what it concerns, "" = the hub; `text`: one line for a person."""

    kind: str
    level: AlarmLevel
    about: str
    text: str


class AlarmRoutes:
    """The route."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the route of this group."""
        says = "Everything that a person has to look at now"
        return [Route("GET", "/v1/admin/alarms", self.show_alarms, says, scope=Scope.READ)]

    async def show_alarms(self, _request: web.Request) -> web.Response:
        """Answer with the alarms, the urgent ones first."""
        return answer_json({"alarms": list_alarms(self._context)})


def list_alarms(context: ApiContext) -> list[Alarm]:
    """Return all alarms of the hub, the urgent ones first."""
    found = [*_hub_alarms(context), *_device_alarms(context), *_rollout_alarms(context), *_role_alarms(context)]
    return sorted(found, key=lambda alarm: alarm.level is not AlarmLevel.URGENT)


def _hub_alarms(context: ApiContext) -> Iterator[Alarm]:
    status = context.hub.status()
    urgent = AlarmLevel.URGENT
    if status.get("store_fault"):
        yield Alarm("store_fault", urgent, "", f"the database takes no writes: {status['store_fault']}")
    if status.get("link_up") is False:
        yield Alarm("link_down", urgent, "", "there is no link to the broker: no device reaches this hub")
    if status.get("region_heard") is False:
        yield Alarm("region_unheard", urgent, "", "what the region's other hubs change cannot be heard")
    if status.get("clock_fault"):
        yield Alarm("clock_fault", urgent, "", str(status["clock_fault"]))
    for model in status.get("engines_down", ()):
        yield Alarm("engine_down", urgent, str(model), "its engine fails its self test: it answers nothing")
    for name in status.get("stores_damaged", ()):
        yield Alarm("store_damaged", AlarmLevel.WARNING, str(name), "a damaged database was set aside under this name")
    for model, seen in status.get("language_models", {}).items():
        if not seen.get("ready"):
            yield Alarm("language_model_down", urgent, str(model), "none of its replicas is ready")
    if context.audit.lost:
        text = f"{context.audit.lost} entries of the audit log could not be written"
        yield Alarm("audit_lost", urgent, "", text)


def _device_alarms(context: ApiContext) -> Iterator[Alarm]:
    for device in context.registry.list_suspects():
        text = "two machines use its keys: it is suspended until somebody has looked"
        yield Alarm("clone_suspect", AlarmLevel.URGENT, device, text)
    for device in sorted(context.ledger.flawed) if context.ledger else ():
        text = "the signed heads of its ledger contradict each other"
        yield Alarm("ledger_flaw", AlarmLevel.URGENT, device, text)


def _rollout_alarms(context: ApiContext) -> Iterator[Alarm]:
    since_ms = context.now_ms() - STOPPED_ALARM_MS
    for view in context.rollouts.views() if context.rollouts else ():
        if view.state in WAITING_STATES:
            text = f"it waits for a person ({view.state.replace('_', ' ')}): {view.why or 'approve or resume it'}"
            yield Alarm("rollout_waits", AlarmLevel.WARNING, view.id, text)
        elif view.state in STOPPED_STATES and view.changed_ms > since_ms:
            yield Alarm("rollout_stopped", AlarmLevel.WARNING, view.id, f"it was stopped: {view.why}")


def _role_alarms(context: ApiContext) -> Iterator[Alarm]:
    now = datetime.fromtimestamp(context.now_ms() / 1000, UTC)
    for role, end in sorted(context.role_expiry().items()):
        left = (end - now).total_seconds() / 86_400
        if left <= 0:
            text = "it has expired: devices take no updates"
            yield Alarm("role_expired", AlarmLevel.URGENT, role, text)
        elif left < ROLE_NOTICE_DAYS and role not in {"timestamp", "snapshot"}:  # these the hub renews by itself
            yield Alarm("role_expires", AlarmLevel.WARNING, role, f"it expires in {left:.0f} days: sign it anew")
