"""The command line as a person meets it: its output and its exit code, in processes where these matter."""

import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import skerry as command_line
from tests import ROOT
from tests.in_process import skerry
from wire.process.exit_codes import ExitCode
from wire.process.packages import PACKAGES


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
    assert done.stdout.splitlines()[-1] == "['wire', 'wire.process', 'wire.process.exit_codes']"


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
skerry.SUBCOMMANDS["agent"] = skerry.SUBCOMMANDS["agent"]._replace(target="strange_command:app")
enter = skerry._load_subcommand("agent", skerry.SUBCOMMANDS["agent"])
next(c for c in skerry.app.registered_commands if c.name == "agent").callback = enter
skerry.main()
"""


def run_stand_in(tmp_path: Path, body: str, *args: str) -> subprocess.CompletedProcess[str]:
    head = "import typer\nfrom wire.process.exit_codes import ExitCode, ExitError\n"
    (tmp_path / "strange_command.py").write_text(head + body, encoding="utf-8")
    return python(STAND_IN, str(tmp_path), "agent", *args)


APP = "app = typer.Typer()\n@app.callback()\ndef root(): ...\n@app.command()\ndef run(word: str, loud: bool = False):\n"


def test_a_subcommand_gets_its_arguments_untouched(tmp_path):
    done = run_stand_in(tmp_path, APP + "    print(word, loud)", "run", "--loud", "--", "--word")
    assert (done.returncode, done.stdout) == (0, "--word True\n")


def test_a_subcommand_answers_help_itself_under_its_whole_name(tmp_path):
    assert "Usage: skerry agent run" in run_stand_in(tmp_path, APP + "    ...", "run", "--help").stdout


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
        ("sklearn.no_such_part", f"sklearn.no_such_part is not installed; run: {ROOT / 'setup.sh'} demo"),
        ("simulations", "make demo"),
        ("edge_agent.no_such_part", "edge_agent.no_such_part is not part of this installation"),
    ],
)
def test_a_module_that_is_not_there_says_what_to_install(tmp_path, module, hint):
    body = f"raise ModuleNotFoundError('No module', name={module!r})"
    assert hint in refused(run_stand_in(tmp_path, body), ExitCode.CONFIG)


def test_an_installed_wheel_names_packages_that_a_registry_has(tmp_path):
    (tmp_path / "skerry.py").write_text((ROOT / "skerry.py").read_text(encoding="utf-8"), encoding="utf-8")
    for name in PACKAGES:
        if (ROOT / name).is_dir() and name != "simulations":
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
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in errors
