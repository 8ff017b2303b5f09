"""Scenes of `skerry demo --template`: for each shipped policy a hub, three devices, and their samples' data classes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from edge_agent.cli.policy_files import render_template

MAINS: Mapping[str, Any] = {"power_supply": ""}
LOW_BATTERY = 12  # percent
ORDINARY = "ordinary"  # a tag that no rule names: a device without any tag is one whose tags nobody knows
_OPEN_FOR_H = 3


@dataclass(frozen=True)
class DemoDevice:
    """One device: the classes its samples are of, in turn, and `[device]` of its configuration.

    `hard`: it begins with what it is least confident of, so that budgets are spent before the demo ends.
    """

    name: str
    classes: tuple[str, ...]
    device: Mapping[str, Any] = field(default_factory=dict)
    low_battery: bool = False
    hard: bool = False


@dataclass(frozen=True)
class DemoScene:
    """One policy template with its hub and devices. `hub`, `region`: name and region of the demo's hub."""

    template: str
    hub: str
    region: str
    cast: tuple[DemoDevice, ...]


def _device_table(region: str, *tags: str, **more: object) -> dict[str, Any]:
    return {**MAINS, "region": region, "tags": [*tags] or [ORDINARY], "metered": False, **more}


SCENES = {
    "clinic": DemoScene(
        "clinic",
        "clinic-hub",
        "eu-de",
        (
            DemoDevice("monitor-1", ("vitals", "vitals", "device-log"), _device_table("eu-de"), hard=True),
            DemoDevice("scanner-1", ("imaging", "notes"), _device_table("eu-de")),
            DemoDevice("ambulance-1", ("vitals",), _device_table("fr")),
        ),
    ),
    "factory": DemoScene(
        "factory",
        "plant-hub",
        "plant-7",
        (
            DemoDevice("press-1", ("vibration", "recipe"), _device_table("plant-7")),
            DemoDevice("lathe-2", ("surface", "current"), _device_table("plant-7", "secret-line")),
            DemoDevice("robot-3", ("vibration", "operator"), _device_table("plant-7", "maintenance")),
        ),
    ),
    "shop-camera": DemoScene(
        "shop-camera",
        "shop-hub",
        "eu",
        (
            DemoDevice("shelf-1", ("shelf", "face"), _device_table("eu")),
            DemoDevice("queue-1", ("queue", "child"), _device_table("eu")),
            DemoDevice("kiosk-1", ("shelf",), _device_table("eu", metered=True)),
        ),
    ),
    "telecom-probe": DemoScene(
        "telecom-probe",
        "core-nl",
        "nl",
        (
            DemoDevice("mast-1", ("kpi", "spectrum", "signalling"), _device_table("nl")),
            DemoDevice("mast-2", ("kpi",), _device_table("be")),
            DemoDevice("mast-3", ("kpi",), _device_table("nl"), low_battery=True),
        ),
    ),
    "airgap": DemoScene(
        "airgap",
        "hub-1",
        "local",
        (
            DemoDevice("lab-1", ("open", "private"), _device_table("local")),
            DemoDevice("lab-2", ("open",), _device_table("local")),
            DemoDevice("field-1", ("open",), {}),
        ),
    ),
}


def write_scene_policy(scene: DemoScene, folder: Path) -> Path:
    """Write the scene's policy as of today to a file; a shop that would be closed now is opened for these hours."""
    path = folder / f"{scene.template}.toml"
    path.write_text(_open_shop_hours(render_template(scene.template)), encoding="utf-8")
    return path


def _open_shop_hours(text: str) -> str:
    """Move the hours of the rule `closed` so that now is inside: a demo runs at night and on Sundays too."""
    if 'name = "closed"' not in text:
        return text
    now = datetime.now(ZoneInfo("Europe/Berlin"))
    hours = f'from = "{(now.hour - _OPEN_FOR_H) % 24:02d}:00"', f'to = "{(now.hour + _OPEN_FOR_H) % 24:02d}:00"'
    days = 'days = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]'
    for old, new in (('from = "08:00"', hours[0]), ('to = "20:00"', hours[1])):
        text = text.replace(old, new)
    return text.replace('days = ["mon", "tue", "wed", "thu", "fri", "sat"]', days)


def write_low_battery(folder: Path) -> str:
    """Write a folder like the kernel's power_supply, of a device on a nearly empty battery."""
    supply = folder / "power_supply" / "BAT0"
    supply.mkdir(parents=True)
    (supply / "type").write_text("Battery\n", encoding="ascii")
    (supply / "capacity").write_text(f"{LOW_BATTERY}\n", encoding="ascii")
    return str(supply.parent)
