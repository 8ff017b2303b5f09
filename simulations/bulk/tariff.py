"""What one ordinary question leaves in a report, measured: it is asked in a region of one device on the full path.

Rule: nothing of what a core says, counts or charges is written down here; a question that leaves anything but one
verdict of the hub is not ordinary. Receipts are left out, since a verdict may come before its receipt.
"""

from collections import Counter
from typing import NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from edge_agent.question.commands import Answer, RandomDraws, SampleAttributes, Store
from edge_agent.question.decide import EdgeCore
from edge_agent.question.permissions import ClassPermissions
from policies.decisions.budget import AccountCharge
from policies.model.policy import AccountUnit
from simulations.bulk.hub_timeline import HubTimeline, KnownStreams, build_pace
from simulations.bulk.repeats import RepeatCase, RepeatTariff, choose_delays
from simulations.checking.events import HistoryReport
from simulations.checking.history import HistoryChecker
from simulations.kernel.kernel import Kernel
from simulations.nodes.fleet import SampleBatch, SimulatedFleet
from simulations.nodes.predictions import Predictions
from simulations.nodes.recorder import RegionRecorder
from simulations.nodes.services import CoreClasses
from simulations.scenario.arrivals import ArrivalSlice
from simulations.scenario.conditions import QuestionFate
from wire.protocol.messages import Prediction

# within one minute, since rules may speak of the time
_WARM_S, _ASKED_S, _OVER_S = 1.0, 10.0, 20.0
_AGAIN_S, _PAUSE_S = 20.0, 8.0
_RIGHT, _WRONG = 0, 1
_DAY = 1  # whole days since 1970, of a period of one day
MOST_OPEN = 8  # a policy that permits fewer open questions is near that limit with any
RECEIPTS = "hub.receipts"
CARRIED = "air.carried"


class SpecimenRegion(Protocol):
    """A region of one device in calm weather, on the full path."""

    kernel: Kernel
    herd: SimulatedFleet
    recorder: RegionRecorder
    judge: HistoryChecker
    cores: CoreClasses

    def start_region(self) -> None:
        """Start its hub."""

    def collect_counts(self) -> dict[str, int]:
        """Totals of whatever else was counted, by dotted name."""


class SpecimenSample(NamedTuple):
    """The sample that is asked about."""

    data_class: str
    confidence: float
    audit: float


class AnswerTariff(msgspec.Struct, frozen=True):
    """One answer of a question. `series`: `source.why`; `early`: once it is stored; `by_hub`: right if the hub is."""

    series: str
    early: bool
    by_hub: bool


class QuestionTariff(msgspec.Struct, frozen=True):
    """What an ordinary question leaves.

    `sums`, `whys`: in the history; `counts`: of region and hub, without its receipt; `rule`: that permitted its
    `frame_bytes`. `charge`: to the account of bytes; `target`: hub that it goes to; `budget_s`: how long its caller
    waits; `last_day`: of its terms, days since 1970. `repeats`: what a second copy of its frame adds.
    """

    answers: tuple[AnswerTariff, ...]
    history: HistoryReport
    counts: dict[str, int]
    rule: str
    frame_bytes: int
    charge: AccountCharge
    target: str
    budget_s: float
    last_day: int
    repeats: dict[RepeatCase, RepeatTariff] = {}


class RegionCounters(NamedTuple):
    """State of a region's counters."""

    answers: Counter[str]
    right: Counter[str]
    bytes_by_rule: Counter[str]
    counts: Counter[str]
    history: HistoryReport

    def is_equal_but_counts(self, other: "RegionCounters") -> bool:
        """Whether nothing else differs: no answer, no byte, no fact of the history."""
        return self._replace(counts=other.counts) == other


def read_outcome(core: EdgeCore, sample: SpecimenSample, day: int = 0) -> Store | Answer:
    """What a core at rest says to a sample: the question that it stores, or its local answer. It is changed by it."""
    local = Prediction(_WRONG, sample.confidence, (sample.confidence,), "")
    facts, dice = SampleAttributes(sample.data_class, day), RandomDraws("0" * 32, sample.audit)
    found = core.on_prediction(local, facts, dice, 0.0)[0]
    assert isinstance(found, Store | Answer)
    return found


def measure_tariff(region: SpecimenRegion, core: EdgeCore, sample: SpecimenSample) -> QuestionTariff | None:
    """Ask one question in a region that was not started yet; None if it is not ordinary.

    `core`: one at rest, which is changed by it. The first question makes the device known to the hub, the second
    counts.
    """
    store = read_outcome(core, sample, _DAY)
    if not isinstance(store, Store):
        return None
    charges = store.permit.charges
    class_permissions = core.permissions.for_class(sample.data_class)
    if not isinstance(class_permissions, ClassPermissions) or class_permissions.terms.max_open < MOST_OPEN:
        return None
    if len(charges) != 1 or charges[0].key != AccountUnit.BYTES or charges[0].period != _DAY:
        return None
    region.start_region()
    _ask(region, sample, _WARM_S)
    _ask(region, sample, _ASKED_S)
    before = observe_region(region)
    region.kernel.run(_ASKED_S + 3 * core_commit_s(region))
    early = observe_region(region)
    region.kernel.run(_OVER_S)
    after = observe_region(region)
    answers = [*_list_answers(before, early, early=True), *_list_answers(early, after, early=False)]
    told = after.bytes_by_rule - before.bytes_by_rule
    history = _difference(before.history, after.history)
    counts = after.counts - before.counts
    usual = history.answered == history.accepted == 1 and counts.pop(RECEIPTS, 0) == 1 and len(told) == 1
    if not usual or [each.by_hub for each in answers if not each.early] != [True] or history.flaws:
        return None
    counts[CARRIED] -= 1
    ((rule, frame_bytes),) = told.items()
    tariff = QuestionTariff(
        tuple(answers), history, dict(counts), rule, frame_bytes, charges[0], store.permit.targets[0].name,
        store.budget_s, class_permissions.terms.expires_day,
    )  # fmt: skip
    return replace(tariff, repeats=_measure_repeats(region, sample, tariff))


def _measure_repeats(
    region: SpecimenRegion, sample: SpecimenSample, tariff: QuestionTariff
) -> dict[RepeatCase, RepeatTariff]:
    """What a second copy adds in each case in which it changes nothing else."""
    ground, known = region.herd.ground, KnownStreams()
    known.add(0)
    alone = HubTimeline(build_pace(ground, ground.scenario.regions[0]), known).follow([0.0], [0])
    found: dict[RepeatCase, RepeatTariff] = {}
    for turn, (case, delay_s) in enumerate(choose_delays(alone).items()):
        at_s = _AGAIN_S + turn * _PAUSE_S
        region.kernel.run(at_s)
        before = observe_region(region)
        _ask(region, sample, at_s, delay_s)
        region.kernel.run(at_s + _PAUSE_S)
        after = observe_region(region)
        more = Counter(after.counts)
        more.subtract(before.counts)
        more.subtract({**tariff.counts, RECEIPTS: 1, CARRIED: tariff.counts[CARRIED] + 2})
        if _difference(before.history, after.history) == tariff.history and min(more.values()) >= 0:
            messages = more.pop(CARRIED)
            found[case] = RepeatTariff({name: count for name, count in more.items() if count}, messages)
    return found


def core_commit_s(region: SpecimenRegion) -> float:
    """How long a commit takes in the region."""
    return region.herd.ground.pace.commit_s


def _ask(region: SpecimenRegion, sample: SpecimenSample, at_s: float, again_s: float = 0.0) -> None:
    """Let the device take the sample at this time; its messages take longer than its commits.

    `again_s`: so much later the question's frame arrives once more; 0 = it does not.
    """
    region.kernel.run(at_s)
    number, trip_s = region.herd.numbers.start, (max(0.05, 4 * core_commit_s(region)),)
    some = ArrivalSlice([at_s], [number], [sample.data_class])
    drawn = Predictions([_RIGHT], [sample.confidence], [_WRONG], [_RIGHT])
    up_s = (*trip_s, trip_s[0] + again_s) if again_s else trip_s
    fate = QuestionFate(
        disk_fails=False, up_s=up_s, store_fails=False, batch_fails=False, ending_fails=False, down_s=trip_s
    )
    batch = SampleBatch(some, drawn, ([sample.audit], [0.5]), (int(at_s),), {0: fate})
    region.herd.make_sampler(batch)(0)


def observe_region(region: SpecimenRegion) -> RegionCounters:
    """Read a region's counters."""
    record = region.recorder.record

    def total(rows: dict[str, list[int]]) -> Counter[str]:
        return Counter({name: sum(row) for name, row in rows.items()})

    return RegionCounters(
        total(record.answers), total(record.right), total(record.bytes_by_rule), Counter(region.collect_counts()),
        region.judge.make_report(region.kernel.now),
    )  # fmt: skip


def _list_answers(before: RegionCounters, after: RegionCounters, *, early: bool) -> list[AnswerTariff]:
    """Answers between two moments; the hub's label was the right one, the device's was not."""
    told, right = after.answers - before.answers, after.right - before.right
    return [AnswerTariff(name, early, bool(right[name])) for name in told.elements()]


def _difference(before: HistoryReport, after: HistoryReport) -> HistoryReport:
    """What a history has gained."""
    whys = Counter(after.whys) - Counter(before.whys)
    sums = {name: getattr(after, name) - getattr(before, name) for name in HistoryReport.SUMS}
    return HistoryReport(**sums, flaws=dict(after.flaws), whys=dict(whys), stories=())
