"""The `skerry` command line inside this process: for tests of what a command says, not of how a process starts."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
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
    before = sys.argv, {name: os.environ.get(name) for name in TERMINAL}
    sys.argv = list(arguments)
    os.environ.update(TERMINAL)
    try:
        yield
    finally:
        sys.argv = before[0]
        for name, value in before[1].items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
