"""The command line as a person meets it: its output and its exit code, in processes where these matter."""

import ast
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer.main
from rich.table import Table

import skerry as command_line
from tests import ROOT
from tests.blocks import PAGES, blocks
from tests.examples import further
from tests.in_process import skerry
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.packages import PACKAGES
from wire.process.terminal import open_console


def python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """`code` in a fresh interpreter, with `args` as its command line."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120", "TERM": "dumb"}
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def refused(done: subprocess.CompletedProcess[str], code: ExitCode) -> str:
    """The one line that a failed command prints."""
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.startswith("skerry: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_help_lists_every_subcommand_and_imports_none():
    code = (
        "import sys, skerry\ntry: skerry.main()\n"
        "except SystemExit:\n"
        "  heavy = (*skerry._OWN, 'numpy', 'pydantic', 'msgspec')\n"
        "  print([name for name in sys.modules if name.partition('.')[0] in heavy])"
    )
    done = python(code, "--help")
    for word in ("demo", "agent", "hub", "policy", "models", "why"):
        assert f" {word} " in done.stdout
    modules = ["wire.telemetry", "wire", *(f"wire.process{part}" for part in ("", ".exit_codes", ".main", ".terminal"))]
    assert done.stdout.splitlines()[-1] == str(modules)


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        further("skerry dev", "devices"),
        further("skerry devices sho", "show"),
        ("skerry rollout start --wat", "--watch"),
    ],
)
def test_the_shell_completes_commands_and_options(words, completed):
    asked = {"_SKERRY_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = python(f"import os, skerry\nos.environ |= {asked!r}\nskerry.main()")
    assert done.stdout.split() == [completed]


def test_version():
    done = skerry("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("skerry")


def test_unknown_command_names_the_nearest():
    done = skerry("agnet")
    assert done.returncode == ExitCode.USAGE
    assert "Did you mean 'agent'?" in done.stderr


def test_usage_errors_end_with_2():
    assert skerry("policy", "check").returncode == ExitCode.USAGE
    assert skerry("--no-such-option").returncode == ExitCode.USAGE


# A sub-command that stands in for a real one: a module in a folder of its own, put into the table as they are.
STAND_IN = """
import sys, skerry
sys.path.insert(0, sys.argv.pop(1))
skerry.SUBCOMMANDS["agent"] = skerry.SUBCOMMANDS["agent"]._replace(target="strange_command:app", nested={})
enter = skerry._make_loader("agent", skerry.SUBCOMMANDS["agent"])
next(c for c in skerry.app.registered_commands if c.name == "agent").callback = enter
skerry.main()
"""


def run_stand_in(tmp_path: Path, body: str, *args: str) -> subprocess.CompletedProcess[str]:
    head = "import typer\nfrom wire.process.exit_codes import ExitCode, ExitError\n"
    (tmp_path / "strange_command.py").write_text(head + body, encoding="utf-8")
    return python(STAND_IN, str(tmp_path), "agent", *args)


APP = "app = typer.Typer()\n@app.callback()\ndef root(): ...\n@app.command()\ndef run(word: str, loud: bool = False):\n"


@pytest.mark.further
def test_a_subcommand_gets_its_arguments_untouched(tmp_path):
    done = run_stand_in(tmp_path, APP + "    print(word, loud)", "run", "--loud", "--", "--word")
    assert (done.returncode, done.stdout) == (0, "--word True\n")


def test_a_subcommand_answers_help_itself_under_its_whole_name(tmp_path):
    for flag in ("--help", "-h"):
        assert "Usage: skerry agent run" in run_stand_in(tmp_path, APP + "    ...", "run", flag).stdout


@pytest.mark.further
def test_a_subcommand_may_be_one_function(tmp_path):
    assert run_stand_in(tmp_path, "def app(word: str): print('heard', word)", "it").stdout == "heard it\n"


def test_a_stop_becomes_one_line_and_its_exit_code(tmp_path):
    done = run_stand_in(tmp_path, APP + "    raise ExitError(ExitCode.DISK, 'disk full\\nmake room')", "run", "x")
    assert refused(done, ExitCode.DISK) == "skerry: disk full make room\n"


def test_a_defect_ends_with_1_and_shows_no_local_values(tmp_path):
    done = run_stand_in(tmp_path, APP + "    canary = 'CAN' + 'ARY'\n    raise RuntimeError('broken')", "run", "x")
    assert done.returncode == ExitCode.INTERNAL
    assert "RuntimeError: broken" in done.stderr
    assert "CANARY" not in done.stderr


@pytest.mark.parametrize(
    ("module", "hint"),
    [
        ("torch_is_not_here", f"torch_is_not_here is not installed; run: {ROOT / 'setup.sh'} demo"),
        further("sklearn.no_such_part", f"sklearn.no_such_part is not installed; run: {ROOT / 'setup.sh'} demo"),
        further("simulations.cli.demo", "this build has neither demo nor simulator: install the wheel +demo"),
        ("edge_agent.no_such_part", "edge_agent.no_such_part is not part of this installation"),
    ],
)
def test_a_module_that_is_not_there_says_what_to_install(tmp_path, module, hint):
    body = f"raise ModuleNotFoundError('No module', name={module!r})"
    assert hint in refused(run_stand_in(tmp_path, body), ExitCode.CONFIG)


def test_an_installed_wheel_names_packages_that_a_registry_has(tmp_path):
    (tmp_path / "skerry.py").write_text((ROOT / "skerry.py").read_text(encoding="utf-8"), encoding="utf-8")
    for name in PACKAGES:
        if (ROOT / name).is_dir():
            (tmp_path / name).symlink_to(ROOT / name)
    info = tmp_path / "skerry-9.dist-info"
    info.mkdir()
    asked = ("msgspec>=0.19", 'torch>=2.11,<3; extra == "hub"', 'onnx>=1.21; extra == "forge"')
    said = "".join(f"Requires-Dist: {each}\n" for each in asked)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: skerry\nVersion: 9\n{said}")
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); import skerry; print(skerry._advise_install('hub'))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"{sys.executable} -m pip install 'torch>=2.11,<3'\n"


def test_the_demos_installation_runs_every_part_of_the_command_line():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (whole,) = [line for line in project["optional-dependencies"]["demo"] if line.startswith("skerry[")]
    assert set(whole.removeprefix("skerry[").rstrip("]").split(",")) == set(command_line._EXTRAS.values())


def test_no_page_and_no_message_tells_to_install_skerry_from_a_registry():
    for path in (
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "wire").rglob("*.py"),
        ROOT / "skerry.py",
        *(p for name in PACKAGES for p in (ROOT / name).rglob("*.py")),
    ):
        found = re.findall(r"pip install [^\n]*?(?<![\w/.-])'?skerry[\s\['`]", path.read_text(encoding="utf-8"))
        assert not found, path


def test_ctrl_c_ends_with_130_and_no_traceback(tmp_path):
    body = APP + "    import time\n    print('up', flush=True)\n    time.sleep(60)\n"
    (tmp_path / "strange_command.py").write_text("import typer\n" + body, encoding="utf-8")
    command = [sys.executable, "-c", STAND_IN, str(tmp_path), "agent", "run", "x"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors


# The whole tree, read from the code: what holds for one command holds for all.


def list_commands(path: str = "skerry", command: Any = None) -> Iterator[tuple[str, Any]]:
    """Every command that does something, with the words that call it."""
    command = typer.main.get_command(command_line.app) if command is None else command
    if isinstance(command, command_line.LazyCommand):
        assert command.callback is not None
        command = command.callback()
    below = getattr(command, "commands", None)
    if below is None or command.invoke_without_command:
        yield path, command
    for name, each in (below or {}).items():
        yield from list_commands(f"{path} {name}", each)


COMMANDS = dict(list_commands())
ROOT_CONTEXT = typer.main.get_command(command_line.app).make_context("skerry", [], resilient_parsing=True)
# Commands without --json, and why.
NO_JSON = {
    "skerry agent run": "becomes the agent, whose log is JSON",
    "skerry hub run": "becomes the hub, whose log is JSON",
    "skerry agent trace": "its lines are JSON",
    "skerry policy show": "prints a TOML document",
    "skerry policy new": "writes a TOML document",
    "skerry sim show": "prints a TOML document",
}


def help_lines(path: str) -> list[str]:
    with COMMANDS[path].make_context(path, [], parent=ROOT_CONTEXT, resilient_parsing=True) as context:
        return str(COMMANDS[path].get_help(context)).splitlines()


@contextmanager
def suppress_missing() -> Iterator[None]:
    """An example's words are right, though the files that it names are not here."""
    try:
        yield
    except ExitError as stop:
        if stop.code is not ExitCode.MISSING:
            raise


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_shows_an_example_of_itself_that_parses(path):
    shown = [line.strip() for line in help_lines(path) if line.strip().startswith("Example: ")]
    assert len(shown) == 1, "one line, not wrapped: end the docstring with `Example: skerry ...`"
    words = shlex.split(shown[0].removeprefix("Example: "))
    depth = max(n for n in range(1, len(words) + 1) if " ".join(words[:n]) in COMMANDS)
    meant = COMMANDS[" ".join(words[:depth])]
    assert meant.callback is COMMANDS[path].callback or meant.help == COMMANDS[path].help  # `agent why` is `why`
    with suppress_missing():
        meant.make_context(path, words[depth:])  # raises what a user would see


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_a_short_help_flag_and_prints_json_if_asked(path):
    command = COMMANDS[path]
    with command.make_context(path, [], parent=ROOT_CONTEXT, resilient_parsing=True) as context:
        options = {name for each in command.get_params(context) for name in each.opts}
    assert {"-h", "--help"} <= options
    assert ("--json" in options) != (path in NO_JSON)


def test_every_command_that_a_page_shows_exists_with_these_options():
    groups = {" ".join(path.split()[:n]) for path in COMMANDS for n in range(1, len(path.split()))}
    wrong = []
    for page in PAGES:
        for block in blocks(page):
            for line in block.text.replace("\\\n", " ").splitlines() if block.language == "sh" else []:
                found = None if "$(" in line else re.match(r"(?:[!#] )?(?:\w+=\S+ )*(skerry [a-z].*)", line)
                words = re.split(r"\s+(?:[|&;#]|\d?>|<)|\)", found[1])[0].split() if found else []
                depth = max((n for n in range(1, len(words) + 1) if " ".join(words[:n]) in COMMANDS), default=0)
                known = {o for each in COMMANDS[" ".join(words[:depth])].params for o in each.opts} if depth else set()
                flags = {word.partition("=")[0] for word in words[depth:] if re.match(r"--?[a-z]", word)}
                exists = depth or " ".join(words) in groups
                if words and (not exists or flags - known - {"-h", "--help"}):
                    wrong.append((page.name, block.line, " ".join(words)))
    assert wrong == []


def test_in_a_pipe_a_row_is_one_line_however_long(capsys):
    long = "a-very-long-name-of-a-device-" * 8
    table = Table("device", "state", box=None)
    table.add_row(long, long)
    open_console().print(table)
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize("words", [("--help",), *(further((part, "--help")) for part in ("agent", "hub", "devices"))])
def test_a_help_text_imports_none_of_the_heavy_packages(words):
    code = (
        "import sys, skerry\n"
        "try: skerry.app(sys.argv[1:], prog_name='skerry')\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'sqlalchemy', 'aiohttp', 'tuf', 'onnxruntime', 'paho'}\n"
        "print(*(heavy & {*sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == "\n"
    assert "Usage" in done.stdout


# What is named anywhere, in a page, a help text or a message, exists.

NAMED = re.compile(r"(?:\.venv/bin/)?\bskerry (?P<words>[a-z][a-z-]*(?: [a-z][a-z-]*)*)(?P<rest>(?: [^`\n]*)?)")
GROUPS = {" ".join(path.split()[:n]) for path in COMMANDS for n in range(1, len(path.split()))}
OPTIONS = {path: {flag for each in command.params for flag in each.opts} for path, command in COMMANDS.items()}


def list_texts() -> Iterator[tuple[str, str]]:
    """Where it stands, and each text: pages, and string constants of the source, docstrings among them."""
    for page in (*PAGES, *(ROOT / "docs" / "adr").glob("*.md"), *(ROOT / "examples").rglob("*.md")):
        yield page.name, page.read_text(encoding="utf-8")
    for path in (ROOT / "skerry.py", *(p for name in PACKAGES for p in (ROOT / name).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "skerry " in node.value:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value


def find_wrong_names(text: str) -> list[str]:
    """Commands in backticks that do not exist, or have not the options they are named with."""
    wrong = []
    for quoted in re.findall(r"`((?:\.venv/bin/)?skerry [^`]+)`", text):
        found = NAMED.match(quoted)
        if found is None:
            continue
        words = found["words"].split()
        path = max((" ".join(["skerry", *words[:n]]) for n in range(len(words) + 1)), key=lambda p: len(p) * known(p))
        named = path in COMMANDS or (path == " ".join(["skerry", *words]) and path in GROUPS)
        flags = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", quoted.partition(" | ")[0]))
        if not named or (path in COMMANDS and flags - OPTIONS[path] - {"--help"}):
            wrong.append(quoted)
    return wrong


def find_unquoted_wrong_names(text: str) -> list[str]:
    """Commands outside backticks whose first word is one, and whose second is none of those below it."""
    wrong = []
    for found in re.finditer(r"(?<![\w/.-])skerry ([a-z][a-z-]*) ([a-z][a-z-]*)", re.sub(r"`[^`]*`", "", text)):
        above = f"skerry {found[1]}"
        if above in GROUPS and above not in COMMANDS and not known(found[0]):
            wrong.append(found[0])
    return wrong


def known(path: str) -> bool:
    return path in COMMANDS or path in GROUPS


def test_every_command_that_a_page_a_help_text_or_a_message_names_exists_with_its_options():
    wrong = [(where, found) for where, text in list_texts() for found in find_wrong_names(text)]
    sources = [(where, text) for where, text in list_texts() if not where.endswith(".md")]
    wrong += [(where, found) for where, text in sources for found in find_unquoted_wrong_names(text)]
    assert wrong == []


def test_a_name_that_does_not_exist_is_found():
    assert find_wrong_names("as `skerry hub heads` wrote it") == ["skerry hub heads"]
    assert find_wrong_names("`skerry devices heads CAM --outt x`") == ["skerry devices heads CAM --outt x"]
    assert find_wrong_names("`skerry devices heads CAM --out x`, `skerry hub`") == []
    assert find_unquoted_wrong_names("next: skerry hub publish models x") == ["skerry hub publish"]
