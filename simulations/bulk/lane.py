"""The bulk lane of a region: takes what is ordinary out of a portion of samples, and leaves the rest to the full path.

Rule: ordinary is a sample of a device at rest whose decision the core has shown (`decisions`), and a question of one
that is answered in time without a loss, a failure or another open question of its device, far from the limits of its
accounts and its hub, and over before anything strikes device or region. Whatever else was drawn for a question happens
to it on the full path.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from simulations.bulk.checks import LaneChecker, LaneSamples
from simulations.bulk.decisions import DecisionBook, DecisionTable
from simulations.bulk.draws import QuestionDraws, draw_questions
from simulations.bulk.frame_sizes import FrameSizes
from simulations.bulk.greetings import BulkGreetings, greeting_key
from simulations.bulk.hub_timeline import HubTimeline, HubTimes, KnownStreams, build_pace
from simulations.bulk.repeats import RepeatCase, find_cases
from simulations.bulk.resting_state import AskedQuestions, DeviceClocks, charge_questions
from simulations.bulk.tally import AnswerFacts, BulkTally, QuestionFacts
from simulations.bulk.tariff import CARRIED, RECEIPTS, QuestionTariff, SpecimenRegion
from simulations.bulk.windows import EventWindows
from simulations.nodes.device import SimulatedDevice
from simulations.nodes.fleet import SimulatedFleet
from simulations.nodes.hub import SimulatedHub
from simulations.nodes.predictions import PredictionArrays
from simulations.nodes.resting import ODD
from simulations.nodes.services import RegionServices
from simulations.scenario.arrivals import ArrivalArrays
from simulations.scenario.conditions import QuestionFate

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Whole = npt.NDArray[np.int64]

_ECHO_S = 1.0  # for so long what a hub says to a second copy may be on its way
_TAIL_S = 5.0  # before the end of the load, when conditions change: all on the full path
_MINUTE_S = 60.0  # cores look around so often where rules speak of the time
_IN_TIME = 0.95  # of its caller's time and of the retry a verdict may take
_CALM = 0.5  # of a hub's rates, queue and engines that may be used; beyond it one question delays or refuses another


class LaneRegion(RegionServices, Protocol):
    """The region whose lane it is, with its nodes."""

    name: str
    herd: SimulatedFleet
    hubs: dict[str, SimulatedHub]


class SamplePortion(NamedTuple):
    """Samples of a stretch of time. `luck`: of each the draws for audits and for retries."""

    begin_s: float
    end_s: float
    some: ArrivalArrays
    drawn: PredictionArrays
    luck: Floats


class LeftSamples(NamedTuple):
    """Places in the portion of samples for the full path. `fates`: by place in `which`, what was drawn already."""

    which: Whole
    fates: dict[int, QuestionFate]


class _Questions(NamedTuple):
    """Questions that may be ordinary, in the order of time. `which`: places in the portion; `code`: of the decision."""

    which: Whole
    code: Whole
    place: Whole
    at_s: Floats


class _Lives(NamedTuple):
    """What would become of them: verdict made, arrived first and last, outcome on disk, receipt sent; inf = never.

    `case`: of the second copy of a frame; `quiet_s`: when nothing more is on its way.
    """

    draws: QuestionDraws
    batch_fails: Flags
    computed_s: Floats
    heard_s: Floats
    heard_last_s: Floats
    over_s: Floats
    receipted: Flags
    case: Whole
    quiet_s: Floats


class BulkLane:
    """Bulk lane of one region with one hub of one process. `counts`: by dotted name, for the report."""

    def __init__(self, ground: LaneRegion, specimen: Callable[[int], SpecimenRegion], rng: np.random.Generator) -> None:
        scenario, herd = ground.scenario, ground.herd
        (self._hub,) = ground.hubs.values()
        (self._process,) = self._hub.members
        self.counts: Counter[str] = Counter()
        self._ground = ground
        self._rng = rng
        self._herd = herd
        self._rest = herd.rest.views()
        self._off = np.frombuffer(herd.wires.off, np.uint8)
        self._first = herd.numbers.start
        self._touched = np.zeros(len(herd.numbers), np.bool_)
        self._known = KnownStreams()
        self._life = 0
        self._region = region = next(each for each in scenario.regions if each.name == ground.name)
        self._timeline = HubTimeline(build_pace(ground, region), self._known)
        self._windows = EventWindows(scenario, ground.name, herd.numbers)
        self._book = DecisionBook(ground.classes, herd, specimen, rng)
        self._checker = LaneChecker(herd, ground.classes, rng)
        self._sizes = FrameSizes(self._first, len(herd.numbers))
        self._clocks = DeviceClocks(ground.seed, self._first, ground.zero_s, ground.climate)
        self._tally = BulkTally(ground.recorder, ground.judge, scenario.step_s)
        self._greetings = BulkGreetings(ground, herd, specimen, self._is_over)
        herd.told_awake, herd.told_asleep, herd.told_up = self._hand_over, self._take_back, self._greetings.greet

    def settle(self, until_s: float) -> None:
        """Count what has happened by then."""
        self.counts["bulk.checked"] = self._checker.checked
        self.counts.update(self._greetings.settle())
        self._tally.settle(until_s)

    def open_at(self, now_s: float) -> int:
        """Number of its questions that are open at a moment."""
        return self._tally.open_at(now_s)

    # Hand-over

    def _hand_over(self, device: SimulatedDevice) -> None:
        """A device wakes: judge and hub know from now on how far it has come by bulk questions."""
        place = device.number - self._first
        if not self._touched[place]:
            return
        self._touched[place] = False
        stream, highest = (device.name, device.epoch), device.disk.next_seq - 1
        self._ground.judge.take_over(stream, highest, self._herd.rest.day[place], self._herd.rest.spent[place])
        self._hub.disk.raise_highest(stream, highest)
        if place in self._known:
            self._process.learn_stream(stream, highest)

    def _take_back(self, device: SimulatedDevice) -> None:
        """A device goes to rest: what it asked meanwhile made the hub remember its stream."""
        place = device.number - self._first
        if device.disk.next_seq > self._herd.rest.next_seq[place]:
            self._known.add(place)
        if self._ground.weather.fates:
            self._ground.weather.fates.pop(greeting_key(device.name, device.epoch), None)

    def _is_over(self, now_s: float) -> bool:
        """Whether region and hub are ordinary, and nothing more will happen to them."""
        calm = self._hub.air.up and self._process.is_ordinary
        return calm and self._windows.over_s <= now_s < self._ground.scenario.duration_s - _TAIL_S

    # A portion

    def take(self, portion: SamplePortion) -> LeftSamples:
        """Take what is ordinary out of a portion; returns the rest."""
        count, until_s = len(portion.some.at_s), self._calm_until(portion.begin_s)
        if not count or until_s <= portion.begin_s:
            return LeftSamples(np.arange(count), {})
        table = self._book.find_table()
        place = portion.some.device - self._first
        code = table.find_codes(
            (self._rest.kind[place] & 1).astype(np.int64), portion.some, portion.drawn.confidence, portion.luck[0]
        )
        taken = self._ordinary_places()[place] & table.usable[code] & (portion.some.at_s < until_s)
        taken &= ~self._is_struck(portion.some.device, portion.some.at_s, portion.some.at_s)
        asks = table.asks[code]
        self._count_alone(portion, code, taken & ~asks, table)
        which = np.flatnonzero(taken & asks)
        questions = _Questions(which, code[which], place[which], portion.some.at_s[which])
        fates, lane = self._ask(portion, questions, until_s, table) if len(which) else ([], np.zeros(0, np.bool_))
        taken[which] = lane
        self.counts["bulk.samples"] += int(taken.sum())
        self._ground.recorder.count_samples(int(taken.sum()))
        left = np.flatnonzero(~taken)
        places = np.searchsorted(left, which[~lane]).tolist()
        return LeftSamples(left, dict(zip(places, fates, strict=True)))

    def _calm_until(self, now_s: float) -> float:
        """Until when region and hub are ordinary; `now_s` if they are not."""
        ground = self._ground
        if self._process.life != self._life:
            self._life = self._process.life
            self._known.clear()
        if not (self._hub.air.up and self._process.is_ordinary) or ground.policy is None:
            return now_s
        until_s = min(self._windows.calm_until(now_s), ground.scenario.duration_s - _TAIL_S)
        return min(until_s, (now_s // _MINUTE_S + 1) * _MINUTE_S) if ground.policy.zones else until_s

    def _ordinary_places(self) -> Flags:
        ordinary: Flags = (self._off == 0) & (self._rest.kind < ODD)
        ordinary[self._herd.busy_places()] = False
        return ordinary

    def _is_struck(self, device: Whole, begin_s: Floats, end_s: Floats) -> Flags:
        """Whether an event strikes each device in a stretch of its own, or has struck it in this portion."""
        struck = np.zeros(len(device), np.bool_)
        if len(device):
            for each in self._windows.strikes_between(float(begin_s.min()) - _MINUTE_S, float(end_s.max())):
                struck |= (device >= each.first) & (device < each.last) & (end_s >= each.from_s)
        return struck

    def _count_alone(self, portion: SamplePortion, code: Whole, alone: Flags, table: DecisionTable) -> None:
        """Count what is answered locally, by reason."""
        right = portion.drawn.edge == portion.drawn.truth
        counts = np.bincount(code[alone], minlength=len(table.usable))
        rights = np.bincount(code[alone & right], minlength=len(table.usable))
        for each in np.flatnonzero(counts).tolist():
            self._ground.recorder.count_alone(table.why(each), int(counts[each]), int(rights[each]))
        self._checker.check_alone(LaneSamples(portion, code), np.flatnonzero(alone), table)

    # Questions

    def _ask(
        self, portion: SamplePortion, asked: _Questions, until_s: float, table: DecisionTable
    ) -> tuple[list[QuestionFate], Flags]:
        """Ask what is ordinary; returns the fates of the others, and which were asked."""
        lives = self._foresee(asked, portion.end_s - portion.begin_s, table)
        device = asked.place + self._first
        ordinary = ~(lives.draws.fails | lives.batch_fails) & (lives.quiet_s < until_s)
        in_time_s = _IN_TIME * np.minimum(table.budget_s[asked.code], self._ground.setup.limits.resend_base_s)
        ordinary &= lives.heard_s - asked.at_s < in_time_s
        until_quiet_s = np.where(np.isfinite(lives.quiet_s), lives.quiet_s, asked.at_s)
        ordinary &= ~self._is_struck(device, asked.at_s, until_quiet_s)
        ordinary &= np.where(lives.case >= 0, table.repeats[asked.code, lives.case], lives.case == RepeatCase.NONE)
        order = np.lexsort((asked.at_s, asked.place))
        place, at_s, code = asked.place[order], asked.at_s[order], asked.code[order]
        alone = ~_overlap(place, at_s, lives.over_s[order])
        by_device = AskedQuestions(
            place, at_s, lives.computed_s[order], lives.heard_last_s[order],
            table.charge_bytes[code], table.limit_bytes[code], table.last_day[code], ordinary[order] & alone,
        )  # fmt: skip
        charged = charge_questions(self._rest, self._clocks, by_device)
        lane = np.zeros(len(asked.which), np.bool_)
        lane[order] = charged.lane
        self._touched[asked.place[lane]] = True
        seq = np.zeros(len(lane), np.int64)
        seq[order] = charged.seq
        self._count_questions(portion, asked, lives, (lane, seq), table)
        self._checker.check_questions(LaneSamples(portion, asked.code), asked.which, order, charged, table)
        fates = [
            lives.draws.fate_of(each, batch_fails=bool(lives.batch_fails[each]))
            for each in np.flatnonzero(~lane).tolist()
        ]
        return fates, lane

    def _foresee(self, asked: _Questions, lasts_s: float, table: DecisionTable) -> _Lives:
        """Follow all questions through the hub whose frames arrive there, the extraordinary ones too.

        Where the hub is not calm none has an end: then none is ordinary.
        """
        count, ground = len(asked.which), self._ground
        draws = draw_questions(ground.climate, count, self._rng)
        arrives_s = asked.at_s + ground.pace.commit_s + draws.up.earliest_s
        bandwidth = self._region.link.bandwidth_bytes_per_s
        if bandwidth:
            arrives_s += np.array([table.tariffs[code].frame_bytes for code in asked.code.tolist()]) / bandwidth
        come = np.flatnonzero(~(draws.up.lost | draws.disk_fails))
        come = come[np.argsort(arrives_s[come], kind="stable")]
        times = self._timeline.follow(arrives_s[come].tolist(), asked.place[come].tolist())
        ground.recorder.record_peak(self._hub.name, times.peak)
        tickets, batch = np.unique(times.batch, return_inverse=True)
        fails = self._rng.random(len(tickets)) < ground.climate.bad_batch
        computed_s, sent_s, batch_fails, receipted = (
            np.full(count, np.inf), np.full(count, np.inf), np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        )  # fmt: skip
        computed_s[come], sent_s[come], batch_fails[come] = times.computed_s, times.sent_s, fails[batch]
        receipted[come] = np.isfinite(times.receipted_s)
        if not self._is_calm(asked, lasts_s, times):
            sent_s[:] = np.inf
        again_s = (arrives_s - draws.up.earliest_s + draws.up.latest_s)[come]
        case = np.full(count, RepeatCase.NONE, np.int64)
        case[come] = np.where(draws.up.twice[come], find_cases(times, again_s), RepeatCase.NONE)
        heard_s, last_s = sent_s + draws.down.earliest_s, sent_s + draws.down.latest_s
        said_again = come[case[come] == RepeatCase.ENDED]  # the verdict is sent once more
        echo_s = draws.down.second_s[said_again] + again_s[case[come] == RepeatCase.ENDED]
        last_s[said_again] = np.maximum(last_s[said_again], echo_s)
        over_s = heard_s + ground.pace.commit_s
        quiet_s = over_s + np.where(case == RepeatCase.NONE, 0.0, draws.up.latest_s + _ECHO_S)
        return _Lives(draws, batch_fails, computed_s, heard_s, last_s, over_s, receipted, case, quiet_s)

    def _is_calm(self, asked: _Questions, lasts_s: float, times: HubTimes) -> bool:
        """Whether a hub is far from what it may admit and can compute in a portion of `lasts_s`."""
        limits, slots = self._region.limits, self._region.slots
        usual = times.peak <= min(self._region.max_batch, _CALM * limits.max_queued)
        usual = usual and times.busy_s <= _CALM * slots * lasts_s
        usual = usual and len(asked.which) <= _CALM * lasts_s * limits.tenant_rate_per_s
        most = int(np.unique(asked.place, return_counts=True)[1].max())
        return usual and most <= max(1.0, _CALM * lasts_s * limits.device_rate_per_s)

    def _count_questions(
        self, portion: SamplePortion, asked: _Questions, lives: _Lives, taken: tuple[Flags, Whole], table: DecisionTable
    ) -> None:
        """Count what is asked in bulk. `taken`: which these are, and the number of each question."""
        lane, seq = taken
        messages = 0
        answers, questions, commit_s = list[AnswerFacts](), list[QuestionFacts](), self._ground.pace.commit_s
        extra = self._sizes.find_extra(asked.place, seq)
        truth = portion.drawn.truth[asked.which]
        edge_right, hub_right = (said[asked.which] == truth for said in (portion.drawn.edge, portion.drawn.hub))
        for code in np.unique(asked.code[lane]).tolist():
            tariff, here = table.tariffs[code], lane & (asked.code == code)
            at_s, over_s = asked.at_s[here], lives.over_s[here]
            for each in tariff.answers:
                said_s = at_s + 2 * commit_s if each.early else over_s
                right = (hub_right if each.by_hub else edge_right)[here]
                answers.append(AnswerFacts(each.series, said_s, said_s - at_s, right))
            questions.append(QuestionFacts(tariff, over_s, at_s + commit_s, tariff.frame_bytes + extra[here]))
            self.counts.update({name: count * len(at_s) for name, count in tariff.counts.items()})
            messages += self._count_repeats(tariff, lives.case[here])
        self._tally.add(answers, questions)
        receipts = int((lives.receipted & lane).sum())
        self.counts["bulk.questions"] += int(lane.sum())
        self.counts[RECEIPTS] += receipts
        self.counts[CARRIED] += int((lives.draws.down.twice & lane).sum())
        self._count_messages(receipts + messages)

    def _count_repeats(self, tariff: QuestionTariff, case: Whole) -> int:
        """Count what second copies add, and the copies; returns how many messages the hub sends for them."""
        messages = 0
        for each, added in tariff.repeats.items():
            times = int((case == each).sum())
            self.counts.update({name: count * times for name, count in added.counts.items()})
            self.counts[CARRIED] += times
            messages += added.messages * times
        return messages

    def _count_messages(self, sent: int) -> None:
        """Count messages of the hub that nothing depends on: receipts before a verdict, and what it says again."""
        climate, luck = self._ground.climate, self._rng.random(sent)
        lost = int((luck < climate.loss).sum())
        twice = int((luck < climate.loss + climate.repeats).sum()) - lost
        self.counts[CARRIED] += sent - lost + twice
        self.counts["air.gone"] += lost


def _overlap(place: Whole, at_s: Floats, over_s: Floats) -> Flags:
    """Of questions by device and time, those that are open together with another one of their device."""
    found = np.zeros(len(place), np.bool_)
    if len(place) > 1:
        both = (place[1:] == place[:-1]) & (at_s[1:] <= over_s[:-1])
        found[1:] |= both
        found[:-1] |= both
    return found
