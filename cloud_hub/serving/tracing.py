"""Export of trace spans: to a file of JSON lines, an OpenTelemetry collector, both, or nowhere.

Rule: OpenTelemetry is imported only where an endpoint is configured. A full file or an unreachable collector loses
spans and disturbs nothing else.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wire.process.exit_codes import ExitCode, ExitError
from wire.process.tracing import NS_PER_S, Span

SERVICE = "skerry-hub"
MAX_BYTES = 64 << 20

SpanSink = Callable[[Sequence[Span]], None]


class SpanFile:
    """Appends spans as JSON lines up to `max_bytes`; counts those it could not write in `lost`."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.lost = 0
        self._left = max_bytes
        try:
            self._file = path.open("ab", buffering=0)
            self._left -= path.stat().st_size
        except OSError as error:
            raise ExitError(ExitCode.DISK, f"{path}: {error.strerror}") from None

    def __call__(self, spans: Sequence[Span]) -> None:
        lines = b"".join(span.encode_line(SERVICE) for span in spans)
        self._left -= len(lines)
        if self._left < 0:
            self.lost += len(spans)
            return
        try:
            self._file.write(lines)
        except OSError:
            self.lost += len(spans)

    def close(self) -> None:
        self._file.close()


class OtlpCollector:
    """Exports spans by OTLP over HTTP to `endpoint` (`http://host:4318/v1/traces`), batched by a thread of the SDK."""

    def __init__(self, endpoint: str, hub: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
            from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        except ImportError:
            raise ExitError(ExitCode.CONFIG, "trace.endpoint needs OpenTelemetry: pip install 'skerry[hub]'") from None
        self._resource = Resource({"service.name": SERVICE, "service.instance.id": hub})
        self._processor = BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint))

    def __call__(self, spans: Sequence[Span]) -> None:
        for span in spans:
            self._processor.on_end(to_readable_span(span, self._resource))

    def close(self) -> None:
        self._processor.shutdown()  # type: ignore[no-untyped-call]


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
    """The configured span exporters."""

    def __init__(self, file: Path | None, endpoint: str, hub: str) -> None:
        self._sinks: list[SpanFile | OtlpCollector] = [SpanFile(file)] if file else []
        if endpoint:
            self._sinks.append(OtlpCollector(endpoint, hub))

    @property
    def sink(self) -> SpanSink | None:
        """Function that exports spans, or None if tracing is off."""
        return self._export_spans if self._sinks else None

    def _export_spans(self, spans: Sequence[Span]) -> None:
        for sink in self._sinks:
            sink(spans)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
