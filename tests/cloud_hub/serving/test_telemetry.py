"""Trace spans of a question, from the device's sample to the ranks that computed it."""

from cloud_hub.core.commands import BatchItem, QuestionKey
from cloud_hub.core.queues import Batch
from cloud_hub.engine.types import WorkItem
from cloud_hub.engine.worker import BatchResult
from cloud_hub.serving.telemetry import InferenceObserver
from wire.process.tracing import Span, derive_span_id

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
