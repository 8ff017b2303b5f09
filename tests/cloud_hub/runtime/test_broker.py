"""The broker's configuration and its life as a child, played by small programs; the real broker is in tests/live."""

import asyncio
import io
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cloud_hub.runtime.broker import (
    IN_FLIGHT_WINDOW,
    Broker,
    BrokerSettings,
    BrokerTls,
    choose_port,
    find_program,
    render_config,
)
from cloud_hub.runtime.broker_user import use_own_user
from cloud_hub.security.authority import CertificateFiles
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.logging import JsonLog

PKI = Path("/state/pki")
TLS = BrokerTls(CertificateFiles(PKI / "server.pem", PKI / "server.key"), PKI / "ca.pem")


def lines(settings: BrokerSettings) -> list[str]:
    return render_config(settings, TLS).splitlines()


@pytest.mark.parametrize(
    "line",
    [
        "require_certificate true",
        "use_identity_as_username true",
        "use_username_as_clientid true",
        "allow_anonymous false",
        "per_listener_settings false",
        "set_tcp_nodelay true",
        "max_packet_size 135168",
        "max_queued_bytes 0",
        "retain_available false",
        "persistence true",
        "listener 18883 127.0.0.1",
        "acl_file /state/broker/acl",
        "cafile /state/pki/ca.pem",
        "certfile /state/pki/server.pem",
        "keyfile /state/pki/server.key",
        "persistence_location /state/broker/",
        "tls_version tlsv1.2",
    ],
)
def test_configuration_closes_every_door_but_the_certificates(line):
    assert line in lines(BrokerSettings(Path("/state/broker")))


def test_queues_hold_the_window_of_every_device():
    assert f"max_queued_messages {5000 * IN_FLIGHT_WINDOW}" in lines(
        BrokerSettings(Path("/state/broker"), devices=5000)
    )


def test_a_path_cannot_smuggle_a_line_into_the_configuration():
    with pytest.raises(ValueError, match="line break"):
        render_config(BrokerSettings(Path("/state/broker\nallow_anonymous true")), TLS)


def test_no_line_carries_a_comment_that_mosquitto_would_read_as_value():
    assert not [line for line in lines(BrokerSettings(Path("/state/broker"))) if "#" in line]


def test_missing_broker_says_how_to_install_it():
    with pytest.raises(ExitError, match=r"apt-get install mosquitto.*brew install mosquitto") as stop:
        find_program(path="/nowhere")
    assert stop.value.code == ExitCode.BROKER


def test_wrong_program_names_the_key_to_correct():
    with pytest.raises(ExitError, match=r"nowhere-to-be-found.*\[broker\] program") as stop:
        find_program("nowhere-to-be-found")
    assert stop.value.code == ExitCode.BROKER


def test_port_in_use_is_told_before_the_broker_is_started():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ExitError) as stop:
            choose_port("127.0.0.1", taken.getsockname()[1])
    assert stop.value.code == ExitCode.PORT


PROGRAM = """#!{python}
import re, signal, socket, sys, time
port = int(re.search(r"^listener (\\d+)", open(sys.argv[2]).read(), re.M)[1])
{body}
"""
SERVES = """
print("serving", file=sys.stderr, flush=True)
listener = socket.create_server(("127.0.0.1", port))
while True:
    listener.accept()[0].close()
"""


def broker(folder: Path, body: str, stream: io.StringIO) -> Broker:
    program = folder / "stand-in"
    program.write_text(PROGRAM.format(python=sys.executable, body=body))
    program.chmod(0o700)
    (folder / "pki").mkdir()
    for name in ("server.pem", "server.key", "ca.pem"):
        (folder / "pki" / name).write_text(f"the hub's {name}")
    pair = CertificateFiles(folder / "pki" / "server.pem", folder / "pki" / "server.key")
    settings = BrokerSettings(folder, port=0, program=str(program))
    # Its own user: another one could not run an interpreter that lies in root's home.
    return Broker(settings, BrokerTls(pair, folder / "pki" / "ca.pem"), JsonLog(stream), use_own_user())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.further
async def test_the_broker_that_dies_is_started_again_on_its_port(tmp_path):
    log = io.StringIO()
    child = broker(tmp_path, SERVES, log)
    await child.start()
    first, port = child.pid, child.port
    watch = asyncio.create_task(child.supervise())
    assert first is not None
    os.kill(first, 9)
    await until(lambda: child.pid not in (first, None) and child.restarts == 1)
    await until(lambda: log.getvalue().count('"said":"serving"') == 2)
    assert child.port == port
    await child.stop()
    await watch
    assert child.pid is None
    events = [json.loads(line)["event"] for line in log.getvalue().splitlines()]
    assert "broker_died" in events


async def test_the_broker_is_given_neither_settings_nor_secrets_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.setenv("SKERRY_HUB_STORE__URL", "postgresql://hub:secret@db/skerry")
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/nobody")
    child = broker(
        tmp_path,
        f"import os; open({str(tmp_path / 'given')!r}, 'w').write(' '.join(os.environ))" + SERVES,
        io.StringIO(),
    )
    await child.start()
    await child.stop()
    given = set((tmp_path / "given").read_text().split()) - {"LC_CTYPE"}  # Python's own
    assert given <= {"PATH", "HOME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "OPENSSL_CONF"}


async def test_a_broker_that_refuses_its_configuration_is_quoted(tmp_path):
    child = broker(tmp_path, 'sys.exit("Error: no such option on line 3")', io.StringIO())
    with pytest.raises(ExitError, match="no such option on line 3") as stop:
        await child.start()
    assert stop.value.code == ExitCode.BROKER
    await child.stop()


async def test_a_broker_that_ignores_the_polite_signal_is_killed(tmp_path):
    child = broker(tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN)" + SERVES, io.StringIO())
    child.stop_timeout_s = 0.2
    await child.start()
    pid = child.pid
    await child.stop()
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_what_the_broker_says_is_rate_limited_and_one_word(tmp_path):
    log = io.StringIO()
    chatter = 'for n in range(5000): print("New client \\x1b[31m connected", n, file=sys.stderr)\n'
    child = broker(tmp_path, chatter + SERVES, log)
    await child.start()
    await child.stop()
    said = [json.loads(line)["said"] for line in log.getvalue().splitlines()]
    assert 20 <= len(said) < 40
    assert said[0] == "New client [31m connected 0"


async def test_files_of_the_broker_are_private(tmp_path):
    child = broker(tmp_path, SERVES, io.StringIO())
    await child.start()
    await child.stop()
    for name in ("acl", "mosquitto.conf", "server.pem", "server.key", "ca.pem"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
