"""Graph runner that asks a server of the Open Inference Protocol v2 (Triton, KServe, MLServer, OpenVINO) for answers.

Rule: which weights a server has is the server's business, so a connection is used only once it has answered the
bundle's golden set as the bundle's own graphs do. Whatever fails drops the connection; the next call opens and checks a
new one. One thread of its own makes every call: the client's sockets belong to the thread that opened them.
"""

import importlib
import math
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from cloud_hub.engine.base import ENGINE_FAULTS, EngineError, EngineHealth, EngineState
from cloud_hub.engine.bundle import TAIL, WHOLE, Array, GraphRunner
from cloud_hub.engine.precision import GoldenColumns, Outputs
from cloud_hub.engine.types import EngineSetup, RemoteServer
from models.bundle.bundle import Bundle
from models.bundle.manifest import BundleError, Manifest
from wire.http.oip import TensorSpec
from wire.process.exit_codes import ExitError
from wire.process.files import read_private_text

T = TypeVar("T")
_SHOWN_CHARS = 200
_FP32 = "FP32"
_BINARY = "binary_tensor_data"  # the protocol's extension; a server without it gets numbers in JSON


class _ServerMetadata(msgspec.Struct):
    """What is used of a server's metadata."""

    extensions: list[str] = []


class _Metadata(msgspec.Struct):
    """What is used of a model's metadata."""

    inputs: list[TensorSpec]
    outputs: list[TensorSpec]


class _RemoteGraph(NamedTuple):
    """One graph as its server has it: its name there, its inputs in the order of our columns, its output."""

    name: str
    inputs: tuple[TensorSpec, ...]
    output: str


class _Connection(NamedTuple):
    """An open client, the headers of each request, whether tensors go in binary, and the graphs that the server has."""

    client: Any
    headers: dict[str, str]
    binary: bool
    graphs: dict[str, _RemoteGraph]


class RemoteGraphRunner:
    """Both graphs of a bundle on one server, by `tritonclient[http]`, over one connection.

    `make_reference` gives the bundle's own graphs: they answer the golden set at `start` and are let go again.
    EngineError with one line, at `start` and `run`: the server is gone or too slow, its status, another type or shape,
    another golden answer, no client installed.
    """

    inline = False
    depth = 1
    ranks: tuple[tuple[int, float], ...] = ()
    setup = EngineSetup("remote")

    def __init__(self, bundle: Bundle, server: RemoteServer, make_reference: Callable[[], GraphRunner]) -> None:
        self._bundle = bundle
        self._manifest = bundle.manifest
        self._server = server
        self._make_reference = make_reference
        self._golden = GoldenColumns(bundle)
        self._reference: Outputs = {}
        self._connection: _Connection | None = None
        self._health = EngineHealth(EngineState.NEW)
        self._faults: tuple[type[BaseException], ...] = ENGINE_FAULTS
        self._triton: Any = None
        self._gevent: Any = None
        self._thread = ThreadPoolExecutor(1, f"hub-remote-{bundle.manifest.model}")

    def start(self) -> None:
        try:
            self._triton, self._gevent = _import_client(self._manifest.model), importlib.import_module("gevent")
            self._faults = (*ENGINE_FAULTS, HTTPException, self._triton.InferenceServerException)
            self._reference = self._compute_reference()
            self._thread.submit(self._ask, self._connect).result()
        except (*ENGINE_FAULTS, BundleError):
            self.stop()
            raise

    def run(self, graph: str, columns: Sequence[Array]) -> npt.NDArray[np.float32]:
        return self._thread.submit(self._ask, lambda: self._infer(self._connect(), graph, columns)).result()

    def health(self) -> EngineHealth:
        return self._health

    def stop(self) -> None:
        if self._health.state is not EngineState.STOPPED:
            self._health = EngineHealth(EngineState.STOPPED)
            self._thread.submit(self._close_thread)
            self._thread.shutdown(wait=False)

    def _compute_reference(self) -> Outputs:
        """Answer the golden set by the bundle's own graphs."""
        graphs = self._make_reference()
        graphs.start()
        try:
            return self._golden.compute(graphs.run)
        finally:
            graphs.stop()

    def _ask(self, call: Callable[[], T]) -> T:
        """Make one call on the server's thread. EngineError, one line, whatever fails."""
        try:
            found = call()
        except self._faults as error:
            self._lose_server(error)
        self._health = EngineHealth(EngineState.READY)
        return found

    def _limit_time(self) -> Any:
        """Context in which one request ends within `answer_s`, however slowly its answer drips in."""
        limit_s = self._server.answer_s
        return self._gevent.Timeout(limit_s, TimeoutError(f"no answer in {limit_s:g} s"))

    def _lose_server(self, error: BaseException) -> NoReturn:
        """Drop the connection and say why."""
        why = f"{self._manifest.model}: {self._server.url}: {_describe_fault(error)}"
        self._close_connection()
        self._health = EngineHealth(EngineState.LOST, why)
        raise EngineError(why) from None

    def _connect(self) -> _Connection:
        """Return the connection, opened and checked if there is none."""
        if self._connection is not None:
            return self._connection
        server = self._server
        headers = {"Authorization": f"Bearer {_read_token(server.token_file)}"} if server.token_file else {}
        scheme, _, place = server.url.partition("://")
        client = self._triton.InferenceServerClient(
            place.rstrip("/"),
            connection_timeout=server.connect_s,
            network_timeout=server.answer_s,
            ssl=scheme == "https",
            ssl_options={"ca_certs": _check_authorities(server.ca_file)} if server.ca_file else None,
        )
        with ExitStack() as unless_checked:
            unless_checked.callback(client.close)
            opened = _Connection(client, headers, self._takes_binary(client, headers), {})
            for graph, name in ((TAIL, server.tail), (WHOLE, server.whole)):
                opened.graphs[graph] = self._find_graph(opened, graph, name)
            self._check_golden(opened)
            unless_checked.pop_all()
        self._connection = opened
        return opened

    def _takes_binary(self, client: Any, headers: dict[str, str]) -> bool:
        with self._limit_time():
            return _BINARY in msgspec.convert(client.get_server_metadata(headers=headers), _ServerMetadata).extensions

    def _find_graph(self, opened: _Connection, graph: str, name: str) -> _RemoteGraph:
        """Ask for a graph's metadata and compare it with the manifest."""
        with self._limit_time():
            told = msgspec.convert(opened.client.get_model_metadata(name, headers=opened.headers), _Metadata)
        wanted = list_inputs(self._manifest, graph)
        found = {spec.name: spec for spec in told.inputs}
        ordered = [found[spec.name] for spec in wanted] if found.keys() == {s.name for s in wanted} else told.inputs
        if len(ordered) != len(wanted) or not told.outputs:
            raise EngineError(
                f"{name}: {len(told.inputs)} inputs, {len(told.outputs)} outputs, the manifest says {len(wanted)} and 1"
            )
        for spec, own in zip(ordered, wanted, strict=True):
            _check_spec(name, spec, own)
        return _RemoteGraph(name, tuple(ordered), told.outputs[0].name)

    def _check_golden(self, opened: _Connection) -> None:
        found = self._golden.compute(partial(self._infer, opened))
        if not all(np.isfinite(outputs).all() for outputs in found.values()):
            raise EngineError("answers the golden set with NaN or infinite values")
        check = self._golden.compare(self._reference, found)
        if not check.passed:
            raise EngineError(
                f"answers the golden set otherwise than the bundle: a score moves by {check.scores_moved:.2f},"
                f" {check.labels_changed} of {check.samples} labels change"
            )

    def _infer(self, opened: _Connection, graph: str, columns: Sequence[Array]) -> npt.NDArray[np.float32]:
        """Ask for one batch."""
        remote, rows, triton = opened.graphs[graph], len(columns[0]), self._triton
        inputs = []
        for spec, column in zip(remote.inputs, columns, strict=True):
            tensor = triton.InferInput(spec.name, list(column.shape), spec.datatype)
            inputs.append(tensor.set_data_from_numpy(np.ascontiguousarray(column), binary_data=opened.binary))
        wanted = [triton.InferRequestedOutput(remote.output, binary_data=opened.binary)]
        with self._limit_time():
            answer = opened.client.infer(remote.name, inputs, outputs=wanted, headers=dict(opened.headers))
        found: npt.NDArray[Any] | None = answer.as_numpy(remote.output)
        if found is None or found.dtype != np.float32:
            raise EngineError(f"{remote.name}: answers with {getattr(found, 'dtype', 'nothing')}, expected {_FP32}")
        if found.shape[:1] != (rows,) or math.prod(found.shape[1:]) != self._manifest.outputs:
            raise EngineError(
                f"{remote.name}: answers {list(found.shape)} to {rows} rows, the manifest says"
                f" {self._manifest.outputs} outputs"
            )
        return found

    def _close_connection(self) -> None:
        opened, self._connection = self._connection, None
        if opened is not None:
            opened.client.close()

    def _close_thread(self) -> None:
        """Close the connection and the event loop of its thread."""
        self._close_connection()
        if self._gevent is not None:
            self._gevent.get_hub().destroy(destroy_loop=True)


def list_inputs(manifest: Manifest, graph: str) -> tuple[TensorSpec, ...]:
    """List the inputs of a bundle's graph in their order: a column of codes for each feature, or the raw sample."""
    if graph == WHOLE:
        spec = manifest.input
        return (TensorSpec(spec.name, spec.dtype.value, (-1, *spec.shape)),)
    return tuple(TensorSpec(field.name, _FP32, (-1, *field.shape)) for field in manifest.features)


def _check_spec(name: str, found: TensorSpec, own: TensorSpec) -> None:
    """EngineError if a server's input is not what the manifest says; a size of -1 there is free."""
    fits = len(found.shape) == len(own.shape) and all(
        told in (-1, size) for told, size in zip(found.shape, own.shape, strict=True)
    )
    if found.datatype != own.datatype or not fits:
        raise EngineError(
            f"{name}: input {found.name[:60]!r} takes {found.datatype[:20]} {list(found.shape)}, the manifest says"
            f" {own.datatype} {list(own.shape)}"
        )


def _import_client(model: str) -> Any:
    try:
        return importlib.import_module("tritonclient.http")
    except ImportError:
        raise EngineError(f"{model}: asking a remote server needs: pip install 'tritonclient[http]'") from None


def _read_token(path: str) -> str:
    """Read the bearer token: one word. EngineError if it is none, or others may read the file."""
    try:
        token = read_private_text(Path(path))
    except ExitError as error:
        raise EngineError(str(error)) from None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise EngineError(f"{path} holds no token: one word in one line")
    return token


def _check_authorities(path: str) -> str:
    """Return the path of a file of CA certificates. EngineError if it holds none."""
    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:
        raise EngineError(f"{path} holds no CA certificate: {error.strerror or error}") from None
    return path


def _describe_fault(error: BaseException) -> str:
    """Describe a fault in one line: the status and what the server says, or what happened to the connection."""
    said = " ".join(str(error).split())[:_SHOWN_CHARS]
    if isinstance(error, EngineError):
        return said
    if isinstance(error, msgspec.ValidationError):
        return f"its metadata is not of the protocol: {said}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS connection: {getattr(error, 'verify_message', '') or error.reason or said}"
    if isinstance(error, TimeoutError) or not isinstance(error, OSError):
        return said or type(error).__name__
    return f"the server is gone: {error.strerror or said or type(error).__name__}"
