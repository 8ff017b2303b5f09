"""What the design promises about the shape of the code, gauged: floors, purity, sizes, one error policy, few mocks."""

import ast
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests import ROOT

PACKAGES = ("wire", "policies", "models", "edge_agent", "cloud_hub", "simulations")
SOURCES = sorted(path for name in (*PACKAGES, "benchmarks") for path in (ROOT / name).rglob("*.py"))
SOURCES += sorted(ROOT.glob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef
NESTING = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.AsyncFor, ast.AsyncWith, ast.Match)
STRANGERS_OF_THE_EDGE = {"torch", "onnx", "sklearn", "cloud_hub", "typer", "rich", "sqlalchemy", "safetensors"}
LOOPS = {"edge_agent/app/agent.py", "cloud_hub/runtime/hub.py"}  # they outlive a defect of one task, and say so
BROAD = {"Exception", "BaseException"}
MOCKS = {"monkeypatch", "MagicMock", "AsyncMock", "Mock", "patch", "mocker"}


@dataclass(frozen=True)
class FunctionFacts:
    """A function's size: `lines` without its docstring, `parameters` that a caller gives, `nesting` of its blocks."""

    where: str
    lines: int
    parameters: int
    nesting: int


@dataclass(frozen=True)
class FileFacts:
    """What these tests ask of one file. `catches_all`: line numbers of handlers that hide any error."""

    lines: int
    silent: bool
    functions: tuple[FunctionFacts, ...]
    catches_all: tuple[int, ...]
    imports: frozenset[str]
    tests: int
    mocks: int


@cache
def read_facts(path: Path) -> FileFacts:
    """Facts of a file. Its syntax tree is let go: half a million nodes would slow every garbage collection."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, Function)]
    handlers = [node for node in nodes if isinstance(node, ast.ExceptHandler)]
    return FileFacts(
        lines=len(text.splitlines()),
        silent=bool(tree.body) and ast.get_docstring(tree) is None,
        functions=tuple(measure(path, each) for each in functions),
        catches_all=tuple(each.lineno for each in handlers if BROAD & caught(each) and not reraises(each)),
        imports=frozenset(name for node in nodes for name in imported(node)),
        tests=sum(each.name.startswith("test_") for each in functions),
        mocks=sum(is_mock(node) for node in nodes),
    )


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def measure(path: Path, function: Function) -> FunctionFacts:
    where = f"{name_of(path)}:{function.lineno} {function.name}"
    return FunctionFacts(where, code_lines(function), parameters(function), nesting(function))


def all_functions() -> list[FunctionFacts]:
    return [each for path in SOURCES for each in read_facts(path).functions]


def code_lines(function: Function) -> int:
    """Lines from `def` to the end, the docstring apart. Decorators count for nothing."""
    first = function.body[0]
    documented = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def parameters(function: Function) -> int:
    """How many a caller gives. A command's are options of the command line: nobody calls it with them."""
    if any(
        isinstance(each, ast.Call) and ast.unparse(each.func).endswith(".command") for each in function.decorator_list
    ):
        return 0
    found = function.args
    return sum(arg.arg not in {"self", "cls"} for arg in (*found.posonlyargs, *found.args, *found.kwonlyargs))


def nesting(node: ast.AST, depth: int = 0) -> int:
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*(ast.FunctionDef, ast.AsyncFunctionDef), ast.ClassDef)):
            continue
        chained = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]  # elif
        deepest = max(deepest, nesting(child, depth + (isinstance(child, NESTING) and not chained)))
    return deepest


def reraises(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and (last.exc is None or last.cause is not None)


def caught(handler: ast.ExceptHandler) -> set[str]:
    """Names of what a handler catches; a bare `except` catches BaseException."""
    if handler.type is None:
        return {"BaseException"}
    return {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}


def imported(node: ast.AST) -> list[str]:
    """Top-level packages that a statement imports."""
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    return [name.partition(".")[0] for name in names]


def is_mock(node: ast.AST) -> bool:
    return (isinstance(node, ast.Name) and node.id in MOCKS) or (isinstance(node, ast.arg) and node.arg in MOCKS)


def test_the_floors_hold() -> None:
    run = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    "entry", ["edge_agent.core.core", "edge_agent.app.agent", "edge_agent.api", "edge_agent.__main__"]
)
def test_the_edge_starts_without_what_belongs_to_the_hub_the_forge_or_the_command_line(entry: str) -> None:
    """A fresh interpreter, because this one has imported everything already."""
    probe = f"import sys, {entry}; print(*{{name.split('.')[0] for name in sys.modules}})"
    run = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    came_along = set(run.stdout.split())
    assert "edge_agent" in came_along
    assert came_along & STRANGERS_OF_THE_EDGE == set()


def test_no_function_is_longer_than_a_screen() -> None:
    assert [f"{each.where}: {each.lines} lines" for each in all_functions() if each.lines > 50] == []


def test_most_functions_are_short() -> None:
    sizes = sorted(each.lines for each in all_functions())
    assert sizes[len(sizes) * 3 // 4] <= 15


def test_no_function_takes_more_than_six_parameters_and_nine_of_ten_take_three() -> None:
    assert [each.where for each in all_functions() if each.parameters > 6] == []
    counts = sorted(each.parameters for each in all_functions())
    assert counts[len(counts) * 9 // 10] <= 3


def test_nothing_is_nested_deeper_than_three() -> None:
    assert [f"{each.where}: {each.nesting}" for each in all_functions() if each.nesting > 3] == []


def test_no_file_is_longer_than_400_lines() -> None:
    sizes = {name_of(path): read_facts(path).lines for path in (*SOURCES, *TESTS)}
    assert {name: size for name, size in sizes.items() if size > 400} == {}


def test_every_file_with_code_begins_with_its_law() -> None:
    assert [name_of(path) for path in SOURCES if read_facts(path).silent] == []


def test_only_loops_may_catch_everything() -> None:
    """A broad `except` hides a defect unless it raises it, or another error from it; loops outlive one and say so."""
    quiet = [path for path in SOURCES if name_of(path) not in LOOPS]
    assert [f"{name_of(path)}:{line}" for path in quiet for line in read_facts(path).catches_all] == []


def test_tests_use_shipped_doubles_and_hardly_a_mock() -> None:
    facts = [read_facts(path) for path in TESTS]
    assert sum(each.mocks for each in facts) * 100 < 5 * sum(each.tests for each in facts)


def test_nothing_is_called_common_or_utils() -> None:
    forbidden = {"common", "utils", "helpers", "manager", "base"}
    names = {
        name_of(path) for path in SOURCES for part in path.relative_to(ROOT).with_suffix("").parts if part in forbidden
    }
    assert names <= {"cloud_hub/engine/base.py", "wire/transport/base.py"}  # the seams that others implement


def test_no_package_pair_imports_both_ways() -> None:
    pairs = {
        (name_of(path).partition("/")[0], name)
        for path in SOURCES
        for name in read_facts(path).imports
        if name in PACKAGES
    }
    assert [pair for pair in pairs if pair[0] != pair[1] and pair[::-1] in pairs] == []
