"""What bulk questions change of the devices that ask them: number, day, bytes spent, and the hub time of a verdict.

Rule: afterwards a device is as if the full path had asked; whoever wakes it finds these numbers.
"""

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from simulations.kernel.world import DAY_S, draw_shares
from simulations.nodes.fleet import CLOCK
from simulations.nodes.resting import RestingViews
from simulations.scenario.conditions import EnvironmentConditions

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Whole = npt.NDArray[np.int64]


class AskedQuestions(NamedTuple):
    """Questions in the order of their devices, and of time within each. `place`: of the device in its region.

    `at_s`: of the sample; `created_s`, `heard_s`: when the hub made its verdict, and when that arrived for the last
    time. `charge_bytes`, `limit_bytes`: of the account; `last_day`: of the terms; `lane`: those that are asked in
    bulk.
    """

    place: Whole
    at_s: Floats
    created_s: Floats
    heard_s: Floats
    charge_bytes: Whole
    limit_bytes: Whole
    last_day: Whole
    lane: Flags


class ChargedQuestions(NamedTuple):
    """Number of each question, its day and what was spent on that day before it; `lane`: those that were asked."""

    seq: Whole
    day: Whole
    spent: Whole
    lane: Flags


class DeviceClocks(msgspec.Struct, frozen=True):
    """Clocks of the devices of a region, whose first one has the number `first`; `zero_s`: hub time at the start."""

    seed: int
    first: int
    zero_s: float
    climate: EnvironmentConditions

    def read(self, rest: RestingViews, place: Whole, at_s: Floats) -> tuple[Floats, Floats]:
        """What the clocks of these devices show at these times, and what they showed at the start."""
        which = CLOCK + 2 * rest.boots[place]
        number, climate = place + self.first, self.climate
        skew_s = climate.skew_s * draw_shares(self.seed, number, which) if climate.skew_s else np.zeros(len(place))
        drift = climate.drift * (2 * draw_shares(self.seed, number, which + 1) - 1) if climate.drift else 0.0
        return skew_s + (1.0 + drift) * at_s, skew_s


def charge_questions(rest: RestingViews, clocks: DeviceClocks, asked: AskedQuestions) -> ChargedQuestions:
    """Charge the questions of the lane, one after another of each device, and write down what they change.

    A question that comes near the limit of its account (less than two more would fit) is not asked here, nor is what
    its device asks after it.
    """
    count = len(asked.place)
    seq, day, spent, lane = (
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        asked.lane.copy(),
    )
    starts = np.ones(count, np.bool_)
    starts[1:] = asked.place[1:] != asked.place[:-1]
    rank = np.arange(count) - np.maximum.accumulate(np.where(starts, np.arange(count), 0))
    stopped = np.zeros(count, np.bool_)  # of the device's question before
    for turn in range(int(rank.max(initial=-1)) + 1):
        now = np.flatnonzero(rank == turn)
        if turn:
            stopped[now] = stopped[now - 1] | ~lane[now - 1]
            lane[now] &= ~stopped[now]
        seq[now], day[now], spent[now], fits = _charge_once(rest, clocks, asked, now)
        lane[now] &= fits
        written = now[lane[now]]
        rest.next_seq[asked.place[written]] += 1
        rest.day[asked.place[written]] = day[written]
        rest.spent[asked.place[written]] = spent[written] + asked.charge_bytes[written]
        _learn_time(rest, clocks, asked, written)
    return ChargedQuestions(seq, day, spent, lane)


def _charge_once(
    rest: RestingViews, clocks: DeviceClocks, asked: AskedQuestions, now: Whole
) -> tuple[Whole, Whole, Whole, Flags]:
    """Number, day, bytes spent before, and whether the charge is far from its limit."""
    place = asked.place[now]
    own_s, skew_s = clocks.read(rest, place, asked.at_s[now])
    offset_s = np.where(rest.offset_s[place] == 0.0, clocks.zero_s - skew_s, rest.offset_s[place])
    today = ((own_s + offset_s) // DAY_S).astype(np.int64)
    day = np.maximum(rest.day[place], today)
    spent = np.where(day == rest.day[place], rest.spent[place], 0)
    fits = (spent + 3 * asked.charge_bytes[now] <= asked.limit_bytes[now]) & (day <= asked.last_day[now])
    return rest.next_seq[place], day, spent, fits


def _learn_time(rest: RestingViews, clocks: DeviceClocks, asked: AskedQuestions, written: Whole) -> None:
    """The devices believe what the last verdict said of hub time."""
    place = asked.place[written]
    heard_s, _ = clocks.read(rest, place, asked.heard_s[written])
    created_s = np.floor((clocks.zero_s + asked.created_s[written]) * 1000) / 1000
    rest.offset_s[place] = created_s - heard_s
