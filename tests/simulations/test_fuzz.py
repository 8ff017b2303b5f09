"""The fuzzer must be able to find: products with one defect each, what breaks by it, and how little is left to show it."""

from functools import partial
from pathlib import Path

import pytest

from simulations.facts import Flaw
from simulations.fuzz import Found, Progress, Wish, search
from simulations.ground import Cores
from simulations.reader import load_scenario
from simulations.run import run
from tests.simulations import planted

PLANTED = [
    (Cores(disk=planted.DropsACommit), Flaw.LOST, 0),
    (Cores(edge=planted.AnswersTwice), Flaw.DOUBLED_CORRECTION, 0),
    (Cores(edge=planted.ForgetsWhatItSaid), Flaw.DOUBLED_ANSWER, 1),
    (Cores(edge=planted.SendsWithoutAsking), Flaw.FORBIDDEN, 1),
    (Cores(edge=planted.TakesEveryClassForOpen), Flaw.FORBIDDEN, 0),
    (Cores(edge=planted.IgnoresHowManyAreOpen), Flaw.CROWDED, 0),
    (Cores(edge=planted.TakesAReceiptForAnEnd), Flaw.LOST, 0),
    (Cores(edge=planted.Raises), Flaw.DEFECT, 0),
    (Cores(disk=planted.SpendsBeyondTheLimit, edge=planted.ForgetsWhatItSpent), Flaw.OVERSPENT, 1),
    (Cores(hub_disk=planted.FindsNothing), Flaw.DOUBLED_EFFECT, 1),
    (Cores(hub_disk=planted.SaysItIsStored), Flaw.UNBACKED, 0),
]


@pytest.mark.parametrize(("cores", "law", "events"), PLANTED, ids=lambda value: "")
def test_a_planted_defect_is_found_and_shrunk_to_a_file_that_shows_it_again(
    cores: Cores, law: Flaw, events: int, tmp_path: Path
) -> None:
    found = search(Wish(60, findings=1, tries=120, folder=tmp_path), run_one=partial(run, cores=cores))
    (finding,) = found.findings
    small = load_scenario(finding.file)
    assert law.value in run(small, cores=cores).history.flaws
    assert law.value in finding.laws
    assert finding.story.partition(":")[0] in finding.laws
    assert (small.devices, len(small.regions)) <= (2, 2)
    assert len(small.events) <= events + 1
    assert run(small).ok, "the product itself keeps the law"


def test_the_search_stops_when_it_is_told_to_and_says_how_far_it_came() -> None:
    seen: list[Progress] = []

    def twice(progress: Progress) -> bool:
        seen.append(progress)
        return len(seen) < 2

    found = search(Wish(50), twice)
    assert (found.schedules, found.complete, found.ok) == (2, False, True)
    assert [each.done for each in seen] == [1, 2]


def same(found: Found) -> tuple[int, int, int, tuple[object, ...]]:
    return found.events, found.accepted, found.effects, found.findings


@pytest.mark.heavy
def test_two_processes_find_what_one_finds() -> None:
    one, two = search(Wish(12, seed=5)), search(Wish(12, seed=5, processes=2))
    assert same(one) == same(two)
