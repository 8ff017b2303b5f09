"""Export of trace spans: to a file of JSON lines, an OpenTelemetry collector, both, or nowhere.

Rule: OpenTelemetry is imported only where an endpoint is configured. A full file or an unreachable collector loses
spans, which are counted, and disturbs nothing else.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wire.process.exit_codes import ExitCode, ExitError
from wire.process.logging import JsonLog
from wire.process.tracing import NS_PER_S, Span

MAX_BYTES = 64 << 20
MAX_WAITING = 2048  # spans that wait for the collector; further ones are lost
EXPORT_TIMEOUT_S = 5.0  # of one attempt, tries again included
CLOSE_S = 3.0  # that the end of the process waits for the last spans

SpanSink = Callable[[Sequence[Span]], None]


class SpanFile:
    """Appends spans as JSON lines of a `service` up to `max_bytes`; counts those it could not write in `lost`."""

    def __init__(self, path: Path, service: str, max_bytes: int = MAX_BYTES) -> None:
        self.sent, self.lost = 0, 0
        self._service = service
        self._left = max_bytes
        try:
            self._file = path.open("ab", buffering=0)
            self._left -= path.stat().st_size
        except OSError as error:
            raise ExitError(ExitCode.DISK, f"{path}: {error.strerror}") from None

    def __call__(self, spans: Sequence[Span]) -> None:
        lines = b"".join(span.encode_line(self._service) for span in spans)
        self._left -= len(lines)
        if self._left < 0:
            self.lost += len(spans)
            return
        try:
            self._file.write(lines)
            self.sent += len(spans)
        except OSError:
            self.lost += len(spans)

    def close(self) -> None:
        self._file.close()


class OtlpCollector:
    """Exports spans by OTLP over HTTP to `endpoint` (`http://host:4318/v1/traces`), batched by a thread of the SDK.

    `service`, `instance`: who sends them. Every span is `sent`, `lost` (counted and logged), or still waits.
    """

    def __init__(self, endpoint: str, service: str, instance: str, log: JsonLog) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
            from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult  # noqa: PLC0415
        except ImportError:
            needed = "opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http"
            raise ExitError(ExitCode.CONFIG, f"trace.endpoint needs the packages {needed}") from None
        # its texts are withheld by our log, so that its lines would say nothing: a loss is said below
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._log = log
        self._success = SpanExportResult.SUCCESS
        self._resource = Resource({"service.name": service, "service.instance.id": instance})
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)
        self._processor = BatchSpanProcessor(self, max_queue_size=MAX_WAITING)  # type: ignore[arg-type]
        self._taken, self._refused = 0, 0  # written by the thread of the caller
        self.sent, self._failed = 0, 0  # written by the SDK's thread

    @property
    def lost(self) -> int:
        """Number of spans that the collector did not get, or that found no room while it did not answer."""
        return self._refused + self._failed

    def __call__(self, spans: Sequence[Span]) -> None:
        for span in spans:
            if self._taken - self.sent - self._failed >= MAX_WAITING:
                self._refused += 1
                continue
            self._taken += 1
            self._processor.on_end(to_readable_span(span, self._resource))

    def export(self, spans: Sequence[Any]) -> Any:
        """Send a batch, and count what became of it. Called by the SDK's thread."""
        result = self._exporter.export(spans)
        if result is self._success:
            self.sent += len(spans)
        else:
            self._failed += len(spans)
            self._log.warning("spans_lost", spans=len(spans), lost=self.lost, sent=self.sent)
        return result

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Part of the SDK's interface of an exporter: nothing waits here."""
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self) -> None:
        """Part of the SDK's interface of an exporter: end it."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Send what waits, for at most `CLOSE_S`: a collector that is down does not hold up the end."""
        ending = threading.Thread(target=self._processor.shutdown, name="trace-close", daemon=True)
        ending.start()
        ending.join(CLOSE_S)


def to_readable_span(span: Span, resource: Any) -> Any:
    """Convert a span to the SDK's `ReadableSpan`."""
    from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415 - only where a collector is configured
    from opentelemetry.trace import SpanContext, SpanKind, TraceFlags  # noqa: PLC0415

    def context(span_id: str) -> SpanContext:
        return SpanContext(int(span.trace, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(1))

    return ReadableSpan(
        span.name,
        context=context(span.id),
        parent=context(span.parent) if span.parent else None,
        resource=resource,
        attributes=span.attributes,
        kind=SpanKind.SERVER if span.name.endswith((".http", ".link")) else SpanKind.INTERNAL,
        start_time=int(span.start_s * NS_PER_S),
        end_time=int(span.end_s * NS_PER_S),
    )


class Tracing:
    """The configured span exporters of a process. `service`, `instance`: who sends the spans."""

    def __init__(self, file: Path | None, endpoint: str, service: str, instance: str, log: JsonLog) -> None:
        self._sinks: list[SpanFile | OtlpCollector] = [SpanFile(file, service)] if file else []
        if endpoint:
            self._sinks.append(OtlpCollector(endpoint, service, instance, log))

    @property
    def sink(self) -> SpanSink | None:
        """Function that exports spans, or None if tracing is off."""
        return self._export_spans if self._sinks else None

    def counts(self) -> dict[str, int]:
        """Spans that were written or taken by the collector, and those that were lost; {} if tracing is off."""
        if not self._sinks:
            return {}
        sent, lost = sum(sink.sent for sink in self._sinks), sum(sink.lost for sink in self._sinks)
        return {"spans_sent": sent, "spans_lost": lost}

    def _export_spans(self, spans: Sequence[Span]) -> None:
        for sink in self._sinks:
            sink(spans)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
