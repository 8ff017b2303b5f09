"""Two kinds of trouble on the link: we broke the rule, or they did."""

from enum import StrEnum


class Fault(StrEnum):
    """Why a received message is refused. Each is counted under its own name."""

    TOO_BIG = "too_big"
    MALFORMED = "malformed"
    VERSION = "version"
    SUITE = "suite"
    SIGNATURE = "signature"
    SEAL = "seal"
    PADDING = "padding"
    TOPIC = "topic"


class WireError(Exception):
    """Any trouble with a message that crosses, or should cross, the link."""


class LocalError(WireError):
    """We tried to send what may not be sent (too big, unknown enum, empty id)."""


class RemoteError(WireError):
    """What the other side sent is not acceptable; nothing of it was used."""

    def __init__(self, fault: Fault, detail: str = "") -> None:
        super().__init__(f"{fault}: {detail}" if detail else fault.value)
        self.fault = fault
