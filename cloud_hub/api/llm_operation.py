"""Language models for operators: the list of their replicas, and their metrics.

Rule: a metric's labels are models and replicas of the configuration, and outcomes and kinds of ours.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from cloud_hub.api.monitoring import cumulate_buckets
from cloud_hub.api.routing import Route, answer_json
from cloud_hub.llm.model import LanguageModel
from cloud_hub.llm.replica import Replica
from cloud_hub.llm.service import LanguageModels
from cloud_hub.llm.telemetry import LlmMeter, LlmOutcome, TokenKind
from cloud_hub.registry.access import Scope


class LlmAdminRoutes:
    """Route that lists the language models and their replicas, for operators of the whole hub."""

    def __init__(self, models: LanguageModels) -> None:
        self._models = models

    def routes(self) -> list[Route]:
        """Return the route of this group."""
        says = "Every language model, its queue, and the state of each of its replicas"
        return [Route("GET", "/v1/admin/language-models", self.list_models, says, scope=Scope.READ)]

    async def list_models(self, _request: web.Request) -> web.Response:
        """Answer with every model."""
        return answer_json({"models": [_describe_model(model) for model in self._models.models]})


def _describe_model(model: LanguageModel) -> dict[str, Any]:
    return {
        "model": model.settings.name,
        "ready": model.ready,
        "context_tokens": model.context_tokens,
        "waiting": model.queue.waiting,
        "waiting_tokens": model.queue.web_open,
        "replicas": [_describe_replica(replica) for replica in model.replicas],
    }


def _describe_replica(replica: Replica) -> dict[str, Any]:
    """Return a replica. `breaker_open`: it gets no requests; `engine`: what it reports of itself."""
    return {
        "url": replica.name,
        "region": replica.region,
        "ready": replica.ready,
        "why": replica.why,
        "breaker_open": replica.breaker.tripped,
        "in_flight": replica.in_flight,
        "tokens_in_flight": replica.tokens_in_flight,
        "answered": replica.answered,
        "failed": replica.failed,
        "engine": msgspec.to_builtins(replica.metrics),
    }


class LlmCollector(Collector):
    """Prometheus collector of the language models, read at the moment of the scrape."""

    def __init__(self, models: LanguageModels) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """Yield metrics by model and by replica."""
        yield from self._collect_counts()
        yield from self._collect_times()
        yield from self._collect_queues()
        yield from self._collect_replicas()

    def _collect_counts(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("skerry_hub_llm_requests", "Requests.", labels=["model", "outcome"])
        tokens = CounterMetricFamily("skerry_hub_llm_tokens", "Tokens, as billed.", labels=["model", "kind"])
        for name, meter in self._models.meters.items():
            for outcome in LlmOutcome:
                requests.add_metric([name, outcome.value], meter.outcomes[outcome])
            for kind in TokenKind:
                tokens.add_metric([name, kind.value], meter.tokens[kind])
        says = "Tokens among these that no engine counted."
        estimated = CounterMetricFamily("skerry_hub_llm_tokens_estimated", says, labels=["model"])
        for name, meter in self._models.meters.items():
            estimated.add_metric([name], meter.estimated)
        yield from (requests, tokens, estimated)

    def _collect_times(self) -> Iterator[Metric]:
        yield self._add_times("queue", "Of each request, until its turn.", lambda meter: meter.queued)
        yield self._add_times("first", "From its turn to the first byte.", lambda meter: meter.first)

    def _add_times(self, name: str, says: str, pick: Callable[[LlmMeter], Any]) -> Metric:
        family = HistogramMetricFamily(f"skerry_hub_llm_{name}_seconds", says, labels=["model"])
        for model, meter in self._models.meters.items():
            family.add_metric([model], cumulate_buckets(pick(meter)), pick(meter).seconds)
        return family

    def _collect_queues(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily("skerry_hub_llm_queued", "Requests that wait.", labels=["model"])
        tokens = GaugeMetricFamily("skerry_hub_llm_queued_tokens", "Tokens that they ask for.", labels=["model"])
        failovers = CounterMetricFamily("skerry_hub_llm_failovers", "Requests given to another.", labels=["model"])
        for model in self._models.models:
            name = [model.settings.name]
            waiting.add_metric(name, model.queue.waiting)
            tokens.add_metric(name, model.queue.web_open)
            failovers.add_metric(name, model.counts["failovers"])
        yield from (waiting, tokens, failovers)

    def _collect_replicas(self) -> Iterator[Metric]:
        for name, says, read in _REPLICA_GAUGES:
            family = GaugeMetricFamily(f"skerry_hub_llm_{name}", says, labels=["model", "replica"])
            for model in self._models.models:
                for replica in model.replicas:
                    family.add_metric([model.settings.name, replica.name], float(read(replica)))
            yield family
        answers = CounterMetricFamily(
            "skerry_hub_llm_replica_requests", "Answers of a replica.", labels=["model", "replica", "outcome"]
        )
        for model in self._models.models:
            for replica in model.replicas:
                for outcome, count in (("answered", replica.answered), ("failed", replica.failed)):
                    answers.add_metric([model.settings.name, replica.name, outcome], count)
        yield answers


_REPLICA_GAUGES: tuple[tuple[str, str, Callable[[Replica], float]], ...] = (
    ("replica_ready", "Whether a token came back at the last check.", lambda each: each.ready),
    ("breaker_open", "Whether its circuit breaker is open: its last check failed.", lambda each: each.breaker.tripped),
    ("in_flight", "Requests that this hub has there.", lambda each: each.in_flight),
    ("kv_usage", "Share of its KV cache in use, as it reports.", lambda each: each.metrics.kv_usage),
)
