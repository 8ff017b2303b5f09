"""Exit codes of every Skerry process, and the exception that carries one. They are documented in docs/exit-codes.md.

Rule: a number never changes its meaning; a new one is added to the documentation first.
"""

from enum import IntEnum, unique


@unique
class ExitCode(IntEnum):
    """Exit codes, each with one meaning.

    10 to 23: what a person can configure or fix; 29 to 39: this machine and those it needs; 40 on: a check's result.
    """

    OK = 0
    INTERNAL = 1  # a defect of ours
    USAGE = 2  # the command line itself
    CONFIG = 10  # configuration unreadable, unknown key, impossible value
    POLICY = 11  # policy unreadable, contradictory, expired
    MODEL = 12  # bundle damaged, unknown model
    SAMPLE = 13  # input of wrong shape, type, size, or not a number
    SCENARIO = 14  # a scenario that cannot be run: unreadable, unknown key, impossible value
    MISSING = 15  # a file or folder that the command line or the configuration names is not there
    OUTPUT = 16  # standard output cannot be written
    BROKER = 20  # the broker cannot be started or reached
    HUB = 21  # the hub cannot be reached or answers nonsense
    CREDENTIALS = 22  # certificate, key, token or password wrong, expired, revoked
    ENROLMENT = 23  # invite wrong, used, expired, or the reply does not fit it
    DOWNLOAD = 24  # a public data set cannot be downloaded
    DATABASE_LOST = 29  # a database that this folder had is missing or empty
    DATABASE = 30  # database unreadable, damaged, or written by a newer version
    DISK = 31  # disk full or not writable
    LOCKED = 32  # another process owns this directory
    PORT = 33  # address in use
    SERVER_DOWN = 34  # the database server cannot be reached
    UNSAFE_SERVER = 35  # the database server may lose what it says it has written
    NAME_TAKEN = 36  # another hub of the region has this name
    REGION_KEY = 37  # `region.key` or CA missing or of another region
    CLOCK = 38  # this machine's clock is not that of the database server
    CLUSTER = 39  # the machines that a model is spread over are not there, or have no room
    CHECK_FAILED = 40  # a check ran and its answer is no
    NOT_FOUND = 41  # no such answer, device or model
    UNPROVEN = 42  # a property of a policy does not hold: a counter-example was shown
    PROBE = 43  # a policy decides a case otherwise than its probe expects
    WIDER = 44  # the second policy allows something that the first does not
    EXPECTATION = 45  # a simulated run ended, and something that its scenario expects did not hold
    STOPPED = 46  # a rollout ended without its version on the fleet: aborted, reverted, denied, expired
    WAITING = 47  # a rollout waits for a person: paused, or not approved yet
    UNFINISHED = 48  # a rollout ended without some devices, or was waited for long enough
    NONE_ANSWERED = 49  # `skerry agent run --lines`: every line failed
    NOT_ERASED = 50  # an erased subject's rows are still readable in a file of this device


class ExitError(Exception):
    """Error that ends a command: one line that says what to do next, and the exit code."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code
