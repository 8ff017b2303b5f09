"""Layout figures of a checkout: files, words per name, duplicate class names, docstrings, import cycles.

    python -m benchmarks.harness.layout [FOLDER] [--json]

The packages are wire, policies, models, edge_agent, cloud_hub, simulations and benchmarks; skerry.py is left out.

entries          modules and folders of modules directly in a package, without its __init__.py
files at the top files of any kind directly in a package (the flat layout's count of entries)
files            modules of all packages, without __init__.py; their median and the small ones without benchmarks
words            parts of a name between underscores, of public and private names, without benchmarks; functions are
                 those of a module's top level, methods those of any class but __dunders__
classes          public names that the top level of a package's modules defines more than once, in all packages
docstrings       lines of docstrings per 100 lines of code, where comments and blank lines are neither; pure modules are
                 those that the contract "pure modules ..." in pyproject.toml names
cycles           groups of modules that import one another, under TYPE_CHECKING too, without benchmarks
both ways        pairs of folders that import each other directly, under TYPE_CHECKING too, without benchmarks
lines            all lines of the modules of all packages

Rule: only the standard library, and nothing of the checkout is imported: any commit can be measured from any other.
"""

import argparse
import ast
import io
import json
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, median

PRODUCT = ("wire", "policies", "models", "edge_agent", "cloud_hub", "simulations")
PACKAGES = (*PRODUCT, "benchmarks")
CROWDED = ("edge_agent", "cloud_hub", "policies", "models", "simulations")  # packages whose top is counted
SMALL_LINES = 60
_LAYOUT_TOKENS = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT}
_Function = ast.FunctionDef | ast.AsyncFunctionDef
Graph = dict[str, set[str]]


@dataclass(frozen=True)
class Module:
    """One source file of a checkout. `path` is relative to the checkout."""

    path: Path
    text: str

    @property
    def package(self) -> str:
        return self.path.parts[0]

    @property
    def dotted(self) -> str:
        """The name it is imported under."""
        return ".".join(self.path.with_suffix("").parts).removesuffix(".__init__")

    @property
    def is_package_file(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def docstring_lines(self) -> frozenset[int]:
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, documented)]
        return frozenset(line for node in nodes for line in _docstring_lines(node))

    @cached_property
    def code_lines(self) -> frozenset[int]:
        """Lines with a token on them that is neither layout, comment nor docstring."""
        found: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in _LAYOUT_TOKENS:
                found.update(range(token.start[0], token.end[0] + 1))
        return frozenset(found) - self.docstring_lines


def _docstring_lines(node: ast.Module | ast.ClassDef | _Function) -> range:
    if ast.get_docstring(node, clean=False) is None:
        return range(0)
    return range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)


@dataclass(frozen=True)
class LayoutReport:
    """The figures of one checkout, defined in this module's docstring. Keys are packages where a figure has several."""

    top_entries: dict[str, int]
    files_at_top: dict[str, int]
    files: int
    median_lines: float
    small_files: int
    function_words: float
    method_words: float
    repeated_class_names: int
    docstrings_per_100: dict[str, float]
    pure_docstrings_per_100: float
    import_cycles: int
    folder_pairs_both_ways: int
    lines: int
    repeated: dict[str, int]  # which class names, as package.Name, and how often
    cycles: list[list[str]]
    both_ways: list[tuple[str, str]]


def measure_layout(root: Path) -> LayoutReport:
    """Every figure of the checkout in `root`. FileNotFoundError if it holds none of the packages."""
    modules = list(read_modules(root))
    if not modules:
        raise FileNotFoundError(f"{root} holds none of {', '.join(PACKAGES)}")
    product = [module for module in modules if module.package != "benchmarks"]
    sizes = [module.lines for module in product if not module.is_package_file]
    imports = import_graph(product)
    cycles = import_cycles(imports)
    pairs = folder_pairs_both_ways(imports, product)
    repeated = repeated_class_names(modules)
    pure = [module for module in product if _is_within(module.dotted, pure_modules(root))]
    return LayoutReport(
        top_entries={name: count_top_entries(root / name) for name in CROWDED},
        files_at_top={name: count_files_at_top(root / name) for name in CROWDED},
        files=sum(not module.is_package_file for module in modules),
        median_lines=median(sizes),
        small_files=sum(size < SMALL_LINES for size in sizes),
        function_words=_mean_words(name for module in product for name in function_names(module)),
        method_words=_mean_words(name for module in product for name in method_names(module)),
        repeated_class_names=len(repeated),
        docstrings_per_100={name: docstring_share([m for m in product if m.package == name]) for name in PRODUCT},
        pure_docstrings_per_100=docstring_share(pure),
        import_cycles=len(cycles),
        folder_pairs_both_ways=len(pairs),
        lines=sum(module.lines for module in modules),
        repeated=repeated,
        cycles=cycles,
        both_ways=pairs,
    )


def read_modules(root: Path) -> Iterator[Module]:
    """Every module of the packages in `root`."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            yield Module(path.relative_to(root), path.read_text(encoding="utf-8"))


def count_top_entries(package: Path) -> int:
    """Modules and folders of modules directly in `package`, without __init__.py."""
    modules = [path for path in package.glob("*.py") if path.name != "__init__.py"]
    folders = [path for path in package.glob("[!._]*/") if any(path.rglob("*.py"))]
    return len(modules) + len(folders)


def count_files_at_top(package: Path) -> int:
    """Files of any kind directly in `package`."""
    return sum(path.is_file() for path in package.glob("*"))


# names


def function_names(module: Module) -> Iterator[str]:
    """Of its top level, private ones included."""
    yield from (node.name for node in module.tree.body if isinstance(node, _Function))


def method_names(module: Module) -> Iterator[str]:
    """Of all its classes, without __dunders__."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef):
            methods = (child.name for child in node.body if isinstance(child, _Function))
            yield from (name for name in methods if not name.startswith("__"))


def repeated_class_names(modules: Sequence[Module]) -> dict[str, int]:
    """`package.Name` of each public class that a package defines more than once, with how often."""
    counts: dict[str, int] = defaultdict(int)
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                counts[f"{module.package}.{node.name}"] += 1
    return {name: count for name, count in sorted(counts.items()) if count > 1}


def _mean_words(names: Iterator[str]) -> float:
    counts = [sum(map(bool, name.split("_"))) for name in names]
    return fmean(counts) if counts else 0.0


# docstrings


def docstring_share(modules: Sequence[Module]) -> float:
    """Docstring lines per 100 lines of code."""
    code = sum(len(module.code_lines) for module in modules)
    return round(100 * sum(len(module.docstring_lines) for module in modules) / code, 1) if code else 0.0


def pure_modules(root: Path) -> tuple[str, ...]:
    """Modules and packages that the import contracts of `root` call pure; none without such a contract."""
    project = root / "pyproject.toml"
    tables = tomllib.loads(project.read_text(encoding="utf-8")) if project.exists() else {}
    contracts = tables.get("tool", {}).get("importlinter", {}).get("contracts", [])
    return tuple(name for each in contracts if each["name"].startswith("pure ") for name in each["source_modules"])


def _is_within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


# imports


def import_graph(modules: Sequence[Module]) -> Graph:
    """Which of `modules` each of them imports at its top level or under TYPE_CHECKING."""
    known = {module.dotted for module in modules}
    return {
        module.dotted: {target for name in _imported_names(module) if (target := _module_of(name, known))}
        - {module.dotted}
        for module in modules
    }


def _imported_names(module: Module) -> Iterator[str]:
    for node in _top_imports(module.tree.body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            base = _import_base(module, node)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _top_imports(body: Sequence[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that run with the module or that a type checker follows: inside `try` and `if` too."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.Try | ast.If):
            yield from _top_imports([*node.body, *node.orelse])


def _import_base(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = [*module.dotted.split("."), "__init__"] if module.is_package_file else module.dotted.split(".")
    return ".".join([*parts[: -node.level], *([node.module] if node.module else [])])


def _module_of(name: str, known: set[str]) -> str:
    """The module that an imported name lives in; empty if it is not of this checkout."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def import_cycles(graph: Graph) -> list[list[str]]:
    """Groups of modules each of which reaches every other one: sorted, the largest first."""
    reached = {module: _reachable(graph, module) for module in graph}
    groups = {
        tuple(sorted(other for other in seen if module in reached[other]))
        for module, seen in reached.items()
        if module in seen
    }
    return [list(group) for group in sorted(groups, key=lambda group: (-len(group), group))]


def _reachable(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += graph[module]
    return seen


def folder_pairs_both_ways(graph: Graph, modules: Sequence[Module]) -> list[tuple[str, str]]:
    """Pairs of folders with an import in each direction."""
    folder = {module.dotted: module.path.parent.as_posix() for module in modules}
    crossed = {(folder[source], folder[target]) for source, targets in graph.items() for target in targets}
    return sorted((one, other) for one, other in crossed if one < other and (other, one) in crossed)


# output


def table_rows(report: LayoutReport) -> list[tuple[str, str]]:
    """(figure, value) as people read them."""
    return [
        (f"entries at the top of {', '.join(report.top_entries)}", _join_names(report.top_entries)),
        (f"files at the top of {', '.join(report.files_at_top)}", _join_names(report.files_at_top)),
        (
            f"product files; median lines; under {SMALL_LINES} lines",
            f"{report.files}; {report.median_lines:g}; {report.small_files}",
        ),
        (
            "words per name: module-level functions; methods",
            f"{report.function_words:.2f}; {report.method_words:.2f}",
        ),
        ("class names that stand twice or more in one package", str(report.repeated_class_names)),
        (f"docstring lines per 100 code lines: {', '.join(PRODUCT)}", _join_names(report.docstrings_per_100)),
        ("the same, pure modules", f"{report.pure_docstrings_per_100:g}"),
        (
            "import cycles, with TYPE_CHECKING; folder pairs both ways",
            f"{report.import_cycles}; {report.folder_pairs_both_ways}",
        ),
        ("product lines", f"{report.lines:,}"),
    ]


def _join_names(figures: dict[str, int] | dict[str, float]) -> str:
    return ", ".join(f"{value:g}" for value in figures.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 2 if the folder is no checkout."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.harness.layout",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="the checkout (default: this folder)")
    parser.add_argument("--json", action="store_true", help="all figures, and what was found, as one JSON object")
    asked = parser.parse_args(arguments)
    try:
        report = measure_layout(asked.folder)
    except FileNotFoundError as missing:
        parser.error(str(missing))
    if asked.json:
        print(json.dumps(asdict(report), indent=2))
    else:
        print("| figure | value |\n|---|---|")
        print(*(f"| {figure} | {value} |" for figure, value in table_rows(report)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
