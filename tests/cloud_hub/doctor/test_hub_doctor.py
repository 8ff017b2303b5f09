"""`skerry hub doctor` on a hub with one planted fault each: it is found, in one line that says what to do."""

import json
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from cloud_hub.database.parts import QUESTIONS
from cloud_hub.doctor import hub as doctor_of_hub
from cloud_hub.doctor import machine
from cloud_hub.runtime.config import load_hub_config
from cloud_hub.security.authority import Authority, utc_now
from simulations.processes import find_free_port
from tests import ROOT
from tests.cloud_hub.doubles.demo_hub import create_demo_hub
from tests.in_process import skerry
from tests.models.conftest import make
from tests.postgres import PostgresServer
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode
from wire.process.findings import Severity
from wire.process.probes import DatabaseCondition, probe_database

CONFIG = """
state = "state"
models = ["echo"]
[api]
port = {api}
[broker]
port = {broker}
"""


class World:
    """A hub's folder with keys, repository and a model, and ports that are free."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state, self.config = folder, folder / "state", folder / "hub.toml"
        self._kept: list[socket.socket] = []
        self.ports = [find_free_port(), find_free_port()]
        make(folder / "echo")
        self.config.write_text(CONFIG.format(api=self.ports[0], broker=self.ports[1]))
        create_demo_hub(self.config, [folder / "echo"], [(ROOT / "policies/templates/demo.toml").read_bytes()])

    def take(self, port: int) -> None:
        self._kept.append(socket.create_server(("127.0.0.1", port)))

    def write(self, text: str, instead_of: str = "") -> None:
        told = self.config.read_text()
        self.config.write_text(told.replace(instead_of, text, 1) if instead_of else f"{told}{text}")

    def examine(self) -> tuple[int, dict[str, list[dict[str, str]]]]:
        """Exit code, and the findings by the name of their check."""
        done = skerry("hub", "doctor", "--config", str(self.config), "--json")
        assert done.stderr == ""
        found: dict[str, list[dict[str, str]]] = {}
        for each in json.loads(done.stdout)["findings"]:
            found.setdefault(each["check"], []).append(each)
        return done.returncode, found

    def close(self) -> None:
        for each in self._kept:
            each.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    World(folder)
    return folder


@pytest.fixture
def world(whole: Path, tmp_path: Path) -> Iterator[World]:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    made = World.__new__(World)
    made.folder, made.state, made.config, made._kept = tmp_path, tmp_path / "state", tmp_path / "hub.toml", []
    config = load_hub_config(made.config)
    made.ports = [config.api.port, config.broker.port]
    yield made
    made.close()


FINE = (
    "folder", "disk", "authority", "certificate", "database questions", "repository", "model", "policies", "broker",
    "hub", "port of api", "port of broker",
)  # fmt: skip


def test_a_hub_without_a_fault_is_told_so_line_by_line(world: World) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in world.state.rglob("*") if path.is_file())
    done = skerry("hub", "doctor", "--config", str(world.config))
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "all is well"
    for check in FINE:
        assert f"ok       {check} " in done.stdout, check
    after = sorted((path, path.stat().st_mtime_ns) for path in world.state.rglob("*") if path.is_file())
    assert [each for each in after if each not in before and each[0].name != "lock"] == []


def bring_another_key(world: World) -> None:
    (world.folder / "other").mkdir()
    Authority.open(world.folder / "other", utc_now())
    shutil.copy(world.folder / "other" / "ca.key", world.state / "pki" / "ca.key")


def write_newer_database(world: World) -> None:
    db = sqlite3.connect(world.state / "devices.db")
    db.execute("create table if not exists meta (key text primary key, value text)")
    db.execute("insert or replace into meta values ('schema', '999')")
    db.commit()
    db.close()


def damage_hub_part(world: World) -> None:
    part = next(path for path in (world.folder / "echo").rglob("*") if path.suffix in {".onnx", ".safetensors"})
    part.write_bytes(part.read_bytes()[:-1])


FAULTS: dict[str, tuple[Callable[[World], object], str, Severity, str]] = {
    "unknown key": (lambda w: w.write("prot = 1\n"), "configuration", Severity.PROBLEM, "port"),
    "killed": (lambda w: (w.state / "api.json").write_text("{}"), "hub", Severity.WARNING, "not stopped in order"),
    "no folder": (lambda w: shutil.rmtree(w.state), "folder", Severity.PROBLEM, "skerry hub init"),
    "folder open to others": (lambda w: w.state.chmod(0o755), "folder", Severity.PROBLEM, "chmod 700"),
    "key of another authority": (bring_another_key, "authority", Severity.PROBLEM, "restore both"),
    "authority without its key": (
        lambda w: (w.state / "pki" / "ca.key").unlink(), "authority", Severity.PROBLEM, "restore both",
    ),
    "certificate unreadable": (
        lambda w: (w.state / "pki" / "server.pem").write_text("x"), "authority", Severity.PROBLEM, "restore it",
    ),
    "database damaged": (
        lambda w: (w.state / "devices.db").write_bytes(b"no database" * 99),
        "database registry", Severity.PROBLEM, "restore it from a backup",
    ),
    "database of a newer version": (write_newer_database, "database registry", Severity.PROBLEM, "that version"),
    "database set aside": (
        lambda w: (w.state / f"{QUESTIONS.file}.damaged-1").write_bytes(b""),
        "database questions", Severity.WARNING, "set aside",
    ),
    "database server gone": (
        lambda w: w.write('[store]\nurl = "postgresql+psycopg://x@127.0.0.1:1/x"\n'),
        "database", Severity.PROBLEM, "127.0.0.1",
    ),
    "no keys": (lambda w: shutil.rmtree(w.state / "repository"), "repository", Severity.WARNING, "docs/trust.md"),
    "no model": (lambda w: shutil.rmtree(w.folder / "echo"), "model", Severity.PROBLEM, "echo"),
    "model damaged": (damage_hub_part, "model", Severity.PROBLEM, "publish or fetch it again"),
    "nothing to serve": (lambda w: w.write("models = []", 'models = ["echo"]'), "models", Severity.PROBLEM, "[[llm]]"),
    "policy missing": (
        lambda w: w.write('policies = ["none.toml"]\n[api]', "[api]"), "policies", Severity.PROBLEM, "none.toml",
    ),
    "no broker program": (
        lambda w: w.write('[broker]\nprogram = "no-such-broker"', "[broker]"),
        "broker", Severity.PROBLEM, "correct [broker] program",
    ),
    "web port taken": (lambda w: w.take(w.ports[0]), "port of api", Severity.PROBLEM, "another [api] port"),
    "broker port taken": (lambda w: w.take(w.ports[1]), "port of broker", Severity.PROBLEM, "another [broker] port"),
    "language model gone": (
        lambda w: w.write('[[llm]]\nname = "words"\nurls = ["http://127.0.0.1:1"]\n'),
        "server", Severity.PROBLEM, "is it running",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_with_what_to_do(world: World, fault: str) -> None:
    plant, check, severity, advice = FAULTS[fault]
    plant(world)
    code, found = world.examine()
    assert code == (ExitCode.CHECK_FAILED if severity is Severity.PROBLEM else 0), found
    worst = [each for each in found.get(check, []) if each["severity"] == severity]
    assert worst, found
    assert advice in f"{worst[0]['text']}; {worst[0]['advice']}"


def test_a_full_disk_and_a_role_that_has_ended_are_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    state = load_hub_config(world.config).state_dir()
    assert [each.severity for each in machine.check_folder(state, lambda _: 1 << 20)] == [
        Severity.FINE,
        Severity.PROBLEM,
    ]
    [ended, *_] = machine.check_repository(state, utc_now() + timedelta(days=4000))
    assert (ended.severity, ended.text[:5]) == (Severity.PROBLEM, "ended")
    [authority, server] = machine.check_authority(state, utc_now() + timedelta(days=4000))
    assert (authority.severity, authority.advice) == (Severity.PROBLEM, "replace it: skerry hub ca rotate")
    assert server.severity is Severity.PROBLEM


def test_a_running_hub_is_asked_whether_it_is_ready_and_its_ports_are_not_tried(world: World) -> None:
    world.take(world.ports[0])
    with FolderLock(world.state):
        code, found = world.examine()
        assert found["hub"][0]["text"].startswith("it starts")
        assert not [name for name in found if name.startswith("port")]
        address = {"url": f"http://127.0.0.1:{find_free_port()}", "token_file": ""}
        (world.state / "api.json").write_text(json.dumps(address))
        code, found = world.examine()
    assert code == ExitCode.CHECK_FAILED
    assert "not ready" in found["hub"][0]["text"]


def test_a_folder_that_only_the_configuration_names_and_that_is_not_there_is_named(world: World) -> None:
    shutil.rmtree(world.state)
    code, found = world.examine()
    assert code == ExitCode.CHECK_FAILED
    assert str(world.state) in found["folder"][0]["text"]
    assert "hub" not in found


def test_a_database_is_looked_at_without_a_change(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    assert probe_database(path) == (DatabaseCondition.ABSENT, 0)
    assert not path.exists()
    db = sqlite3.connect(path)
    db.execute("pragma user_version = 7")
    db.execute("create table t (x)")
    db.close()
    before = path.read_bytes()
    assert probe_database(path) == (DatabaseCondition.WHOLE, 7)
    assert probe_database(path, "select value from meta") == (DatabaseCondition.WHOLE, 0)
    assert path.read_bytes() == before


def test_servers_are_named_that_take_no_connection(world: World) -> None:
    world.write('[[remote]]\nmodel = "m"\nurl = "http://127.0.0.1:1"\ntail = "t"\nwhole = "w"\n')
    config = load_hub_config(world.config)
    [found] = doctor_of_hub.check_servers(config, 0.5)
    assert found.severity is Severity.PROBLEM
    world.take(port := find_free_port())
    world.write(f"http://127.0.0.1:{port}", "http://127.0.0.1:1")
    [found] = doctor_of_hub.check_servers(load_hub_config(world.config), 0.5)
    assert found.severity is Severity.FINE


def test_each_server_has_a_line_of_its_own_and_one_that_fails_hides_no_other(world: World) -> None:
    world.take(answers := find_free_port())
    world.write(
        f"""
[[llm]]
name = "words"
urls = ["http://127.0.0.1:1/v1", "http://127.0.0.1:{answers}"]
[[remote]]
model = "m"
url = "http://localhost:{answers}"
tail = "t"
whole = "w"
"""
    )
    found = list(doctor_of_hub.check_servers(load_hub_config(world.config), 5.0))
    assert [(each.text.partition("127.0.0.1:1/v1")[1] != "", each.severity) for each in found] == [
        (True, Severity.PROBLEM),
        (False, Severity.FINE),
        (False, Severity.FINE),
    ]


ADDRESSES = {
    "a label that is too long": f"http://{'a' * 64}.example",
    "an empty label": "http://a..example",
    "a port that is none": "http://127.0.0.1:99999",
    "IPv6 and nobody there": "http://[::1]:1",
}


@pytest.mark.parametrize("address", ADDRESSES.values(), ids=ADDRESSES)
def test_an_address_that_leads_nowhere_is_a_line_and_no_traceback(world: World, address: str) -> None:
    world.write(f'[[llm]]\nname = "words"\nurls = ["{address}"]\n')
    code, found = world.examine()
    assert code == ExitCode.CHECK_FAILED
    [server] = found["server"]
    assert server["severity"] == Severity.PROBLEM
    assert server["text"].startswith(f"{address}: ")
    assert "hub" in found, "the checks after it have run"


def test_a_server_that_never_answers_a_connection_costs_the_limit_once(world: World) -> None:
    full = socket.create_server(("127.0.0.1", 0), backlog=0)
    port = full.getsockname()[1]
    waiting = [socket.socket() for _ in range(4)]
    for each in waiting:  # they fill the queue: the kernel drops whoever comes next
        each.setblocking(False)
        each.connect_ex(("127.0.0.1", port))
    world.write(f'[[llm]]\nname = "words"\nurls = ["http://127.0.0.1:{port}"]\n')
    [found] = doctor_of_hub.check_servers(load_hub_config(world.config), 0.2)
    assert (found.severity, found.text.rpartition(": ")[2]) == (Severity.PROBLEM, "timed out")
    for each in (*waiting, full):
        each.close()


@pytest.mark.postgres
@pytest.mark.timeout(120)
def test_a_hub_on_a_server_has_one_line_for_its_database_and_none_for_files(
    world: World, postgres: PostgresServer
) -> None:
    url = postgres.create_database()
    world.write(f'[store]\nurl = "{url}"\n')
    code, found = world.examine()
    [database] = found["database"]
    assert (code, database["severity"]) == (ExitCode.OK, Severity.FINE), database
    assert database["text"].startswith("the server answers")
    assert not [check for check in found if check.startswith("database ")]
    for wrong in (postgres.url_of("no_such_database"), postgres.url_of("postgres", "wrong")):
        world.write(wrong, url)
        code, found = world.examine()
        assert (code, found["database"][0]["severity"]) == (ExitCode.CHECK_FAILED, Severity.PROBLEM), wrong
        assert "hub" in found, "the checks after it have run"
        url = wrong


@pytest.mark.further
def test_an_archive_is_made_also_where_the_configuration_cannot_be_used(world: World, tmp_path: Path) -> None:
    world.write("prot = 1\n")
    out = tmp_path / "support.tar.gz"
    done = skerry("hub", "support", "--config", str(world.config), "--out", str(out), "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert "configuration.toml" in json.loads(done.stdout)["files"]
    assert skerry("hub", "support", "--config", str(world.config), "--out", str(out)).returncode == ExitCode.USAGE
