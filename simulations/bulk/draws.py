"""Conditions of many questions, drawn at once from the distributions that `ConditionSampler` draws from one by one."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simulations.scenario.conditions import EnvironmentConditions, QuestionFate

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Whole = npt.NDArray[np.int64]


class MessageDraws(NamedTuple):
    """One message of each question: lost, repeated, and the delays in seconds of it and of its repeat."""

    lost: Flags
    twice: Flags
    first_s: Floats
    second_s: Floats

    @property
    def earliest_s(self) -> Floats:
        """Delay until it arrives for the first time."""
        return np.where(self.twice, np.minimum(self.first_s, self.second_s), self.first_s)

    @property
    def latest_s(self) -> Floats:
        """Delay until it arrives for the last time."""
        return np.where(self.twice, np.maximum(self.first_s, self.second_s), self.first_s)

    def delays_of(self, which: int) -> tuple[float, ...]:
        """Delays of one of them, as `ConditionSampler.draw_delays`."""
        if self.lost[which]:
            return ()
        first = float(self.first_s[which])
        return (first, float(self.second_s[which])) if self.twice[which] else (first,)


class QuestionDraws(NamedTuple):
    """Conditions of a number of questions. `up`: their frames; `down`: their verdicts; the flags are failed writes."""

    up: MessageDraws
    down: MessageDraws
    disk_fails: Flags
    store_fails: Flags
    ending_fails: Flags

    @property
    def fails(self) -> Flags:
        """Questions that something happens to beyond being answered: a loss or a failure."""
        return self.up.lost | self.down.lost | self.disk_fails | self.store_fails | self.ending_fails

    def fate_of(self, which: int, *, batch_fails: bool) -> QuestionFate:
        """The same conditions for the full path; of a lost frame those that come after it are drawn there."""
        disk_fails = bool(self.disk_fails[which])
        if self.up.lost[which]:
            return QuestionFate(disk_fails, ())
        return QuestionFate(
            disk_fails, self.up.delays_of(which), bool(self.store_fails[which]), batch_fails,
            bool(self.ending_fails[which]), self.down.delays_of(which),
        )  # fmt: skip


def draw_questions(climate: EnvironmentConditions, count: int, rng: np.random.Generator) -> QuestionDraws:
    """Draw the conditions of `count` questions."""
    fails = rng.random((3, count)) < climate.bad_disk
    return QuestionDraws(_draw_messages(climate, count, rng), _draw_messages(climate, count, rng), *fails)


def _draw_messages(climate: EnvironmentConditions, count: int, rng: np.random.Generator) -> MessageDraws:
    luck, half_s = rng.random(count), climate.latency_s / 2
    lost = luck < climate.loss
    twice = ~lost & (luck < climate.loss + climate.repeats)
    first_s, second_s = half_s + half_s * rng.standard_exponential((2, count))
    return MessageDraws(lost, twice, first_s, second_s)
