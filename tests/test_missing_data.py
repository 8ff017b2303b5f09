"""Whatever reads a public data set and does not have it says so in one line, with one exit code, before any work.

Found by rule: each example's project and the commands that make its bundle, each command that takes `--data`, and each
benchmark that is a program of its own and imports the readers of data sets, however indirectly.
"""

import ast
import contextlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from models.forge.pipeline.demo import load_demo_bundle, locate_cache_folder
from models.zoo.sources import DATASETS
from simulations.projects.project_file import PROJECT_FILE, read_project
from tests import ROOT
from tests.blocks import environment
from tests.in_process import set_variables, skerry
from tests.test_exit_codes import list_parameters, words_for
from tests.test_skerry import COMMANDS
from wire.process.exit_codes import ExitCode

pytestmark = [pytest.mark.further, pytest.mark.timeout(300)]
DEMO_CACHE = locate_cache_folder()
EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob(f"*/{PROJECT_FILE}"))
# Words of benchmarks that need some; without an entry a program takes none.
WORDS = {
    "benchmarks.__main__": ["forge-parts", "--only", "routing"],
    "benchmarks.forge.parts.leakage": ["clinc150", "--bundle", "."],
    "benchmarks.forge.parts.leakage_curve": ["fashion-mnist"],
    "benchmarks.forge.run": ["--sets", "clinc150"],
    "benchmarks.forge.trial": ["clinc150", "11", "features", "quick"],
}
# Programs that import a reader beside what they use, and why they read no set.
READ_NONE = {"benchmarks.forge.unseen_nets": "draws its samples"}


def list_imports(source: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found


def list_readers() -> list[str]:
    """Modules of benchmarks that import the finder of data sets, directly or through others, and run as programs."""
    sources = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in chain((ROOT / "benchmarks").rglob("*.py"), (ROOT / "models" / "zoo").glob("*.py"))
    }
    imports = {name: list_imports(path) for name, path in sources.items()}
    reach = {"models.zoo.datasets", "models.zoo.sources.find_dataset"}
    while new := {name for name, found in imports.items() if name not in reach and found & reach}:
        reach |= new
    return sorted(
        name
        for name in reach
        if name.startswith("benchmarks") and 'if __name__ == "__main__"' in sources[name].read_text(encoding="utf-8")
    )


def list_processes() -> Iterator[Any]:
    """Command line and folder of every program that is a process of its own."""
    for example in EXAMPLES:
        words = shlex.split(read_project(example).prepare[0])
        found = [sys.executable, "-m", *words] if words[0] == "skerry" else [sys.executable, *words[1:]]
        yield pytest.param(found, example, id=example.name)
    for name in list_readers():
        if name not in READ_NONE:
            found = [sys.executable, "-m", name.removesuffix(".__main__"), *WORDS.get(name, [])]
            yield pytest.param(found, ROOT, id=name)


def list_commands() -> Iterator[Any]:
    """Words of each command of `skerry` that reads samples, or a project that does."""
    for example in EXAMPLES:
        yield pytest.param(["up", str(example)], id=f"up {example.name}")
    for path in COMMANDS:
        for parameter in (each for each in list_parameters(path) if "--data" in each.opts):
            words = words_for(path, parameter, "models.zoo.mitbih:samples")
            words += ["--max-share", "0.2"] if path == "skerry models calibrate" else []
            yield pytest.param(words, id=path.removeprefix("skerry "))


def check_line(code: int, stderr: str) -> None:
    assert code == ExitCode.MISSING, stderr
    assert "Traceback" not in stderr
    told = [line for line in stderr.splitlines() if "data set" in line]
    assert told == stderr.splitlines()[-1:], stderr
    name = re.search(r"data set (\w+): not in ", told[0])
    assert name, told
    known = DATASETS[name[1]]
    assert (f"skerry data fetch {name[1]}" if known.urls else known.page) in told[0]
    assert "SKERRY_DATA" in told[0]


@pytest.fixture(params=["unset", "empty"])
def without_data(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """An environment at home in an empty folder, `SKERRY_DATA` not set or naming a folder with nothing in it."""
    (tmp_path / "empty").mkdir()
    more = {"SKERRY_DATA": str(tmp_path / "empty")} if request.param == "empty" else {}
    return environment(tmp_path) | {"PYTHONPATH": str(ROOT)} | more


@pytest.mark.parametrize(("words", "folder"), list(list_processes()))
def test_a_program_without_its_data_says_in_one_line_how_to_get_it(
    words: list[str], folder: Path, without_data: dict[str, str]
) -> None:
    done = subprocess.run(
        words, cwd=folder, env=without_data, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    check_line(done.returncode, done.stderr)


@pytest.mark.parametrize("words", list(list_commands()))
def test_a_command_without_its_data_says_in_one_line_how_to_get_it(
    words: list[str], without_data: dict[str, str], tmp_path: Path
) -> None:
    bundle = load_demo_bundle(DEMO_CACHE).path
    named = {"models forge": "models.zoo.mitbih:build_model", "models cuts": "models.zoo.mitbih:build_model"}
    given = [named.get(" ".join(words[:2]), str(bundle)) if word == "there" else word for word in words]
    variables = {name: without_data.get(name) for name in ("SKERRY_DATA", "XDG_CACHE_HOME", "HOME")}
    with set_variables(variables), contextlib.chdir(tmp_path):
        done = skerry(*given)
    check_line(done.returncode, done.stderr)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_names_every_data_set_that_its_code_reads(example: Path) -> None:
    from models.zoo import datasets  # noqa: PLC0415 - only this test reads its source

    readers = {
        f"{function.name}": set(re.findall(r'find_dataset\("(\w+)"\)', ast.unparse(function).replace("'", '"')))
        for function in ast.parse(Path(datasets.__file__).read_text(encoding="utf-8")).body
        if isinstance(function, ast.FunctionDef)
    }
    code = "".join(path.read_text(encoding="utf-8") for path in example.glob("*.py"))
    read = set(re.findall(r'find_dataset\("(\w+)"\)', code))
    read |= set().union(*(names for reader, names in readers.items() if re.search(rf"\b{reader}\b", code)))
    assert set(read_project(example).data) == read != set()
