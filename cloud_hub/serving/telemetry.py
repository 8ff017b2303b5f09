"""Inference statistics by model (waiting and compute times, batch sizes), and trace spans of traced requests.

Rule: size is bounded by the models and their largest batch, never by what callers send. Without a sink no span is made;
what is remembered until a verdict is stored is bounded, and the excess is counted.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from cloud_hub.core.commands import LOCAL, BatchItem, QuestionKey
from cloud_hub.core.queues import Batch
from cloud_hub.engine.worker import BatchResult
from wire.process.tracing import DEVICE_SPAN, Attribute, Span, TraceContext, derive_span_id, parse_traceparent

MAX_MODELS = 256
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class TimeSum:
    """Number of events and their total time in seconds."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self.count += count
        self.seconds += seconds


class LatencyHistogram:
    """Histogram of times over `BUCKETS_S`; the last bucket holds everything above."""

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKETS_S) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(BUCKETS_S, seconds)] += 1
        self.seconds += seconds


class ModelTimings:
    """Statistics of one model version. `batches` by batch size; `failed` counts items of failed batches.

    Of requests, whatever their number of samples: `succeeded` and `refused` from arrival to end, `waited` until the
    first batch with a sample of theirs, `computed` in the engine.
    """

    def __init__(self) -> None:
        self.items = 0
        self.batches: dict[int, TimeSum] = {}
        self.failed = TimeSum()
        self.succeeded, self.refused, self.waited, self.computed = TimeSum(), TimeSum(), TimeSum(), TimeSum()
        self.queue = LatencyHistogram()
        self.compute = LatencyHistogram()
        self.last_ms = 0


class InferenceTimings:
    """Statistics of all model versions."""

    def __init__(self) -> None:
        self.models: dict[str, ModelTimings] = {}

    def timings_for(self, model: str) -> ModelTimings:
        """Statistics of `digits@7`; models beyond `MAX_MODELS` share the name `other`."""
        if model not in self.models and len(self.models) >= MAX_MODELS:
            model = "other"
        return self.models.setdefault(model, ModelTimings())

    def add_batch(self, model: str, waited_s: Sequence[float], compute_s: float, now: float) -> None:
        """Count a computed batch. `waited_s`: per item, from its arrival to the start of its batch."""
        found = self.timings_for(model)
        found.items += len(waited_s)
        found.batches.setdefault(len(waited_s), TimeSum()).add(compute_s)
        found.compute.add(compute_s)
        for waited in waited_s:
            found.queue.add(max(0.0, waited))
        found.last_ms = int(now * 1000)

    def add_request_batch(self, model: str, begun: Sequence[float], requests: int, compute_s: float) -> None:
        """Count the requests of a computed batch. `begun`: waiting times (s) of those whose first batch it is."""
        found = self.timings_for(model)
        for waited in begun:
            found.waited.add(max(0.0, waited))
        found.computed.add(compute_s * requests, len(begun))

    def add_request(self, model: str, seconds: float, *, answered: bool) -> None:
        """Count a request that has ended after so many seconds, with an answer or with a refusal."""
        found = self.timings_for(model)
        (found.succeeded if answered else found.refused).add(seconds)

    def add_failure(self, model: str, items: int, compute_s: float) -> None:
        """Count a failed batch of so many items."""
        self.timings_for(model).failed.add(compute_s, items)


def sum_times(sums: Iterable[TimeSum]) -> tuple[int, float]:
    """Sum of several: (number of events, seconds)."""
    kept = list(sums)
    return sum(each.count for each in kept), sum(each.seconds for each in kept)


SpanSink = Callable[[Sequence[Span]], None]
LINK, QUEUE, COMPUTE, RANK, VERDICT, HTTP = (
    f"skerry.{part}" for part in ("link", "queue", "compute", "rank", "verdict", "http")
)
MAX_WAITING = 4096


class InferenceObserver:
    """Observes batches: counts their times, and makes spans for traced items.

    `sink` takes the spans; None = tracing is off. `counts`: what became of them, by name.
    """

    def __init__(self, sink: SpanSink | None = None, counts: Callable[[], dict[str, int]] = dict) -> None:
        self.timings = InferenceTimings()
        self.forgotten = 0
        self._sink = sink
        self._counts = counts
        # Parent span, question id, and hub time (s) at which it was computed.
        self._waiting: OrderedDict[QuestionKey, tuple[TraceContext, str, float]] = OrderedDict()

    def span_counts(self) -> dict[str, int]:
        """Spans sent, lost, and forgotten because their verdict did not come; {} if tracing is off."""
        return {**self._counts(), "spans_forgotten": self.forgotten} if self._sink is not None else {}

    def on_batch(self, batch: Batch, result: BatchResult, now: float) -> None:
        """A batch has returned from its engine at `now` (hub seconds)."""
        if result.error:
            self.timings.add_failure(batch.model, len(batch.items), result.seconds)
            if batch.attempt and len(batch.items) == 1:  # it fails alone: its question will be refused
                self._count_questions(batch, now, answered=False)
            return
        begun = now - result.seconds
        self.timings.add_batch(batch.model, [begun - item.arrived_s for item in batch.items], result.seconds, now)
        requests = {item.key[:2] if item.key.device == LOCAL else item.key for item in batch.items}
        firsts = [begun - item.arrived_s for item in batch.items if item.key.device != LOCAL or not item.key.seq]
        self.timings.add_request_batch(batch.model, firsts, len(requests), result.seconds)
        self._count_questions(batch, now, answered=True)
        if self._sink is not None:
            for item in batch.items:
                self._emit_spans(item, batch, result, now)

    def on_web_request(self, model: str, seconds: float, *, answered: bool) -> None:
        """A web request has ended after so many seconds; a question of a device counts by its batch."""
        self.timings.add_request(model, seconds, answered=answered)

    def on_stored(self, key: QuestionKey, now: float) -> None:
        """The verdict of this question is stored and sent now: ends its trace."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None and self._sink is not None:
            at, about, computed_s = waiting
            self._sink((at.create_span(VERDICT, about, (computed_s, now), {}),))

    def on_web_reply(self, traceparent: str, span: str, times: tuple[float, float], status: int) -> None:
        """A traced web request was answered. `span`: id of the span that its samples' spans have as parent."""
        at = parse_traceparent(traceparent)
        if at is not None and self._sink is not None:
            told: dict[str, Attribute] = {"http.response.status_code": status}
            self._sink((Span(at.trace, span, at.parent, HTTP, *times, attributes=told),))

    def _count_questions(self, batch: Batch, now: float, *, answered: bool) -> None:
        """Count the devices' questions of a batch as requests that have ended."""
        for item in batch.items:
            if item.key.device != LOCAL:
                self.timings.add_request(batch.model, now - item.arrived_s, answered=answered)

    def _emit_spans(self, item: BatchItem, batch: Batch, result: BatchResult, now: float) -> None:
        """Make the spans of one item: link, queue, compute, and one per rank."""
        given = parse_traceparent(item.trace)
        if given is None or self._sink is None:
            return
        begun = now - result.seconds
        spans: list[Span] = []
        at = given
        if item.key.device:
            at = TraceContext(given.trace, derive_span_id(given.trace, DEVICE_SPAN, item.about))
            about: dict[str, Attribute] = {"skerry.device": item.key.device, "skerry.question": item.about}
            spans.append(at.create_span(LINK, item.about, (item.created_s, item.arrived_s), about))
        facts: dict[str, Attribute] = {"skerry.model": batch.model, "skerry.batch": len(batch.items)}
        spans.append(at.create_span(QUEUE, item.about, (item.arrived_s, begun), {"skerry.attempt": batch.attempt}))
        spans.append(at.create_span(COMPUTE, item.about, (begun, now), facts))
        below = TraceContext(at.trace, spans[-1].id)
        for rank, seconds in result.ranks or ((0, result.seconds),):
            spans.append(
                below.create_span(RANK, f"{item.about}/{rank}", (begun, begun + seconds), {"skerry.rank": rank})
            )
        if item.key.device:
            self._remember_trace(item.key, (at, item.about, now))
        self._sink(spans)

    def _remember_trace(self, key: QuestionKey, waiting: tuple[TraceContext, str, float]) -> None:
        self._waiting[key] = waiting
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popitem(last=False)
            self.forgotten += 1
