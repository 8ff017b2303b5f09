"""Spans leave for a file or a real OTLP receiver; those that a full disk or a dead collector costs are counted."""

import io
import json
import subprocess
import sys
import time

import pytest

from tests.wire.doubles.otlp_receiver import OtlpReceiver
from wire.process import trace_export
from wire.process.logging import JsonLog
from wire.process.trace_export import SpanFile, Tracing
from wire.process.tracing import Span, TraceContext, begin_trace, derive_span_id, parse_traceparent

TRACE, PARENT = "a" * 32, "b" * 16
GIVEN = f"00-{TRACE}-{PARENT}-01"


def spans(count: int) -> list[Span]:
    return [Span(TRACE, derive_span_id(TRACE, "x", str(n)), PARENT, "x", 1.5, 2.0, {"n": n}) for n in range(count)]


def test_a_span_file_holds_lines_of_json_and_stops_at_its_size(tmp_path):
    file = SpanFile(tmp_path / "trace.jsonl", "skerry-hub", max_bytes=1000)
    for span in spans(20):
        file([span])
    file.close()
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert (tmp_path / "trace.jsonl").stat().st_size <= 1000
    assert file.lost == 20 - len(lines) > 0
    assert file.sent == len(lines)
    assert lines[0]["startTimeUnixNano"] == 1_500_000_000
    assert (lines[0]["ms"], lines[0]["parentSpanId"], lines[0]["service"]) == (500.0, PARENT, "skerry-hub")


def test_a_real_receiver_gets_our_spans_as_they_are():
    with OtlpReceiver() as receiver:
        tracing = Tracing(None, receiver.endpoint, "skerry-agent", "demo--cam-1", JsonLog(io.StringIO()))
        assert tracing.sink is not None
        tracing.sink(spans(3))
        tracing.close()
    assert tracing.counts() == {"spans_sent": 3, "spans_lost": 0}
    first = receiver.spans[0]
    assert (first.service, first.instance, first.name) == ("skerry-agent", "demo--cam-1", "x")
    assert (first.trace, first.id, first.parent) == (TRACE, derive_span_id(TRACE, "x", "0"), PARENT)
    assert (first.start_ns, first.end_ns, first.attributes) == (1_500_000_000, 2_000_000_000, {"n": 0})


def test_spans_for_a_collector_that_is_down_are_counted_and_logged_and_the_end_is_not_held_up(monkeypatch):
    with OtlpReceiver() as receiver:
        nobody = receiver.endpoint
    monkeypatch.setattr(trace_export, "EXPORT_TIMEOUT_S", 0.2)
    said = io.StringIO()
    tracing = Tracing(None, nobody, "skerry-hub", "hub-1", JsonLog(said))
    assert tracing.sink is not None
    tracing.sink(spans(5))
    began = time.monotonic()
    tracing.close()
    assert time.monotonic() - began < trace_export.CLOSE_S + 30.0
    assert tracing.counts() == {"spans_sent": 0, "spans_lost": 5}
    (line,) = (json.loads(line) for line in said.getvalue().splitlines())
    assert (line["event"], line["spans"], line["lost"]) == ("spans_lost", 5, 5)
    assert "withheld" not in said.getvalue()


@pytest.mark.further
def test_spans_beyond_what_may_wait_for_a_slow_collector_are_lost_and_counted():
    with OtlpReceiver() as receiver:
        receiver.may_answer.clear()
        tracing = Tracing(None, receiver.endpoint, "skerry-hub", "hub-1", JsonLog(io.StringIO()))
        assert tracing.sink is not None
        tracing.sink(spans(trace_export.MAX_WAITING + 7))
        assert tracing.counts() == {"spans_sent": 0, "spans_lost": 7}
        receiver.may_answer.set()
        tracing.close()
    assert tracing.counts() == {"spans_sent": trace_export.MAX_WAITING, "spans_lost": 7}
    assert len(receiver.spans) == trace_export.MAX_WAITING


@pytest.mark.further
def test_without_a_configured_collector_nothing_of_opentelemetry_is_imported():
    code = (
        "import sys, wire.process.trace_export as t; from wire.process.logging import JsonLog;"
        "assert t.Tracing(None, '', 'skerry-hub', 'hub-1', JsonLog()).sink is None;"
        "import cloud_hub.serving.telemetry, edge_agent.app.process;"
        "print([m for m in sys.modules if m.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_off_is_off():
    tracing = Tracing(None, "", "skerry-hub", "hub-1", JsonLog())
    assert (tracing.sink, tracing.counts()) == (None, {})


def test_only_a_sampled_traceparent_of_version_0_is_a_place():
    assert parse_traceparent(GIVEN) == TraceContext(TRACE, PARENT)
    for text in ("", GIVEN[:-1], GIVEN.upper(), "01" + GIVEN[2:], f"00-{'0' * 32}-{PARENT}-01", GIVEN[:-2] + "00"):
        assert parse_traceparent(text) is None


def test_a_trace_that_begins_here_has_a_root():
    assert parse_traceparent(begin_trace(TRACE)) == TraceContext(TRACE, "")
    assert begin_trace(TRACE) != begin_trace("c" * 32)
