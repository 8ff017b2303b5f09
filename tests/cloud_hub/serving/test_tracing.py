"""Trace spans of a question, from the device's sample to the ranks that computed it, in a file or for a collector."""

import json
import subprocess
import sys

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource

from cloud_hub.core.commands import BatchItem, QuestionKey
from cloud_hub.core.queues import Batch
from cloud_hub.engine.types import WorkItem
from cloud_hub.engine.worker import BatchResult
from cloud_hub.serving.telemetry import InferenceObserver
from cloud_hub.serving.tracing import SpanFile, Tracing, to_readable_span
from wire.process.tracing import Span, derive_span_id, parse_traceparent

TRACE, PARENT = "a" * 32, "b" * 16
GIVEN = f"00-{TRACE}-{PARENT}-01"


def batch(*items: BatchItem) -> Batch:
    return Batch(1, "digits@7", items, 0, 11.0)


def item(trace: str = GIVEN, device: str = "clinic--cam-1") -> BatchItem:
    return BatchItem(QuestionKey(device, 1, 2), WorkItem(), 10.0, trace=trace, about="q1", created_s=9.5)


def test_a_question_is_told_from_its_sample_to_the_rank_that_computed_it():
    spans: list[Span] = []
    watch = InferenceObserver(spans.extend)
    watch.on_batch(batch(item()), BatchResult([], 0.5, ranks=((0, 0.4), (1, 0.5))), 12.0)
    watch.on_stored(item().key, 12.25)
    told = {span.name: (span.start_s, span.end_s) for span in spans}
    assert told == {
        "skerry.link": (9.5, 10.0),
        "skerry.queue": (10.0, 11.5),
        "skerry.compute": (11.5, 12.0),
        "skerry.rank": (11.5, 12.0),
        "skerry.verdict": (12.0, 12.25),
    }
    by_id = {span.id: span for span in spans}
    assert len(by_id) == len(spans) == 6
    assert {span.trace for span in spans} == {TRACE}
    device = derive_span_id(TRACE, "skerry.device", "q1")
    assert {span.parent for span in spans if span.name != "skerry.rank"} == {device}
    ranks = [span for span in spans if span.name == "skerry.rank"]
    assert [by_id[span.parent].name for span in ranks] == ["skerry.compute"] * 2
    assert [span.attributes["skerry.rank"] for span in ranks] == [0, 1]


def test_what_nobody_wants_traced_is_counted_and_not_told():
    spans: list[Span] = []
    watch = InferenceObserver(spans.extend)
    unsampled = GIVEN[:-2] + "00"
    watch.on_batch(batch(item(""), item("nonsense"), item(unsampled)), BatchResult([], 0.5), 12.0)
    watch.on_batch(batch(item()), BatchResult([], 0.5, "EngineError"), 13.0)
    assert spans == []
    assert watch.timings.timings_for("digits@7").items == 3
    assert watch.timings.timings_for("digits@7").failed.count == 1


def test_verdicts_that_never_come_are_forgotten_in_bounded_memory():
    watch = InferenceObserver(lambda _spans: None)
    for seq in range(5000):
        one = BatchItem(QuestionKey("clinic--cam-1", 1, seq), WorkItem(), 10.0, trace=GIVEN, about=str(seq))
        watch.on_batch(batch(one), BatchResult([], 0.1), 11.0)
    assert watch.forgotten == 5000 - 4096


def test_a_span_file_holds_lines_of_json_and_stops_at_its_size(tmp_path):
    file = SpanFile(tmp_path / "trace.jsonl", max_bytes=1000)
    for number in range(20):
        file([Span(TRACE, derive_span_id(TRACE, "x", str(number)), PARENT, "x", 1.0, 1.5, {"n": number})])
    file.close()
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert (tmp_path / "trace.jsonl").stat().st_size <= 1000
    assert file.lost == 20 - len(lines) > 0
    assert lines[0]["startTimeUnixNano"] == 1_000_000_000
    assert (lines[0]["ms"], lines[0]["parentSpanId"]) == (500.0, PARENT)


def test_the_collectors_sdk_takes_our_spans_as_they_are():
    span = Span(
        TRACE, derive_span_id(TRACE, "skerry.queue", "q"), PARENT, "skerry.queue", 1.5, 2.0, {"skerry.batch": 3}
    )
    sent = (
        encode_spans([to_readable_span(span, Resource({"service.name": "x"}))])
        .resource_spans[0]
        .scope_spans[0]
        .spans[0]
    )
    assert (sent.name, sent.trace_id.hex(), sent.span_id.hex(), sent.parent_span_id.hex()) == (
        "skerry.queue",
        TRACE,
        span.id,
        PARENT,
    )
    assert (sent.start_time_unix_nano, sent.end_time_unix_nano) == (1_500_000_000, 2_000_000_000)


def test_without_a_configured_collector_nothing_of_opentelemetry_is_imported():
    code = (
        "import sys, cloud_hub.serving.tracing as t; assert t.Tracing(None, '', 'hub-1').sink is None;"
        "import cloud_hub.serving.telemetry; print([m for m in sys.modules if m.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_off_is_off():
    assert Tracing(None, "", "hub-1").sink is None


def test_only_a_sampled_traceparent_of_version_0_is_a_place():
    assert parse_traceparent(GIVEN) is not None
    for text in ("", GIVEN[:-1], GIVEN.upper(), "01" + GIVEN[2:], f"00-{'0' * 32}-{PARENT}-01", GIVEN[:-2] + "00"):
        assert parse_traceparent(text) is None
