"""Policy context of a device: battery, link cost, local time, and what is reported when they cannot be read."""

from math import isnan
from pathlib import Path

import pytest

from edge_agent.system.clock import HubClock
from edge_agent.system.environment import DeviceAttributes, DeviceEnvironment, read_battery
from policies.language.document import parse_policy
from policies.model.reasons import DecisionReason, Denied
from policies.model.terms import resolve_terms
from tests.edge_agent.doubles.hub_double import DEFAULTS, POLICY

SATURDAY_2230_UTC = 1_795_300_200_000 // 86_400_000 * 86_400_000 + (22 * 60 + 30) * 60_000


def clock(at_ms: int, *, heard: bool = True) -> HubClock:
    made = HubClock(at_ms, lambda: 0.0, lambda: at_ms)
    if heard:
        made.on_hello_sent()
        made.on_signed_time(at_ms, welcome=True)
    return made


def supply(folder: Path, name: str, **files: str) -> None:
    (folder / name).mkdir(parents=True)
    for file, text in files.items():
        (folder / name / file).write_text(text + "\n")


def test_the_least_of_several_batteries_counts_and_mains_beats_them(tmp_path: Path):
    supply(tmp_path, "BAT0", type="Battery", capacity="81")
    supply(tmp_path, "BAT1", type="Battery", capacity="17")
    supply(tmp_path, "AC", type="Mains", online="0")
    assert read_battery(str(tmp_path)) == 0.17
    (tmp_path / "AC" / "online").write_text("1")
    assert read_battery(str(tmp_path)) == 1.0


def test_without_a_battery_to_ask_nothing_is_known_and_a_device_on_mains_says_so(tmp_path: Path):
    assert read_battery(str(tmp_path / "absent")) is None
    assert read_battery(str(tmp_path)) is None
    assert read_battery("") == 1.0


@pytest.mark.parametrize("told", ["", "many", "1e3", "250", "-3"])
def test_a_battery_that_tells_what_cannot_be_denies(tmp_path: Path, told: str):
    supply(tmp_path, "BAT0", type="Battery", capacity=told)
    found = read_battery(str(tmp_path))
    assert found is not None
    assert isnan(found) or not 0 <= found <= 1
    rules = parse_policy(
        POLICY.format(**DEFAULTS) + '[[rule]]\nname = "low"\nwhen = { battery_below = 0.2 }\ndeny = true\n'
    )
    context = DeviceEnvironment(DeviceAttributes(power_supply=str(tmp_path)), clock(SATURDAY_2230_UTC)).read_context(())
    denied = resolve_terms(rules.compile(), context)
    assert isinstance(denied, Denied)
    assert denied.why is DecisionReason.DENIED_POLICY_ERROR


@pytest.mark.parametrize(("text", "said"), [("yes\n", True), ("NO", False), ("1", True), ("perhaps", None), ("", None)])
def test_whether_the_link_is_metered_is_read_from_a_file(tmp_path: Path, text: str, said: bool | None):
    (tmp_path / "metered").write_text(text)
    around = DeviceEnvironment(DeviceAttributes(metered_file=str(tmp_path / "metered")), clock(SATURDAY_2230_UTC))
    assert around.read_context(()).metered is said


def test_local_time_is_hub_time_in_each_zone_that_rules_name():
    around = DeviceEnvironment(DeviceAttributes(), clock(SATURDAY_2230_UTC))
    found = around.read_context(("Europe/Berlin", "Asia/Kolkata", "Middle/Nowhere")).minute_of_week
    day = (SATURDAY_2230_UTC // 86_400_000 + 3) % 7
    assert found["UTC"] == day * 1440 + 22 * 60 + 30
    assert (found["Europe/Berlin"] - found["UTC"]) % 10_080 == 60
    assert (found["Asia/Kolkata"] - found["UTC"]) % 10_080 == 330
    assert "Middle/Nowhere" not in found


def test_a_clock_that_no_hub_has_set_tells_no_hour():
    around = DeviceEnvironment(DeviceAttributes(), clock(SATURDAY_2230_UTC, heard=False))
    assert not around.read_context(("Europe/Berlin",)).minute_of_week
