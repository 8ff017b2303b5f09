"""One device: its state and health, what it asked this hub and why each ended so, its policy, spending and ledger.

Rule: only what this hub was asked is known here. What a device answered by itself it tells nobody but its own page.
"""

from typing import Any

import msgspec
from aiohttp import web
from sqlalchemy.exc import SQLAlchemyError

from cloud_hub.api.admin import describe_device
from cloud_hub.api.interface import ApiContext
from cloud_hub.console.pages import ConsolePage, PageContent, PageGroup, Viewer, read_choice
from cloud_hub.console.wording import describe_spending, explain_question, explain_refusal, summarise_question
from cloud_hub.database.errors import explain_fault
from cloud_hub.registry.device_states import DeviceState, may_become
from cloud_hub.registry.registry import EnrolledDevice
from cloud_hub.storage.question_history import HOUR_MS, MINUTE_MS, QuestionHistory, QuestionOutcome, QuestionRecord
from policies.analysis.summary import summarise_policy
from policies.model.policy import Policy
from wire.http.oip import OipError, shorten_name

_SPANS = {"1": "the last hour", "24": "the last day", "216": "the last nine days"}
_NO_HISTORY = QuestionHistory([], [])


class DevicePages:
    """The page of one device, and that of one of its questions."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def group(self) -> PageGroup:
        """Return the pages of this group."""
        pages = (
            ConsolePage("/devices/{device}", self.show, "fleet", whole=False),
            ConsolePage("/devices/{device}/questions/{epoch}/{seq}", self.explain, "fleet", whole=False),
        )
        return PageGroup(pages, {"device": self._digest})

    def _digest(self, about: str, viewer: Viewer) -> object:
        device = self._context.registry.device(about)
        if device is None or not viewer.caller.sees_tenant(device.tenant):
            return None
        return device.state, device.changed_ms, self._context.hub.device_activity(device.id)

    async def show(self, request: web.Request, viewer: Viewer) -> PageContent:
        """Show the device; 404 if it is unknown or another tenant's."""
        device = self._find(request.match_info["device"], viewer)
        hours = read_choice(request, "hours", tuple(_SPANS))
        history, fault = await self._read_history(device.id, int(hours))
        ledger = await self._read_ledger(device.id)
        policies = self._policies_of(history)
        values = {
            "device": describe_device(self._context, device),
            "history": history,
            "fault": fault,
            "plot": plot_periods(history, self._context.now_ms(), int(hours)),
            "totals": _count_outcomes(history),
            "explain": summarise_question,
            "hours": hours,
            "spans": _SPANS,
            "ledger": ledger,
            "uncovered": count_uncovered(ledger, history),
            "spending": describe_spending(ledger["spend"], self._context.hub.policies) if ledger else [],
            "policies": [(policy.hash, summarise_policy(policy)) for policy in policies],
            "next_states": [each.value for each in DeviceState if each is not device.state and _may(device, each)],
        }
        return PageContent("device.html", values, device.id, topic=f"device:{device.id}")

    async def explain(self, request: web.Request, viewer: Viewer) -> PageContent:
        """Show why one question ended as it did; 404 if it is not among the newest of nine days."""
        device = self._find(request.match_info["device"], viewer)
        history, fault = await self._read_history(device.id, 216)
        wanted = (request.match_info["epoch"], request.match_info["seq"])
        found = next((each for each in history.questions if (each.epoch, str(each.seq)) == wanted), None)
        if found is None:
            raise OipError(404, fault or "This question is not among the newest that this hub keeps of the device.")
        policy = next((each for each in self._context.hub.policies if each.hash == found.policy), None)
        values = {
            "device": describe_device(self._context, device),
            "question": msgspec.structs.asdict(found),
            "sentence": explain_question(found),
            "steps": _list_steps(found),
            "words": summarise_policy(policy) if policy else [],
        }
        return PageContent("question.html", values, f"Question {found.seq}")

    def _find(self, name: str, viewer: Viewer) -> EnrolledDevice:
        device = self._context.registry.device(name)
        if device is None or not viewer.caller.sees_tenant(device.tenant):
            raise OipError(404, f"There is no device '{shorten_name(name)}' that this key may see.")
        return device

    async def _read_history(self, device: str, hours: int) -> tuple[QuestionHistory, str]:
        """Return what became of a device's questions, and why that is not known, "" if it is."""
        try:
            since_ms, period_ms = self._context.now_ms() - hours * HOUR_MS, MINUTE_MS if hours == 1 else HOUR_MS
            return await self._context.store.read_history(device, since_ms, period_ms), ""
        except SQLAlchemyError as error:
            return _NO_HISTORY, f"What became of questions is not known now: {explain_fault(error)}."

    async def _read_ledger(self, device: str) -> dict[str, Any] | None:
        if self._context.ledger is None:
            return None
        try:
            return await self._context.ledger.describe_ledger(device)
        except SQLAlchemyError:
            return None

    def _policies_of(self, history: QuestionHistory) -> list[Policy]:
        """Return the policies under which the newest questions left, as far as this hub has them."""
        named = dict.fromkeys(each.policy for each in history.questions[:50])
        served = {policy.hash: policy for policy in self._context.hub.policies}
        return [served[name] for name in named if name in served][:3]


def count_uncovered(ledger: dict[str, Any] | None, history: QuestionHistory) -> int:
    """Number of the newest questions that left after the device had signed its newest head."""
    if not ledger or not ledger["heads"]:
        return 0
    signed_ms = max(head["at_ms"] for head in ledger["heads"])
    return sum(each.created_ms > signed_ms for each in history.questions)


def _may(device: EnrolledDevice, state: DeviceState) -> bool:
    return may_become(device.state, state) and not (state is DeviceState.RETIRED and not device.gone)


def _count_outcomes(history: QuestionHistory) -> dict[str, int]:
    totals = dict.fromkeys((each.value for each in QuestionOutcome), 0)
    for count in history.counts:
        totals[count.outcome] += count.count
    return totals


def plot_periods(history: QuestionHistory, now_ms: int, hours: int) -> dict[str, Any]:
    """Return the plot of questions by period: a line for answered, open, and each reason of a refusal."""
    step_ms = history.period_ms
    first = (now_ms - hours * HOUR_MS) // step_ms * step_ms
    times = list(range(first, now_ms + 1, step_ms))
    lines: dict[str, dict[int, int]] = {}
    for count in history.counts:
        name = explain_line(count.outcome, count.reason)
        line = lines.setdefault(name, {})
        line[count.begin_ms] = line.get(count.begin_ms, 0) + count.count
    series = [{"label": name, "values": [line.get(at, 0) for at in times]} for name, line in sorted(lines.items())]
    return {"kind": "bars", "times": [at // 1000 for at in times], "series": series, "unit": "questions"}


def explain_line(outcome: QuestionOutcome, reason: str) -> str:
    """Return the name of a line of the plot."""
    return f"refused: {explain_refusal(reason)}" if outcome is QuestionOutcome.REFUSED else outcome.value


def _list_steps(question: QuestionRecord) -> list[tuple[str, int, str]]:
    """Return what happened to a question: what, when, and how long after the step before."""
    steps = [("made on the device", question.created_ms), ("stored by the hub", question.kept_ms)]
    if question.ended_ms:
        steps.append((question.outcome.value, question.ended_ms))
    befores = [question.created_ms, *(at for _, at in steps)]
    return [(what, at, f"{at - before:+,} ms") for (what, at), before in zip(steps, befores, strict=False)]
