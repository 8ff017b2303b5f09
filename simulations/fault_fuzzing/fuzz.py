"""Fault fuzzer: searches random schedules of faults for one that breaks a rule, and shrinks it to a replay file.

Rule: a schedule is judged by its history alone. The same configuration finds the same, whatever the number of
processes.
"""

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from simulations.fault_fuzzing.schedules import draw_scenario
from simulations.fault_fuzzing.shrink import TRIES_AT_MOST, ScenarioShrinker
from simulations.regions.run import run_scenario
from simulations.report.outcome import Outcome
from simulations.scenario.schema import ScenarioError
from simulations.scenario.types import Scenario
from simulations.scenario.writer import format_scenario
from simulations.scenario_files import parse_scenario
from wire.process.files import write_result

_AT_ONCE = 4  # schedules handed to a process at a time

ScenarioRunner = Callable[[Scenario], Outcome]


class FuzzConfig(msgspec.Struct, frozen=True):
    """Configuration of a search: `schedules` from the one of `seed` on, until `findings` broke a rule.

    `folder`: for replay files, if any. `members`: processes of each hub, 0 = as drawn.
    """

    schedules: int
    seed: int = 1
    processes: int = 1
    folder: Path | None = None
    findings: int = 10
    tries: int = TRIES_AT_MOST  # to shrink each of them
    members: int = 0


class Finding(msgspec.Struct, frozen=True):
    """A rule that a schedule breaks. `scenario`: the smallest that was found to break it too, which is in `file`."""

    seed: int
    laws: tuple[str, ...]
    story: str
    scenario: Scenario
    tries: int
    file: str = ""


class SearchProgress(msgspec.Struct, frozen=True):
    """Progress of the search."""

    done: int
    of: int
    events: int
    findings: int


class FuzzResult(msgspec.Struct, frozen=True):
    """Result of a search. `accepted`, `effects`, `late`: over all schedules.

    `complete`: False if it was stopped before the last.
    """

    schedules: int
    events: int
    samples: int
    accepted: int
    effects: int
    late: int
    findings: tuple[Finding, ...]
    struck: dict[str, int]  # how often each kind of fault was acted out
    wall_s: float
    complete: bool = True

    @property
    def ok(self) -> bool:
        """Whether no schedule broke a rule."""
        return not self.findings


class _ScheduleResult(msgspec.Struct, frozen=True):
    """Result of one schedule."""

    events: int
    samples: int
    accepted: int
    effects: int
    late: int
    struck: dict[str, int]
    finding: Finding | None


def search_schedules(
    wish: FuzzConfig, progress: Callable[[SearchProgress], bool] | None = None, run_one: ScenarioRunner = run_scenario
) -> FuzzResult:
    """Run random schedules and return what they broke.

    `progress` is called after each schedule; False stops the search. `run_one` goes to worker processes by its
    name, so it must be a module-level function.
    """
    began = time.perf_counter()
    seen: list[_ScheduleResult] = []
    with _open_pool(wish) as each:
        for found in each(partial(_run_schedule, run_one, wish), range(wish.seed, wish.seed + wish.schedules)):
            seen.append(_save_replay(found, wish.folder))
            findings = sum(one.finding is not None for one in seen)
            so_far = SearchProgress(len(seen), wish.schedules, sum(one.events for one in seen), findings)
            if findings >= wish.findings or (progress is not None and not progress(so_far)):
                break
    return _summarize_search(seen, wish, time.perf_counter() - began)


ParallelMap = Callable[[Callable[[int], _ScheduleResult], Iterable[int]], Iterator[_ScheduleResult]]


@contextmanager
def _open_pool(wish: FuzzConfig) -> Iterator[ParallelMap]:
    """A `map` in the order of the seeds, by one process or several."""
    if wish.processes < 2:
        yield map
        return
    with multiprocessing.get_context("spawn").Pool(wish.processes) as pool:
        yield partial(pool.imap, chunksize=_AT_ONCE)


def _run_schedule(run_one: ScenarioRunner, wish: FuzzConfig, seed: int) -> _ScheduleResult:
    """Draw a schedule, run and judge it; if it breaks a rule, shrink it."""
    scenario = draw_scenario(seed, wish.members)
    outcome = run_one(scenario)
    history = outcome.history
    struck = Counter(str(event.kind) for event in scenario.events)
    numbers = (outcome.events, outcome.samples, history.accepted, history.effects, history.late)
    laws = frozenset(history.flaws)
    if not laws:
        return _ScheduleResult(*numbers, struck, None)
    shrinker = ScenarioShrinker(partial(_find_broken_rules, run_one), laws, wish.tries)
    small = shrinker.shrink(scenario)
    last = run_one(small).history
    finding = Finding(seed, tuple(sorted(last.flaws)), last.stories[0], small, shrinker.tries)
    return _ScheduleResult(*numbers, struck, finding)


def _find_broken_rules(run_one: ScenarioRunner, scenario: Scenario) -> frozenset[str]:
    return frozenset(run_one(scenario).history.flaws)


def _save_replay(seen: _ScheduleResult, folder: Path | None) -> _ScheduleResult:
    """Write the replay file of a finding."""
    finding = seen.finding
    if finding is None or folder is None:
        return seen
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"fuzz-{finding.seed}.toml"
    write_result(path, format_scenario(finding.scenario).encode(), _is_scenario)
    return msgspec.structs.replace(seen, finding=msgspec.structs.replace(finding, file=str(path)))


def _is_scenario(data: bytes) -> bool:
    """Whether a file is a scenario, as the replay of an earlier search is."""
    try:
        parse_scenario(data.decode())
    except (ScenarioError, UnicodeDecodeError):
        return False
    return True


def _summarize_search(seen: list[_ScheduleResult], wish: FuzzConfig, wall_s: float) -> FuzzResult:
    struck: Counter[str] = Counter()
    for one in seen:
        struck.update(one.struck)
    return FuzzResult(
        schedules=len(seen),
        events=sum(one.events for one in seen),
        samples=sum(one.samples for one in seen),
        accepted=sum(one.accepted for one in seen),
        effects=sum(one.effects for one in seen),
        late=sum(one.late for one in seen),
        findings=tuple(one.finding for one in seen if one.finding is not None),
        struck=dict(sorted(struck.items())),
        wall_s=wall_s,
        complete=len(seen) == wish.schedules,
    )
