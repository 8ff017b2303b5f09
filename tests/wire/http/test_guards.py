"""HTTP guards under attack: foreign hosts and origins, missing tokens, compressed bodies, open addresses."""

import asyncio
import datetime as dt
import gzip
import socket
import ssl
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.typedefs import Middleware
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from yarl import URL

from wire.http.access import ServerAccess, load_token, validate_access
from wire.http.guards import BearerToken, make_host_middleware, open_site, read_body, security_middlewares
from wire.process.exit_codes import ExitCode, ExitError

TOKEN = "t" * 40


@asynccontextmanager
async def serving(access: ServerAccess, middlewares: list[Middleware]) -> AsyncIterator[str]:
    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await read_body(request, 100, within_s=0.3))

    app = web.Application(middlewares=middlewares)
    app.add_routes([web.post("/echo", echo), web.get("/open", echo), web.get("/v1/things/{id}", echo)])
    runner = web.AppRunner(app, access_log=None, auto_decompress=False)
    await runner.setup()
    try:
        yield await open_site(runner, access)
    finally:
        await runner.cleanup()


@asynccontextmanager
async def local(token: str = "", open_routes: frozenset[str] = frozenset()) -> AsyncIterator[aiohttp.ClientSession]:
    access = ServerAccess(names=("edge-7.local",))
    async with (
        serving(access, security_middlewares(access, BearerToken(token) if token else None, open_routes)) as url,
        aiohttp.ClientSession(url) as session,
    ):
        yield session


def base(session: aiohttp.ClientSession) -> URL:
    assert session._base_url is not None
    return session._base_url


async def status(reply: Any) -> int:
    async with reply as response:
        if response.status >= 400:
            assert set(await response.json()) == {"error"}
        return int(response.status)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:80", "[::1]:5", "edge-7.local"])
async def test_a_known_host_is_served(host):
    async with local() as session:
        assert await status(session.get("/open", headers={"Host": host})) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost@evil",
        "0.0.0.0",
        "a b",
        "[::1",
        "localhost:99999999",
        "localhost.",
    ],
)
async def test_dns_rebinding_a_foreign_host_is_refused(host):
    async with local() as session:
        assert await status(session.get("/open", headers={"Host": host})) == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "file://", "http://localhost:1", "http://[", "ftp://127.0.0.1"]
)
async def test_a_page_of_another_site_is_refused(origin):
    async with local() as session:
        assert await status(session.post("/echo", data=b"x", headers={"Origin": origin})) == 403


async def test_our_own_page_and_a_program_are_served():
    async with local() as session:
        host = base(session).authority
        assert await status(session.post("/echo", data=b"x", headers={"Origin": f"http://{host}"})) == 200
        assert await status(session.post("/echo", data=b"x")) == 200


async def raw(port: int | None, request: bytes) -> bytes:
    """The status line the server answers to these very bytes; nothing, if it hangs up before they are all read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await reader.readline()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


@pytest.mark.parametrize("hosts", [[], ["localhost", "evil"], ["localhost", "localhost"], ["localhost"]])
async def test_one_host_header_is_served_none_or_two_are_refused(hosts):
    head = "".join(f"Host: {host}\r\n" for host in hosts)
    async with local() as session:
        answer = await raw(base(session).port, f"GET /open HTTP/1.1\r\n{head}Connection: close\r\n\r\n".encode())
    assert answer.split()[1:2] in ([[b"200"]] if len(hosts) == 1 else [[], [b"400"], [b"403"]])


@pytest.mark.parametrize(
    "given",
    [None, "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN, "Bearer \udcff"],
)
async def test_without_the_token_a_route_is_closed(given):
    headers = {} if given is None else {"Authorization": given}
    async with local(TOKEN) as session:
        try:
            assert await status(session.get("/v1/things/1", headers=headers)) == 401
        except UnicodeEncodeError:
            assert given == "Bearer \udcff"  # the client itself would not send it


async def test_the_token_opens_every_route_and_an_open_route_needs_none():
    async with local(TOKEN, frozenset({"/open"})) as session:
        good = {"Authorization": f"bearer {TOKEN}"}
        assert await status(session.get("/v1/things/1", headers=good)) == 200
        assert await status(session.get("/open")) == 200
        for headers in ({}, good):  # which routes there are is no secret
            assert await status(session.get("/unknown", headers=headers)) == 404
            assert await status(session.delete("/open", headers=headers)) == 405


def test_an_empty_token_guards_nothing_and_so_is_refused():
    with pytest.raises(ValueError, match="empty token"):
        BearerToken("")


async def test_a_compressed_bomb_is_refused():
    async with local() as session:
        bomb = gzip.compress(bytes(1 << 20))
        assert await status(session.post("/echo", data=bomb, headers={"Content-Encoding": "gzip"})) == 415
        assert await status(session.post("/echo", data=b"x", headers={"Content-Encoding": "identity"})) == 200


async def test_a_body_over_the_limit_is_refused_announced_or_not():
    async def drip() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * 50

    async with local() as session:
        assert await status(session.post("/echo", data=bytes(100))) == 200
        assert await status(session.post("/echo", data=bytes(101))) == 413
        assert await status(session.post("/echo", data=drip())) == 413


@pytest.mark.parametrize("head", ["Content-Length: 100", "Transfer-Encoding: chunked"])
async def test_a_caller_that_hangs_up_in_its_body_is_no_error_in_the_log(log_records, head):
    reading, access = asyncio.Event(), ServerAccess()

    async def read(request: web.Request) -> web.Response:
        reading.set()
        return web.Response(body=await read_body(request, 100))

    app = web.Application(middlewares=security_middlewares(access, None, frozenset()))
    app.add_routes([web.post("/read", read)])
    runner = web.AppRunner(app, access_log=None, auto_decompress=False)
    await runner.setup()
    url = URL(await open_site(runner, access))
    _, caller = await asyncio.open_connection(url.host, url.port)
    caller.write(f"POST /read HTTP/1.1\r\nHost: {url.host}\r\n{head}\r\n\r\n5\r\nab".encode())
    await reading.wait()
    caller.close()
    await caller.wait_closed()
    async with asyncio.timeout(60):
        while runner.server is not None and runner.server.connections:
            await asyncio.sleep(0)
    await runner.cleanup()
    assert [record.levelname for record in log_records] == []


async def test_a_body_that_does_not_come_is_given_up():
    async with local() as session:
        head = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 50\r\n\r\nx"
        assert b" 408 " in await raw(base(session).port, head)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "edge-7.local", "127.0.0.1.evil.example"])
def test_an_address_that_others_reach_needs_tls_and_a_token(host):
    with pytest.raises(ExitError) as caught:
        validate_access(ServerAccess(host=host, tls_cert="c"))
    assert caught.value.code is ExitCode.CONFIG
    assert str(caught.value) == f"{host} is not a loopback address: also set tls_key, token_file"


@pytest.mark.parametrize(
    "access",
    [
        ServerAccess(),
        ServerAccess(host="::1"),
        ServerAccess(host="localhost"),
        ServerAccess(host="127.8.8.8"),
        ServerAccess(host="0.0.0.0", unix="/x"),
    ],
)
def test_this_machine_alone_needs_nothing(access):
    validate_access(access)


def test_the_token_is_made_private_and_kept(tmp_path):
    access = ServerAccess(token_file=str(tmp_path / "token"))
    first = load_token(access)
    assert len(first) >= 32
    assert load_token(access) == first
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert load_token(ServerAccess()) == ""


@pytest.mark.parametrize(
    ("mode", "text"), [(0o644, TOKEN), (0o640, TOKEN), (0o600, "short"), (0o600, ""), (0o600, "t" * 40 + "\nx")]
)
def test_a_token_that_others_can_read_or_that_is_none_is_refused(tmp_path, mode, text):
    (tmp_path / "token").write_text(text)
    (tmp_path / "token").chmod(mode)
    with pytest.raises(ExitError) as caught:
        load_token(ServerAccess(token_file=str(tmp_path / "token")))
    assert caught.value.code is ExitCode.CREDENTIALS


def certificate(folder: Path) -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(minutes=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, no = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "c.pem").write_bytes(made.public_bytes(pem))
    (folder / "k.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, no))
    return str(folder / "c.pem"), str(folder / "k.pem")


async def test_an_open_address_serves_tls_with_the_token_and_nothing_else(tmp_path):
    cert, key = certificate(tmp_path)
    access = ServerAccess(host="0.0.0.0", tls_cert=cert, tls_key=key, token_file=str(tmp_path / "token"))
    token = load_token(access)
    trust = ssl.create_default_context(cafile=cert)
    async with (
        serving(access, security_middlewares(access, BearerToken(token) if token else None, frozenset())) as url,
        aiohttp.ClientSession() as session,
    ):
        at = url.replace("0.0.0.0", "localhost")
        assert at.startswith("https://")
        assert await status(session.get(f"{at}/open", ssl=trust)) == 401
        good = {"Authorization": f"Bearer {token}"}
        assert await status(session.get(f"{at}/open", ssl=trust, headers=good)) == 200
        with pytest.raises(aiohttp.ClientError):
            await session.get(at.replace("https", "http") + "/open", headers=good)


async def test_a_broken_certificate_is_a_one_line_stop(tmp_path):
    (tmp_path / "c.pem").write_text("no certificate")
    access = ServerAccess(tls_cert=str(tmp_path / "c.pem"), tls_key=str(tmp_path / "k.pem"))
    with pytest.raises(ExitError) as caught:
        async with serving(access, []):
            pass
    assert caught.value.code is ExitCode.CREDENTIALS
    assert "\n" not in str(caught.value)


async def test_a_unix_socket_is_private_and_its_old_file_no_hindrance(tmp_path):
    path = tmp_path / "api.sock"
    access = ServerAccess(unix=str(path))
    for _ in range(2):
        async with serving(access, [make_host_middleware(access)]) as address:
            assert address == f"unix:{path}"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session:
                assert (await session.get("http://localhost/open")).status == 200


async def test_an_address_in_use_is_a_one_line_stop():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ExitError) as caught:
            async with serving(ServerAccess(port=port), []):
                pass
    assert caught.value.code is ExitCode.PORT
    assert str(caught.value) == f"cannot listen on 127.0.0.1:{port}: address in use; choose another"
