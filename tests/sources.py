"""Facts about every module's source, read off its syntax tree once for all tests of a process.

Rule: a tree is let go as soon as its facts are known: half a million nodes would slow every garbage collection.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path

from tests import ROOT

PACKAGES = ("wire", "policies", "models", "edge_agent", "cloud_hub", "simulations")  # lower floors first
CLIENT = "clients/python/skerry_client"
SOURCES = (
    *(path for name in (*PACKAGES, CLIENT, "benchmarks", "examples") for path in sorted((ROOT / name).rglob("*.py"))),
    *sorted(ROOT.glob("*.py")),
)
TESTS = tuple(sorted((ROOT / "tests").rglob("*.py")))
Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_TELLING = {*_FUNCTIONS, ast.Constant, ast.Import, ast.ImportFrom, ast.ExceptHandler, ast.Tuple, ast.List}
_NESTING = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.AsyncFor, ast.AsyncWith, ast.Match)
_BROAD = {"Exception", "BaseException"}


@dataclass(frozen=True)
class FunctionFacts:
    """A function's size: `lines` without its docstring, `parameters` that a caller gives, `nesting` of its blocks."""

    where: str
    lines: int
    parameters: int
    nesting: int


@dataclass
class SourceFacts:
    """What the tests ask of one file.

    `catches_all`: line numbers of handlers that hide any error, `logs_no_defect`: of those that do not log it with its
    frames either; `imports`: top-level packages; `names`: what is
    defined or imported at the top; `strings`: (line, text); `runs`: (line, module) behind `"-m"` in a list of words.
    """

    lines: int
    silent: bool
    names: frozenset[str] = frozenset()
    functions: list[FunctionFacts] = field(default_factory=list)
    catches_all: list[int] = field(default_factory=list)
    logs_no_defect: list[int] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    strings: list[tuple[int, str]] = field(default_factory=list)
    runs: list[tuple[int, str]] = field(default_factory=list)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def read_facts(path: Path) -> SourceFacts:
    tree = ast.parse(read_text(path))
    silent = bool(tree.body) and ast.get_docstring(tree) is None
    facts, names = SourceFacts(len(read_text(path).splitlines()), silent), set(_top_names(tree))
    for node in _list_telling(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        else:
            _add_facts(facts, node, path)
    facts.names = frozenset(names)
    return facts


def _list_telling(tree: ast.Module) -> Iterator[ast.AST]:
    """Nodes that facts are read off, names only where they are set: what is left of half a million in a hurry."""
    nodes: list[ast.AST] = [tree]
    for node in nodes:
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                yield node
            continue
        if type(node) in _TELLING:
            yield node
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                nodes.append(value)
            elif type(value) is list:
                nodes += [each for each in value if isinstance(each, ast.AST)]


def _add_facts(facts: SourceFacts, node: ast.AST, path: Path) -> None:
    match node:
        case ast.Constant(value=str(text)):
            facts.strings.append((node.lineno, text))
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            facts.functions.append(_measure(path, node))
        case ast.Import() | ast.ImportFrom():
            facts.imports.update(_imported(node))
        case ast.ExceptHandler() if _BROAD & _caught(node) and not _reraises(node):
            facts.catches_all.append(node.lineno)
            facts.logs_no_defect += [] if _logs_defect(node) else [node.lineno]
        case ast.Tuple(elts=words) | ast.List(elts=words):
            facts.runs += [(node.lineno, module) for module in _modules_run(words)]


def _top_names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (alias.asname or alias.name for alias in names)


def _modules_run(words: list[ast.expr]) -> Iterator[str]:
    plain = [each.value if isinstance(each, ast.Constant) else None for each in words]
    yield from (module for flag, module in pairwise(plain) if flag == "-m" and isinstance(module, str))


def _measure(path: Path, function: Function) -> FunctionFacts:
    where = f"{name_of(path)}:{function.lineno} {function.name}"
    return FunctionFacts(where, _code_lines(function), _parameters(function), _nesting(function))


def _code_lines(function: Function) -> int:
    """Lines from `def` to the end, the docstring apart. Decorators count for nothing."""
    first = function.body[0]
    documented = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def _parameters(function: Function) -> int:
    """How many a caller gives. A command's are options of the command line: nobody calls it with them."""
    if any(
        isinstance(each, ast.Call) and ast.unparse(each.func).endswith(".command") for each in function.decorator_list
    ):
        return 0
    found = function.args
    return sum(arg.arg not in {"self", "cls"} for arg in (*found.posonlyargs, *found.args, *found.kwonlyargs))


def _nesting(node: ast.AST, depth: int = 0) -> int:
    """Depth of the deepest statement; expressions hold none, and are not looked into."""
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)) or isinstance(
            child, (*_FUNCTIONS, ast.ClassDef)
        ):
            continue
        chained = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]  # elif
        deepest = max(deepest, _nesting(child, depth + (isinstance(child, _NESTING) and not chained)))
    return deepest


def _reraises(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and (last.exc is None or last.cause is not None)


def _logs_defect(handler: ast.ExceptHandler) -> bool:
    """Whether a handler calls `JsonLog.defect`, or a method named for it."""
    calls = (node.func for part in handler.body for node in ast.walk(part) if isinstance(node, ast.Call))
    return any(isinstance(call, ast.Attribute) and call.attr.endswith("defect") for call in calls)


def _caught(handler: ast.ExceptHandler) -> set[str]:
    """Names of what a handler catches; a bare `except` catches BaseException."""
    if handler.type is None:
        return {"BaseException"}
    return {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Top-level packages that a statement imports."""
    if isinstance(node, ast.ImportFrom):
        return [(node.module or "").partition(".")[0]]
    return [alias.name.partition(".")[0] for alias in node.names]
