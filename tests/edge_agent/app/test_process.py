"""The agent as a process: what keeps it from starting, how it starts, runs and stops, and what its commands show."""

import json
import logging
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from edge_agent.__main__ import main
from edge_agent.cli.client import find_running_agent, request_json
from edge_agent.system.settings import ApiAddress
from tests import ROOT
from tests.edge_agent.doubles.device import DEVICE, write_device
from tests.in_process import skerry
from wire.process.exit_codes import ExitCode, ExitError

SURE = [1.0] + [0.0] * 9
UNSURE = [0.2] + [0.1] * 9


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_device(tmp_path)


@contextmanager
def running(config: Path, *flags: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    pipe = subprocess.PIPE
    words = [sys.executable, "-m", "edge_agent", "--config", str(config), *flags]
    process = subprocess.Popen(words, cwd=ROOT, env={**os.environ, **variables}, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def address(config: Path, process: subprocess.Popen[bytes]) -> ApiAddress:
    for _ in range(600):
        found = find_running_agent(config.parent / "device")
        if found:
            return found
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("the agent did not open its API")


def ended(process: subprocess.Popen[bytes]) -> tuple[int, list[dict[str, Any]]]:
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    return process.returncode, [json.loads(line) for line in errors.splitlines()]


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """`main` takes over the whole process's logging; here the process is the test run."""
    before = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:], logging.root.level = before


def refused(config: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str]:
    code = main(["--config", str(config), *flags])
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if not line.startswith("{")]  # the others are log lines
    assert len(lines) == 1
    return code, lines[0]


def spoil_bundle(folder: Path) -> None:
    (folder / "echo" / "edge.onnx").write_bytes(b"x")


def open_key(folder: Path) -> None:
    (folder / "device" / "signing.key").chmod(0o644)


def cut_key(folder: Path) -> None:
    (folder / "device" / "hpke.key").write_bytes(b"short")


def spoil_certificate(folder: Path) -> None:
    (folder / "device" / "device.pem").write_text("x")


def append(text: str) -> Any:
    def spoil(folder: Path) -> None:
        with (folder / "agent.toml").open("a", encoding="utf-8") as file:
            file.write(text)

    return spoil


FAULTS = {
    "no file": (lambda folder: (folder / "agent.toml").unlink(), ExitCode.MISSING, "skerry agent init"),
    "unknown key": (append("prot = 1"), ExitCode.CONFIG, "did you mean 'api.port'?"),
    "open address": (append('host = "0.0.0.0"'), ExitCode.CONFIG, "tls_cert, tls_key, token_file"),
    "no policy": (lambda folder: (folder / "policy.toml").unlink(), ExitCode.MISSING, "policy.toml"),
    "broken policy": (lambda folder: (folder / "policy.toml").write_text("nam = 1"), ExitCode.POLICY, "nam"),
    "damaged bundle": (spoil_bundle, ExitCode.MODEL, "SHA-256"),
    "not enrolled": (
        lambda folder: (folder / "device" / "identity.json").unlink(),
        ExitCode.MISSING,
        "skerry agent enrol",
    ),
    "key others read": (open_key, ExitCode.CREDENTIALS, "chmod 600"),
    "key cut": (cut_key, ExitCode.CREDENTIALS, "enrol again"),
    "certificate": (spoil_certificate, ExitCode.CREDENTIALS, "enrol again"),
    "tls missing": (append('tls_cert = "c"\ntls_key = "k"'), ExitCode.CREDENTIALS, "No such file"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_keeps_it_from_starting_is_one_line_and_its_own_code(config, capsys, fault):
    spoil, code, hint = FAULTS[fault]
    spoil(config.parent)
    for flags in ((), ("--check",)):
        found, line = refused(config, capsys, *flags)
        assert found == code
        assert hint in line


def test_a_sound_device_passes_the_check(config, capsys):
    assert main(["--config", str(config), "--check"]) == ExitCode.OK
    assert capsys.readouterr().out == f"sound: device {DEVICE}, model echo@1, policy demo 1\n"


def test_an_address_in_use_and_a_newer_database_have_their_own_codes(config, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config.write_text(config.read_text().replace("port = 0", f"port = {taken.getsockname()[1]}"))
        assert refused(config, capsys)[0] == ExitCode.PORT
    with closing(sqlite3.connect(config.parent / "device" / "agent.db")) as database, database:
        database.execute("pragma user_version = 999")
    database.close()
    assert refused(config, capsys)[0] == ExitCode.DATABASE


def test_it_starts_answers_is_watched_and_stops_clean(config, tmp_path, capsys):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        with running(config, NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="200000") as process:
            where = address(config, process)
            assert manager.recv(100) == b"READY=1"
            assert {manager.recv(100), manager.recv(100)} == {b"WATCHDOG=1"}
            status = request_json(where, "/v1/status")
            assert (status["device"], status["model"], status["link"]) == (DEVICE, "echo@1", "down")
            # a second one on the same folder
            assert main(["--config", str(config)]) == ExitCode.LOCKED
            assert f"is in use by process {process.pid}" in capsys.readouterr().err
            code, log = ended(process)
            while (last := manager.recv(100)) == b"WATCHDOG=1":
                pass
    assert (code, last) == (ExitCode.OK, b"STOPPING=1")
    assert [line["event"] for line in log if line["level"] == "info"] == ["listening", "serving", "stopping", "stopped"]
    assert [line["event"] for line in log].count("link_unreachable") == 1  # there is no broker: said once
    assert find_running_agent(config.parent / "device") is None


@pytest.mark.further
@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="only Linux tells a process's limits so")
def test_a_crash_leaves_no_core_dump(config):
    with running(config) as process:
        address(config, process)
        limits = Path(f"/proc/{process.pid}/limits").read_text(encoding="ascii").splitlines()
    line = next(each for each in limits if each.startswith("Max core file size"))
    assert line.split()[4:6] == ["0", "0"]


@pytest.mark.further
def test_lines_from_stdin_are_answered_on_stdout_and_the_agent_ends_with_them(config):
    lines = [{"x": SURE, "id": "a"}, {"x": UNSURE, "id": "b"}, {"x": [1]}]
    with running(config, "--lines", "--wait", "0.1") as process:
        out, _ = process.communicate("\n".join(map(json.dumps, lines)).encode(), timeout=60)
    told = {line["line"]: line for line in map(json.loads, out.splitlines())}
    assert process.returncode == ExitCode.OK
    assert (told[1]["id"], told[1]["label"], told[1]["source"]) == ("a", 0, "local")
    assert told[2]["escalation_id"]
    assert told[3]["error"].startswith("input 'x': ")


@pytest.mark.further
def test_lines_that_all_failed_have_their_own_code_and_a_word_that_is_no_time_with_2(config):
    with running(config, "--lines", "--wait", "0.1") as process:
        out, errors = process.communicate(b'{"x": [1]}\nno json\n', timeout=60)
    assert process.returncode == ExitCode.NONE_ANSWERED
    assert all("error" in json.loads(line) for line in out.splitlines())
    assert errors.decode().splitlines()[-1].startswith("skerry agent: none of 2 lines was answered")
    with pytest.raises(SystemExit) as ended:
        main(["--config", str(config), "--lines", "--wait", "-1"])
    assert ended.value.code == ExitCode.USAGE


@pytest.mark.further
def test_why_and_status_speak_of_a_running_and_of_a_stopped_agent(config):
    folder = str(config.parent / "device")
    with running(config, "--lines", "--wait", "0.1") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"x": UNSURE}).encode() + b"\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())["answer_id"]
        where = address(config, process)
        status = skerry("agent", "status", "--dir", folder, "--json")
        assert json.loads(status.stdout)["url"] == where.url
        running_words = skerry("why", answer, "--config", str(config))
        with pytest.raises(ExitError) as caught:
            request_json(where, f"/v1/answers/{'0' * 32}/why")
        assert caught.value.code == ExitCode.NOT_FOUND
        ended(process)
    stopped_words = skerry("why", answer, "--dir", folder)
    assert stopped_words.stdout == running_words.stdout
    words = " ".join(stopped_words.stdout.split())
    for said in (
        "on this device by echo@1",
        "(link_down)",
        "rule demo@1",
        "for hub-1 in region local",
        "still open",
        "SHA-256",
    ):
        assert said in words
    facts = json.loads(skerry("why", answer, "--dir", folder, "--json").stdout)
    assert len(facts["ledger"]) == 1
    assert skerry("why", "0" * 32, "--dir", folder).returncode == ExitCode.NOT_FOUND
    assert skerry("agent", "status", "--dir", folder).returncode == ExitCode.NOT_FOUND


@pytest.mark.further
def test_a_new_policy_is_taken_at_sighup_and_an_unsound_or_older_one_is_not(config):
    policy = config.parent / "policy.toml"
    sound = policy.read_text()
    with running(config) as process:
        where = address(config, process)
        first = request_json(where, "/v1/status")["policy"]
        texts = (
            ("unsound", False),
            (sound.replace("threshold = 0.9", "threshold = 0.8"), False),  # another text under the same version
            (sound.replace("version = 1", "version = 2"), True),
        )
        for count, (text, changes) in enumerate(texts, 1):
            policy.write_text(text)
            process.send_signal(signal.SIGHUP)
            assert (_reloaded(where, count)["policy"] != first) is changes
        _, log = ended(process)
    assert [line["event"] for line in log if "policy" in line["event"]] == ["policy_refused"] * 2 + ["policy_taken"]


def _reloaded(where: ApiAddress, count: int) -> dict[str, Any]:
    """The status after so many reloads."""
    deadline = time.monotonic() + 60
    while (status := request_json(where, "/v1/status"))["reload"]["count"] < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return status


def test_init_writes_a_file_once(tmp_path):
    file = tmp_path / "agent.toml"
    assert skerry("agent", "init", "--config", str(file)).returncode == ExitCode.OK
    before = file.read_text()
    assert skerry("agent", "init", "--config", str(file)).returncode == ExitCode.CONFIG
    assert file.read_text() == before
