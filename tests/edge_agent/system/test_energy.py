"""Energy: what meters tell is believed where it can be, and a stated figure is called one."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.question.limits import LinkEnergy
from edge_agent.system import energy
from edge_agent.system.energy import STATED_LINKS, EnergyMonitor, EnergySettings, LinkKind, MeterKind, PowerLine
from edge_agent.system.energy_meters import BatteryMeter, CardMeter, MeterError, RaplMeter, read_busy_s


def write(folder: Path, **values: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")


class Board:
    """A meter of a machine that takes `idle` watts, and `core` more for each busy core; and its /proc/stat."""

    name = "rapl"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, idle: float = 5.0, core: float = 7.0) -> None:
        self.joules = self.busy_s = self.now = 0.0
        self.broken = ""
        self._watts = (idle, core)
        monkeypatch.setattr(energy, "read_busy_s", lambda: self.busy_s)

    def read_joules(self, now: float) -> float:
        if self.broken:
            raise MeterError(self.broken)
        return self.joules

    def work(self, monitor: EnergyMonitor, *busy_cores: float) -> None:
        for busy in busy_cores:
            self.now += 5.0
            self.busy_s += 5.0 * busy
            self.joules += 5.0 * (self._watts[0] + self._watts[1] * busy)
            monitor.sample_meters(self.now)


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    return Board(monkeypatch)


def test_the_watts_of_a_busy_core_are_told_from_the_idle_power_that_the_machine_takes_anyway(board):
    monitor = EnergyMonitor(EnergySettings(cores=2), [board])
    board.work(monitor, *(0.1, 0.9) * 10)
    facts = monitor.status_fields()["energy"]
    assert facts["source"] == "rapl"
    assert monitor.watts == pytest.approx(14.0)  # inference uses two cores
    assert facts["meters"]["rapl"].startswith("7.00 W")


@pytest.mark.parametrize("busy", [(0.5,) * 40, (0.1, 0.9)])
def test_windows_that_are_equal_or_few_give_no_figure_and_the_stated_one_counts(board, busy):
    monitor = EnergyMonitor(EnergySettings(watts=3.0), [board])
    board.work(monitor, *busy)
    facts = monitor.status_fields()["energy"]
    assert (facts["source"], facts["watts"]) == ("model", 3.0)
    assert "too few or too equal" in facts["meters"]["rapl"]


def test_a_meter_that_falls_silent_says_why_and_its_gap_is_no_window(board):
    monitor = EnergyMonitor(EnergySettings(), [board])
    board.work(monitor, *(0.1, 0.9) * 10)
    board.broken = "no battery is discharging"
    board.work(monitor, 0.5)
    assert monitor.status_fields()["energy"]["meters"]["rapl"] == "no battery is discharging"
    board.broken, board.joules = "", board.joules + 1e6
    board.work(monitor, *(0.1, 0.9) * 3)
    assert monitor.watts == pytest.approx(7.0)


@pytest.mark.parametrize("core", [-3.0, 1e6])
def test_a_slope_that_no_core_can_have_is_not_believed(monkeypatch, core):
    board = Board(monkeypatch, core=core)
    monitor = EnergyMonitor(EnergySettings(watts=3.0), [board])
    board.work(monitor, *(0.1, 0.9) * 20)
    assert monitor.status_fields()["energy"]["source"] == "model"


def test_a_machine_without_proc_stat_says_so(monkeypatch):
    def refuse() -> float:
        raise MeterError("/proc/stat: FileNotFoundError")

    monitor = EnergyMonitor(EnergySettings(), [Board(monkeypatch)])
    monkeypatch.setattr(energy, "read_busy_s", refuse)
    monitor.sample_meters(1.0)
    assert monitor.status_fields()["energy"]["meters"]["rapl"] == "/proc/stat: FileNotFoundError"


def test_what_a_card_takes_comes_on_top_by_the_seconds_of_inference(monkeypatch):
    class Card:
        name = "card"
        joules = 0.0

        def read_joules(self, now: float) -> float:
            return self.joules

    card = Card()
    monitor = EnergyMonitor(EnergySettings(watts=2.0), [card])
    for at in range(30):
        infer_s = 4.0 if at % 2 else 0.5
        monitor.count_answer((), infer_s, 0)
        card.joules += 5.0 * 30 + 60.0 * infer_s
        monitor.sample_meters(5.0 * at)
    assert monitor.watts == pytest.approx(62.0)
    assert monitor.status_fields()["energy"]["source"] == "model+card"


@given(st.lists(st.tuples(st.floats(0, 64), st.floats(0, 1000)), max_size=60))
def test_any_windows_give_a_slope_that_can_be_used_or_none(windows):
    line = PowerLine()
    for use, watts in windows:
        line.add_window(use, watts)
    slope = line.find_slope()
    assert slope is None or (math.isfinite(slope) and slope > 0)


def test_joules_are_counted_by_the_rules_that_applied_and_add_up():
    monitor = EnergyMonitor(EnergySettings(watts=2.0), [])
    monitor.count_answer((), 0.5, 0)
    monitor.count_answer(("night",), 0.5, 40)
    monitor.count_answer(("night", "ward"), 1.0, 0)
    facts = monitor.status_fields()["energy"]
    assert facts["by_rule"] == {"base": 1.0, "night": 1.04, "night+ward": 2.0}
    assert facts["inference_j"] + facts["questions_j"] == pytest.approx(sum(facts["by_rule"].values()))


def test_a_thousand_sets_of_rules_do_not_grow_the_status():
    monitor = EnergyMonitor(EnergySettings(), [])
    for at in range(1000):
        monitor.count_answer((f"r{at}",), 1.0, 0)
    rules = monitor.status_fields()["energy"]["by_rule"]
    assert len(rules) == 65
    assert sum(rules.values()) == pytest.approx(4000.0)


def test_a_link_that_nobody_named_counts_as_the_dearest():
    assert EnergySettings().link == max(STATED_LINKS.values(), key=lambda each: each.count_mj(700))
    assert EnergySettings().link_kind == LinkKind.UNKNOWN


def test_a_message_is_charged_whole_millijoules_rounded_up():
    assert LinkEnergy(0.04, 2.3).count_mj(700) == 42
    assert LinkEnergy().count_mj(10_000) == 0


# Meters


def test_rapl_counters_of_all_packages_are_added_and_turn_over(tmp_path: Path):
    for package, value in (("intel-rapl:0", 990_000), ("intel-rapl:1", 0)):
        write(tmp_path / package, energy_uj=value, max_energy_range_uj=1_000_000)
    write(tmp_path / "intel-rapl:0:0", energy_uj=5)  # cores, a part of the first package
    meter = RaplMeter(str(tmp_path))
    assert meter.read_joules(0.0) == 0.0
    write(tmp_path / "intel-rapl:0", energy_uj=20_000)
    write(tmp_path / "intel-rapl:1", energy_uj=500_000)
    assert meter.read_joules(5.0) == pytest.approx(0.53)


def test_a_processor_without_counters_is_told(tmp_path: Path):
    with pytest.raises(MeterError, match="no RAPL"):
        RaplMeter(str(tmp_path)).read_joules(0.0)


def test_counters_of_root_alone_name_the_file(tmp_path: Path, monkeypatch):
    write(tmp_path / "intel-rapl:0", energy_uj=1)

    def refuse(*_args: object, **_named: object) -> str:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(MeterError, match=r"energy_uj may be read by root alone"):
        RaplMeter(str(tmp_path)).read_joules(0.0)


@pytest.mark.parametrize(
    "values", [{"power_now": 3_000_000}, {"current_now": 600_000, "voltage_now": 5_000_000}, {"power_now": -3_000_000}]
)
def test_what_a_battery_gives_is_added_up_while_it_discharges(tmp_path: Path, values):
    write(tmp_path / "BAT0", status="Discharging", **values)
    meter = BatteryMeter(str(tmp_path))
    assert meter.read_joules(100.0) == 0.0
    assert meter.read_joules(110.0) == pytest.approx(30.0)
    write(tmp_path / "BAT0", status="Charging")
    with pytest.raises(MeterError, match="no battery is discharging"):
        meter.read_joules(120.0)
    write(tmp_path / "BAT0", status="Discharging")
    assert meter.read_joules(500.0) == pytest.approx(30.0)  # what it charged with is nobody's


def test_a_battery_that_tells_no_power_is_told(tmp_path: Path):
    write(tmp_path / "BAT0", status="Discharging", power_now="?")
    with pytest.raises(MeterError, match="current_now cannot be read"):
        BatteryMeter(str(tmp_path)).read_joules(0.0)


def test_a_machine_without_cards_or_their_driver_says_what_to_do():
    with pytest.raises(MeterError, match=r"pip install nvidia-ml-py|no card tells"):
        CardMeter().read_joules(0.0)


def test_the_busy_seconds_of_the_cores_leave_idle_out(tmp_path: Path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 50 9000 800 0 50 0 7 0\ncpu0 1 1 1\n")
    assert read_busy_s(stat) == pytest.approx(200 / 100)
    for junk in ("junk\n", "cpu a b\n"):
        stat.write_text(junk)
        with pytest.raises(MeterError, match=r"IndexError|ValueError"):
            read_busy_s(stat)


def test_every_meter_that_can_be_configured_is_there():
    assert set(energy._METERS) == set(MeterKind)
