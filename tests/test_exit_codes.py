"""Exit codes over the whole command line: every command is asked, found by reading the tree of commands itself.

What holds for one command holds for all: a path that is not there, an output that cannot be written and a configuration
that is none have the same code and one line, whatever command meets them.
"""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import cloud_hub.__main__ as hub_process
import edge_agent.__main__ as agent_process
from tests import ROOT
from tests.in_process import skerry
from tests.test_skerry import COMMANDS, ROOT_CONTEXT
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.main import run_to_exit
from wire.process.packages import PACKAGES

# Options that name what a command writes, with the commands whose own path is to be made.
WRITTEN = {
    "--out", "--request", "--html", "--ledger", "--trace-file", "--samples", "--cache", "--keep", "--json"
}  # fmt: skip
MADE = {
    "skerry agent init": {"--config"},
    "skerry agent enrol": {"--dir"},
    "skerry agent backup": {"file"},
    "skerry agent restore": {"--dir", "--config"},
    "skerry hub init": {"--config", "--state", "--model"},
    "skerry hub run": {"--state"},
    "skerry hub join": {"--config", "--state", "--model"},
    "skerry hub fetch": {"--state"},
    "skerry hub broker": {"folder", "--state"},
    "skerry hub backup": {"file"},
    "skerry hub restore": {"--config", "--state"},
    "skerry keys init": {"folder"},
    "skerry keys backup": {"file"},
    "skerry keys restore": {"--dir"},
    "skerry models layout": {"out"},
    "skerry models split": {"new"},
    "skerry models demo-bundle": {"out"},
    "skerry policy new": {"file"},
    "skerry repository export": {"file"},
    "skerry data fetch": {"--into"},
    "skerry data pack": {"--into"},
}
WORDS = {"answer": "0" * 32, "--no-field-above": "P2"}  # where not every word is taken
FETCHES_INTO = {"skerry hub fetch"}  # `--out` is a folder that is there


def list_parameters(path: str) -> list[Any]:
    with COMMANDS[path].make_context(path, [], parent=ROOT_CONTEXT, resilient_parsing=True) as context:
        return list(COMMANDS[path].get_params(context))


def names_a_path(parameter: Any) -> bool:
    descriptor = getattr(parameter, "type_descriptor", None)
    return descriptor is not None and "Path" in str(descriptor.annotation)


def read_paths() -> Iterator[Any]:
    """Every parameter of every command that names what is read."""
    for path in COMMANDS:
        for parameter in list_parameters(path):
            name = parameter.opts[0]
            written = name in WRITTEN and path not in FETCHES_INTO
            if names_a_path(parameter) and not written and name not in MADE.get(path, ()):
                yield pytest.param(path, parameter, id=f"{path.removeprefix('skerry ')} {name}")


def words_for(path: str, parameter: Any, value: str) -> list[str]:
    """A command line in which every required word is there, and `parameter` is `value`."""
    words: list[str] = []
    for each in list_parameters(path):
        if each is not parameter and not each.required:
            continue
        given = "new" if each.opts[0] in MADE.get(path, ()) else stand_in(each)
        given = value if each is parameter else given
        words += [each.opts[0], given] if each.opts[0].startswith("-") else [given]
    return [*path.split()[1:], *words]


def stand_in(parameter: Any) -> str:
    """A word that the command line takes for a parameter: a number, a choice, or the name of a file that is there."""
    kind = parameter.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return str(next(iter(kind)).value)
    if re.search(r"\b(int|float)\b", str(kind)):
        return "2"
    return WORDS.get(parameter.opts[0], "there")


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Path]:
    """An empty folder to type in, but for a file that can stand for any other."""
    (tmp_path / "there").write_text("", encoding="utf-8")
    with contextlib.chdir(tmp_path):
        yield tmp_path


@pytest.mark.parametrize(("path", "parameter"), list(read_paths()))
def test_a_path_that_is_not_there_has_one_code_in_every_command(path: str, parameter: Any, empty: Path) -> None:
    done = skerry(*words_for(path, parameter, "nowhere/none"))
    assert (done.returncode, done.stdout) == (ExitCode.MISSING, ""), done.stderr
    assert re.fullmatch(r"skerry: nowhere/none: [Nn]o such file .*\n", done.stderr)
    assert sorted(each.name for each in empty.iterdir()) == ["there"]


# What a configuration names instead, in a file that is otherwise right.
REPORT_IT = {
    "skerry doctor",
    "skerry support",
    "skerry hub doctor",
    "skerry hub support",
}  # as a finding
BECOME_ANOTHER = {"skerry agent run", "skerry hub run"}  # their processes are asked below
OF_A_STATE = [
    path
    for path in COMMANDS
    if {"--state", "--config"} <= {name for each in list_parameters(path) for name in each.opts}
    and path not in REPORT_IT | BECOME_ANOTHER | set(MADE) | {"skerry hub store status"}  # that asks a server alone
]


@pytest.mark.parametrize("path", OF_A_STATE)
def test_a_state_folder_that_only_the_configuration_names_has_the_same_code(path: str, empty: Path) -> None:
    (empty / "agent.toml").write_text('state = "nowhere"\nbundle = "there"\n', encoding="utf-8")
    (empty / "hub.toml").write_text('state = "nowhere"\n', encoding="utf-8")
    done = skerry(*words_for(path, None, ""))
    assert (done.returncode, done.stdout) == (ExitCode.MISSING, ""), done.stderr
    assert re.fullmatch(r"skerry: .*/nowhere: no such folder.*\n", done.stderr)


WITH_CONFIG = [
    path
    for path in COMMANDS
    if "--config" in {name for each in list_parameters(path) for name in each.opts}
    and path not in REPORT_IT | {"skerry agent run", "skerry models publish"}  # the latter asks for a bundle first
    and not MADE.get(path, set()) >= {"--config"}
]


@pytest.mark.parametrize("path", WITH_CONFIG)
def test_a_malformed_configuration_has_one_code_in_every_command(path: str, empty: Path) -> None:
    for text in ("no TOML at all", 'no_such_key = "x"\n'):
        (empty / "broken.toml").write_text(text, encoding="utf-8")
        done = skerry(*words_for(path, None, ""), "--config", "broken.toml")
        assert (done.returncode, done.stdout) == (ExitCode.CONFIG, ""), done.stderr
        assert re.fullmatch(r"skerry: broken\.toml: .*\n", done.stderr)


@pytest.mark.parametrize(
    "words",
    [
        ("policy", "explain", "policy.toml", "--context", "nowhere/none"),
        ("rollout", "start", "nowhere/none", "--to", "class=camera"),
        ("sim", "run", "nowhere/none"),
        ("sim", "live", "nowhere/none"),
        ("sim", "show", "nowhere/none"),
    ],
)
def test_a_path_among_words_that_may_be_more_than_paths_has_the_same_code(words: tuple[str, ...], empty: Path) -> None:
    (empty / "policy.toml").write_text((ROOT / "policies/templates/demo.toml").read_text(encoding="utf-8"))
    (empty / "hub").mkdir()
    done = skerry(*words)
    assert (done.returncode, done.stdout) == (ExitCode.MISSING, ""), done.stderr
    assert re.fullmatch(r"skerry: nowhere/none: .*\n", done.stderr)


@pytest.mark.parametrize(
    ("process", "text"),
    [
        (agent_process, 'state = "nowhere"\nbundle = "there"\n'),
        (hub_process, 'state = "made"\nmodels = ["nowhere"]\n[broker]\nstart = false\n'),
        (hub_process, 'state = "made"\nmodels = ["there"]\npolicies = ["nowhere"]\n[broker]\nstart = false\n'),
    ],
)
def test_a_process_that_misses_what_its_configuration_names_has_the_same_code(
    process: Any, text: str, empty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (empty / "it.toml").write_text(text, encoding="utf-8")
    assert process.main(["--check", "--config", str(empty / "it.toml")]) == ExitCode.MISSING
    assert re.fullmatch(r"skerry (agent|hub): .*nowhere.*\n", capsys.readouterr().err)


# Standard output that cannot be written.

FULL = "standard output: No space left on device; the rest was not printed\n"


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_that_cannot_write_its_output_has_one_code_and_one_line(path: str) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = skerry(*path.split()[1:], "--help", output=full)
    assert (done.returncode, done.stderr) == (ExitCode.OUTPUT, f"skerry: {FULL}")


def run_into(words: list[str], redirection: str) -> subprocess.CompletedProcess[str]:
    line = f"{sys.executable} -P -m skerry {' '.join(words)} {redirection}"
    return subprocess.run(
        ["/bin/bash", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("redirection", "why"),
    [
        (">/dev/full", "No space left on device"),
        (">&-", "Bad file descriptor"),
        ("| true; exit ${PIPESTATUS[0]}", "Broken pipe"),
    ],
)
def test_a_full_disk_a_closed_output_and_a_reader_that_has_gone_away_are_one_line(redirection: str, why: str) -> None:
    done = run_into(["policy", "show", "clinic"], redirection)
    assert (done.returncode, done.stdout) == (ExitCode.OUTPUT, "")
    assert done.stderr == f"skerry: standard output: {why}; the rest was not printed\n"


def test_an_error_keeps_its_code_where_standard_error_cannot_be_written() -> None:
    assert run_into(["policy", "check", "nowhere"], "2>/dev/full").returncode == ExitCode.MISSING


def test_an_output_that_was_caught_where_it_failed_still_decides_the_code() -> None:
    def print_and_go_on() -> int:
        with contextlib.suppress(ExitError):
            print("lost", flush=True)
        return ExitCode.OK

    with Path("/dev/full").open("w", encoding="utf-8") as full, contextlib.redirect_stdout(full):
        assert run_to_exit("skerry agent", print_and_go_on) == ExitCode.OUTPUT


def test_no_program_writes_past_the_guard_of_standard_output() -> None:
    """Processes that speak to their parent over a pipe do; nothing that a person starts."""
    workers = {
        "edge_agent/sources/cameras/worker.py", "models/verification/sandbox_child.py",
    }  # fmt: skip
    past = re.compile(r"stdout\.fileno\(\)|os\.write\(1\b|sys\.__stdout__")
    sources = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in sources if past.search(path.read_text(encoding="utf-8"))}
    assert found == workers
