"""Monitoring routes of the web API: Prometheus metrics (`/metrics`), liveness (`/healthz`) and readiness (`/readyz`).

Rule: a label's values are known when the process starts (registered routes, loaded models, the core's counter names),
never a device, a rollout, a path or anything else that a caller chooses.
Rule: ready is measured, never remembered: one fresh engine round trip, shared by all who ask while it runs, so that
asking often costs the engines nothing. Strangers get no reason, and have it measured once a second at most.
"""

import asyncio
import time
from collections import Counter as Counted
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from cloud_hub.api.auth import caller_of
from cloud_hub.api.interface import ApiContext
from cloud_hub.api.routing import Route, RouteAccess, answer_json
from cloud_hub.core.web_requests import EngineProbe
from cloud_hub.registry.access import NOBODY, Scope
from cloud_hub.registry.device_states import DeviceState
from cloud_hub.rollout.controller import RolloutController
from cloud_hub.rollout.types import PAUSED, TERMINAL, RolloutDeviceState, RolloutState
from cloud_hub.rollout.view import RolloutView
from cloud_hub.serving.telemetry import BUCKETS_S, InferenceTimings, LatencyHistogram
from wire.process.futures import await_shared

MAX_NAMES = 256  # of counters: more would be a defect of ours, and the rest is summed as "other"
_BUCKETS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
STRANGERS_EVERY_S = 1.0  # between two engine round trips for callers without a token
_GAUGES = ("open", "uptime_s", "link_up", "store_ok", "shards")


disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, without use


class HubCollector(Collector):
    """Prometheus collector of the hub's counters, gauges and device states, read at the moment of the scrape."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._hub = context.hub
        self._registry = context.registry

    def collect(self) -> Iterator[Metric]:
        """Yield the hub's metrics: events, gauges, queue lengths by model, devices by state, alarms, batch times."""
        events = CounterMetricFamily("skerry_hub_events", "What the hub did, by name.", labels=["event"])
        for event, count in limit_names(self._hub.counters()).items():
            events.add_metric([event], count)
        yield events
        status = self._hub.status()
        for key in _GAUGES:
            if isinstance(status.get(key), int | float):
                yield GaugeMetricFamily(f"skerry_hub_{key}", f"{key} of the hub now.", value=float(status[key]))
        tasks = len(status.get("tasks", ()))
        yield GaugeMetricFamily("skerry_hub_tasks", "Tasks that this hub does for its region.", value=tasks)
        seen = len(status.get("devices", ()))
        yield GaugeMetricFamily("skerry_hub_devices_seen", "Devices that said hello since the start.", value=seen)
        queued = GaugeMetricFamily("skerry_hub_queued", "Questions waiting, by model.", labels=["model"])
        waiting = status.get("queued")
        for card in self._context.inference.cards:
            queued.add_metric([card.name], float(waiting.get(card.name, 0)) if isinstance(waiting, dict) else 0.0)
        yield queued
        yield from collect_replicas(status.get("replicas", {}))
        yield from self._device_metrics()
        yield from collect_batches(self._context.observer.timings)

    def _device_metrics(self) -> Iterator[GaugeMetricFamily]:
        """Yield devices by state, and alarms by kind."""
        found = Counted(each.state for each in self._registry.devices())
        states = GaugeMetricFamily("skerry_hub_devices", "Devices in the registry, by state.", labels=["state"])
        for state in DeviceState:
            states.add_metric([state.value], found[state])
        yield states
        alarms = GaugeMetricFamily("skerry_hub_alarms", "What a person has to look at, by kind.", labels=["alarm"])
        alarms.add_metric(["clone_suspect"], len(self._registry.list_suspects()))
        status = self._hub.status()
        alarms.add_metric(["ledger_flaw"], len(status.get("ledger_flaws", ())))
        alarms.add_metric(["store_damaged"], len(status.get("stores_damaged", ())))
        yield alarms


class MetricsRoutes:
    """Route `/metrics` and the middleware that counts requests.

    One Prometheus registry per application, so that two hubs in one test do not collide. `others`: further collectors.
    """

    def __init__(self, context: ApiContext, *others: Collector) -> None:
        self._registry = CollectorRegistry()
        for collector in (HubCollector(context), *others):
            self._registry.register(collector)
        self._requests = Counter(
            "skerry_hub_http_requests", "Requests, by route and status.", ["route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "skerry_hub_http_seconds", "Time taken, by route.", ["route"], buckets=_BUCKETS, registry=self._registry
        )

    def routes(self) -> list[Route]:
        """Return the route of this group."""
        says = "Metrics for Prometheus"
        return [
            Route(
                "GET",
                "/metrics",
                self.scrape,
                says,
                RouteAccess.LOCAL_OR_HUB_KEY,
                scope=Scope.READ,
                plain=CONTENT_TYPE_LATEST,
                tag="health",
            )
        ]

    async def scrape(self, _request: web.Request) -> web.Response:
        """Answer with all metrics in Prometheus' text format."""
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def counting_middleware(self) -> Middleware:
        """Return the middleware that counts requests by route and status, and times them by route.

        It is the outermost one, so that it sees refused requests too.
        """

        @web.middleware
        async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
            began = time.perf_counter()
            status = 500
            try:
                response = await handler(request)
                status = response.status
            except web.HTTPException as error:
                status = error.status
                raise
            finally:
                route = _route_label(request)
                self._requests.labels(route, str(status)).inc()
                self._seconds.labels(route).observe(time.perf_counter() - began)
            return response

        return middleware


def collect_replicas(replicas: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield how many replicas of each scaled model are wanted and run, and what its load takes in parts of one."""
    wanted = GaugeMetricFamily("skerry_hub_replicas_wanted", "Replicas that its load asks for.", labels=["model"])
    running = GaugeMetricFamily("skerry_hub_replicas", "Replicas that run here.", labels=["model"])
    need = GaugeMetricFamily(
        "skerry_hub_replicas_needed", "What its load here takes, in parts of a replica: to be summed over hubs.",
        labels=["model"],
    )  # fmt: skip
    for model, found in replicas.items():
        wanted.add_metric([model], found["wanted"])
        running.add_metric([model], found["running"])
        need.add_metric([model], found["need"])
    yield from (wanted, running, need)


def collect_batches(timings: InferenceTimings) -> Iterator[Metric]:
    """Yield metrics of queueing and computing times in seconds, and of items and failed items, by model."""
    waited = HistogramMetricFamily("skerry_hub_queue_seconds", "Of each item, from arrival to batch.", labels=["model"])
    computed = HistogramMetricFamily("skerry_hub_compute_seconds", "Of each batch, in the engine.", labels=["model"])
    items = CounterMetricFamily("skerry_hub_items", "Items computed.", labels=["model"])
    failed = CounterMetricFamily("skerry_hub_items_failed", "Items of batches that failed.", labels=["model"])
    for model, found in timings.models.items():
        for family, spread in ((waited, found.queue), (computed, found.compute)):
            family.add_metric([model], cumulate_buckets(spread), spread.seconds)
        items.add_metric([model], found.items)
        failed.add_metric([model], found.failed.count)
    yield from (waited, computed, items, failed)


def cumulate_buckets(spread: LatencyHistogram) -> list[tuple[str, float]]:
    """Return cumulative histogram buckets, as Prometheus wants them."""
    bounds = [*(repr(bound) for bound in BUCKETS_S), "+Inf"]
    return list(zip(bounds, accumulate(map(float, spread.buckets)), strict=True))


def limit_names(counters: dict[str, int], limit: int = MAX_NAMES) -> dict[str, int]:
    """Return at most `limit` names, the rest summed under "other": a scrape cannot grow without bound."""
    names = sorted(counters)
    kept = {name: counters[name] for name in names[:limit]}
    rest = sum(counters[name] for name in names[limit:])
    return {**kept, "other": rest} if names[limit:] else kept


def _route_label(request: web.Request) -> str:
    """Return the label of a request's route: its canonical path, or "none", so that callers cannot add labels."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "none"


WAITING_STATES = PAUSED | {RolloutState.WAITING_APPROVAL}
STOPPED_STATES = frozenset((RolloutState.ABORTING, RolloutState.ABORTED, RolloutState.REVERTING, RolloutState.REVERTED))
STOPPED_ALARM_MS = 86_400_000  # a stopped rollout is an alarm for a day


class RolloutCollector(Collector):
    """Prometheus collector of rollouts: how many are in each state, their devices, and what the gate leaves open.

    `desk` None: a hub without rollouts shows zeros.
    """

    def __init__(self, desk: RolloutController | None, now_ms: Callable[[], int]) -> None:
        self._desk = desk
        self._now_ms = now_ms

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield rollouts and their devices by state, the largest gate bound, and alarms."""
        views = self._desk.views() if self._desk else ()
        under_way = [view for view in views if view.state not in TERMINAL]
        yield _count_states(
            "skerry_hub_rollouts", "Rollouts under way.", RolloutState, Counted(v.state for v in under_way)
        )
        devices: Counted[str] = Counted()
        for view in under_way:
            devices.update(view.states)
        yield _count_states("skerry_hub_rollout_devices", "Devices of rollouts under way.", RolloutDeviceState, devices)
        bounds = [view.gate.bound for view in under_way if view.gate is not None]
        says = "The most that a candidate under way may be worse by, as a share of answers; 0 while none is judged."
        yield GaugeMetricFamily("skerry_hub_rollout_bound", says, value=max(bounds, default=0.0))
        yield self._count_alarms(views)

    def _count_alarms(self, views: tuple[RolloutView, ...]) -> GaugeMetricFamily:
        """Return what a person has to look at, as `skerry_hub_alarms` for everything else."""
        since_ms = self._now_ms() - STOPPED_ALARM_MS
        stopped = sum(view.state in STOPPED_STATES and view.changed_ms > since_ms for view in views)
        found = GaugeMetricFamily(
            "skerry_hub_rollout_alarms", "Rollouts that a person has to look at.", labels=["alarm"]
        )
        found.add_metric(["waits"], sum(view.state in WAITING_STATES for view in views))
        found.add_metric(["stopped"], stopped)
        return found


def _count_states(
    name: str, says: str, states: type[RolloutState] | type[RolloutDeviceState], counts: Counted[str]
) -> GaugeMetricFamily:
    """Return a gauge with one sample for every state, 0 where none is counted."""
    family = GaugeMetricFamily(name, says, labels=["state"])
    for state in states:
        family.add_metric([state.value], counts[state.value])
    return family


class HealthRoutes:
    """Routes `/healthz` and `/readyz`. `timeout_s`: an engine that takes longer is not ready."""

    def __init__(self, context: ApiContext, timeout_s: float) -> None:
        self._hub = context.hub
        self._engines = context.engines
        self._language_models = context.language_models
        self._timeout_s = timeout_s
        self._probing: asyncio.Task[str] | None = None
        self._probed_at = -STRANGERS_EVERY_S

    def routes(self) -> list[Route]:
        """Return the routes of this group."""
        ready = "Whether its models answer right now; 503 with the reason if not"
        return [
            Route(
                "GET",
                "/healthz",
                self.live,
                "Whether this process lives",
                RouteAccess.OPEN,
                scope=Scope.READ,
                tag="health",
            ),
            Route("GET", "/readyz", self.ready, ready, RouteAccess.OPEN_IN_PART, scope=Scope.READ, tag="health"),
        ]

    async def live(self, _request: web.Request) -> web.Response:
        """Answer 200: the process lives."""
        return answer_json({"live": True})

    async def ready(self, request: web.Request) -> web.Response:
        """Answer 200 if the models answer, or 503 with the reason, which strangers are not told.

        The database, the broker link and one sample through every engine are checked, each time anew.
        """
        stranger = caller_of(request) is NOBODY
        reason = _find_fault(self._hub.status()) or await self._ask_engines(stranger)
        told = {"ready": not reason} if stranger else {"ready": not reason, "reason": reason}
        return answer_json(told, 503 if reason else 200)

    async def _ask_engines(self, stranger: bool) -> str:
        """Return why the models do not answer, "" if they do; a round trip under way is everybody's."""
        now = time.monotonic()
        if self._probing is None or (self._probing.done() and self._may_probe(stranger, now)):
            self._probing = asyncio.create_task(self._probe_engines(), name="readyz-probe")
            self._probed_at = now
        # A caller that hangs up must not end the round trip of the others.
        return await await_shared(self._probing)

    def _may_probe(self, stranger: bool, now: float) -> bool:
        """Whether the models are asked anew; what an earlier probe of strangers' found counts for a second."""
        return not stranger or now - self._probed_at >= STRANGERS_EVERY_S

    async def close(self, _app: web.Application) -> None:
        """Cancel a probe that is under way, at shutdown."""
        if self._probing is not None:
            self._probing.cancel()

    async def _probe_engines(self) -> str:
        try:
            async with asyncio.timeout(self._timeout_s):
                probes = await self._engines.probe()
        except TimeoutError:
            return f"the engines did not answer within {self._timeout_s:g} s"
        if not probes and self._language_models.models:
            ready = any(model.ready for model in self._language_models.models)
            return "" if ready else "no language model has an engine that is ready"
        if not probes and (status := self._hub.status()).get("replicas"):
            down = status.get("engines_down")
            return f"{down[0]} failed" if down else ""  # its models rest, and are loaded for whoever asks
        return _find_failed(probes)


def _find_fault(status: dict[str, Any]) -> str:
    """Return what keeps the hub as a whole from its work, "" if nothing does."""
    if status.get("draining"):
        return "the hub is stopping"
    if status.get("store_fault"):
        return str(status["store_fault"])
    if status.get("region_heard") is False:
        return "what other hubs change cannot be heard: the database does not answer"
    if status.get("clock_fault"):
        return str(status["clock_fault"])
    return "no link to the broker" if status.get("link_up") is False else ""


def _find_failed(probes: list[EngineProbe]) -> str:
    """Return why the probes do not show readiness, "" if they do."""
    if not probes:
        return "no model is loaded"
    return next((f"{probe.model} failed" for probe in probes if not probe.ok), "")
