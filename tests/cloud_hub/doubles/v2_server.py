"""Server of the Open Inference Protocol v2 for remote engines: the two ONNX graphs of a bundle, by the project's codec.

It runs on a thread of its own and can be killed, started again at the same port, given other graphs or another token.
"""

import asyncio
import ssl
import threading
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import onnxruntime as ort
from aiohttp import web

from tests.wire.doubles.open_transports import abort_transports
from wire.http.oip import (
    HEADER_LENGTH,
    InferResponse,
    OipError,
    TensorSpec,
    build_server_metadata,
    encode_infer_response,
    parse_infer_request,
    validate_inputs,
)

_DATATYPES = {"tensor(float)": "FP32", "tensor(double)": "FP64", "tensor(int64)": "INT64"}


class V2Server:
    """`graphs`: ONNX bytes by model name; `token`: of every request, "" = none; `stalled`: no answer is given.

    `binary` False: it does not know the extension of binary tensors, as MLServer does not.
    """

    def __init__(self, graphs: Mapping[str, bytes], *, token: str = "", context: ssl.SSLContext | None = None) -> None:
        self.token = token
        self.serve_graphs(graphs)
        self.host = "127.0.0.1"
        self.port = 0
        self.rows: list[int] = []  # of each request that was computed
        self.dtype = np.float32  # of the answers
        self.stalled = False
        self.binary = True
        self._context = context
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._context else 'http'}://{self.host}:{self.port}"

    def serve_graphs(self, graphs: Mapping[str, bytes]) -> None:
        self._sessions = {name: ort.InferenceSession(data) for name, data in graphs.items()}

    def start(self) -> "V2Server":
        """Listen, at the same port as before."""
        opened = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(opened)), daemon=True)
        self._thread.start()
        assert opened.wait(60)
        return self

    def kill(self) -> None:
        """Close every connection and the port, if it is not done yet."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(60)
            self._loop = None

    async def _serve(self, opened: threading.Event) -> None:
        app = web.Application(client_max_size=1 << 26)
        app.add_routes([
            web.get("/v2", self._describe_server),
            web.get("/v2/models/{model}", self._describe_model),
            web.post("/v2/models/{model}/infer", self._infer),
        ])  # fmt: skip
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, self.host, self.port, ssl_context=self._context, reuse_address=True)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        opened.set()
        await self._ended.wait()
        await runner.cleanup()
        await abort_transports()

    def _find_session(self, request: web.Request) -> tuple[str, ort.InferenceSession]:
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            raise OipError(401, "a bearer token is needed")
        name = request.match_info["model"]
        if name not in self._sessions:
            raise OipError(404, f"unknown model '{name}'")
        return name, self._sessions[name]

    async def _describe_server(self, _request: web.Request) -> web.Response:
        told = build_server_metadata("double", "1")
        return web.json_response(told if self.binary else {**told, "extensions": []})

    async def _describe_model(self, request: web.Request) -> web.Response:
        try:
            name, session = self._find_session(request)
        except OipError as error:
            return web.json_response({"error": str(error)}, status=error.status)
        told: dict[str, Any] = {"name": name, "versions": ["1"], "platform": "onnxruntime_onnx"}
        told["inputs"] = [msgspec.to_builtins(spec) for spec in _list_specs(session.get_inputs())]
        told["outputs"] = [msgspec.to_builtins(spec) for spec in _list_specs(session.get_outputs())]
        return web.json_response(told)

    async def _infer(self, request: web.Request) -> web.Response:
        try:
            name, session = self._find_session(request)
            header_length = request.headers.get(HEADER_LENGTH) if self.binary else None
            asked = parse_infer_request(await request.read(), header_length)
            specs = _list_specs(session.get_inputs())
            inputs = validate_inputs(asked, specs, 4096)
            while self.stalled:
                await asyncio.sleep(0.01)
            found: Any = session.run(None, inputs)[0]
            self.rows.append(len(found))
            outputs = {session.get_outputs()[0].name: np.asarray(found, self.dtype)}
            made = encode_infer_response(InferResponse(name, "1", asked.id, outputs, {}), asked)
        except OipError as error:
            return web.json_response({"error": str(error)}, status=error.status)
        return web.Response(body=made.body, headers=made.headers())


def _list_specs(values: list[Any]) -> list[TensorSpec]:
    return [
        TensorSpec(v.name, _DATATYPES[v.type], tuple(s if isinstance(s, int) else -1 for s in v.shape)) for v in values
    ]
