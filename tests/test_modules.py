"""Every module can be imported, and every module or file that a string, a page or a unit names is there."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests import ROOT

PACKAGES = ("wire", "policies", "models", "edge_agent", "cloud_hub", "simulations")  # lower floors first
NAMED = (*PACKAGES, "benchmarks", "tests")
SOURCES = (ROOT / "skerry.py", *(path for name in NAMED for path in sorted((ROOT / name).rglob("*.py"))))
PAGES = (
    *(ROOT / name for name in ("README.md", "Makefile", "pyproject.toml")),
    # a decision names what there was on its day
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "adr"),
    *sorted(path for path in (ROOT / "deploy").rglob("*") if path.is_file()),
)
_PACKAGE = rf"(?<![\w./:@{{<-])(?:{'|'.join(NAMED)})"
MODULE = re.compile(rf"{_PACKAGE}(?:\.[A-Za-z_]\w*)+(?::[A-Za-z_]\w*)?(?<!\.md)(?![\w/])")
FILE = re.compile(rf"{_PACKAGE}(?:/[\w-]+)+\.(?:py|toml|md|css|js)\b")
RUN = re.compile(r"(?<!\S)-m +([a-z_][\w.]*)")
_IMPORTS = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        print(f"{name}: {error!r}")
"""


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def file_of(module: str) -> Path | None:
    place = ROOT.joinpath(*module.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def names_in(path: Path) -> frozenset[str]:
    """What a module defines or imports at its top."""
    found: set[str] = set()
    for node in tree_of(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        found |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return frozenset(found)


def resolves(name: str) -> bool:
    """`package.module`, perhaps with an attribute behind it, or `package.module:attribute`."""
    module, colon, attribute = name.partition(":")
    if file_of(module):
        return not colon or attribute in names_in(file_of(module) or ROOT)
    parts = module.split(".")
    for length in range(len(parts) - 1, 0, -1):
        if path := file_of(".".join(parts[:length])):
            return parts[length] in names_in(path)
    return False


def texts() -> Iterator[tuple[str, str]]:
    """(where, text) of every page and of every string in the code, docstrings too; tests name what is not there."""
    for page in PAGES:
        yield str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")
    for source in (path for path in SOURCES if path.relative_to(ROOT).parts[0] != "tests"):
        for node in ast.walk(tree_of(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{source.relative_to(ROOT)}:{node.lineno}", node.value


def modules_run() -> Iterator[tuple[str, str]]:
    """(where, module) of every `"-m", "module"` in the code that names one of ours or a file beside them."""
    for source in SOURCES:
        for node in ast.walk(tree_of(source)):
            if isinstance(node, ast.Tuple | ast.List):
                words = [each.value if isinstance(each, ast.Constant) else None for each in node.elts]
                for flag, module in pairwise(words):
                    if flag == "-m" and isinstance(module, str):
                        yield f"{source.relative_to(ROOT)}:{node.lineno}", module


def can_run(module: str) -> bool:
    if module.partition(".")[0] not in {*NAMED, "skerry"}:
        return True
    return bool(file_of(f"{module}.__main__") if ROOT.joinpath(*module.split(".")).is_dir() else file_of(module))


def test_every_module_can_be_imported():
    wanted = [module_of(path) for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))]
    words = [sys.executable, "-c", _IMPORTS, "skerry", *wanted]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


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
        ("models.runtime.codec", True),
        ("edge_agent.cli.agent:app", True),
        ("edge_agent.cli.agent:gone", False),
        ("models.gone", False),
        ("models.forge.training.gate.ConfidenceGate", True),
        ("models.forge.gone.Gate", False),
    ],
)
def test_a_name_resolves_only_if_module_and_attribute_are_there(name, there):
    assert resolves(name) is there
