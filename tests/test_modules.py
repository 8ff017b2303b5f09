"""Every module can be imported, and every module or file that a string, a page or a unit names is there."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.sources import PACKAGES, SOURCES, TESTS, name_of, read_facts, read_text

NAMED = (*PACKAGES, "benchmarks", "tests")
PAGES = (
    *(ROOT / name for name in ("README.md", "Makefile", "pyproject.toml")),
    # a decision names what there was on its day
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "adr"),
    *sorted(path for path in (ROOT / "deploy").rglob("*") if path.is_file() and path.suffix != ".pyc"),
)
_PACKAGE = rf"(?<![\w./:@{{<-])(?:{'|'.join(NAMED)})"
MODULE = re.compile(rf"{_PACKAGE}(?:\.[A-Za-z_]\w*)+(?::[A-Za-z_]\w*)?(?<!\.md)(?![\w/])")
FILE = re.compile(rf"{_PACKAGE}(?:/[\w-]+)+\.(?:py|toml|md|css|js)\b")
RUN = re.compile(r"(?<!\S)-m +([a-z_][\w.]*)")


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def file_of(module: str) -> Path | None:
    place = ROOT.joinpath(*module.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def resolves(name: str) -> bool:
    """`package.module`, perhaps with an attribute behind it, or `package.module:attribute`."""
    module, colon, attribute = name.partition(":")
    if file_of(module):
        return not colon or attribute in read_facts(file_of(module) or ROOT).names
    parts = module.split(".")
    for length in range(len(parts) - 1, 0, -1):
        if path := file_of(".".join(parts[:length])):
            return parts[length] in read_facts(path).names
    return False


def texts() -> Iterator[tuple[str, str]]:
    """(where, text) of every page and of every string in the code, docstrings too; tests name what is not there."""
    for page in PAGES:
        yield str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")
    for source in SOURCES:
        yield from ((f"{name_of(source)}:{line}", text) for line, text in read_facts(source).strings)


def modules_run() -> Iterator[tuple[str, str]]:
    """(where, module) of every `"-m", "module"` in the code that names one of ours or a file beside them."""
    for source in (*SOURCES, *(path for path in TESTS if '"-m"' in read_text(path))):
        yield from ((f"{name_of(source)}:{line}", module) for line, module in read_facts(source).runs)


def can_run(module: str) -> bool:
    if module.partition(".")[0] not in {*NAMED, "skerry"}:
        return True
    return bool(file_of(f"{module}.__main__") if ROOT.joinpath(*module.split(".")).is_dir() else file_of(module))


def test_every_module_can_be_imported():
    for path in (path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))):
        importlib.import_module(module_of(path))
    importlib.import_module("skerry")


def test_every_module_that_a_text_names_is_there():
    missing = [f"{where} {name}" for where, text in texts() for name in MODULE.findall(text) if not resolves(name)]
    assert not missing


def test_every_file_that_a_text_names_is_there():
    missing = [
        f"{where} {name}" for where, text in texts() for name in FILE.findall(text) if not (ROOT / name).exists()
    ]
    assert not missing


def test_every_module_that_is_run_by_name_can_be_run():
    told = [(where, module) for where, text in texts() for module in RUN.findall(text)]
    missing = [f"{where} -m {module}" for where, module in (*told, *modules_run()) if not can_run(module)]
    assert not missing


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("models.runtime.feature_codec", True),
        ("edge_agent.cli.agent:app", True),
        ("edge_agent.cli.agent:gone", False),
        ("models.gone", False),
        ("models.forge.training.gate.ConfidenceGate", True),
        ("models.forge.gone.Gate", False),
    ],
)
def test_a_name_resolves_only_if_module_and_attribute_are_there(name, there):
    assert resolves(name) is there
