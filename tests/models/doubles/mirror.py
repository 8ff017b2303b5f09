"""HTTP test server that serves files from a dictionary, with configurable faults."""

import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

PIECE = 1 << 16


@dataclass
class Faults:
    """Faults for requests whose path contains `where`. `cuts`: close the connection after so many bytes, in turn."""

    where: str = "targets/"
    cuts: list[int] = field(default_factory=list)
    reset: bool = False  # cut by RST: bytes in transit are lost
    ranges: bool = True
    tags: list[str] = field(default_factory=lambda: ['"v1"'])  # one per request; the last one is repeated
    drip_s: float = 0.0
    drip_header: bool = False
    announce: bool = True  # a Content-Length
    endless: bool = False
    redirect: str = ""
    status: int = 0
    ignore_range: bool = False  # answers 206 from the beginning of the file


class Mirror:
    """Test mirror, used as a context. `requests`: (path, Range header) of each; `sent_bytes`: of bodies."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.faults = Faults(where="\0nothing")
        self.requests: list[tuple[str, str]] = []
        self.sent_bytes = 0
        mirror = self

        class Handler(_Handler):
            owner = mirror

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def asked(self) -> list[str]:
        """Names of the metadata asked for, in order."""
        return [path.removeprefix("metadata/").removesuffix(".json") for path, _ in self.requests if "metadata" in path]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def get_request(self) -> tuple[socket.socket, object]:
        """A small send buffer, so that what was written is what went out: a reset discards the rest."""
        connection, address = super().get_request()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE)
        return connection, address

    def shutdown_request(self, request) -> None:
        """Without the polite half-close, so that SO_LINGER decides how it ends."""
        self.close_request(request)

    def handle_error(self, request, client_address) -> None:
        """Clients that disconnect are expected here."""


class _Handler(BaseHTTPRequestHandler):
    owner: Mirror
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name the base class has
        """Silent."""

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path.lstrip("/"))
        self.owner.requests.append((path, self.headers.get("Range", "")))
        faults = self.owner.faults if self.owner.faults.where in path else Faults()
        if faults.redirect or faults.status:
            self._short(faults)
        elif path not in self.owner.files:
            self.send_error(404)
        else:
            self._body(self.owner.files[path], faults)

    def _short(self, faults: Faults) -> None:
        self.send_response(302 if faults.redirect else faults.status)
        if faults.redirect:
            self.send_header("Location", faults.redirect)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _body(self, data: bytes, faults: Faults) -> None:
        tag = faults.tags.pop(0) if len(faults.tags) > 1 else faults.tags[0]
        begin = self._begin(data, faults, tag)
        if begin >= len(data) > 0:
            self.send_error(416)
            return
        if faults.drip_header:
            self._drip(b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 1000, faults)
        shown = 0 if faults.ignore_range else begin
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {shown}-{len(data) - 1}/{len(data)}")
        if tag:
            self.send_header("ETag", tag)
        if faults.announce and not faults.endless:
            self.send_header("Content-Length", str(len(data) - shown))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self._send(data[shown:], faults)

    def _begin(self, data: bytes, faults: Faults, tag: str) -> int:
        asked = self.headers.get("Range", "")
        if not asked or not faults.ranges or self.headers.get("If-Range", tag) != tag:
            return 0
        return int(asked.removeprefix("bytes=").split("-")[0])

    def _send(self, data: bytes, faults: Faults) -> None:
        if faults.endless:
            while True:
                self._write(bytes(PIECE))
        if faults.drip_s:
            self._drip(data, faults)
        cut = faults.cuts.pop(0) if faults.cuts else None
        data = data if cut is None else data[:cut]
        for at in range(0, len(data), PIECE):
            self._write(data[at : at + PIECE])
        if cut is not None:
            self.close_connection = True
            if faults.reset:  # closing then sends a reset
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                self.connection.shutdown(socket.SHUT_RDWR)

    def _drip(self, data: bytes, faults: Faults) -> None:
        for at in range(len(data)):
            self._write(data[at : at + 1])
            time.sleep(faults.drip_s)

    def _write(self, data: bytes) -> None:
        self.owner.sent_bytes += len(data)  # counted first: a test may read it as soon as the last byte arrives
        self.wfile.write(data)
