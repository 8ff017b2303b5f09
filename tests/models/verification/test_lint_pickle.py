"""Tests that no package unpickles or executes received data, read off the source."""

import ast
import re

import pytest

from tests.sources import SOURCES, name_of, read_text

PICKLERS = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "jsonpickle",
    "pandas",
}
EXECUTORS = {"eval", "exec", "compile", "__import__"}
LOADERS = {"torch.load", "torch.jit.load", "torch.hub.load", "yaml.load", "yaml.unsafe_load"}
NUMPY_LOADERS = {"np.load", "numpy.load", "np.lib.format.read_array", "read_array"}
NUMPY_SAVERS = {"np.save", "np.savez", "np.savez_compressed"}
# Without one of these words no tree need be built: each offence has one.
WORDS = re.compile(
    rf"(?:{'|'.join((*PICKLERS, *LOADERS, *NUMPY_LOADERS, *NUMPY_SAVERS, 'allow_pickle'))})\b"
    rf"|(?<![\w.])(?:{'|'.join(EXECUTORS)})\b"
)


def offences(source: str) -> list[str]:
    """What in a module could turn bytes into objects or code, `line: what`."""
    found: list[str] = []
    if not WORDS.search(source):
        return found
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [f"{node.lineno}: import {n.name}" for n in node.names if n.name.split(".")[0] in PICKLERS]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PICKLERS:
            found.append(f"{node.lineno}: from {node.module}")
        elif isinstance(node, ast.Call) and (wrong := wrong_call(node)):
            found.append(f"{node.lineno}: {wrong}")
    return found


def wrong_call(call: ast.Call) -> str:
    name = dotted(call.func)
    if name in EXECUTORS | LOADERS:
        return name
    pickles = next((ast.unparse(each.value) for each in call.keywords if each.arg == "allow_pickle"), None)
    if name in NUMPY_LOADERS | NUMPY_SAVERS and pickles != "False":
        return f"{name} without allow_pickle=False"
    return f"{name} with allow_pickle={pickles}" if pickles not in {None, "False"} else ""


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a called name; of any other expression its last attribute alone."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def test_no_module_unpickles_or_executes_what_it_reads():
    found = {name_of(path): offences(read_text(path)) for path in SOURCES}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch; torch.load(f)",
        "np.load(f)",
        "np.load(f, allow_pickle=True)",
        "read(f, allow_pickle=flag)",
        "eval(text)",
        "np.savez(f, **arrays)",
    ],
)
def test_this_test_would_see_it(source):
    assert len(offences(source)) == 1
