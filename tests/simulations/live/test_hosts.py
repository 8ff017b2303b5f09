"""Processes of a live run's agents: how many, what they are given, and the end of one that nobody told to end."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from simulations.live.fleet.messages import HostRecords, HostSettings
from simulations.live.hosts import AgentProcesses, check_descriptors, choose_processes, list_settings
from simulations.scenario.conditions import EnvironmentConditions
from simulations.scenario.schema import ScenarioError
from simulations.scenario.types import EventKind, Load, LoadKind, Scenario, ScenarioEvent, TraceRow
from simulations.scenario_files import list_scenarios, load_scenario
from wire.process.exit_codes import ExitCode, ExitError


def make_settings(folder: Path, scenario: Scenario, processes: int = 1) -> HostSettings:
    return HostSettings(
        scenario=scenario, index=0, processes=processes, hub_config="hub.toml", url="http://127.0.0.1:9",
        ports=(1,) * scenario.devices, folder=str(folder), bundle="bundle", samples="s.npz", pulse_s=1.0, ask_s=60.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("devices", "wanted", "cores", "chosen"),
    [
        (1, None, 8, 1),
        (500, None, 8, 1),
        (501, None, 8, 2),
        (8000, None, 2, 2),
        (8000, None, 1, 1),
        (20, 2, 1, 2),
        (3, 8, 8, 3),
    ],
)
def test_a_process_for_every_500_agents_and_no_more_than_cores_unless_asked(
    devices: int, wanted: int | None, cores: int, chosen: int
):
    assert choose_processes(devices, wanted, cores) == chosen


def test_too_few_descriptors_are_one_line_that_says_how_many_processes_suffice():
    check_descriptors(9750, 2, 20_000)
    with pytest.raises(ScenarioError, match=r"open files \(4096\) of 2 processes suffice for 1798, of 9 they"):
        check_descriptors(8000, 2, 4096)
    with pytest.raises(ScenarioError, match=r"suffice for 0$"):
        check_descriptors(1, 1, 256)


def test_every_device_is_in_one_process_and_they_differ_by_one_at_most(tmp_path: Path):
    settings = list_settings(make_settings(tmp_path, Scenario(devices=10), 3))
    assert sorted(number for each in settings for number in each.numbers) == list(range(10))
    assert {len(each.numbers) for each in settings} == {3, 4}
    assert len({each.records_file for each in settings}) == 3


@pytest.mark.parametrize("name", [*list_scenarios(), ""])
def test_a_process_gets_the_very_scenario(name: str, tmp_path: Path):
    events = (
        ScenarioEvent(EventKind.WEATHER, 1.0, 2.0, climate=EnvironmentConditions()),
        ScenarioEvent(EventKind.KILL_AGENTS, 1.0, 2.0, share=0.3),
    )
    load = Load(LoadKind.TRACE, trace=(TraceRow(0.0, 10.0), TraceRow(5.0, 0.0)))
    told = make_settings(tmp_path, load_scenario(name) if name else Scenario(devices=7, load=load, events=events))
    assert msgspec.json.decode(msgspec.json.encode(told), type=HostSettings) == told


@pytest.mark.further
async def test_a_process_that_ends_untold_ends_the_run_with_what_it_said(tmp_path: Path):
    """Its bundle does not exist."""
    crew = AgentProcesses([make_settings(tmp_path, Scenario(devices=2))])
    with pytest.raises(ExitError, match=r"a process of the live run's agents has ended: .*bundle") as stop:
        await asyncio.wait_for(crew.enrol(2), 120)
    assert stop.value.code is ExitCode.INTERNAL
    await crew.stop()
    assert crew.pids == []


def test_records_of_several_processes_are_one(tmp_path: Path):
    crew = AgentProcesses([])
    told: list[dict[str, Any]] = [
        {"counts": {"sent": 1}, "load": {}, "arrivals": {0: 2, 1: 1}, "truth": {"a": 1}},
        {"counts": {"sent": 2, "asks": 1}, "load": {"disabled": 3}, "arrivals": {1: 4}, "truth": {"b": 2}},
    ]
    crew.records = [msgspec.convert(each, HostRecords) for each in told]
    assert crew.counts == {"agent.asks": 1, "agent.sent": 3, "load.disabled": 3}
    assert crew.arrivals == {0: 2, 1: 5}
    assert crew.truth == {"a": 1, "b": 2}
