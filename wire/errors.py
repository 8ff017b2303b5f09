"""Exceptions of the wire protocol: `LocalError` for our own mistakes, `RemoteError` for invalid received messages."""

from enum import StrEnum


class Fault(StrEnum):
    """Reason why a received message is refused; each value is also the label of a metric counter."""

    TOO_BIG = "too_big"
    MALFORMED = "malformed"
    VERSION = "version"
    SUITE = "suite"
    SIGNATURE = "signature"
    SEAL = "seal"
    PADDING = "padding"
    TOPIC = "topic"


class WireError(Exception):
    """Base class of every error about a message on the link, sent or received."""


class LocalError(WireError):
    """A message of ours must not be sent: too big, invalid device id, unknown value.

    It is raised before anything is handed to the transport.
    """


class RemoteError(WireError):
    """A received message is invalid; nothing of it was used.

    `fault`: the machine-readable reason. `detail`: an optional line for the log, which never quotes a payload.
    """

    def __init__(self, fault: Fault, detail: str = "") -> None:
        super().__init__(f"{fault}: {detail}" if detail else fault.value)
        self.fault = fault
