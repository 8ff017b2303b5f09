"""The hub itself: its load, queues and engines, the hubs of its region, jobs, costs, alarms, and who did what."""

import datetime as dt
from collections import Counter
from typing import Any

import msgspec
from aiohttp import web
from sqlalchemy.exc import SQLAlchemyError

from cloud_hub.api.alarms import Alarm, list_alarms
from cloud_hub.api.costs import bill_json
from cloud_hub.api.hubs import HubRoutes
from cloud_hub.api.interface import ApiContext
from cloud_hub.api.jobs import MAX_LISTED
from cloud_hub.api.routing import ROUTE_SUMMARIES
from cloud_hub.console.load import LoadHistory
from cloud_hub.console.pages import PAGE_ROWS, ConsolePage, PageContent, PageGroup, Viewer, read_choice
from cloud_hub.database.errors import explain_fault
from cloud_hub.jobs.states import OPEN, Job, JobState
from cloud_hub.registry.access import Scope
from cloud_hub.registry.audit import AuditEntry
from cloud_hub.serving.telemetry import BUCKETS_S, LatencyHistogram, ModelTimings
from cloud_hub.storage.costs import DAY_MS
from wire.http.oip import OipError

_DAYS = ("7", "31", "365")
_MONITORED = ("link_up", "store_ok", "region_heard")


class OperationPages:
    """The pages of the hub."""

    def __init__(self, context: ApiContext, load: LoadHistory) -> None:
        self._context = context
        self._load = load
        self._hubs = HubRoutes(context, "")

    def group(self) -> PageGroup:
        """Return the pages of this group."""
        pages = (
            ConsolePage("/hub", self.show_hub, "hub"),
            ConsolePage("/jobs", self.show_jobs, "jobs", whole=False),
            ConsolePage("/costs", self.show_costs, "costs", whole=False),
            ConsolePage("/alarms", self.show_alarms, "alarms"),
            ConsolePage("/activity", self.show_activity, "activity"),
        )
        return PageGroup(
            pages,
            {
                "hub": lambda _about, _viewer: (len(self._load.samples), self._last_sample()),
                "jobs": lambda _about, _viewer: _count_jobs_done(self._context.hub.counters()),
                "alarms": lambda _about, _viewer: list_alarms(self._context),
                "activity": lambda _about, _viewer: self._context.audit.last_entries(1),
            },
        )

    def _last_sample(self) -> object:
        return self._load.samples[-1] if self._load.samples else None

    async def show_hub(self, _request: web.Request, _viewer: Viewer) -> PageContent:
        """Show load, queues, engines, the hubs of the region, and the counters."""
        context, status = self._context, self._context.hub.status()
        counters = context.hub.counters()
        values = {
            "status": status,
            "plots": self._load.plots() if len(self._load.samples) > 1 else [],
            "models": [self._describe_model(card.name, status) for card in context.inference.cards],
            "language_models": context.language_models.status(),
            "hubs": await self._read_hubs(),
            "counters": sorted(counters.items()),
            "down": [name for name in _MONITORED if status.get(name) is False],
            "queued": sum(status.get("queued", {}).values()),
        }
        return PageContent("hub.html", values, "Hub", topic="hub")

    async def _read_hubs(self) -> list[dict[str, Any]]:
        try:
            return [msgspec.to_builtins(each) for each in await self._hubs.read_hubs()]
        except OipError:
            return []

    def _describe_model(self, name: str, status: dict[str, Any]) -> dict[str, Any]:
        timings = self._context.observer.timings.models.get(name, ModelTimings())
        setup = self._context.engines.setups().get(name)
        batches = sum(each.count for each in timings.batches.values())
        return {
            "name": name,
            "waiting": status.get("queued", {}).get(name, 0),
            "items": timings.items,
            "failed": timings.failed.count,
            "batch": timings.items / batches if batches else 0.0,
            "waited": find_quantile(timings.queue, 0.95),
            "computed": find_quantile(timings.compute, 0.95),
            "setup": setup,
            "down": name in status.get("engines_down", ()),
        }

    async def show_jobs(self, request: web.Request, viewer: Viewer) -> PageContent:
        """Show jobs, those of a tenant to its key."""
        desk, state = self._context.jobs, read_choice(request, "state", ("", *JobState))
        after = request.query.get("after", "")[:64]
        jobs: list[Job] = []
        counts: dict[JobState, int] = {}
        fault = "" if desk else "This hub takes no jobs."
        if desk is not None:
            try:
                states = [JobState(state)] if state else []
                jobs = await desk.list(viewer.caller.tenant, states, after, min(PAGE_ROWS + 1, MAX_LISTED))
                counts = await desk.count() if viewer.whole else {}
            except SQLAlchemyError as error:
                fault = _describe(error)
        values = {
            "jobs": jobs[:PAGE_ROWS],
            "next": jobs[PAGE_ROWS - 1].id if len(jobs) > PAGE_ROWS else "",
            "counts": counts,
            "state": state,
            "states": list(JobState),
            "open_states": OPEN,
            "fault": fault,
            "may_change": Scope.INFER in viewer.caller.scopes,
        }
        return PageContent("jobs.html", values, "Jobs", topic="jobs")

    async def show_costs(self, request: web.Request, viewer: Viewer) -> PageContent:
        """Show the bill, that of a tenant to its key."""
        days = int(read_choice(request, "days", _DAYS))
        today = self._context.now_ms() // DAY_MS
        fault, bill = "", bill_json([], self._context.prices())
        try:
            entries = await self._context.store.read_costs(today - days + 1, viewer.caller.tenant or None)
            bill = bill_json(entries, self._context.prices())
        except SQLAlchemyError as error:
            fault = _describe(error)
        values = {
            "bill": bill,
            "plot": plot_costs(bill, today, days),
            "sums": _sum_costs(bill),
            "totals": sum((Counter(line["amounts"]) for line in bill["costs"]), Counter()),
            "days": str(days),
            "choices": _DAYS,
            "fault": fault,
        }
        return PageContent("costs.html", values, "Costs")

    async def show_alarms(self, _request: web.Request, _viewer: Viewer) -> PageContent:
        """Show everything that a person has to look at."""
        return PageContent("alarms.html", {"found": list_alarms(self._context), "link": link_alarm}, "Alarms", "alarms")

    async def show_activity(self, request: web.Request, _viewer: Viewer) -> PageContent:
        """Show the newest entries of the audit log: who changed what, and who was refused."""
        entries = list(reversed(self._context.audit.last_entries(200)))
        names = {key.id: key.name for key in self._context.keys.list_keys()}
        summaries = request.app[ROUTE_SUMMARIES]

        def describe(entry: AuditEntry) -> str:
            return summaries.get(f"{entry.method} {entry.route}", "")

        values = {"entries": entries, "names": names, "describe": describe}
        return PageContent("activity.html", values, "Activity", topic="activity")


def link_alarm(alarm: Alarm) -> str:
    """Return the page that shows what an alarm is about."""
    if alarm.kind in {"clone_suspect", "ledger_flaw"}:
        return f"/devices/{alarm.about}"
    if alarm.kind.startswith("rollout_"):
        return f"/rollouts/{alarm.about}"
    return "/hub"


def find_quantile(spread: LatencyHistogram, share: float) -> str:
    """Return the bound below which a share of the times lies, as text; "" of none."""
    total, seen = sum(spread.buckets), 0
    if not total:
        return ""
    for bound, count in zip((*BUCKETS_S, None), spread.buckets, strict=True):
        seen += count
        if seen >= share * total:
            return f"≤ {bound * 1000:g} ms" if bound is not None else f"> {BUCKETS_S[-1]:g} s"
    return ""


def _count_jobs_done(counters: dict[str, int]) -> object:
    return {name: count for name, count in counters.items() if name.startswith("jobs.")}


def _sum_costs(bill: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of a bill summed over its days, by tenant, model and region, the dearest first."""
    sums: dict[tuple[str, str, str], dict[str, Any]] = {}
    for line in bill["costs"]:
        key = (line["tenant"], line["model"], line["region"])
        found = sums.setdefault(key, {"amounts": {}, "price": 0.0})
        found["price"] += line["price"] or 0.0
        for kind, amount in line["amounts"].items():
            found["amounts"][kind] = found["amounts"].get(kind, 0) + amount
    rows = [{"tenant": key[0], "model": key[1], "region": key[2], **found} for key, found in sums.items()]
    return sorted(rows, key=lambda row: (-row["price"], -row["amounts"].get("requests", 0)))


def plot_costs(bill: dict[str, Any], today: int, days: int) -> dict[str, Any]:
    """Return the plot of a bill by day: prices, or requests where there are no prices; the largest models by name."""
    priced = bill["total"] is not None
    names = [row["model"] for row in _sum_costs(bill)]
    shown = list(dict.fromkeys(names))[:5]
    known = {(line["day"], line["model"]): 0.0 for line in bill["costs"]}
    for line in bill["costs"]:
        known[line["day"], line["model"]] += line["price"] if priced else line["amounts"].get("requests", 0)
    times = [day * DAY_MS // 1000 for day in range(today - days + 1, today + 1)]
    days_s = [_name_day(at) for at in times]
    lines = {name: [known.get((day, name), 0.0) for day in days_s] for name in shown}
    series = [{"label": name, "values": values} for name, values in lines.items() if any(values)]
    return {"kind": "bars", "times": times, "series": series}


def _name_day(at_s: int) -> str:
    return dt.datetime.fromtimestamp(at_s, dt.UTC).date().isoformat()


def _describe(error: SQLAlchemyError) -> str:
    """Sentence about a database that does not do its work now; a defect is raised on."""
    return f"{explain_fault(error).capitalize()}."
