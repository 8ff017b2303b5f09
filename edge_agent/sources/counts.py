"""Counters of a source of samples, and the fixed words for what became of what it received. Pure."""

from collections import Counter
from enum import StrEnum
from typing import Any

import msgspec


class DropReason(StrEnum):
    """Why something that a source received was not answered."""

    STILL = "still"  # a camera's picture like the one before: the motion gate
    PACED = "paced"  # above the rate that the configuration asks for
    NEWER = "newer"  # something newer came while answering was busy
    FULL = "full"  # the device could not be made to wait
    GARBLED = "garbled"  # not what this source delivers: broken frames, no JSON
    TOO_LARGE = "too_large"
    UNFIT = "unfit"  # sound, but no sample of this model
    UNPREPARED = "unprepared"  # neither bundle nor configuration says how it becomes a sample
    LATE = "late"  # a sensor's reading that came after the window it belongs to
    CLOCK = "clock"  # a sensor's reading with a time far from the others
    GAP = "gap"  # a sensor's readings beside which too many are missing
    TOPICS = "topics"  # of a new topic, when as many as allowed are heard
    RETAINED = "retained"  # a sensor's reading of any age, that the broker had kept
    NO_MODEL = "no_model"
    DISABLED = "disabled"  # the policy's mode answers nothing
    DEFECT = "defect"  # of ours; the log has its place


class SourceState(StrEnum):
    """Whether the device is there."""

    STARTING = "starting"
    UP = "up"
    AWAY = "away"


class SourceCounts(msgspec.Struct):
    """What became of everything that a source received since the agent started. `restarts`: of the source itself."""

    received: int = 0
    answered: int = 0
    restarts: int = 0
    size_changes: int = 0  # a camera's pictures, in the middle of its stream
    dropped: Counter[str] = msgspec.field(default_factory=Counter)

    def drop(self, reason: DropReason, count: int = 1) -> None:
        """Count what is not answered, and why."""
        if count:
            self.dropped[reason.value] += count

    def to_json(self) -> dict[str, Any]:
        """The counters as the status shows them."""
        return {
            "received": self.received, "answered": self.answered, "dropped": dict(sorted(self.dropped.items())),
            "restarts": self.restarts, "size_changes": self.size_changes,
        }  # fmt: skip
