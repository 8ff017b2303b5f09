"""The frame of every program's main function: one line and an exit code for each error, a failing output among them.

Rule: programs print through `guard_output`, so that a full disk or a reader that has gone away ends each the same way.
"""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from wire.process.exit_codes import ExitCode, ExitError


def run_to_exit(program: str, work: Callable[[], int]) -> int:
    """Run `work` and return the exit code of the process: its result, or the code of the `ExitError` that ended it.

    The error's line goes to stderr behind the name of the program. Of a task group's errors the first `ExitError`
    counts; any other exception is raised on.
    """
    try:
        with guard_output():
            return work()
    except ExitError as stop:
        found = stop
    except BaseExceptionGroup as group:
        stops = group.subgroup(ExitError)
        if stops is None:
            raise
        found = _find_first_error(stops)
    print_error(program, found)
    return found.code


def print_error(program: str, error: ExitError) -> None:
    """Print the one line of an error; a standard error that cannot be written changes nothing."""
    try:
        print(f"{program}: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
    except OSError:
        # Python flushes it once more at its end, and from 3.13 on ends with 120 if that fails.
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)


def _find_first_error(group: BaseExceptionGroup[ExitError]) -> ExitError:
    """First single error of a group, searched depth first."""
    error = group.exceptions[0]
    return _find_first_error(error) if isinstance(error, BaseExceptionGroup) else error


@contextlib.contextmanager
def guard_output() -> Iterator[None]:
    """Have every write to standard output that fails raise ExitError(OUTPUT), whatever prints; flush it at the end.

    A standard output that is no file (a test's) stays as it is.
    """
    before = sys.stdout
    output = _open_output(before)
    if output is None:
        yield
        return
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(output),
        encoding=getattr(before, "encoding", "utf-8"),
        errors=getattr(before, "errors", "strict"),
        line_buffering=output.isatty(),
    )
    try:
        yield
        output.flush_all(sys.stdout)
    except SystemExit:  # as every command line ends
        output.flush_all(sys.stdout)
        raise
    finally:
        with contextlib.suppress(ExitError):
            sys.stdout.close()
        sys.stdout = before


def _open_output(stream: TextIO | None) -> "_StandardOutput | None":
    """The file behind standard output; one that refuses every byte where the process was started without one."""
    if stream is None:
        return _StandardOutput(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), closefd=True)
    try:
        number = stream.fileno()
        stream.flush()
    except (OSError, ValueError):
        return None
    return _StandardOutput(number, closefd=False)


class _StandardOutput(io.FileIO):
    """A file whose failed write is an ExitError, once: what is flushed after that goes nowhere."""

    def __init__(self, number: int, *, closefd: bool) -> None:
        super().__init__(number, "w", closefd=closefd)
        self._error: str | None = None

    def write(self, data: Any, /) -> int:
        if self._error is not None:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except OSError as error:
            self._error = error.strerror
            raise self._describe() from None

    def flush_all(self, stream: TextIO) -> None:
        """Flush what was printed to `stream` above it. ExitError(OUTPUT) if any of it was not written, ever."""
        stream.flush()
        if self._error is not None:
            raise self._describe() from None

    def _describe(self) -> ExitError:
        return ExitError(ExitCode.OUTPUT, f"standard output: {self._error}; the rest was not printed")
