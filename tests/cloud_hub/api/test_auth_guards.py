"""Access control of the web API: who may call what, from where, and with how large a body."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloud_hub.security.authority import Authority, utc_now
from cloud_hub.system.client import ApiAddress, call_hub_api
from tests.cloud_hub.doubles.api_site import DEVICE, Site, infer_body
from wire.process.exit_codes import ExitCode, ExitError

ADMIN_ROUTES = [
    ("GET", "/v1/admin/status"),
    ("GET", "/v1/admin/hubs"),
    ("POST", "/v1/admin/invites"),
    ("GET", "/v1/admin/devices"),
    ("GET", f"/v1/admin/devices/{DEVICE}"),
    ("POST", f"/v1/admin/devices/{DEVICE}/state"),
]
LOCAL_ROUTES = [
    ("GET", "/metrics"),
    ("GET", "/v2"),
    ("GET", "/v2/health/live"),
    ("GET", "/v2/health/ready"),
    ("GET", "/v2/models/digits"),
    ("GET", "/v2/models/digits/ready"),
    ("POST", "/v2/models/digits/infer"),
    ("GET", "/v2/models/digits/versions/7"),
    ("GET", "/v2/models/digits/versions/7/ready"),
    ("POST", "/v2/models/digits/versions/7/infer"),
]
OPEN_ROUTES = [("GET", "/healthz"), ("GET", "/readyz"), ("POST", "/v1/enrol")]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    opened = await Site(tmp_path).open()
    yield opened
    await opened.close()


# ---- who may


@pytest.mark.parametrize(("method", "path"), ADMIN_ROUTES)
@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer x"}, {"Authorization": "Bearer "}])
async def test_admin_route_needs_its_token_even_on_this_machine(site, method, path, header):
    status, body = await site.ask(method, path, headers=header, json={})
    assert status == 401
    assert list(body) == ["error"]


@pytest.mark.parametrize("header", [{}, {"Authorization": "Basic {token}"}])
async def test_the_right_token_in_the_wrong_place_opens_nothing(site, header):
    token = site.token_file.read_text().strip()
    headers = {key: value.format(token=token) for key, value in header.items()}
    status, _ = await site.ask("GET", f"/v1/admin/devices?token={token}", headers=headers)
    assert status == 401


@pytest.mark.parametrize(("method", "path"), LOCAL_ROUTES)
async def test_inference_and_health_are_free_on_this_machine(site, method, path):
    status, _ = await site.ask(method, path, json=infer_body() if method == "POST" else None)
    assert status == 200


@pytest.mark.parametrize(("method", "path"), [*LOCAL_ROUTES, *ADMIN_ROUTES, *OPEN_ROUTES])
async def test_a_page_of_another_site_may_ask_nothing(site, method, path):
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
        status, _ = await site.ask(method, path, headers={**site.admin, **headers})
        assert status == 403


async def test_token_file_is_private_and_survives_a_restart(site, tmp_path):
    assert site.token_file.stat().st_mode & 0o777 == 0o600
    before = site.token_file.read_text()
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "admin.token").write_text(before)
    (tmp_path / "again" / "admin.token").chmod(0o600)
    second = await Site(tmp_path / "again").open()
    assert second.token_file.read_text() == before
    await second.close()


async def test_an_address_that_is_not_local_needs_tls(tmp_path):
    site = Site(tmp_path, host="0.0.0.0")
    with pytest.raises(ExitError) as stop:
        await site.api.start(lambda port: f"http://127.0.0.1:{port}")
    assert stop.value.code == ExitCode.CONFIG
    await site.api.stop()
    site.registry.close()
    site.keys.close()


@pytest.fixture
async def reached_from_elsewhere(tmp_path: Path) -> AsyncIterator[Site]:
    (tmp_path / "tls").mkdir()
    pair = Authority.open(tmp_path / "tls", utc_now()).ensure_server(tmp_path / "tls", (), utc_now())
    site = Site(tmp_path, host="0.0.0.0", tls_cert=str(pair.certificate), tls_key=str(pair.key))
    await site.open()
    site.url = site.url.replace("0.0.0.0", "127.0.0.1")
    yield site
    await site.close()


async def test_from_elsewhere_every_route_but_health_and_enrolment_needs_the_token(reached_from_elsewhere):
    site = reached_from_elsewhere
    for method, path in [*LOCAL_ROUTES, *ADMIN_ROUTES]:
        assert (await site.ask(method, path, ssl=False))[0] == 401
    assert (await site.ask("GET", "/healthz", ssl=False))[0] == 200
    assert (await site.ask("POST", "/v1/enrol", ssl=False, json={}))[0] == 400
    assert (await site.ask("GET", "/v2", ssl=False, headers=site.admin))[0] == 200


async def test_from_elsewhere_a_probe_without_a_token_learns_whether_the_hub_is_ready_and_not_why(
    reached_from_elsewhere,
):
    site = reached_from_elsewhere
    assert await site.ask("GET", "/readyz", ssl=False) == (200, {"ready": True})
    site.hub.facts["store_fault"] = "the database is read-only"
    for headers in ({}, {"Authorization": "Bearer x"}):
        assert await site.ask("GET", "/readyz", ssl=False, headers=headers) == (503, {"ready": False})
    told = await site.ask("GET", "/readyz", ssl=False, headers=site.admin)
    assert told == (503, {"ready": False, "reason": "the database is read-only"})


async def test_strangers_who_ask_again_and_again_cost_the_engines_one_round_trip_a_second(reached_from_elsewhere):
    site = reached_from_elsewhere
    began = time.monotonic()
    for _ in range(50):
        assert await site.ask("GET", "/readyz", ssl=False) == (200, {"ready": True})
    assert site.hub.probes <= 2 + time.monotonic() - began
    before = site.hub.probes
    await site.ask("GET", "/readyz", ssl=False, headers=site.admin)
    assert site.hub.probes == before + 1


async def test_a_unix_socket_serves_whoever_may_open_its_file(tmp_path):
    site = Site(tmp_path, unix=str(tmp_path / "hub.sock"))
    address = await site.api.start(lambda port: f"http://hub.example:{port}")
    assert (tmp_path / "hub.sock").stat().st_mode & 0o777 == 0o600
    door = ApiAddress(address, str(site.token_file))
    made = await asyncio.to_thread(call_hub_api, door, "POST", "/v1/admin/invites", {"device": DEVICE})
    assert made["device"] == DEVICE
    await site.api.stop()
    site.registry.close()


async def test_port_in_use_is_told(site, tmp_path):
    (tmp_path / "second").mkdir()
    second = Site(tmp_path / "second", port=int(site.url.rpartition(":")[2]))
    with pytest.raises(ExitError) as stop:
        await second.api.start(lambda port: f"http://127.0.0.1:{port}")
    assert stop.value.code == ExitCode.PORT
    await second.api.stop()
    second.registry.close()
    second.keys.close()


# ---- bodies


@pytest.mark.parametrize(
    "attack",
    [
        b"",
        b"null",
        b"[" * 100_000,
        b'{"device":' * 1000,
        b'{"device":"demo--a","device":"demo--b"}',
        b'{"device":"demo--a","extra":1}',
        b"\xff\xfe",
        b'{"device":"\\ud800"}',
        b'{"device":"demo--a","expires_s":NaN}',
        b"x" * 20_000,
    ],
)
async def test_hostile_json_is_refused_in_bounded_time(site, attack):
    began = time.process_time()
    status, body = await site.ask("POST", "/v1/admin/invites", data=attack, headers=site.admin)
    assert status in (400, 413)
    assert len(body["error"]) < 200
    assert time.process_time() - began < 2
    assert site.registry.count_open_invites(0) == 0


@pytest.mark.parametrize("path", ["/v1/enrol", "/v1/admin/invites", "/v2/models/digits/infer"])
async def test_compressed_body_is_never_unpacked(site, path):
    headers = {**site.admin, "Content-Encoding": "gzip"}
    assert (await site.ask("POST", path, data=b"\x1f\x8b" + bytes(100), headers=headers))[0] == 415


@pytest.mark.parametrize("path", ["/v1/enrol", "/v1/admin/invites", "/v2/models/digits/infer"])
async def test_body_of_a_gigabyte_is_refused_by_its_announcement(site, path):
    port = int(site.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Length: 1000000000\r\n"
    writer.write(f"{head}Authorization: {site.admin['Authorization']}\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.readline(), 60)
    writer.close()
    await writer.wait_closed()
    assert b" 413 " in answer


async def test_two_readings_of_one_request_are_refused(site):
    port = int(site.url.rpartition(":")[2])
    smuggled = (
        f"POST /v1/enrol HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
        "0\r\n\r\nGET /v1/admin/devices HTTP/1.1\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(smuggled.encode())
        answer = await asyncio.to_thread(raw.recv, 4096)
    assert b" 400 " in answer.splitlines()[0]
