"""Greetings in bulk: what devices at rest leave when their connection is back, beside the full path."""

import msgspec
import pytest

from edge_agent.question.commands import Command, SendHello
from edge_agent.question.decide import EdgeCore
from simulations.nodes.services import CoreClasses
from simulations.regions.run import run_scenario
from simulations.scenario.conditions import EnvironmentConditions
from simulations.scenario.types import Scenario, ScenarioEvent
from tests.simulations.bulk.test_lane import CALM, CUT, KILLED_HUB, both_ways, fleet, kept_of_devices, totals

_SOON = msgspec.structs.replace(CUT, at_s=40.0)
_CUT_OFF = 45  # devices


def seldom(
    *events: ScenarioEvent, climate: EnvironmentConditions = CALM, per_s: float = 0.02, seed: int = 1
) -> Scenario:
    """A fleet that takes so few samples that most of its devices have nothing open when their connection is back."""
    usual = fleet(*events, climate=climate, seed=seed)
    return msgspec.structs.replace(usual, load=msgspec.structs.replace(usual.load, samples_per_s=per_s))


def test_devices_that_were_cut_off_greet_in_bulk_and_leave_what_each_would_have_left() -> None:
    full, lane = both_ways(seldom(_SOON))
    assert lane.counts["bulk.greetings"] > 20  # the others have something open
    assert lane.counts["hub.notes"] == full.counts["hub.notes"] > lane.counts["bulk.greetings"]
    messages = {outcome.counts["air.carried"] - outcome.counts["hub.receipts"] for outcome in (full, lane)}
    assert len(messages) == 1
    assert (full.history, full.states) == (lane.history, lane.states)
    assert totals(full.answers) == totals(lane.answers)


def test_a_welcome_in_bulk_brings_hub_time_as_one_on_the_full_path_does() -> None:
    """No device asks anything, so that all that any of them knows of hub time is by its welcome."""
    silent = seldom(_SOON, per_s=1e-9)
    full, lane = (kept_of_devices(silent, bulk=bulk)[3] for bulk in (False, True))
    greeted = [place for place, offset_s in enumerate(full) if offset_s]
    assert len(greeted) == _CUT_OFF
    assert [place for place, offset_s in enumerate(lane) if offset_s] == greeted
    assert [lane[place] for place in greeted] == pytest.approx([full[place] for place in greeted], abs=0.1)


def test_while_an_event_is_to_come_every_device_greets_itself() -> None:
    later = msgspec.structs.replace(KILLED_HUB, at_s=250.0)
    lane = run_scenario(seldom(_SOON, later), bulk=True)
    assert "bulk.greetings" not in lane.counts
    assert lane.counts["hub.notes"] >= _CUT_OFF


def test_a_core_that_greets_otherwise_is_left_to_the_full_path() -> None:
    class Eager(EdgeCore):
        """Greets each connection twice."""

        def on_link(self, up: bool, now: float, name: str = "") -> list[Command]:
            said = super().on_link(up, now, name)
            return [*said, *(each for each in said if isinstance(each, SendHello))]

    full, lane = (run_scenario(seldom(_SOON), cores=CoreClasses(edge=Eager), bulk=bulk) for bulk in (False, True))
    usual = run_scenario(seldom(_SOON), bulk=True)
    assert lane.counts["hub.notes"] == full.counts["hub.notes"] >= 2 * usual.counts["hub.notes"] - 1
    assert "bulk.greetings" not in lane.counts


def test_a_greeting_that_is_lost_is_repeated_on_the_full_path_until_the_hub_answers() -> None:
    lossy = msgspec.structs.replace(EnvironmentConditions(), loss=0.4, repeats=0.2)
    for seed in (1, 2):
        lane = run_scenario(seldom(_SOON, climate=lossy, seed=seed), bulk=True)
        assert lane.history.ok, lane.history.format_text()
        assert 0 < lane.counts["bulk.greetings"] < 20
        assert (
            lane.counts["hub.notes"] > _CUT_OFF + 10
        )  # each of the cut ones is heard, and hellos again for lost welcomes
        assert lane.states["online"][-1] == lane.devices


def test_a_connection_that_nobody_asked_about_is_up() -> None:
    assert set(run_scenario(seldom(), bulk=True).states["online"]) == {150}
