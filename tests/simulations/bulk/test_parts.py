"""Parts of the bulk lane, each beside what it stands for one by one: draws, boundaries, the hub's timeline, charges."""

import msgspec
import numpy as np
import pytest

from edge_agent.question.commands import RandomDraws, SampleAttributes, Store
from edge_agent.question.decide import EdgeCore
from policies.decisions.escalation import EscalationAction
from policies.model.policy import EscalationMode
from policies.model.reasons import DecisionReason
from simulations.bulk.boundaries import CellDecision, ClassBoundaries, find_boundaries
from simulations.bulk.decisions import deny_question
from simulations.bulk.draws import draw_questions
from simulations.bulk.hub_timeline import HubPace, HubTimeline, HubTimes, KnownStreams
from simulations.bulk.repeats import RepeatCase, choose_delays, find_cases
from simulations.bulk.tally import find_latency_bins
from simulations.bulk.tariff import SpecimenSample
from simulations.bulk.windows import EventWindows
from simulations.kernel.world import draw_share, draw_shares
from simulations.nodes.services import CoreClasses
from simulations.regions.region import SimulatedRegion
from simulations.report.outcome import find_latency_bin
from simulations.scenario.conditions import EnvironmentConditions
from simulations.scenario.types import EventKind, Load, Scenario, ScenarioEvent, build_permissive_policy
from wire.protocol.messages import Prediction

CLASSES = (("open", 0.5), ("private", 0.5))
PACE = HubPace(commit_s=0.005, round_s=0.001, cost_base_s=0.004, cost_item_s=0.0005, slots=2, max_batch=4)


def core_under(change: tuple[str, str] = ("", "")) -> EdgeCore:
    scenario = Scenario(devices=1, load=Load(classes=CLASSES))
    text = build_permissive_policy(scenario.regions, ("open", "private")).replace(*change)
    return SimulatedRegion(msgspec.structs.replace(scenario, policy=text), 0, CoreClasses()).herd.fresh_core(0)


def boundaries(change: tuple[str, str] = ("", "")) -> ClassBoundaries | None:
    return find_boundaries(core_under(change), "open", np.random.default_rng(1))


def test_many_draws_of_devices_are_those_of_one_after_another() -> None:
    devices, which = np.arange(0, 4_000_000, 40_001), np.arange(100) % 37
    for seed in (0, 1, 2**63 + 7):
        one_by_one = [draw_share(seed, int(n), int(w)) for n, w in zip(devices, which, strict=True)]
        assert draw_shares(seed, devices, which).tolist() == one_by_one


def test_many_latencies_fall_into_the_bins_of_each() -> None:
    took_s = np.concatenate([np.geomspace(1e-5, 1e8, 3000), 0.001 * 2.0 ** np.arange(0, 20, 0.25)])
    assert find_latency_bins(took_s).tolist() == [find_latency_bin(float(each)) for each in took_s]


def test_the_boundaries_are_the_policys_though_nothing_of_it_is_read() -> None:
    found = boundaries()
    assert found is not None
    assert (found.unsure_below, found.audited_below) == (0.8, 0.01)
    assert [cell.action for cell in found.cells] == [
        EscalationAction.KEEP, EscalationAction.AUDIT, EscalationAction.ASK, EscalationAction.ASK,
    ]  # fmt: skip


def test_a_class_that_may_not_leave_is_answered_locally_though_its_samples_are_unsure() -> None:
    denied = deny_question(core_under(), SpecimenSample("private", 0.1, 0.5))
    assert denied == CellDecision(EscalationAction.KEEP, DecisionReason.DENIED_DATA_CLASS)
    assert deny_question(core_under(), SpecimenSample("open", 0.1, 0.5)) is None


@pytest.mark.parametrize("mode", [EscalationMode.LOCAL_ONLY, EscalationMode.HUB_FIRST])
def test_a_mode_that_looks_at_no_confidence_has_no_boundary(mode: EscalationMode) -> None:
    found = boundaries(('mode = "wait"', f'mode = "{mode}"'))
    assert found is not None
    assert found.unsure_below == 0.0


def test_a_decision_of_another_shape_is_left_to_the_full_path() -> None:
    """A core that keeps what lies in the middle of the unsure: one boundary does not describe it."""

    class Moody(EdgeCore):
        def evaluate_sample(self, local: Prediction, facts: SampleAttributes, dice: RandomDraws, now: float):
            sure = Prediction(0, 1.0, (1.0,), "")
            return super().evaluate_sample(sure if 0.3 < local.confidence < 0.5 else local, facts, dice, now)

    scenario = Scenario(devices=1)
    moody = SimulatedRegion(scenario, 0, CoreClasses(edge=Moody)).herd.fresh_core(0)
    assert find_boundaries(moody, "open", np.random.default_rng(1)) is None


def test_draws_lose_and_repeat_as_often_as_the_conditions_say() -> None:
    climate = EnvironmentConditions(loss=0.1, repeats=0.2, bad_disk=0.05)
    drawn = draw_questions(climate, 100_000, np.random.default_rng(1))
    assert drawn.up.lost.mean() == pytest.approx(0.1, abs=0.005)
    assert drawn.down.twice.mean() == pytest.approx(0.2, abs=0.005)
    assert drawn.disk_fails.mean() == pytest.approx(0.05, abs=0.003)
    assert drawn.up.first_s.mean() == pytest.approx(climate.latency_s, rel=0.02)
    assert (drawn.up.earliest_s <= drawn.up.latest_s).all()
    lost = int(np.flatnonzero(drawn.up.lost)[0])
    assert drawn.fate_of(lost, batch_fails=False).up_s == ()


def test_a_question_alone_waits_for_a_round_a_batch_and_a_commit() -> None:
    known = KnownStreams()
    known.add(7)
    times = HubTimeline(PACE, known).follow([1.0], [7])
    assert times.computed_s[0] == pytest.approx(1.0 + 0.001 + 0.0045)
    assert times.receipted_s[0] == pytest.approx(1.005)
    assert times.sent_s[0] == pytest.approx(times.computed_s[0] + 0.005)


def test_a_stream_that_is_not_remembered_is_looked_up_first_and_then_gets_no_receipt() -> None:
    times = HubTimeline(PACE, KnownStreams()).follow([1.0], [7])
    assert times.computed_s[0] == pytest.approx(1.005 + 0.0045)
    assert times.receipted_s[0] == np.inf  # the verdict is in the commit that stores the question
    assert times.sent_s[0] == pytest.approx(1.010)


def test_a_second_copy_meets_its_question_as_far_as_it_has_come() -> None:
    timeline, known = HubTimeline(PACE, KnownStreams()), KnownStreams()
    known.add(7)
    looked_up, remembered = timeline.follow([1.0], [7]), HubTimeline(PACE, known).follow([1.0], [7])
    assert find_cases(looked_up, np.array([1.001])) == [RepeatCase.LOOKING]
    after_s = {case: np.array([1.0 + delay_s]) for case, delay_s in choose_delays(_from_zero(remembered)).items()}
    assert set(after_s) == {RepeatCase.OPEN, RepeatCase.STORED, RepeatCase.ENDING, RepeatCase.ENDED}
    assert all(find_cases(remembered, again_s) == [case] for case, again_s in after_s.items())


def _from_zero(times: HubTimes) -> HubTimes:
    """The same times of a question that arrived a second earlier."""
    return msgspec.structs.replace(
        times, stored_s=times.stored_s - 1, computed_s=times.computed_s - 1, sent_s=times.sent_s - 1
    )


def test_questions_that_find_all_engines_busy_gather_into_a_batch() -> None:
    known = KnownStreams()
    for place in range(20):
        known.add(place)
    times = HubTimeline(PACE, known).follow([1.0 + 0.0001 * each for each in range(20)], list(range(20)))
    sizes = np.bincount(times.batch)
    assert sizes.max() == PACE.max_batch
    assert times.peak > PACE.max_batch
    assert np.isfinite(times.sent_s).all()


def test_the_hub_forgets_the_stream_that_was_used_least_lately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulations.bulk.hub_timeline.STREAMS", 2)
    known = KnownStreams()
    for place in (1, 2):
        known.add(place)
    assert known.touch(1)
    known.add(3)
    assert (1 in known, 2 in known, 3 in known) == (True, False, True)


def test_a_backup_that_is_restored_is_near_from_when_it_was_taken() -> None:
    events = (ScenarioEvent(EventKind.RESTORE, 100.0, 10.0, amount=30.0), ScenarioEvent(EventKind.SURGE, 10.0, 50.0))
    windows = EventWindows(Scenario(events=events), "local", range(100))
    assert [windows.calm_until(at_s) for at_s in (0.0, 69.0, 80.0, 105.0, 111.0)] == [70.0, 70.0, 80.0, 105.0, 111.0]
    assert windows.calm_until(231.0) == np.inf


def test_events_of_devices_strike_those_alone_and_of_hubs_all() -> None:
    cut = ScenarioEvent(EventKind.PARTITION, 100.0, 10.0, share=0.2)
    elsewhere = ScenarioEvent(EventKind.KILL_HUB, 100.0, 10.0, region="other")
    windows = EventWindows(Scenario(events=(cut, elsewhere)), "local", range(50, 100))
    assert windows.calm_until(100.0) == 110.0  # then they come back all at once
    assert windows.calm_until(231.0) == np.inf
    assert [(each.first, each.last) for each in windows.strikes_between(90.0, 101.0)] == [(50, 60)]
    assert windows.strikes_between(0.0, 99.0) == windows.strikes_between(111.0, 200.0) == []


def test_the_store_that_is_read_for_a_check_is_the_cores_own() -> None:
    core = core_under()
    found = core.on_prediction(
        Prediction(0, 0.1, (0.1,), ""), SampleAttributes("open"), RandomDraws("0" * 32, 0.5), 0.0
    )
    assert isinstance(found[0], Store)
