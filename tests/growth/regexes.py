"""Every regular expression of the product, found in its source, and texts made of its own parts that make it slow.

A pattern is slow where two ways to match the same text meet: a repeat after a repeat, a repeat that begins anew at each
place of a search, an alternative that overlaps another. Each pattern is parsed, and texts are made of what stands
before a repeat, of samples of its parts again and again, and of an end that fits nothing.
"""

import ast
import importlib
import itertools
import re
import re._constants as ops  # type: ignore[import-not-found]  # of CPython, without types
import re._parser as parser  # type: ignore[import-not-found]
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PRODUCT = ("wire", "policies", "models", "edge_agent", "cloud_hub", "clients/python/skerry_client")
METHODS = frozenset({"match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"})
FULL_CHARS = 8192  # of a text: a quadratic pattern takes 100 ms and more of it, a linear one below 2 ms
QUICK_CHARS = 2048
LINEAR_NS_A_CHARACTER = 500  # a text that takes less is not looked at again: a quadratic pattern takes 10,000 and more
QUICK_UNITS, FULL_UNITS = 30, 120  # parts of a pattern that are repeated
MOST_RATIO = 2.2
ENDS = ("\x00", "", "\n", "!", "~é")
SAMPLES_OF_A_CLASS = 4
# Patterns that are slow on some text, and why they meet none such.
EXEMPT = {
    ("wire/http/openapi.py", r"\{(\w+)(?::[^}]*)?\}"): "meets the paths of the program's own routes alone",
    (
        "cloud_hub/llm/requests.py",
        rb'"(?:[^"\\]++|\\.)++"',
    ): "searches what another has matched whole",
}


@dataclass(frozen=True)
class Regex:
    """A regular expression of the product: where it stands and how it is applied to a text."""

    place: str  # file and line
    pattern: str | bytes
    flags: int
    method: str

    @property
    def key(self) -> tuple[str, str | bytes]:
        """File and pattern, by which it is exempt."""
        return self.place.rsplit(":", 1)[0], self.pattern

    def __str__(self) -> str:
        return f"{self.place} {self.method} {self.pattern!r}"

    def apply(self) -> Callable[[str], object]:
        """Return what applies it to a text as the product does."""
        compiled: Any = re.compile(self.pattern, self.flags)
        if self.method in ("sub", "subn"):
            call: Callable[[Any], object] = lambda text: compiled.sub(compiled.pattern[:0], text)  # noqa: E731
        elif self.method == "finditer":
            call = lambda text: sum(1 for _ in compiled.finditer(text))  # noqa: E731
        else:
            call = getattr(compiled, self.method)
        if isinstance(self.pattern, bytes):
            return lambda text: call(text.encode("latin-1", "replace"))
        return call


@dataclass(frozen=True)
class Slowness:
    """The slowest text that was found for one pattern: nanoseconds a character, and the ratio at twice the length."""

    regex: Regex
    ratio: float = 1.0
    ns_a_character: float = 0.0
    text: str = ""


def list_sources() -> list[Path]:
    """Return the source files of the product."""
    return sorted(file for folder in PRODUCT for file in (ROOT / folder).rglob("*.py"))


def name_module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    parts = parts[2:] if parts[:2] == ("clients", "python") else parts
    return ".".join(part for part in parts if part != "__init__")


def find_regexes() -> list[Regex]:
    """Return every regular expression of the product, by each method that it is applied with.

    AssertionError for one that this cannot evaluate: its pattern must be made of names of its module.
    """
    return [regex for file in list_sources() for regex in _find_in(file)]


def _find_in(file: Path) -> Iterator[Regex]:
    text = file.read_text(encoding="utf-8")
    if not re.search(r"^import re$|Meta\([^)]*pattern=", text, re.MULTILINE):
        return
    tree = ast.parse(text)
    where = str(file.relative_to(ROOT))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        for keyword in node.keywords:
            # pydantic's patterns are matched by an engine in Rust that knows no backtracking
            if keyword.arg == "pattern" and ast.unparse(node.func) in ("Meta", "msgspec.Meta"):
                yield Regex(f"{where}:{node.lineno}", _evaluate(keyword.value, file), 0, "search")
        called = node.func
        if not (isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "re"):
            continue
        if called.attr not in METHODS | {"compile"}:
            continue
        place = f"{where}:{node.lineno}"
        flags = _evaluate_flags(node, file)
        methods = _find_uses(tree, node) if called.attr == "compile" else {called.attr}
        for pattern in _evaluate_all(node.args[0], file, place):
            for method in sorted(methods):
                yield Regex(place, pattern, flags, method)


def _evaluate(value: ast.expr, file: Path) -> Any:
    try:
        return ast.literal_eval(value)
    except ValueError:
        pass  # made of names
    module = importlib.import_module(name_module(file))
    return eval(compile(ast.Expression(value), str(file), "eval"), dict(vars(module)))


def _evaluate_all(value: ast.expr, file: Path, place: str) -> list[str | bytes]:
    try:
        return [_evaluate(value, file)]
    except NameError:
        assert place.rsplit(":", 1)[0] in BUILT, f"{place}: its pattern is made of variables: name its values in BUILT"
        return BUILT[place.rsplit(":", 1)[0]]()


def _evaluate_flags(call: ast.Call, file: Path) -> int:
    at = {"compile": 1, "match": 2, "fullmatch": 2, "search": 2, "findall": 2, "finditer": 2, "split": 3, "sub": 4}
    named = [keyword.value for keyword in call.keywords if keyword.arg == "flags"]
    place = at[call.func.attr]  # type: ignore[attr-defined]
    given = named or call.args[place : place + 1]
    return int(_evaluate(given[0], file)) if given else 0


def _find_uses(tree: ast.Module, call: ast.Call) -> set[str]:
    """Return the methods by which the module applies the pattern that `call` compiles."""
    names = [
        ast.unparse(each.targets[0] if isinstance(each, ast.Assign) else each.target)
        for each in ast.walk(tree)
        if isinstance(each, ast.Assign | ast.AnnAssign) and each.value is call
    ]
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in METHODS and ast.unparse(node.value) in names
    }
    return used or ({"search", "fullmatch"} if names else {"fullmatch"})


def _list_llm_fields() -> list[str | bytes]:
    from cloud_hub.llm import requests  # noqa: PLC0415 - the table names modules that few tests import

    return [found.pattern for found in vars(requests).values() if isinstance(found, re.Pattern)]


BUILT: dict[str, Callable[[], list[str | bytes]]] = {
    "cloud_hub/llm/requests.py": _list_llm_fields,
    "models/signing/keyring.py": lambda: [r'"timestamp-(\d{1,4})"'],
}


def measure_slowness(regex: Regex, *, full: bool = False) -> Slowness:
    """Apply a pattern to every text that its parts give, and return the slowest."""
    apply = regex.apply()
    worst = Slowness(regex)
    for make in list_texts(regex, FULL_UNITS if full else QUICK_UNITS):
        found = _measure_text(regex, apply, make, FULL_CHARS if full else QUICK_CHARS)
        if (found.ratio, found.ns_a_character) > (worst.ratio, worst.ns_a_character):
            worst = found
            if found.ratio > MOST_RATIO:
                break
    return worst


def _measure_text(
    regex: Regex, apply: Callable[[str], object], make: Callable[[int], str], most_chars: int
) -> Slowness:
    """Lengthen a text until it takes as long as none of a linear pattern, or is long; only then measure the ratio.

    It begins with 16 characters and a bit more each time while it is slow: an exponential pattern would never end.
    """
    size = 16
    while True:
        text = make(size)
        seconds = _time(apply, text)
        slow = seconds * 1e9 > LINEAR_NS_A_CHARACTER * max(len(text), 500)
        if slow or size >= most_chars:
            break
        size *= 10 if seconds < 1e-4 else 2
    if not slow:
        return Slowness(regex, 1.0, seconds / len(text) * 1e9, text[:80])
    half = make(size // 2)
    ratio = min(_time(apply, text) / max(_time(apply, half), 1e-9) for _ in range(3))
    return Slowness(regex, ratio, seconds / len(text) * 1e9, text[:80])


def _time(apply: Callable[[str], object], text: str) -> float:
    began = time.process_time()
    apply(text)
    return time.process_time() - began


def has_long_repeat(regex: Regex) -> bool:
    """Whether a part of the pattern may be repeated so often that a quick look shows its growth."""
    pattern = regex.pattern.decode("latin-1") if isinstance(regex.pattern, bytes) else regex.pattern
    repeats = (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT)
    return any(op in repeats and argument[1] > 64 for op, argument in _walk(parser.parse(pattern, regex.flags)))


def list_texts(regex: Regex, units_each: int) -> Iterator[Callable[[int], str]]:
    """Yield makers of texts of about a size: a beginning, a part of the pattern again and again, and an end."""
    pattern = regex.pattern.decode("latin-1") if isinstance(regex.pattern, bytes) else regex.pattern
    tree = parser.parse(pattern, regex.flags)
    alphabet = sorted(_find_characters(tree))[:24]
    heads = dict.fromkeys(["", *_list_heads(tree)])
    units = dict.fromkeys([*alphabet, *_list_units(tree), *(a + b for a, b in itertools.permutations(alphabet[:8], 2))])
    for head, unit in itertools.product(list(heads)[:6], _spread([unit for unit in units if unit], units_each)):
        for end in ENDS[: 2 if units_each == QUICK_UNITS else None]:
            yield lambda size, head=head, unit=unit, end=end: head + unit * (size // len(unit) + 1) + end  # type: ignore[misc]


def _spread(units: list[str], count: int) -> list[str]:
    """Return some of them, from the first to the last."""
    return units[:: max(1, -(-len(units) // count))]


def _walk(tree: Any) -> Iterator[tuple[Any, Any]]:
    for op, argument in tree:
        yield op, argument
        for child in _children(op, argument):
            yield from _walk(child)


def _children(op: Any, argument: Any) -> list[Any]:
    if op in (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT):
        return [argument[2]]
    if op is ops.SUBPATTERN:
        return [argument[3]]
    if op is ops.BRANCH:
        return list(argument[1])
    if op is ops.ATOMIC_GROUP:
        return [argument]
    if op in (ops.ASSERT, ops.ASSERT_NOT):
        return [argument[1]]
    return []


def _find_characters(tree: Any) -> set[str]:
    found: set[str] = set()
    for op, argument in _walk(tree):
        if op is ops.LITERAL:
            found.add(chr(argument))
        elif op is ops.NOT_LITERAL or op is ops.ANY:
            found.add("x")
        elif op is ops.IN:
            found.update(_sample_class(argument))
    return found


def _sample_class(items: list[tuple[Any, Any]]) -> list[str]:
    """Return characters of a class: an end of each of its ranges, and for a negated one those that it lets pass."""
    named = {
        ops.CATEGORY_DIGIT: "7", ops.CATEGORY_SPACE: " ", ops.CATEGORY_WORD: "w", ops.CATEGORY_NOT_SPACE: "x",
        ops.CATEGORY_NOT_DIGIT: "x", ops.CATEGORY_NOT_WORD: "-",
    }  # fmt: skip
    negated = items[0][0] is ops.NEGATE
    chosen = [
        chr(argument) if op is ops.LITERAL else chr(argument[0]) if op is ops.RANGE else named[argument]
        for op, argument in items
        if op is not ops.NEGATE
    ]
    if not negated:
        return chosen[:SAMPLES_OF_A_CLASS] + chosen[-1:]
    barred = re.compile("[" + "".join(re.escape(each) for each in chosen) + "]")
    return [each for each in "xA0 -\n" if not barred.match(each)][:SAMPLES_OF_A_CLASS]


def _sample(tree: Any, least: int, choice: int) -> str:
    """Return a text that a part of a pattern matches; `choice` picks among alternatives, `least` counts of repeats."""
    made = ""
    for op, argument in tree:
        if op is ops.LITERAL:
            made += chr(argument)
        elif op is ops.NOT_LITERAL or op is ops.ANY:
            made += "x"
        elif op is ops.IN:
            samples = _sample_class(argument) or ["x"]
            made += samples[choice % len(samples)]
        elif op in (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT):
            made += _sample(argument[2], least, choice) * min(max(argument[0], least), argument[1])
        elif op is ops.BRANCH:
            made += _sample(argument[1][choice % len(argument[1])], least, choice)
        elif op is ops.SUBPATTERN or op is ops.ATOMIC_GROUP:
            made += _sample(_children(op, argument)[0], least, choice)
    return made


def _list_heads(tree: Any) -> Iterator[str]:
    """Yield texts that bring the match to each part of the pattern."""
    parts = list(tree)
    for at in range(len(parts) + 1):
        for choice in range(2):
            yield _sample(parts[:at], 1, choice)
    for op, argument in parts:
        for child in _children(op, argument):
            yield from _list_heads(child)


def _list_units(tree: Any) -> Iterator[str]:
    """Yield samples of every run of parts of the pattern, at every depth."""
    parts = list(tree)
    for first, last in itertools.combinations(range(len(parts) + 1), 2):
        for least, choice in itertools.product((0, 1, 2), range(3)):
            yield _sample(parts[first:last], least, choice)
    for op, argument in parts:
        for child in _children(op, argument):
            yield from _list_units(child)
