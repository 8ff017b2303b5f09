"""Every command that writes where a path says: what a stranger has there is never lost, whatever it is.

Rule: a path of a command is read, or a device's or hub's own state, or it stands in `WRITTEN` with a recipe.
"""

from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from simulations.scenario.types import Scenario
from simulations.scenario.writer import format_scenario
from tests.cloud_hub.doubles.versions import make_joint
from tests.edge_agent.doubles.ledger_bench import LedgerBench
from tests.in_process import skerry
from tests.live.doubles.texts import write_reports
from tests.test_documented_commands import walk, whole_command_line
from wire.process.exit_codes import ExitCode

# Paths that a command reads, or that are the state of a device, a hub or a ring of keys and no result of the command.
READ = {
    *("config", "state", "model", "bundle", "documents", "before", "after", "layers", "ca", "token_file", "key", "hub"),
    *("passphrase_file", "recipient", "identity", "heads", "checkpoint", "edge", "source", "template", "system"),
    *("policy", "finish", "check", "first", "second", "input", "one", "other", "old", "path", "directory", "folder"),
    *("under", "probes", "trace_file"),
}
# (command, parameter) that READ would take by its name, though it writes.
NAMED_AS_READ = {("keys init", "folder"), ("hub broker", "folder"), ("agent init", "config"), ("hub init", "config")}
# What takes a broker, a fleet, a signed repository or minutes; each refuses by the function that a recipe below tries.
NOT_RUN = {
    **dict.fromkeys(
        ("models permit", "models publish", "policy publish"), "check_result_place, as `repository export`"
    ),
    **dict.fromkeys(("repository withdraw", "repository revoke", "rollout start"), "the same"),
    "models import": "check_output_folder, as `models forge`",
    "models demo-bundle": "a folder that must not exist; a file as `ledger prove`",
    "devices heads": "write_result, as `ledger prove`",
    "sim live": "save_report, as `sim run`",
    "sim fuzz": "write_result, as `ledger prove`",
    "demo": "write_result, as `ledger prove`",
    "hub fetch": "replace_bundle: tests/cloud_hub/repository",
    "hub join": "as `hub init`",
    "hub broker": "its own files by name",
    "agent backup": "write_backup, as `hub backup`",
    "agent retire": "a new file: tests/edge_agent/cli/test_retirement.py",
    "agent restore": "reads the file",
    "hub restore": "reads the file",
    "keys restore": "reads the file",
    "ledger check": "reads the file",
    "repository install": "reads the file",
    "keys sign": "the request itself is signed in its place",
    "policy calibrate": "the policy itself takes its next version: tests/edge_agent/cli/test_policy.py",
    "models calibrate": "adds to a file of its kind: tests/models/cli/test_calibrate.py",
    "data fetch": "pack_dataset, as `data pack`",
    "data pack": "its own files by name: tests/models/zoo/test_public_data.py",
    "models layout": "a folder to add models to, none of which may be there: tests/models/cli/test_layout.py",
}


class Recipe(NamedTuple):
    """Words of a command with {out} where it writes; `code`: of its end where the place is free."""

    words: str
    code: int = 0


WRITTEN = {
    "agent init": Recipe("agent init --config {out}"),
    "hub init": Recipe("hub init --config {out} --state {fresh}"),
    "policy new": Recipe("policy new clinic {out}"),
    "hub support": Recipe("hub support --yes --config {shop}/hub.toml --out {out}"),
    "hub backup": Recipe("hub backup --config {shop}/hub.toml {out}"),
    "repository export": Recipe("repository export --config {shop}/hub.toml {out}"),
    "support": Recipe("support --yes --dir {shop}/device --out {out}"),
    "ledger prove": Recipe("ledger prove --no-field-above P4 --from {since} --dir {shop}/device --out {out}"),
    "keys init": Recipe("keys init {out} --hub {shop}/hub.json --passphrase-file {shop}/pw --memory 16 --json"),
    "keys backup": Recipe("keys backup {out} --dir {shop}/ring"),
    "models text": Recipe("models text {shop}/r.csv --llm chat --template {shop}/t.txt --name triage --out {out}"),
    "models split": Recipe("models split {shop}/joint {out}"),
    "models forge": Recipe("models forge no_such:model --data no_such:data --name triage --out {out}", ExitCode.SAMPLE),
    "sim run": Recipe("sim run {shop}/tiny.toml --out {out}", -1),
    "sim show": Recipe("sim show {shop}/tiny.json --html {out}"),
    "sim compare": Recipe("sim compare {shop}/tiny.json {shop}/tiny.json --html {out}"),
}
ADDS = {"sim run", "keys init"}  # write into a folder that is there, beside what it holds
STRANGERS: dict[str, Callable[[Path], Path]] = {}


def stranger(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
    STRANGERS[make.__name__] = make
    return make


@stranger
def a_folder_with_a_file(place: Path) -> Path:
    (place / "p").mkdir()
    (place / "p" / "thesis.txt").write_text("mine")
    return place / "p"


@stranger
def a_file(place: Path) -> Path:
    (place / "p").write_text("mine")
    return place / "p"


@stranger
def the_working_folder(place: Path) -> Path:
    (place / "thesis.txt").write_text("mine")
    return Path()


@stranger
def the_folder_above(place: Path) -> Path:
    (place / "thesis.txt").write_text("mine")
    return Path("below/..")


@stranger
def a_link_to_a_folder(place: Path) -> Path:
    a_folder_with_a_file(place).rename(place / "real")
    (place / "p").symlink_to("real")
    return place / "p"


@stranger
def a_link_to_a_file(place: Path) -> Path:
    (place / "real.txt").write_text("mine")
    (place / "p").symlink_to("real.txt")
    return place / "p"


@stranger
def a_folder_that_looks_like_a_bundle(place: Path) -> Path:
    (place / "p").mkdir()
    (place / "p" / "manifest.json").write_text('{"name": "my web page", "icons": []}')
    return place / "p"


@stranger
def a_path_below_a_file(place: Path) -> Path:
    (place / "thesis.txt").write_text("mine")
    return place / "thesis.txt" / "p"


def snapshot(folder: Path) -> dict[str, str]:
    """Content of every file, target of every link, below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        found[name] = f"-> {path.readlink()}" if path.is_symlink() else path.read_text() if path.is_file() else "/"
    return found


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with everything that the recipes read."""
    folder = tmp_path_factory.mktemp("shop")
    with chdir(folder):
        (folder / "device").mkdir()
        bench = LedgerBench(folder / "device")
        bench.identity.save(folder / "device", b"certificate", b"key", b"ca")
        bench.append_entries(3)
        bench.witness_head()
        bench.db.close()
        (folder / "since").write_text(str(bench.now_ms))
        (folder / "pw").write_text("a long enough passphrase\n")
        (folder / "pw").chmod(0o600)
        write_reports(folder / "r.csv")
        (folder / "t.txt").write_text("Which? {text}\n")
        make_joint(folder / "joint")
        tiny = Scenario(name="tiny", question="Does it end?", devices=2, duration_s=5.0)
        (folder / "tiny.toml").write_text(format_scenario(tiny))
        for words in (
            f"hub init --config {folder}/hub.toml --state {folder}/state",
            f"repository export --config {folder}/hub.toml {folder}/hub.json",
            f"keys init {folder}/ring --hub {folder}/hub.json --passphrase-file {folder}/pw --memory 16 --json",
            f"sim run {folder}/tiny.toml --out {folder}",
        ):
            done = skerry(*words.split())
            assert done.returncode in (0, ExitCode.EXPECTATION), done.stderr
        yield folder


def run(recipe: Recipe, shop: Path, out: Path, place: Path) -> Any:
    since = "2020-01-01T00:00:00Z"
    return skerry(*recipe.words.format(out=out, shop=shop, since=since, fresh=place / "fresh-state").split())


def list_paths() -> Iterator[tuple[str, str]]:
    """Every command and parameter that is a path or a file."""
    for name, command in whole_command_line().items():
        for words, each in walk(name, command):
            for parameter in getattr(each, "params", ()):
                annotation = str(getattr(getattr(parameter, "type_descriptor", None), "annotation", ""))
                if "Path" in annotation and not hasattr(each, "commands"):
                    yield words, parameter.name


def test_every_path_of_the_command_line_is_read_or_tried_here():
    """A new command that writes has no place in these tables, and fails here until it has one."""
    found = set(list_paths())
    written = {words for words, name in found if name not in READ or (words, name) in NAMED_AS_READ}
    assert len(found) > 150
    assert written - WRITTEN.keys() - NOT_RUN.keys() == set()
    assert (WRITTEN.keys() | NOT_RUN.keys()) - {"demo"} - {words for words, _ in found} == set()


@pytest.mark.further
@pytest.mark.parametrize("command", WRITTEN)
def test_a_free_place_is_written(command: str, shop: Path, tmp_path: Path):
    recipe = WRITTEN[command]
    with chdir(tmp_path):
        done = run(recipe, shop, tmp_path / "p", tmp_path)
    assert done.returncode == recipe.code or recipe.code == -1, done.stderr
    assert (tmp_path / "p").exists() or command == "models forge"
    assert not list(tmp_path.glob(".*"))


@pytest.mark.further
@pytest.mark.parametrize("made", STRANGERS)
@pytest.mark.parametrize("command", WRITTEN)
def test_what_a_stranger_has_there_is_not_lost(command: str, made: str, shop: Path, tmp_path: Path):
    (tmp_path / "below").mkdir()
    out = STRANGERS[made](tmp_path)
    before = snapshot(tmp_path)
    with chdir(tmp_path):
        adds = command in ADDS and out.is_dir()
        done = run(WRITTEN[command], shop, out, tmp_path)
    after = snapshot(tmp_path)
    assert {name: after.get(name) for name in before} == before
    if adds:
        return
    assert done.returncode not in (0, ExitCode.INTERNAL), done.stdout
    assert len(done.stderr.strip().splitlines()) == 1 or "Usage:" in done.stderr, done.stderr
    assert not [name for name in after if "-old-" in name]
