"""Every remote check of `skerry doctor` against every peer that misbehaves: one line, never a traceback."""

import json
import ssl
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from cloud_hub.system.client import ApiAddress, call_hub_api
from edge_agent.doctor import network
from edge_agent.identity.identity import Identity, load_identity
from tests.edge_agent.doubles.device import write_device
from tests.edge_agent.doubles.rude_peers import (
    PORTAL,
    REFUSED_PROBE,
    Behaviour,
    Certificates,
    drip,
    half_close,
    hang_up,
    peer,
    reset,
    say,
    stay_silent,
)
from tests.examples import SetTimes
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.findings import Finding, Severity, run_checks
from wire.process.proxy import NO_PROXY, ForwardProxy
from wire.transport.routes import LinkRoute

LIMIT_S = 0.15
DAY_MS = 86_400_000


class Peer(NamedTuple):
    """How a peer behaves, behind which TLS, and a word of what the check of the broker says of it."""

    behave: Behaviour
    context: Callable[[Certificates], ssl.SSLContext] | None
    said: str


def by_tls(certificates: Certificates) -> ssl.SSLContext:
    return certificates.context()


PEERS = {
    "expired": Peer(stay_silent, lambda c: c.context(ends_days=-3, begins_days=-9), "ended before hub time"),
    "another name": Peer(stay_silent, lambda c: c.context("elsewhere.example"), "certificate"),
    "another authority": Peer(stay_silent, lambda c: c.context(stranger=True), "certificate"),
    "a captive portal": Peer(say(PORTAL), None, "speaks no TLS"),
    "a web server by TLS": Peer(say(PORTAL), by_tls, "speaks HTTP, not MQTT"),
    "a page by TLS": Peer(say(b"<html></html>"), by_tls, "speaks HTTP, not MQTT"),
    "garbage": Peer(say(bytes(range(256)) * 8), None, "speaks no TLS"),
    "garbage by TLS": Peer(say(b"\xff\xfe\x00" * 100), by_tls, "no MQTT"),
    "silence": Peer(stay_silent, None, "TLS with localhost"),
    "silence by TLS": Peer(stay_silent, by_tls, "does not answer"),
    "a reset": Peer(reset, None, ""),
    "a reset by TLS": Peer(reset, by_tls, ""),
    "a hang-up": Peer(hang_up, None, ""),
    "a hang-up by TLS": Peer(hang_up, by_tls, ""),
    "half open": Peer(half_close, None, ""),
    "half open by TLS": Peer(half_close, by_tls, ""),
    "a slow one": Peer(drip(PORTAL), None, ""),
    "a slow one by TLS": Peer(drip(b"HTTP/1.1 200 OK\r\nDate: never\r\n\r\n[]"), by_tls, ""),
    "a hub that answers nonsense": Peer(
        say(b"HTTP/1.1 200 OK\r\nDate: 31 Feb\r\nContent-Length: 30\r\n\r\n" + b'{"signed": {"expires": 1e999}}'),
        by_tls,
        "HTTP",
    ),
    "a depth that no parser takes": Peer(say(b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 90_000), by_tls, "HTTP"),
}


class Device:
    """A device whose hub's CA is the one of the peers' certificates."""

    def __init__(self, folder: Path) -> None:
        write_device(folder)
        self._folder = folder / "device"
        self.certificates = Certificates(folder)
        (self._folder / "ca.pem").write_text(self.certificates.pem)

    def identity(self, port: int) -> Identity:
        path = self._folder / "identity.json"
        where = {"broker_host": "localhost", "broker_port": port, "hub_url": f"https://localhost:{port}"}
        more = {"tuf_url": f"https://localhost:{port}/tuf", "hub_time_ms": int(time.time() * 1000) - DAY_MS}
        path.write_text(json.dumps({**json.loads(path.read_text()), **where, **more}))
        return load_identity(self._folder)


@pytest.fixture
def device(tmp_path: Path, set_times: SetTimes) -> Device:
    set_times(network, _ALERT_S=0.05)
    return Device(tmp_path)


def look(check: Callable[[], Iterable[Finding]]) -> Finding:
    """The worst finding of one check; whatever else it raises goes through."""
    found = list(run_checks([("check", check)]))
    assert found
    return max(found, key=lambda each: list(Severity).index(each.severity) % 3)


@pytest.mark.parametrize("name", PEERS)
def test_the_broker_is_never_called_well_and_the_line_says_what_is_there(device: Device, name: str):
    behave, context, said = PEERS[name]
    with peer(behave, context(device.certificates) if context else None) as port:
        identity = device.identity(port)
        found = look(lambda: network.check_broker(identity, timeout_s=LIMIT_S))
    assert found.severity is Severity.PROBLEM, found
    assert said in found.text, found
    assert "\n" not in found.text


def test_a_broker_that_refuses_the_probe_is_well(device: Device):
    with peer(say(REFUSED_PROBE), device.certificates.context()) as port:
        identity = device.identity(port)
        found = look(lambda: network.check_broker(identity, timeout_s=1.0))
    assert found.severity is Severity.FINE, found


@pytest.mark.parametrize("way", ["websocket", "proxy", "both"])
@pytest.mark.parametrize("name", PEERS)
def test_a_way_that_leads_elsewhere_is_one_line_too(device: Device, name: str, way: str):
    behave, context, _ = PEERS[name]
    with peer(behave, context(device.certificates) if context else None) as port:
        route = LinkRoute(
            websocket="" if way == "proxy" else f"wss://localhost:{port}/mqtt",
            proxy="" if way == "websocket" else f"http://127.0.0.1:{port}",
        )
        identity = device.identity(port)
        found = look(lambda: network.check_broker(identity, route, LIMIT_S))
    assert found.severity is Severity.PROBLEM, found
    assert "\n" not in found.text


@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "by proxy"])
@pytest.mark.parametrize("name", PEERS)
def test_hub_and_repository_are_one_line_whatever_answers(device: Device, name: str, proxied: bool):
    behave, context, _ = PEERS[name]
    with peer(behave, context(device.certificates) if context else None) as port:
        identity = device.identity(port)
        proxy = ForwardProxy(f"http://127.0.0.1:{port}") if proxied else NO_PROXY
        for check in (network.check_hub, network.check_repository):
            found = look(partial(check, identity, time.time(), proxy, LIMIT_S))
            assert found.severity is Severity.PROBLEM, (check, found)
            assert "\n" not in found.text


@pytest.mark.further
@pytest.mark.parametrize("name", PEERS)
def test_a_running_hub_that_is_another_program_is_one_line(device: Device, name: str, tmp_path: Path):
    behave, context, _ = PEERS[name]
    token = tmp_path / "token"
    token.write_text("t")
    token.chmod(0o600)
    with peer(behave, context(device.certificates) if context else None) as port:
        scheme = "https" if context else "http"
        with pytest.raises(ExitError) as stopped:
            call_hub_api(ApiAddress(f"{scheme}://localhost:{port}", str(token)), "GET", "/v2/health/ready")
    assert stopped.value.code in set(ExitCode)
    assert "\n" not in str(stopped.value)


def test_a_name_that_is_none_is_one_line(device: Device):
    identity = device.identity(1)
    broken = load_identity(identity.folder or Path())
    object.__setattr__(broken, "broker_host", "a..b")
    object.__setattr__(broken, "hub_url", "https://a..b")
    for check in (
        lambda: network.check_name(broken),
        lambda: network.check_broker(broken, timeout_s=LIMIT_S),
        lambda: network.check_hub(broken, time.time(), NO_PROXY, LIMIT_S),
    ):
        assert look(check).severity is Severity.PROBLEM
