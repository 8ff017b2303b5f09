"""The fuzzer finds planted defects: products with one defect each, the rule they break, and the shrunk scenario."""

from functools import partial
from pathlib import Path

import pytest

from benchmarks.rollout.drivers import pass_every_gate
from simulations.checking.events import Flaw
from simulations.fault_fuzzing.fuzz import FuzzConfig, FuzzResult, SearchProgress, search_schedules
from simulations.fault_fuzzing.schedules import draw_scenario
from simulations.nodes.services import CoreClasses
from simulations.regions.run import run_scenario
from simulations.scenario.types import EventKind, Scenario
from simulations.scenario.writer import format_scenario
from simulations.scenario_files import load_scenario, parse_scenario
from tests.examples import further
from tests.simulations.doubles import planted

QUICK = [
    (3, CoreClasses(edge=planted.AnswersTwice), Flaw.DOUBLED_CORRECTION),
    (1, CoreClasses(edge=planted.TakesEveryClassForOpen), Flaw.FORBIDDEN),
]
MORE = [
    (7, CoreClasses(edge=planted.ForgetsWhatItSaid), Flaw.DOUBLED_ANSWER),
    (1, CoreClasses(hub_disk=planted.SaysItIsStored), Flaw.UNBACKED),
]
SLOW = [
    (1, CoreClasses(disk=planted.DropsACommit), Flaw.LOST),
    (1, CoreClasses(edge=planted.SendsWithoutAsking), Flaw.FORBIDDEN),
    (1, CoreClasses(edge=planted.IgnoresHowManyAreOpen), Flaw.CROWDED),
    (1, CoreClasses(edge=planted.TakesAReceiptForAnEnd), Flaw.LOST),
    (1, CoreClasses(edge=planted.Raises), Flaw.DEFECT),
    (1, CoreClasses(disk=planted.SpendsBeyondTheLimit, edge=planted.ForgetsWhatItSpent), Flaw.OVERSPENT),
    (1, CoreClasses(hub_disk=planted.FindsNothing), Flaw.DOUBLED_EFFECT),
]

REPLAYED = [
    (290, CoreClasses(install=planted.IgnoresTheCounter)),
    (167, CoreClasses(orders=planted.IgnoresTheBinding)),
]


OF_MEMBERS = [
    (2, CoreClasses(hub_disk=planted.FencesNothing), Flaw.UNLEASED),
    (7, CoreClasses(hub=planted.ForgetsNothing), Flaw.SAID_UNLEASED),
]


def name(cores: CoreClasses) -> str:
    return "".join(each.__name__ for each in cores if each.__module__ == planted.__name__)


def found_and_shrunk(seed: int, cores: CoreClasses, law: Flaw, folder: Path, members: int = 0) -> Scenario:
    found = search_schedules(
        FuzzConfig(60, seed, findings=1, tries=60, folder=folder, members=members),
        run_one=partial(run_scenario, cores=cores),
    )
    (finding,) = found.findings
    small, big = load_scenario(finding.file), draw_scenario(finding.seed, members)
    assert law.value in finding.laws
    assert run_scenario(small, cores=cores).history.flaws.keys() == set(finding.laws), "the file shows it again"
    assert run_scenario(small).ok, "the product itself keeps the law"
    assert len(small.events) <= (3 if members else 2)
    assert len(small.events) < len(big.events) or small.devices < big.devices or small.duration_s < big.duration_s
    return small


@pytest.mark.parametrize(
    ("seed", "cores", "law"),
    [*QUICK, *(further(*case) for case in MORE)],
    ids=[name(cores) for _, cores, _ in (*QUICK, *MORE)],
)
def test_a_planted_defect_is_found_and_shrunk_to_a_file_that_shows_it_again(
    seed: int, cores: CoreClasses, law: Flaw, tmp_path: Path
) -> None:
    found_and_shrunk(seed, cores, law, tmp_path)


@pytest.mark.further
@pytest.mark.parametrize(("seed", "cores", "law"), OF_MEMBERS, ids=[name(cores) for _, cores, _ in OF_MEMBERS])
def test_a_defect_that_takes_several_processes_of_a_hub_is_found_and_shrunk_to_two(
    seed: int, cores: CoreClasses, law: Flaw, tmp_path: Path
) -> None:
    small = found_and_shrunk(seed, cores, law, tmp_path, members=2)
    assert {region.members for region in small.regions} == {2}


@pytest.mark.heavy
@pytest.mark.parametrize(("seed", "cores", "law"), SLOW, ids=[name(cores) for _, cores, _ in SLOW])
def test_every_other_planted_defect_is_found_too(seed: int, cores: CoreClasses, law: Flaw, tmp_path: Path) -> None:
    found_and_shrunk(seed, cores, law, tmp_path)


def test_schedules_have_worse_versions_fleets_of_one_devices_that_leave_and_replayed_assignments() -> None:
    drawn = [draw_scenario(seed) for seed in range(1, 200)]
    rollouts = [each for each in drawn if each.rollout is not None]
    assert any(each.rollout and each.rollout.harm >= 0.4 for each in rollouts)
    assert any(each.devices == 1 for each in rollouts)
    assert any(event.kind is EventKind.MOVED for each in rollouts for event in each.events)
    assert any(event.kind is EventKind.REPLAYED for each in rollouts for event in each.events)
    assert all(parse_scenario(format_scenario(each)) == each for each in rollouts[:20])


@pytest.mark.heavy
def test_a_gate_that_passes_everything_lets_a_worse_version_be_kept_and_that_is_found() -> None:
    blind = partial(run_scenario, cores=CoreClasses(gate=pass_every_gate))
    found = search_schedules(FuzzConfig(200, 1, findings=1, tries=40), run_one=blind)
    assert Flaw.WORSE_KEPT.value in found.findings[0].laws
    assert run_scenario(found.findings[0].scenario).ok, "the product itself keeps the law"


@pytest.mark.further
@pytest.mark.parametrize(("seed", "cores"), REPLAYED, ids=[name(cores) for _, cores in REPLAYED])
def test_a_device_that_takes_an_old_assignment_again_keeps_a_worse_version_and_that_is_found(
    seed: int, cores: CoreClasses
) -> None:
    run_one = partial(run_scenario, cores=cores)
    found = search_schedules(FuzzConfig(20, seed, findings=1, tries=40), run_one=run_one)
    small = found.findings[0].scenario
    assert Flaw.WORSE_KEPT.value in found.findings[0].laws
    assert EventKind.REPLAYED in {event.kind for event in small.events}
    assert run_scenario(small).ok, "the product itself keeps the law"


def test_the_search_stops_when_it_is_told_to_and_says_how_far_it_came() -> None:
    seen: list[SearchProgress] = []

    def twice(progress: SearchProgress) -> bool:
        seen.append(progress)
        return len(seen) < 2

    found = search_schedules(FuzzConfig(50), twice)
    assert (found.schedules, found.complete, found.ok) == (2, False, True)
    assert [each.done for each in seen] == [1, 2]


def same(found: FuzzResult) -> tuple[int, int, int, tuple[object, ...]]:
    return found.events, found.accepted, found.effects, found.findings


@pytest.mark.heavy
def test_two_processes_find_what_one_finds() -> None:
    one, two = search_schedules(FuzzConfig(12, seed=5)), search_schedules(FuzzConfig(12, seed=5, processes=2))
    assert same(one) == same(two)
