"""Runs a scenario in virtual time, its regions in one process or several, and merges them into one outcome.

Rule: equal scenarios give equal outcomes but for `wall`, whatever the number of processes.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from simulations.checking.events import HistoryReport
from simulations.nodes.recorder import Counts, RegionRecord, make_empty_record
from simulations.nodes.services import CoreClasses
from simulations.regions.coordinator import (
    RegionGroup,
    RegionResult,
    SliceHandover,
    has_borders,
    iterate_slices,
    measure_peak_rss_bytes,
)
from simulations.regions.region import DefectError
from simulations.regions.workers import RegionWorkers, WorkerResult
from simulations.report.outcome import Latency, Outcome, RunCost, RunProgress, TimelineMark, Violation
from simulations.scenario.types import Scenario, ScenarioEvent

Progress = Callable[[RunProgress], bool]
STORIES_AT_MOST = 100


def run_scenario(
    scenario: Scenario,
    processes: int = 1,
    progress: Progress | None = None,
    cores: CoreClasses | None = None,
    *,
    bulk: bool = False,
) -> Outcome:
    """Run a scenario to its end and return its outcome.

    `processes`: at most one per region is used. `progress` is called after every slice; False = stop soon and return
    what there is (`complete` is False then). `cores`: other core classes, in one process only. `bulk`: ordinary
    questions are decided in bulk. WorkerError if a process of the run dies. A core that raises ends the run with a
    flaw `defect`, not with an exception.
    """
    began, told = time.monotonic(), progress or _continue_always
    if processes > 1 and len(scenario.regions) > 1 and cores is None:
        with RegionWorkers(scenario, processes, bulk=bulk) as workers:
            ended = workers.run(told)
    else:
        ended = [_run_inline(scenario, told, cores or CoreClasses(), bulk=bulk)]
    peak = sum(each.peak_rss_bytes for each in ended) + (measure_peak_rss_bytes() if len(ended) > 1 else 0)
    wall = RunCost(time.monotonic() - began, len(ended), peak)
    shares = {number: share for each in ended for number, share in each.shares.items()}
    return _build_outcome(scenario, [shares[number] for number in sorted(shares)], ended, wall)


def _continue_always(_passed: RunProgress) -> bool:
    """Progress callback of a run that nobody watches."""
    return True


def _run_inline(scenario: Scenario, progress: Progress, cores: CoreClasses, *, bulk: bool) -> WorkerResult:
    """Run all regions in this process, slice by slice, until the end, a defect or a stop."""
    team, borders = RegionGroup(scenario, range(len(scenario.regions)), cores, bulk=bulk), has_borders(scenario)
    until_s = 0.0
    for begin_s, end_s in iterate_slices(scenario):
        try:
            handed = team.run_slice(begin_s, end_s)
        except DefectError:
            break
        until_s = end_s
        if borders:
            team.accept_handover(SliceHandover.combine([handed[number] for number in sorted(handed)]))
        if not progress(RunProgress(until_s, team.samples, team.events)):
            break
    complete = until_s >= scenario.ends_s
    return WorkerResult(team.collect_results(complete=complete), until_s, complete, measure_peak_rss_bytes())


def _build_outcome(
    scenario: Scenario, shares: Sequence[RegionResult], ended: Sequence[WorkerResult], wall: RunCost
) -> Outcome:
    """Merge the regions' results into one outcome.

    `until_s` is the earliest time that any process reached; `complete` only if all of them reached the end.
    """
    record, counts = make_empty_record(scenario.buckets), Counter[str]()
    for share in shares:
        record.add_record(share.record)
        counts.update(share.counts)
    history = _merge_reports([share.report for share in shares])
    return Outcome(
        scenario=scenario.name,
        digest=scenario.digest,
        question=scenario.question,
        seed=scenario.seed,
        devices=scenario.devices,
        duration_s=scenario.duration_s,
        step_s=scenario.step_s,
        until_s=min(each.until_s for each in ended),
        complete=all(each.complete for each in ended),
        samples=sum(share.samples for share in shares),
        events=sum(share.events for share in shares),
        arrivals=tuple(record.arrivals),
        **_freeze_series(record),
        counts=dict(sorted(counts.items())),
        history=history,
        marks=tuple(_mark_event(event) for event in scenario.events),
        violations=_list_violations(scenario, history),
        rollouts=tuple(seen for share in shares for seen in share.rollouts),
        wall=wall,
    )


def _freeze_series(record: RegionRecord) -> dict[str, Any]:
    """Series per bucket, as immutable values for the outcome."""

    def frozen(counts: Counts) -> dict[str, tuple[int, ...]]:
        return {name: tuple(row) for name, row in sorted(counts.items())}

    return {
        "answers": frozen(record.answers),
        "right": frozen(record.right),
        "latency": tuple(
            Latency(source, tuple(dict(sorted(each.items())) for each in bins))
            for source, bins in sorted(record.latency.items())
        ),
        "queues": frozen(record.queues),
        "bytes_by_rule": frozen(record.bytes_by_rule),
        "states": frozen(record.states),
    }


def _merge_reports(reports: Sequence[HistoryReport]) -> HistoryReport:
    """Merge the history reports of all regions into one."""

    def total(name: str) -> int:
        return sum(getattr(report, name) for report in reports)

    flaws, whys = Counter[str](), Counter[str]()
    for report in reports:
        flaws.update(report.flaws)
        whys.update(report.whys)
    stories = [story for report in reports for story in report.stories]
    sums = {name: total(name) for name in HistoryReport.SUMS}
    return HistoryReport(
        **sums, flaws=dict(sorted(flaws.items())), whys=dict(sorted(whys.items())),
        stories=tuple(stories[:STORIES_AT_MOST]),
    )  # fmt: skip


def _mark_event(event: ScenarioEvent) -> TimelineMark:
    """Mark of an event: its kind, place and share of devices as text."""
    where = event.hub or event.region or "everywhere"
    whom = f" device {event.device}" if event.device >= 0 else f" {event.share:.0%}" if event.share < 1 else ""
    return TimelineMark(
        event.at_s, event.lasts_s, event.kind.value, f"{event.kind.value.replace('_', ' ')}: {where}{whom}"
    )


def _list_violations(scenario: Scenario, history: HistoryReport) -> tuple[Violation, ...]:
    """For each kind of flaw one story of it, and the command that shows it again."""
    found: dict[str, str] = {}
    for story in history.stories:
        law, _, told = story.partition(": ")
        found.setdefault(law, told)
    replay = f"skerry sim run {scenario.name} --seed {scenario.seed}"
    return tuple(Violation(law, found.get(law, ""), replay) for law in history.flaws)
