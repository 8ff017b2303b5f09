"""Sees every batch come back from its engine: counts its times, and tells traced work as spans, from sample to rank.

Rule: without a sink no span is made. What is remembered until a verdict is stored is bounded; the rest is counted.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from cloud_hub.core.commands import Item, Key
from cloud_hub.core.queues import Batch
from cloud_hub.engine.worker import Result
from cloud_hub.serving.merging_telemetry_timings import Timings
from wire.process.tracing import DEVICE, Attribute, Place, Span, place, span_id

Sink = Callable[[Sequence[Span]], None]
LINK, QUEUE, COMPUTE, RANK, VERDICT, HTTP = (
    f"skerry.{part}" for part in ("link", "queue", "compute", "rank", "verdict", "http")
)
MAX_WAITING = 4096


class Observer:
    """`sink` takes finished spans; None = tracing is off."""

    def __init__(self, sink: Sink | None = None) -> None:
        self.timings = Timings()
        self.forgotten = 0
        self._sink = sink
        self._waiting: OrderedDict[Key, tuple[Place, str, float]] = OrderedDict()  # place, about, computed at

    def computed(self, batch: Batch, result: Result, now: float) -> None:
        """A batch is back at `now` (hub time)."""
        if result.error:
            self.timings.failed(batch.model, len(batch.items), result.seconds)
            return
        begun = now - result.seconds
        self.timings.done(batch.model, [begun - item.arrived_s for item in batch.items], result.seconds, now)
        if self._sink is not None:
            for item in batch.items:
                self._trace(item, batch, result, now)

    def stored(self, key: Key, now: float) -> None:
        """Its verdict lies in the store and goes to the device now."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None and self._sink is not None:
            at, about, computed_s = waiting
            self._sink((at.span(VERDICT, about, (computed_s, now), {}),))

    def served(self, traceparent: str, span: str, times: tuple[float, float], status: int) -> None:
        """A traced web request was answered. `span` is the id its own work was told to belong to."""
        at = place(traceparent)
        if at is not None and self._sink is not None:
            told: dict[str, Attribute] = {"http.response.status_code": status}
            self._sink((Span(at.trace, span, at.parent, HTTP, *times, attributes=told),))

    def _trace(self, item: Item, batch: Batch, result: Result, now: float) -> None:
        given = place(item.trace)
        if given is None or self._sink is None:
            return
        begun = now - result.seconds
        spans: list[Span] = []
        at = given
        if item.key.device:
            at = Place(given.trace, span_id(given.trace, DEVICE, item.about))
            about: dict[str, Attribute] = {"skerry.device": item.key.device, "skerry.question": item.about}
            spans.append(at.span(LINK, item.about, (item.created_s, item.arrived_s), about))
        facts: dict[str, Attribute] = {"skerry.model": batch.model, "skerry.batch": len(batch.items)}
        spans.append(at.span(QUEUE, item.about, (item.arrived_s, begun), {"skerry.attempt": batch.attempt}))
        spans.append(at.span(COMPUTE, item.about, (begun, now), facts))
        below = Place(at.trace, spans[-1].id)
        for rank, seconds in result.ranks or ((0, result.seconds),):
            spans.append(below.span(RANK, f"{item.about}/{rank}", (begun, begun + seconds), {"skerry.rank": rank}))
        if item.key.device:
            self._remember(item.key, (at, item.about, now))
        self._sink(spans)

    def _remember(self, key: Key, waiting: tuple[Place, str, float]) -> None:
        self._waiting[key] = waiting
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popitem(last=False)
            self.forgotten += 1
