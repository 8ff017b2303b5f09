"""What the hub does when the frame of a question comes twice, by how far the question had come; measured like a tariff.

Rule: a second copy changes no answer, or its question is not ordinary. While the first copy is still looked up in the
store, it is left to the full path.
"""

from enum import IntEnum

import msgspec
import numpy as np
import numpy.typing as npt

from simulations.bulk.hub_timeline import HubTimes

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]


class RepeatCase(IntEnum):
    """How far a question had come at its hub when its frame came again; below 0 no copy came, or none is foreseen."""

    LOOKING = -2  # in a lookup, or the question never arrived
    NONE = -1
    OPEN = 0  # admitted, not stored yet
    STORED = 1  # and not computed yet
    ENDING = 2  # computed, its verdict is being stored
    ENDED = 3  # its verdict was sent


MEASURED = (RepeatCase.OPEN, RepeatCase.STORED, RepeatCase.ENDING, RepeatCase.ENDED)
_AFTER_S = 0.02  # after the verdict was sent


class RepeatTariff(msgspec.Struct, frozen=True):
    """What a second copy adds. `counts`: of the hub, by dotted name; `messages`: that the hub sends for it."""

    counts: dict[str, int]
    messages: int


def find_cases(times: HubTimes, again_s: Floats) -> Whole:
    """Case of each question whose frame comes again at these times."""
    found = np.full(len(again_s), RepeatCase.LOOKING, np.int64)
    found[again_s >= times.admitted_s] = RepeatCase.OPEN
    found[again_s >= times.stored_s] = RepeatCase.STORED
    found[again_s >= times.computed_s] = RepeatCase.ENDING
    found[again_s >= times.sent_s] = RepeatCase.ENDED
    return found


def choose_delays(times: HubTimes) -> dict[RepeatCase, float]:
    """Seconds after the first copy that the second one of a question alone has to come, for each case that it can have.

    `times`: of that question, which arrived at 0 from a device that the hub knows.
    """
    stored_s, computed_s, sent_s = (float(each[0]) for each in (times.stored_s, times.computed_s, times.sent_s))
    found = {
        RepeatCase.OPEN: min(stored_s, computed_s) / 2,
        RepeatCase.ENDING: (computed_s + sent_s) / 2,
        RepeatCase.ENDED: sent_s + _AFTER_S,
    }
    if stored_s < computed_s:
        found[RepeatCase.STORED] = (stored_s + computed_s) / 2
    return found
