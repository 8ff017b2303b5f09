"""A small OTLP/HTTP receiver: takes protobuf as a collector does, by OpenTelemetry's own classes; keeps the spans."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Received(NamedTuple):
    """One span as it came. Ids in hex; `parent` "" = a root; times in nanoseconds."""

    service: str
    instance: str
    trace: str
    id: str
    parent: str
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]


class OtlpReceiver:
    """Serves on a free port of this machine; use it with `with`. `raw`: every body as it came, unpacked.

    `may_answer`: cleared, it lets every caller wait.
    """

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.raw: list[bytes] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"

    def _make_handler(receiver) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - `self` is the handler's
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                good = self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
                receiver.may_answer.wait(30.0)
                if good:
                    receiver.take(body)
                self.send_response(200 if good else 400)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *_: object) -> None:
                return

        return Handler

    def take(self, body: bytes) -> None:
        self.raw.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            facts = {each.key: each.value.string_value for each in resource.resource.attributes}
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                told = {
                    each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value")
                    for each in span.attributes
                }
                ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
                times = span.start_time_unix_nano, span.end_time_unix_nano
                self.spans.append(
                    Received(facts["service.name"], facts["service.instance.id"], *ids, span.name, *times, told)
                )
