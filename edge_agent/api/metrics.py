"""Prometheus metrics of the agent, imported by the first scrape.

Rule: names of metrics and labels are fixed words; nothing that a caller or a sample chose ever becomes one.
"""

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from edge_agent.api.service import AnswerService


class AgentMetrics:
    """Metrics of the process and of what the agent did, in the Prometheus text format."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, service: AnswerService) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_AgentCollector(service))
        ProcessCollector(registry=self._registry)

    def encode_text(self) -> bytes:
        """The metrics of this moment."""
        return generate_latest(self._registry)


_GAUGES = {
    "link": "1 while the broker is connected.",
    "open": "Questions without an outcome.",
    "notice": "Counter of the deny-all notice in force, 0 without one.",
    "policy_days_left": "Days until the policy expires; negative since it has: nothing leaves.",
}


class _AgentCollector(Collector):
    """Prometheus collector over the agent's own counters, read at scrape time: nothing is counted twice."""

    def __init__(self, service: AnswerService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """Metrics of this moment."""
        counts = CounterMetricFamily("skerry_agent_events", "What the agent did, by kind.", labels=["kind"])
        for kind, count in sorted(self._service.counts.items()):
            counts.add_metric([kind], count)
        yield counts
        status = self._service.status()
        for key, text in _GAUGES.items():
            value = _parse_number(status.get(key))
            if value is not None:
                yield GaugeMetricFamily(f"skerry_agent_{key}", text, value=value)
        yield from _certificate_metrics(status)
        drift = status.get("drift")
        if isinstance(drift, dict):
            text = "How far inputs are from looking like the calibration samples; 1 and more is no chance."
            yield GaugeMetricFamily("skerry_agent_drift", text, value=drift["level"])
        yield from _sent_metrics(status.get("sent"))
        yield from _budget_metrics(status.get("budgets"))
        yield from _energy_metrics(status.get("energy"))
        yield from _span_metrics(status.get("trace"))
        yield from _output_metrics(status.get("outputs"))
        yield from _source_metrics(status.get("sources"))
        alarms = GaugeMetricFamily("skerry_agent_alarm", "1 while a person has to look at it.", labels=["alarm"])
        for alarm in status.get("alarms", ()):
            alarms.add_metric([alarm], 1)
        yield alarms

    def describe(self) -> Iterator[Metric]:
        """No metrics: a scrape may not happen before the agent runs."""
        return iter(())


def _sent_metrics(sent: Any) -> Iterator[Metric]:
    """Bytes by the policies' rules, and `overhead`; together they are what the sockets sent."""
    if not isinstance(sent, dict):
        return
    text = "Bytes handed to the link, by rule; `overhead` is the rest of what the sockets sent."
    rules = CounterMetricFamily("skerry_agent_sent_bytes", text, labels=["rule"])
    for rule, size in sorted(sent["by_rule"].items()):
        rules.add_metric([rule], size)
    if sent["sockets"] is not None:
        rules.add_metric(["overhead"], sent["overhead"])
        yield CounterMetricFamily("skerry_agent_socket_bytes", "What the kernel says was sent.", value=sent["sockets"])
    yield rules


def _certificate_metrics(status: dict[str, Any]) -> Iterator[Metric]:
    """Seconds until the device's certificate ends, by hub time."""
    ends_ms, now_ms = status.get("certificate_ends_ms"), status.get("hub_time_ms")
    if isinstance(ends_ms, int) and isinstance(now_ms, int) and ends_ms > 0:
        text = "Seconds until this device's certificate ends; it is renewed with a third of its life left."
        yield GaugeMetricFamily("skerry_agent_certificate_left_seconds", text, value=(ends_ms - now_ms) / 1000)


def _span_metrics(counts: Any) -> Iterator[Metric]:
    """Spans of answers by what became of them, where a collector is configured."""
    if not isinstance(counts, dict):
        return
    metric = CounterMetricFamily("skerry_agent_spans", "Spans for the collector, by outcome.", labels=["outcome"])
    for outcome in ("sent", "lost"):
        metric.add_metric([outcome], counts[f"spans_{outcome}"])
    yield metric


def _output_metrics(outputs: Any) -> Iterator[Metric]:
    """Records of each output by what became of them: `sent`, or the reason why one was dropped."""
    if not isinstance(outputs, dict):
        return
    metric = CounterMetricFamily("skerry_agent_output_records", "Records, by outcome.", labels=["output", "outcome"])
    for name, output in sorted(outputs.items()):
        for outcome, count in ("sent", output["sent"]), *sorted(output["dropped"].items()):
            metric.add_metric([name, outcome], count)
    yield metric


def _source_metrics(sources: Any) -> Iterator[Metric]:
    """Sources of samples: whether each is there, and what became of what it received. Names: the configuration's."""
    if not isinstance(sources, dict):
        return
    up = GaugeMetricFamily("skerry_agent_source_up", "1 while the source gives something.", labels=["source"])
    text = "What a source received, by what became of it: answered, or dropped for a reason."
    readings = CounterMetricFamily("skerry_agent_source_readings", text, labels=["source", "outcome"])
    restarts = CounterMetricFamily("skerry_agent_source_restarts", "Restarts of a source.", labels=["source"])
    for name, source in sorted(sources.items()):
        up.add_metric([name], source["state"] == "up")
        restarts.add_metric([name], source["restarts"])
        for outcome, count in {"answered": source["answered"], **source["dropped"]}.items():
            readings.add_metric([name, outcome], count)
    yield from (up, readings, restarts)


def _budget_metrics(budgets: Any) -> Iterator[Metric]:
    """Each account of the policy's base, in its own unit: bytes, millionths of a price, or units of privacy."""
    if not isinstance(budgets, dict):
        return
    for key, text in (("left", "What is left in this period."), ("limit", "What a period allows.")):
        metric = GaugeMetricFamily(f"skerry_agent_budget_{key}", text, labels=["account"])
        for account, held in sorted(budgets.items()):
            metric.add_metric([account], held[key])
        yield metric


def _energy_metrics(energy: Any) -> Iterator[Metric]:
    """Joules by the rules that applied; where they are from is a label, as a stated figure is no measured one."""
    if not isinstance(energy, dict):
        return
    text = "Joules of inference and of sending questions, by rule; source: a meter, or the configured model."
    metric = CounterMetricFamily("skerry_agent_energy_joules", text, labels=["rule", "source"])
    for rule, joules in sorted(energy["by_rule"].items()):
        metric.add_metric([rule, energy["source"]], joules)
    yield metric


def _parse_number(value: object) -> float | None:
    """The value of a gauge: numbers and booleans as they are, "up" as 1, any other text as 0; else None."""
    if isinstance(value, bool | int | float):
        return float(value)
    return float(value == "up") if isinstance(value, str) else None
