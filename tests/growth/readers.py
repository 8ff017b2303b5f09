"""Which functions of the product read outside input, by their source: what they are called, take and call.

A function reads if it is named so (`parse_`, `read_`, `decode_` ...) and takes bytes, a text, a file, or values that
were decoded of them; or if it hands what is no constant to a decoder (`json.loads`, `msgspec.json.decode`,
`x509.load_pem_x509_certificate` ...). Functions that take rows and connections of the program's own databases do not.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests import ROOT

FOLDERS = (
    "wire", "policies", "models/runtime", "models/bundle", "models/update", "models/verification", "models/signing",
    "edge_agent", "cloud_hub", "clients/python/skerry_client",
)  # fmt: skip
_VERBS = re.compile(r"_*(parse|read|decode|unpack|load|split|unseal|feed|receive|scan|redact|from)(_|$)")
_BYTES = re.compile(r"\b(bytes|bytearray|memoryview|Buffer|BinaryIO|IO|Raw|Path|object|Any|Mapping|dict)\b")
_TEXT = re.compile(r"\bstr\b")
# A text parameter is one that is read, not a name by which something is looked up, if it is called like this.
_TEXT_NAMES = re.compile(
    r"texts?|words?|values?|lines?|data|body|content|said|span|spans|sample|url|host|origin|received|hop|time|"
    r"traceparent|settings|zones|invite|header|context|message|told|proof|found|level|encoded|packed|certificate\w*"
)
_OWN_ROWS = re.compile(r"Connection|Row\b|sa\.Engine|Cursor")
_DECODERS = re.compile(
    r"(json\.loads?|parse_strict_json|tomllib\.loads|parse_toml|msgspec\.(json|msgpack|toml|yaml)\.decode|msgspec\.convert|"
    r"\w*\.?model_validate|x509\.load_\w+|(serialization\.)?load_(pem|der)_\w+|np\.(load|frombuffer|fromstring)|"
    r"tarfile\.open|Image\.open|(base64\.)?b64decode|struct\.unpack|parse_qs|ast\.literal_eval|parsedate_to_datetime|"
    r"datetime\.fromisoformat|[\w.]*decode[rs]?\w*\.decode|_orders\.decode|_reports\.decode|\w*_decode_\w+|bytes\.fromhex)$"
)
_DECODER_ENDS = re.compile(r"load|parse|decode|convert|validate|open|buffer|string|unpack|literal|date|from")


@dataclass(frozen=True)
class Reader:
    """A function that reads: its module and qualified name, and where it stands."""

    name: str
    file: Path
    line: int


def find_readers() -> list[Reader]:
    """Return every function of the product that the rule takes for a reader."""
    return [found for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py")) for found in find_in(file)]


def find_in(file: Path) -> list[Reader]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    parts = (file.relative_to(ROOT) if file.is_relative_to(ROOT) else Path(file.name)).with_suffix("").parts
    module = ".".join(part for part in (parts[2:] if parts[0] == "clients" else parts) if part != "__init__")
    return [
        Reader(f"{module}:{name}", file, _first_line(function))
        for name, function in _list_functions(tree, "")
        if _reads(function)
    ]


def _first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The line that a code object of it names: of its first decorator, if it has one."""
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])


def _list_functions(node: ast.AST, within: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _list_functions(child, f"{within}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{within}{child.name}", child
            yield from _list_functions(child, f"{within}{child.name}.<locals>.")
        elif not isinstance(child, ast.expr):
            yield from _list_functions(child, within)


def _reads(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    named = _VERBS.match(function.name) is not None
    decodes = _calls_decoder(function)
    if not named and not decodes:
        return False
    given = function.args
    parameters = [
        (each.arg, ast.unparse(each.annotation) if each.annotation else "")
        for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)
    ]
    if any(_OWN_ROWS.search(kind) for _, kind in parameters):
        return False
    takes = any(
        _BYTES.search(kind) or (_TEXT.search(kind) and _TEXT_NAMES.fullmatch(name)) for name, kind in parameters
    )
    return decodes or takes


def _calls_decoder(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    inner = ast.FunctionDef | ast.AsyncFunctionDef
    found: list[ast.AST] = [each for each in function.body if not isinstance(each, inner)]
    for node in found:
        if isinstance(node, ast.Call) and node.args and not isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if _DECODER_ENDS.search(name) and _DECODERS.match(ast.unparse(node.func)):
                return True
        found += [
            each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
    return False
