"""Tries faults in forks of one process that has loaded all tests: a fault then costs its tests, and no start.

A pytest plugin: `-p tests.mutation.forks`, with MUTATION_LINE naming the descriptor of a connection. It loads the tests
of a copy of the tree, sends LOADED, then waits for trials. For each it forks; the fork replaces the code of the
functions that the fault changes, and runs the tests until one fails.

What was computed when modules were loaded is as it was without the fault. So a fault that no fork notices is tried once
more in a process that starts afresh, and one in what runs at import is tried there alone.
"""

import gc
import os
import resource
import select
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection
from types import CodeType, FunctionType

import pytest

MOST_BYTES = 6 << 30  # of memory: a fault may ask for memory without end
LOADED = "loaded"  # sent once: from then on no file of the tree is read any more
SILENCE_S = 120  # without a word from a fork, which names each test before it runs it; pytest-timeout comes sooner


class End(StrEnum):
    PASSED = "all tests passed"
    FAILED = "a test failed"
    DIED = "the process ended"
    HUNG = "a test did not end"
    NOT_TRIED = "the fault changes more than the code of functions"


@dataclass(frozen=True)
class Trial:
    """Tests to run until one fails, with `after` in place of `before` as the text of `file`."""

    file: str
    before: str
    after: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    end: End
    test: str = ""  # the last one that was run


def pytest_runtestloop(session: pytest.Session) -> bool:
    items = {item.nodeid: item for item in session.items}
    with Connection(int(os.environ["MUTATION_LINE"])) as line:
        line.send(LOADED)
        while (trial := line.recv()) is not None:
            line.send(_try_in_fork(items, trial))
    return True


def _try_in_fork(items: Mapping[str, pytest.Item], trial: Trial) -> Result:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setsid()
            _run_in_fork(items, trial, writer)
        finally:
            os._exit(0)
    os.close(writer)
    try:
        return _follow(reader)
    finally:
        os.close(reader)
        os.killpg(child, signal.SIGKILL)  # it may have started processes; it is still there, since no one waited for it
        os.waitpid(child, 0)


def _follow(reader: int) -> Result:
    """Read what the fork writes: the name of each test before it runs, in the end a line that starts with a tab."""
    text, test = b"", ""
    while select.select([reader], [], [], SILENCE_S)[0]:
        part = os.read(reader, 1 << 16)
        text += part
        *lines, text = text.split(b"\n")
        for line in (each.decode() for each in lines):
            if line.startswith("\t"):
                return Result(End(line[1:]), test)
            test = line
        if not part:
            return Result(End.DIED, test)
    return Result(End.HUNG, test)


def _run_in_fork(items: Mapping[str, pytest.Item], trial: Trial, writer: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    os.environ["PYTHONDONTWRITEBYTECODE"], sys.dont_write_bytecode = "1", True  # what is compiled here has the fault
    if not replace_code(trial.file, trial.before, trial.after):
        os.write(writer, f"\t{End.NOT_TRIED}\n".encode())
        return
    chosen = [items[test] for test in trial.tests if test in items]
    for item, following in zip(chosen, [*chosen[1:], None], strict=False):
        os.write(writer, f"{item.nodeid}\n".encode())
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if item.session.testsfailed:
            os.write(writer, f"\t{End.FAILED}\n".encode())
            return
    os.write(writer, f"\t{End.PASSED}\n".encode())


def replace_code(file: str, before: str, after: str) -> bool:
    """Give each function of this file that lives in this process its code in the new text; False where none fits."""
    if before == after:
        return True
    old, new = _list_codes(before, file), _list_codes(after, file)
    if old.keys() != new.keys():
        return False
    changed = [(code, new[place]) for place, code in old.items() if code != new[place]]
    codes = {(code.co_qualname, code.co_firstlineno): other for code, other in changed}
    if len(codes) != len(changed):
        return False  # two lambdas of one line cannot be told apart
    for function in _list_objects():
        if type(function) is FunctionType and function.__code__.co_filename == file:  # isinstance may run their code
            code = codes.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
            if code is None:
                continue
            if code.co_freevars != function.__code__.co_freevars:
                return False
            function.__code__ = code
    return True


def _list_objects() -> list[object]:
    """All objects that the collector knows, also those that are frozen; these are frozen again."""
    frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    found = gc.get_objects()
    if frozen:
        gc.freeze()
    return found


def _list_codes(text: str, file: str) -> dict[str, CodeType]:
    """The code of all that is defined in this text, by a name that does not depend on lines."""
    return dict(_walk(compile(text, file, "exec", dont_inherit=True), ""))


def _walk(code: CodeType, place: str) -> Iterator[tuple[str, CodeType]]:
    yield place, code
    seen: Counter[str] = Counter()
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            seen[inner.co_name] += 1
            yield from _walk(inner, f"{place}/{inner.co_name}#{seen[inner.co_name]}")
