"""Engines that ask a server: the same answers as in this process, servers that are other ones, gone, slow or closed."""

import gc
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from cloud_hub.engine.base import Engine, EngineError, EngineState
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.types import EngineOptions, RemoteServer, WorkItem
from cloud_hub.security.authority import Authority
from models.bundle.manifest import EDGE_FILE, GOLDEN_FILE, HubModel
from models.runtime.golden import pack_golden
from tests.cloud_hub.doubles.v2_server import V2Server
from tests.cloud_hub.engine.test_bundle import CODES, a_manifest, picture
from tests.models.bundles import write_bundle

TOKEN = "a-token-of-the-server"
PICTURE = (1, 8, 8)


def net(shape: tuple[int, ...], seed: int, outputs: int = 10, element: int = TensorProto.FLOAT) -> bytes:
    """`[n, *shape]` -> `[n, outputs]`: everything flat, times a random matrix."""
    matrix = np.random.default_rng(seed).normal(0, 0.1, (int(np.prod(shape)), outputs)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["x"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["numbers"], ["flat"], axis=1),
        helper.make_node("MatMul", ["flat", "matrix"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", element, ["n", *shape])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", outputs])],
        [numpy_helper.from_array(matrix, "matrix")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


TAIL_NET, WHOLE_NET = net(CODES, 1), net(PICTURE, 2)
GRAPHS = {"digits-tail": TAIL_NET, "digits-whole": WHOLE_NET}


@pytest.fixture
def server() -> Iterator[V2Server]:
    made = V2Server(GRAPHS, token=TOKEN).start()
    yield made
    made.kill()


def golden_bundle(folder: Path) -> Path:
    chance = np.random.default_rng(3)
    samples = chance.random((20, *PICTURE), np.float32)
    codes = chance.integers(0, 16, (20, *CODES), np.uint8)
    golden = pack_golden(samples, np.full((20, 10), 0.1), {"features": codes})
    files = {"tail.onnx": TAIL_NET, "whole.onnx": WHOLE_NET, EDGE_FILE: b"edge", GOLDEN_FILE: golden}
    manifest = a_manifest(hub=HubModel("tail.onnx", (), "whole.onnx"))
    return write_bundle(folder / "onnx", manifest, files).path


def means(folder: Path, url: str, token: str = TOKEN, answer_s: float = 60.0) -> EngineOptions:
    path = folder / "token"
    path.write_text(token)
    path.chmod(0o600)
    there = RemoteServer(url, "digits-tail", "digits-whole", str(path), answer_s=answer_s)
    return EngineOptions(max_batch=8, remote={"digits": there})


@pytest.fixture
def engine(tmp_path: Path, server: V2Server) -> Iterator[Engine]:
    made = open_engine(golden_bundle(tmp_path), means(tmp_path, server.url))
    yield made
    made.stop()


def questions(count: int) -> list[WorkItem]:
    chance = np.random.default_rng(4)
    codes = [WorkItem({"features": chance.integers(0, 16, CODES, np.uint8)}) for _ in range(count)]
    return [*codes, WorkItem(raw=picture())]


def refusal(folder: Path, options: EngineOptions) -> str:
    with pytest.raises(EngineError) as caught:
        open_engine(golden_bundle(folder), options)
    assert "\n" not in str(caught.value)
    assert TOKEN not in str(caught.value)
    return str(caught.value)


def test_a_server_answers_bit_by_bit_as_the_bundle_in_this_process(tmp_path, engine, server):
    assert not engine.inline
    engine.warm()
    local = open_engine(golden_bundle(tmp_path), EngineOptions(max_batch=8))
    before = len(server.rows)
    for count in (1, 5):
        found, expected = (each.infer(questions(count)) for each in (engine, local))
        assert [one.scores for one in found] == [one.scores for one in expected]
    assert server.rows[before:] == [1, 1, 6, 1]  # five are padded as in any engine
    assert (engine.health().state, engine.setup.device) == (EngineState.READY, "remote")


def test_a_server_without_binary_tensors_answers_bit_by_bit_in_json(tmp_path, server):
    server.binary = False
    engine = open_engine(golden_bundle(tmp_path), means(tmp_path, server.url))
    local = open_engine(golden_bundle(tmp_path), EngineOptions(max_batch=8))
    found, expected = (each.infer(questions(5)) for each in (engine, local))
    engine.stop()
    assert [one.scores for one in found] == [one.scores for one in expected]


def test_a_server_of_another_model_is_refused_by_the_golden_set(tmp_path, server):
    for graphs in ({"digits-tail": net(CODES, 9)}, {"digits-whole": net(PICTURE, 9)}):
        server.serve_graphs({**GRAPHS, **graphs})
        assert "answers the golden set otherwise than the bundle" in refusal(tmp_path, means(tmp_path, server.url))


@pytest.mark.parametrize(
    ("graphs", "says"),
    [
        ({"digits-tail": net((2, 4, 5), 1)}, "takes FP32 [-1, 2, 4, 5], the manifest says FP32 [-1, 2, 4, 4]"),
        ({"digits-whole": net(PICTURE, 2, element=TensorProto.INT64)}, "takes INT64"),
        ({"digits-whole": net(PICTURE, 2, outputs=7)}, "the manifest says 10 outputs"),
        ({"digits-tail": net(CODES, 1, outputs=7)}, "the manifest says 10 outputs"),
    ],
)
def test_a_server_with_other_shapes_or_types_is_refused(tmp_path, server, graphs, says):
    server.serve_graphs({**GRAPHS, **graphs})
    assert says in refusal(tmp_path, means(tmp_path, server.url))


def test_a_server_that_answers_in_another_type_or_has_no_such_model_is_refused(tmp_path, server):
    server.dtype = np.float16
    assert "float16, expected FP32" in refusal(tmp_path, means(tmp_path, server.url))
    server.serve_graphs({"digits-tail": TAIL_NET})
    assert "[404] unknown model 'digits-whole'" in refusal(tmp_path, means(tmp_path, server.url))


def test_a_wrong_token_is_the_servers_status_and_a_bad_file_is_named(tmp_path, server):
    assert "[401] a bearer token is needed" in refusal(tmp_path, means(tmp_path, server.url, "another"))
    assert "holds no token" in refusal(tmp_path, means(tmp_path, server.url, "two words"))
    options = means(tmp_path, server.url)
    (tmp_path / "token").chmod(0o644)
    assert "can be read by others" in refusal(tmp_path, options)


def test_a_server_that_is_killed_costs_batches_until_it_is_back(engine, server):
    expected = [one.scores for one in engine.infer(questions(2))]
    server.kill()
    for _ in range(2):
        with pytest.raises(EngineError, match=r"^digits@1: http://127\.0\.0\.1:.* gone"):
            engine.infer(questions(2))
    health = engine.health()
    assert (health.state, "gone" in health.why) == (EngineState.LOST, True)
    server.start()
    assert [one.scores for one in engine.infer(questions(2))] == expected
    assert engine.health().state is EngineState.READY


def test_a_server_that_comes_back_with_another_model_does_not_answer(engine, server):
    server.kill()
    with pytest.raises(EngineError):
        engine.infer(questions(1))
    server.serve_graphs({**GRAPHS, "digits-tail": net(CODES, 9)})
    server.start()
    with pytest.raises(EngineError, match="golden set otherwise"):
        engine.infer(questions(1))


def test_a_server_that_stalls_ends_the_batch(tmp_path, server):
    engine = open_engine(golden_bundle(tmp_path), means(tmp_path, server.url, answer_s=0.5))
    server.stalled = True
    with pytest.raises(EngineError, match=r"no answer in 0\.5 s|timed out"):
        engine.infer(questions(1))
    server.stalled = False
    assert engine.infer(questions(1))
    engine.stop()


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[V2Server]:
    """A server whose certificate is of the CA in the folder `own`; `other` holds another CA."""
    now = datetime.now(UTC)
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
    Authority.open(tmp_path / "other", now)
    pair = Authority.open(tmp_path / "own", now).ensure_server(tmp_path / "own", (), now)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    made = V2Server(GRAPHS, token=TOKEN, context=context).start()
    yield made
    made.kill()


def trusting(folder: Path, url: str, ca_file: Path | str) -> EngineOptions:
    options = means(folder, url)
    return EngineOptions(
        max_batch=8, remote={"digits": msgspec.structs.replace(options.remote["digits"], ca_file=str(ca_file))}
    )


def test_a_server_is_asked_over_tls_where_its_ca_is_named(tmp_path, tls_server):
    assert tls_server.url.startswith("https")
    engine = open_engine(golden_bundle(tmp_path), trusting(tmp_path, tls_server.url, tmp_path / "own" / "ca.pem"))
    local = open_engine(golden_bundle(tmp_path), EngineOptions(max_batch=8))
    found, expected = (each.infer(questions(3)) for each in (engine, local))
    engine.stop()
    assert [one.scores for one in found] == [one.scores for one in expected]
    assert tls_server.rows


@pytest.mark.parametrize("ca", ["other/ca.pem", ""], ids=["another CA", "the system's"])
def test_a_server_of_another_ca_is_refused_before_it_hears_the_token(tmp_path, tls_server, ca):
    said = refusal(tmp_path, trusting(tmp_path, tls_server.url, tmp_path / ca if ca else ""))
    assert "no TLS connection: " in said
    assert "certificate" in said
    assert tls_server.rows == []


@pytest.mark.further
def test_a_killed_server_leaves_no_connection_open_whatever_its_clients_do(tmp_path, tls_server):
    """Of the double: a client that says nothing, one in its handshake, one that was served and never says goodbye."""
    context = ssl.create_default_context(cafile=tmp_path / "own" / "ca.pem")
    at = ("127.0.0.1", tls_server.port)
    hello = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="127.0.0.1").do_handshake()
    with ExitStack() as stack:
        silent, shaking, served = (stack.enter_context(socket.create_connection(at, 60)) for _ in range(3))
        shaking.sendall(hello.read())
        assert shaking.recv(1)
        served = stack.enter_context(context.wrap_socket(served, server_hostname="127.0.0.1"))
        served.sendall(b"GET /v2 HTTP/1.1\r\nHost: here\r\n\r\n")
        assert served.recv(1)
        tls_server.kill()
        for each in (silent, shaking, served):
            with suppress(ConnectionResetError, ssl.SSLEOFError):
                while each.recv(65536):
                    pass
    gc.collect()  # what was left open is a warning now, and so an error


def test_a_server_with_a_certificate_of_another_name_is_refused(tmp_path, tls_server):
    options = trusting(tmp_path, tls_server.url.replace("127.0.0.1", "127.0.0.2"), tmp_path / "own" / "ca.pem")
    tls_server.kill()
    tls_server.host = "127.0.0.2"
    tls_server.start()
    assert "no TLS connection: IP address mismatch" in refusal(tmp_path, options)


def test_a_server_without_tls_and_a_file_without_a_ca_are_one_line(tmp_path, server):
    options = trusting(tmp_path, server.url.replace("http:", "https:"), "")
    assert "no TLS connection: " in refusal(tmp_path, options)
    for path, why in ((tmp_path / "nowhere.pem", "No such file"), (tmp_path / "token", "holds no CA certificate")):
        assert why in refusal(tmp_path, trusting(tmp_path, "https://127.0.0.1:1", path))


def test_nobody_there_at_the_start_is_one_line(tmp_path, server):
    options = means(tmp_path, server.url)
    server.kill()
    assert "the server is gone: " in refusal(tmp_path, options)


def test_without_the_client_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tritonclient.http", None)
    assert refusal(tmp_path, means(tmp_path, "http://127.0.0.1:1")).endswith("pip install 'tritonclient[http]'")


def test_a_server_of_one_version_is_not_asked_for_another(tmp_path):
    there = means(tmp_path, "http://127.0.0.1:1").remote["digits"]
    options = EngineOptions(remote={"digits@2": there, "digits": msgspec.structs.replace(there, tail="every")})
    ref = a_manifest().ref
    found = [options.remote_server(each) for each in (ref, msgspec.structs.replace(ref, version=2))]
    assert [each and each.tail for each in found] == ["every", "digits-tail"]
