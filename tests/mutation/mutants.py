"""The faults that can be planted into one file: each replaces one piece of its text.

Every fault is one that a person could make: a comparison that is off by one, a check that is dropped, a clause that is
forgotten, a tag that changes, a call or an assignment that is left out.
"""

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
}
_OTHER_CALL = {"min": "max", "max": "min", "any": "all", "all": "any"}
_PLACES = (ast.Attribute, ast.Subscript)
_ENDINGS = (ast.Return, ast.Raise, ast.Continue, ast.Break)


@dataclass(frozen=True)
class Span:
    """A piece of a file's text, from `start` up to `end`, in characters. `line` counts from 1."""

    line: int
    start: int
    end: int


@dataclass(frozen=True)
class Mutant:
    """One planted fault. `function`: the qualified name of the function or class that it lies in, if it lies in one.

    `at_import`: the place is run when the module is imported, and not again. `ordinal`: counts the equal changes of one
    function, from 1.
    """

    file: str
    function: str
    span: Span
    before: str
    after: str
    at_import: bool
    ordinal: int = 1

    @property
    def identity(self) -> str:
        """Names the fault whatever line it stands in: a change elsewhere in the file leaves it as it is."""
        change = f"{' '.join(self.before.split())} -> {' '.join(self.after.split())}"
        return f"{self.file} {self.function}: {change}{f' #{self.ordinal}' if self.ordinal > 1 else ''}"

    def draw_number(self, seed: int) -> float:
        """A number from 0 up to 1 that depends on the seed and the identity alone."""
        digest = hashlib.sha256(f"{seed} {self.identity}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64

    def apply(self, text: str) -> str:
        return text[: self.span.start] + self.after + text[self.span.end :]


def list_mutants(file: str, text: str) -> list[Mutant]:
    """All faults for this file. Some may not compile."""
    planted, equal = sorted(_Planter(file, text).plant(), key=lambda each: each.span.start), Counter[str]()
    found = []
    for mutant in planted:
        equal[mutant.identity] += 1
        found.append(replace(mutant, ordinal=equal[mutant.identity]))
    return found


def choose_mutants(texts: Mapping[str, str], seed: int, count: int, only: Sequence[str] = ("",)) -> list[Mutant]:
    """A sample of the faults whose identity contains one of `only`, without those that do not compile."""
    return list(islice(_draw_mutants(texts, seed, only), count))


def choose_share(texts: Mapping[str, str], seed: int, share: float) -> list[Mutant]:
    """This share of all faults, about: whether a fault is among them depends on nothing but the seed and itself."""
    return list(takewhile(lambda each: each.draw_number(seed) < share, _draw_mutants(texts, seed)))


def _draw_mutants(texts: Mapping[str, str], seed: int, only: Sequence[str] = ("",)) -> Iterator[Mutant]:
    found = (mutant for file, text in texts.items() for mutant in list_mutants(file, text))
    wanted = (mutant for mutant in found if any(part in mutant.identity for part in only))
    drawn = sorted(wanted, key=lambda each: each.draw_number(seed))
    return (mutant for mutant in drawn if _compiles(mutant.apply(texts[mutant.file])))


def _compiles(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _is_extreme(node: ast.IfExp) -> bool:
    """Whether this is a maximum or a minimum written out: where both values are equal, it gives either."""
    if not isinstance(node.test, ast.Compare) or not isinstance(node.test.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        return False
    compared = {ast.unparse(node.test.left), ast.unparse(node.test.comparators[0])}
    other = node.orelse
    while isinstance(other, ast.IfExp) and _is_extreme(other):
        other = other.body
    return len(node.test.ops) == 1 and compared == {ast.unparse(node.body), ast.unparse(other)}


class _Planter:
    """Walks one file's syntax tree and replaces pieces of its text."""

    def __init__(self, file: str, text: str) -> None:
        self._file, self._text = file, text
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self._starts, self._lines = starts, text.splitlines()
        self._extremes = set[int]()  # tests of expressions that give the greater or the smaller of two values

    def plant(self) -> Iterator[Mutant]:
        tree = ast.parse(self._text)
        found = (node for node in ast.walk(tree) if isinstance(node, ast.IfExp))
        self._extremes = {id(node.test) for node in found if _is_extreme(node)}
        yield from self._walk(tree, "", at_import=True)

    def _walk(self, node: ast.AST, function: str, *, at_import: bool) -> Iterator[Mutant]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{function}.{child.name}" if function else child.name
                yield from self._walk_definition(child, inner, at_import=at_import)
            elif not isinstance(child, ast.Import | ast.ImportFrom | ast.Assert):
                for part, after in self._faults_of(child):
                    span = self._span(part)
                    yield Mutant(self._file, function, span, self._text[span.start : span.end], after, at_import)
                yield from self._walk_inside(child, function, at_import=at_import)

    def _walk_definition(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, inner: str, *, at_import: bool
    ) -> Iterator[Mutant]:
        """Body and default values alone: annotations, decorators and docstrings decide nothing."""
        if not isinstance(node, ast.ClassDef):
            for default in (*node.args.defaults, *(each for each in node.args.kw_defaults if each)):
                yield from self._walk(ast.Expression(default), inner, at_import=at_import)
        at_import = at_import and isinstance(node, ast.ClassDef)
        yield from self._walk(ast.Module(node.body, []), inner, at_import=at_import)

    def _walk_inside(self, node: ast.AST, function: str, *, at_import: bool) -> Iterator[Mutant]:
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield from self._walk(ast.Expression(node.value), function, at_import=at_import)
        elif not isinstance(node, ast.Raise | ast.JoinedStr):  # the words of an error decide nothing
            yield from self._walk(node, function, at_import=at_import)

    def _span(self, node: ast.expr | ast.stmt) -> Span:
        return Span(
            node.lineno,
            self._offset(node.lineno, node.col_offset),
            self._offset(node.end_lineno or 0, node.end_col_offset or 0),
        )

    def _offset(self, line: int, column_bytes: int) -> int:
        before = self._lines[line - 1].encode()[:column_bytes].decode()
        return self._starts[line - 1] + len(before)

    def _segment(self, node: ast.expr) -> str:
        span = self._span(node)
        return self._text[span.start : span.end]

    def _faults_of(self, node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
        match node:
            case ast.expr():
                yield from ((node, after) for after in self._expression_faults(node))
            case ast.If(test=test, body=body, orelse=[]) if isinstance(body[-1], _ENDINGS):
                yield test, "False"  # the check is dropped
            case ast.AugAssign() | ast.Expr(value=ast.Call()):
                yield node, "pass"
            case ast.Assign(targets=targets) if all(isinstance(each, _PLACES) for each in targets):
                yield node, "pass"

    def _expression_faults(self, node: ast.expr) -> Iterator[str]:
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if id(node) not in self._extremes:
                yield f"{self._segment(left)} {_COMPARISONS[type(operator)]} {self._segment(right)}"
            case ast.BoolOp(op=operator, values=values):
                words = [f"({self._segment(value)})" for value in values]
                yield (" or " if isinstance(operator, ast.And) else " and ").join(words)
                for left_out in range(len(words)):
                    joined = (" and " if isinstance(operator, ast.And) else " or ").join(
                        word for number, word in enumerate(words) if number != left_out
                    )
                    yield f"({joined})"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield f"bool({self._segment(operand)})"
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
                yield f"({self._segment(left)} {_ARITHMETIC[type(operator)]} {self._segment(right)})"
            case ast.IfExp(test=test, body=body, orelse=orelse):
                yield f"({self._segment(orelse)} if {self._segment(test)} else {self._segment(body)})"
            case ast.Call(func=ast.Name(id=name) as called) if name in _OTHER_CALL:
                yield _OTHER_CALL[name] + self._segment(node)[len(self._segment(called)) :]
            case ast.Constant(value=bool(value)):
                yield str(not value)
            case ast.Constant(value=int(value)):
                yield str(value + 1)
            case ast.Constant(value=float(value)):
                yield repr(value * 2 if value else 1.0)
            case ast.Constant(value=bytes(value)):
                yield repr(value + b"x")
