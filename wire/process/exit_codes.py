"""Exit codes of every Skerry process: the one list, documented in docs/exit-codes.md."""

import sys
from collections.abc import Callable
from enum import IntEnum


class Exit(IntEnum):
    OK = 0
    INTERNAL = 1  # a defect of ours
    USAGE = 2  # the command line itself
    CONFIG = 10  # configuration unreadable, unknown key, impossible value
    POLICY = 11  # policy missing, unreadable, expired
    MODEL = 12  # bundle missing, damaged, unknown model
    SAMPLE = 13  # input of wrong shape, type, size, or not a number
    SCENARIO = 14  # a scenario that cannot be run: unreadable, unknown key, impossible value
    BROKER = 20  # the broker cannot be started or reached
    HUB = 21  # the hub cannot be reached or answers nonsense
    CREDENTIALS = 22  # certificate, key or token wrong, expired, revoked
    ENROLMENT = 23  # invite wrong, used, expired, or the reply does not fit it
    DATABASE = 30  # database unreadable, damaged, or written by a newer version
    DISK = 31  # disk full or not writable
    LOCKED = 32  # another process owns this directory
    PORT = 33  # address in use
    CHECK_FAILED = 40  # a check ran and its answer is no
    NOT_FOUND = 41  # no such answer, device or model
    UNPROVEN = 42  # a property of a policy does not hold: a counter-example was shown
    PROBE = 43  # a policy decides a case otherwise than its probe expects
    WIDER = 44  # the second policy allows something that the first does not
    EXPECTATION = 45  # a simulated run ended, and something that its scenario expects did not hold
    STOPPED = 46  # a rollout ended without its version on the fleet: aborted, reverted, denied, expired
    WAITING = 47  # a rollout waits for a person: paused, or not approved yet
    UNFINISHED = 48  # a rollout ended without some devices, or was waited for long enough


class ExitError(Exception):
    """What a person did or met that ends a command: one line that says what to do next, and the code to exit with."""

    def __init__(self, code: Exit, message: str) -> None:
        super().__init__(message)
        self.code = code


def run_to_exit(program: str, work: Callable[[], int]) -> int:
    """The exit code of a process: that of its work, or of the `ExitError` that ended it.

    Of a task group's errors the first `ExitError` counts. Its line goes to stderr behind the name of the program; any
    other exception goes on.
    """
    try:
        return work()
    except ExitError as stop:
        found = stop
    except BaseExceptionGroup as group:
        stops = group.subgroup(ExitError)
        if stops is None:
            raise
        found = _first_of(stops)
    print(f"{program}: {found}", file=sys.stderr)
    return found.code


def _first_of(group: BaseExceptionGroup[ExitError]) -> ExitError:
    error = group.exceptions[0]
    return _first_of(error) if isinstance(error, BaseExceptionGroup) else error
