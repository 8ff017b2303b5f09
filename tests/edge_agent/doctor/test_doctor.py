"""`skerry doctor` on a device with one planted fault each: it is found, in one line that says what to do."""

import http.server
import json
import shutil
import socket
import sqlite3
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cloud_hub.security.authority import Authority, utc_now
from edge_agent.doctor import machine, network
from edge_agent.identity.identity import load_identity
from tests.edge_agent.doubles.device import write_device
from tests.examples import SetTimes
from tests.in_process import skerry
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode
from wire.process.findings import Severity, judge_certificate, judge_clock, judge_disk
from wire.transport.routes import DIRECT

DAY_MS = 86_400_000
REFUSED_PROBE = b"\x20\x02\x00\x01"  # CONNACK: unacceptable protocol version


class World:
    """A device's folder beside a broker and a hub that answer over TLS, as a hub of its authority would."""

    def __init__(self, folder: Path) -> None:
        self.config = write_device(folder)
        self.folder, self.device = folder, folder / "device"
        self.hub: dict[str, Any] = {"name": "skerry", "version": ""}
        self.date_off_s = 0.0
        self.stamp_ends = datetime.now(UTC) + timedelta(days=1)
        self._stops: list[Callable[[], None]] = []
        context = self.server_context(folder / "pki")
        broker = self.serve_broker(context)
        url = f"https://localhost:{self._serve_hub(context)}"
        now_ms = int(time.time() * 1000)
        self.change(
            broker_host="localhost", broker_port=broker, hub_url=url, tuf_url=f"{url}/tuf",
            hub_time_ms=now_ms - DAY_MS, certificate_ms=[now_ms - DAY_MS, now_ms + 30 * DAY_MS],
        )  # fmt: skip

    def server_context(self, folder: Path) -> ssl.SSLContext:
        folder.mkdir(exist_ok=True)
        pair = Authority.open(folder, utc_now()).ensure_server(folder, (), utc_now())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        return context

    def change(self, **fields: Any) -> None:
        path = self.device / "identity.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    def serve_broker(self, context: ssl.SSLContext | None, reply: bytes = REFUSED_PROBE) -> int:
        """A port that shakes hands and refuses the probe; silent without a context, closing without a reply."""
        listener = socket.create_server(("127.0.0.1", 0))
        kept: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    plain, _ = listener.accept()
                    kept.append(context.wrap_socket(plain, server_side=True) if context else plain)
                    if context and kept[-1].recv(4096):
                        kept[-1].sendall(reply)
                        if not reply:
                            kept.pop().close()
                except ssl.SSLError:
                    plain.close()
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()

        def stop() -> None:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            thread.join()
            for each in kept:
                each.close()

        self._stops.append(stop)
        return int(listener.getsockname()[1])

    def _serve_hub(self, context: ssl.SSLContext) -> int:
        world = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                stamp = {"signed": {"expires": world.stamp_ends.isoformat()}}
                self.wfile.write(json.dumps(stamp if "timestamp" in self.path else world.hub).encode())

            def date_time_string(self, timestamp: float | None = None) -> str:
                return super().date_time_string((timestamp or time.time()) - world.date_off_s)

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        self._stops.append(stop)
        return int(server.server_address[1])

    def close(self) -> None:
        for stop in self._stops:
            stop()

    def append(self, text: str) -> None:
        self.config.write_text(f"{self.config.read_text()}{text}")

    def examine(self, *flags: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
        """Exit code, and the findings by the name of their check."""
        done = skerry("doctor", "--config", str(self.config), "--json", *flags)
        assert done.stderr == ""
        found: dict[str, list[dict[str, str]]] = {}
        for each in json.loads(done.stdout)["findings"]:
            found.setdefault(each["check"], []).append(each)
        return done.returncode, found


@pytest.fixture
def world(tmp_path: Path, set_times: SetTimes) -> Iterator[World]:
    set_times(network, _ALERT_S=0.02)  # no broker here refuses a certificate
    made = World(tmp_path)
    yield made
    made.close()


FINE = (
    "folder", "identity", "disk", "secrets", "certificate", "database", "agent", "model", "policy", "address", "clock",
    "name", "broker", "hub", "versions", "repository",
)  # fmt: skip


def test_a_device_without_a_fault_is_told_so_line_by_line(world: World) -> None:
    done = skerry("doctor", "--config", str(world.config))
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "all is well"
    for check in FINE:
        assert f"ok       {check} " in done.stdout, check


def take_port(world: World) -> None:
    port = world.serve_broker(None)
    world.config.write_text(world.config.read_text().replace("port = 0", f"port = {port}"))


def show_another_authority(world: World) -> None:
    world.change(broker_port=world.serve_broker(world.server_context(world.folder / "other")))


def write_newer_database(world: World) -> None:
    with closing(sqlite3.connect(world.device / "agent.db")) as db, db:
        db.execute("pragma user_version = 999")
    db.close()


def swap_certificates_key(world: World) -> None:
    (world.folder / "second").mkdir()
    write_device(world.folder / "second")
    theirs = (world.folder / "second/device/device.pem").read_text()
    ours = (world.device / "device.pem").read_text()
    mark = "-----BEGIN PRIVATE KEY-----"
    (world.device / "device.pem").write_text(ours.split(mark)[0] + mark + theirs.split(mark)[1])


def spoil_model(world: World) -> None:
    (world.folder / "echo" / "edge.onnx").write_bytes(b"x")


def end_policy(world: World) -> None:
    path = world.folder / "policy.toml"
    path.write_text(path.read_text().replace("expires = 2099-12-31", "expires = 2026-11-23"))


def let_certificate_end(world: World) -> None:
    now_ms = int(time.time() * 1000)
    world.change(certificate_ms=[now_ms - 40 * DAY_MS, now_ms - DAY_MS])


def let_certificate_come_to_its_end(world: World) -> None:
    now_ms = int(time.time() * 1000)
    world.change(certificate_ms=[now_ms - 29 * DAY_MS, now_ms + DAY_MS])


def let_stamp_end(world: World) -> None:
    world.stamp_ends = datetime.now(UTC) - timedelta(hours=3)


def set_clock_off(world: World) -> None:
    world.date_off_s = 7200.0


def stand_before_enrolment(world: World) -> None:
    world.change(hub_time_ms=int(time.time() * 1000) + DAY_MS)


def update_hub(world: World) -> None:
    world.hub = {"name": "skerry", "version": "99.0.0"}


def answer_as_another_program(world: World) -> None:
    url = load_identity(world.device).hub_url
    world.change(hub_url=f"{url}/elsewhere")
    world.hub = {}


FAULTS: dict[str, tuple[Callable[[World], object], str, Severity, str]] = {
    "unknown key": (lambda w: w.append("prot = 1\n"), "configuration", Severity.PROBLEM, "did you mean 'api.port'?"),
    "no folder": (lambda w: shutil.rmtree(w.device), "folder", Severity.PROBLEM, "skerry agent enrol"),
    "not enrolled": (lambda w: (w.device / "identity.json").unlink(), "identity", Severity.PROBLEM, "enrol"),
    "key cut short": (lambda w: (w.device / "hpke.key").write_bytes(b"x"), "identity", Severity.PROBLEM, "enrol"),
    "secret open to others": (lambda w: (w.device / "device.pem").chmod(0o644), "secrets", Severity.PROBLEM, "chmod"),
    "key of another certificate": (swap_certificates_key, "certificate", Severity.PROBLEM, "enrol again"),
    "certificate ended": (let_certificate_end, "certificate", Severity.PROBLEM, "skerry agent renew"),
    "certificate ends soon": (let_certificate_come_to_its_end, "certificate", Severity.WARNING, "skerry agent renew"),
    "authority unreadable": (lambda w: (w.device / "ca.pem").write_text("x"), "certificate", Severity.PROBLEM, "enrol"),
    "database damaged": (
        lambda w: (w.device / "agent.db").write_bytes(b"no database" * 100), "database", Severity.PROBLEM, "disk",
    ),
    "database of a newer version": (write_newer_database, "database", Severity.PROBLEM, "install that version"),
    "database set aside": (
        lambda w: (w.device / "agent.db.damaged-1").write_bytes(b""), "database", Severity.WARNING, "ledger",
    ),
    "no model": (lambda w: shutil.rmtree(w.folder / "echo"), "model", Severity.PROBLEM, "echo"),
    "model damaged": (spoil_model, "model", Severity.PROBLEM, "SHA-256"),
    "policy unreadable": (
        lambda w: (w.folder / "policy.toml").write_text("nam = 1"), "policy", Severity.PROBLEM, "nam",
    ),
    "policy ended": (end_policy, "policy", Severity.PROBLEM, "write a newer one"),
    "no policy": (
        lambda w: w.config.write_text(w.config.read_text().replace("policy.toml", "")),
        "policy", Severity.WARNING, "name one",
    ),
    "address taken": (take_port, "address", Severity.PROBLEM, "choose another"),
    "broker has no address": (
        lambda w: w.change(broker_host="broker.invalid"), "name", Severity.PROBLEM, "name service",
    ),
    "killed": (
        lambda w: (w.device / "api.json").write_text("{}"), "agent", Severity.WARNING, "not stopped in order",
    ),
    "nobody listens": (lambda w: w.change(broker_port=1), "broker", Severity.PROBLEM, "skerry hub status"),
    "broker is silent": (lambda w: w.change(broker_port=w.serve_broker(None)), "broker", Severity.PROBLEM, "firewall"),
    "broker closes": (
        lambda w: w.change(broker_port=w.serve_broker(w.server_context(w.folder / "pki"), b"")),
        "broker", Severity.WARNING, "skerry agent status",
    ),
    "hub without an address": (lambda w: w.change(hub_url=""), "hub", Severity.WARNING, "enrol again"),
    "no update repository": (lambda w: w.change(tuf_url=""), "updates", Severity.WARNING, "update"),
    "broker of another hub": (show_another_authority, "broker", Severity.PROBLEM, "enrol again"),
    "hub is gone": (lambda w: w.change(hub_url="https://localhost:1"), "hub", Severity.PROBLEM, "is it running"),
    "hub of another release": (update_hub, "versions", Severity.WARNING, "update the older one"),
    "clock off": (set_clock_off, "clock", Severity.WARNING, "set the clock"),
    "clock before the enrolment": (stand_before_enrolment, "clock", Severity.WARNING, "set the clock"),
    "time stamp ended": (let_stamp_end, "repository", Severity.PROBLEM, "skerry repository status"),
    "repository is gone": (
        lambda w: w.change(tuf_url="https://localhost:1/tuf"), "repository", Severity.PROBLEM, "is it running",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_with_what_to_do(world: World, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(network.check_broker, "__defaults__", (DIRECT, 0.3))
    plant, check, severity, advice = FAULTS[fault]
    plant(world)
    code, found = world.examine()
    assert code == (ExitCode.CHECK_FAILED if severity is Severity.PROBLEM else 0), found
    worst = [each for each in found[check] if each["severity"] == severity]
    assert worst, found
    assert advice in f"{worst[0]['text']}; {worst[0]['advice']}"


def test_a_full_disk_and_a_folder_of_another_user_are_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    folder, disk = machine.check_folder(world.device, lambda _: 10 << 20)
    assert (folder.severity, folder.advice[:5]) == (Severity.PROBLEM, "chown")
    assert (disk.severity, disk.text) == (Severity.PROBLEM, "10 MiB free")
    assert judge_disk("disk", 100 << 20).severity is Severity.WARNING


def test_a_running_agent_is_not_disturbed_and_its_address_is_not_tried(world: World) -> None:
    take_port(world)
    with FolderLock(world.device):
        code, found = world.examine()
    assert code == 0
    assert "address" not in found
    assert found["agent"][0]["text"].startswith("runs")


def test_offline_nobody_is_asked_and_without_a_configuration_the_folder_is_enough(world: World) -> None:
    world.change(broker_port=1, hub_url="https://localhost:1")
    assert world.examine("--offline")[0] == 0
    done = skerry("doctor", "--dir", str(world.device), "--offline")
    assert done.returncode == 0
    assert "model" not in done.stdout
    assert skerry("doctor").returncode == ExitCode.USAGE


def test_a_folder_that_only_the_configuration_names_and_that_is_not_there_leaves_the_network_unasked(
    world: World,
) -> None:
    shutil.rmtree(world.device)
    code, found = world.examine()
    assert code == ExitCode.CHECK_FAILED
    assert str(world.device) in found["folder"][0]["text"]
    assert found["network"][0]["severity"] == Severity.SKIPPED


def test_an_air_gapped_device_has_no_network_to_look_at(world: World) -> None:
    world.change(broker_port=1)
    world.config.write_text(f"airgap = true\n{world.config.read_text()}")
    code, found = world.examine()
    assert code == 0
    assert found["network"][0]["text"] == "airgap = true: there is no link"


def test_certificates_and_clocks_are_judged_at_their_limits() -> None:
    assert judge_certificate("c", 0, 60, 60, "renew").severity is Severity.PROBLEM
    assert judge_certificate("c", 0, 60, 51, "renew").severity is Severity.WARNING
    assert judge_certificate("c", 0, 60, 50, "renew").severity is Severity.FINE
    assert judge_certificate("c", 10, 60, 9, "renew").severity is Severity.WARNING
    assert judge_clock("clock", 60.0, "the hub").severity is Severity.FINE
    assert judge_clock("clock", -60.5, "the hub").severity is Severity.WARNING


def test_an_archive_is_made_also_where_the_configuration_cannot_be_used(world: World, tmp_path: Path) -> None:
    world.append("prot = 1\n")
    out = tmp_path / "support.tar.gz"
    done = skerry("support", "--config", str(world.config), "--out", str(out), "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert "configuration.toml" in json.loads(done.stdout)["files"]
    assert out.exists()
