"""The `skerry` command line inside this process: for tests of what a command says, not of how a process starts."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

import skerry as command_line

TERMINAL = {"COLUMNS": "120", "TERM": "dumb"}


def skerry(*words: str, output: TextIO | None = None) -> subprocess.CompletedProcess[str]:
    """What a process of that command line would have printed, and its exit code. `output`: where it prints instead."""
    told, complained = io.StringIO(), io.StringIO()
    with (
        _started_as(["skerry", *words]),
        contextlib.redirect_stdout(output or told),
        contextlib.redirect_stderr(complained),
    ):
        code = _exit_code()
    return subprocess.CompletedProcess(words, code, told.getvalue(), complained.getvalue())


def _exit_code() -> int:
    try:
        command_line.main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


@contextlib.contextmanager
def _started_as(arguments: Sequence[str]) -> Iterator[None]:
    """Arguments and terminal of the process, for a while."""
    before = sys.argv
    sys.argv = list(arguments)
    try:
        with set_variables(TERMINAL):
            yield
    finally:
        sys.argv = before


@contextlib.contextmanager
def set_variables(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables of this process's environment for a while; None: not set."""
    before = {name: os.environ.pop(name, None) for name in values}
    os.environ.update({name: value for name, value in values.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
