"""What is kept of the devices of a region that are at rest: a few numbers each, by place in the region.

Rule: one memory, two views. `array` for one device at a time, numpy for many at once; both show the same numbers.
"""

from array import array
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

ODD = 2  # bit of `kind`: it has a policy of its own, so no shared core may answer for it


class RestingDevices:
    """Numbers of devices at rest; of one that is awake those of when it woke.

    `next_seq`: of its next question; `day`: whole days since 1970, and `spent`: bytes charged on that day; `offset_s`:
    of hub time to its own, 0 = as at the start; `kind`: bit 0 = its link is metered, `ODD`; `boots`: how often it was
    rebooted.
    """

    def __init__(self, metered: Iterable[bool]) -> None:
        self.kind = bytearray(metered)
        count = len(self.kind)
        self.next_seq = array("q", [1]) * count
        self.day = array("q", [0]) * count
        self.spent = array("q", [0]) * count
        self.offset_s = array("d", [0.0]) * count
        self.boots = array("q", [0]) * count

    def views(self) -> "RestingViews":
        """The same numbers as numpy arrays, which may be written to."""
        return RestingViews(self)


class RestingViews:
    """Views of `RestingDevices` as arrays, by place."""

    def __init__(self, rest: RestingDevices) -> None:
        self.kind: npt.NDArray[np.uint8] = np.frombuffer(rest.kind, np.uint8)
        self.next_seq: npt.NDArray[np.int64] = np.frombuffer(rest.next_seq, np.int64)
        self.day: npt.NDArray[np.int64] = np.frombuffer(rest.day, np.int64)
        self.spent: npt.NDArray[np.int64] = np.frombuffer(rest.spent, np.int64)
        self.offset_s: npt.NDArray[np.float64] = np.frombuffer(rest.offset_s, np.float64)
        self.boots: npt.NDArray[np.int64] = np.frombuffer(rest.boots, np.int64)
