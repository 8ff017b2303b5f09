"""Scenes of `skerry demo --template`: for each shipped policy a hub, three devices, and their samples' data classes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from edge_agent.cli.policy_files import template

MAINS: Mapping[str, Any] = {"power_supply": ""}
LOW_BATTERY = 12  # percent
ORDINARY = "ordinary"  # a tag that no rule names: a device without any tag is one whose tags nobody knows
_OPEN_FOR_H = 3


@dataclass(frozen=True)
class Cast:
    """One device: the classes its samples are of, in turn, and `[device]` of its configuration.

    `hard`: it begins with what it is least confident of, so that budgets are spent before the demo ends.
    """

    name: str
    classes: tuple[str, ...]
    device: Mapping[str, Any] = field(default_factory=dict)
    low_battery: bool = False
    hard: bool = False


@dataclass(frozen=True)
class Scene:
    """One policy template with its hub and devices. `hub`, `region`: name and region of the demo's hub."""

    template: str
    hub: str
    region: str
    cast: tuple[Cast, ...]


def _at(region: str, *tags: str, **more: object) -> dict[str, Any]:
    return {**MAINS, "region": region, "tags": [*tags] or [ORDINARY], "metered": False, **more}


SCENES = {
    "clinic": Scene(
        "clinic",
        "clinic-hub",
        "eu-de",
        (
            Cast("monitor-1", ("vitals", "vitals", "device-log"), _at("eu-de"), hard=True),
            Cast("scanner-1", ("imaging", "notes"), _at("eu-de")),
            Cast("ambulance-1", ("vitals",), _at("fr")),
        ),
    ),
    "factory": Scene(
        "factory",
        "plant-hub",
        "plant-7",
        (
            Cast("press-1", ("vibration", "recipe"), _at("plant-7")),
            Cast("lathe-2", ("surface", "current"), _at("plant-7", "secret-line")),
            Cast("robot-3", ("vibration", "operator"), _at("plant-7", "maintenance")),
        ),
    ),
    "shop-camera": Scene(
        "shop-camera",
        "shop-hub",
        "eu",
        (
            Cast("shelf-1", ("shelf", "face"), _at("eu")),
            Cast("queue-1", ("queue", "child"), _at("eu")),
            Cast("kiosk-1", ("shelf",), _at("eu", metered=True)),
        ),
    ),
    "telecom-probe": Scene(
        "telecom-probe",
        "core-nl",
        "nl",
        (
            Cast("mast-1", ("kpi", "spectrum", "signalling"), _at("nl")),
            Cast("mast-2", ("kpi",), _at("be")),
            Cast("mast-3", ("kpi",), _at("nl"), low_battery=True),
        ),
    ),
    "airgap": Scene(
        "airgap",
        "hub-1",
        "local",
        (
            Cast("lab-1", ("open", "private"), _at("local")),
            Cast("lab-2", ("open",), _at("local")),
            Cast("field-1", ("open",), {}),
        ),
    ),
}


def written(scene: Scene, folder: Path) -> Path:
    """Write the scene's policy as of today to a file; a shop that would be closed now is opened for these hours."""
    path = folder / f"{scene.template}.toml"
    path.write_text(_opened(template(scene.template)), encoding="utf-8")
    return path


def _opened(text: str) -> str:
    """Move the hours of the rule `closed` so that now is inside: a demo runs at night and on Sundays too."""
    if 'name = "closed"' not in text:
        return text
    now = datetime.now(ZoneInfo("Europe/Berlin"))
    hours = f'from = "{(now.hour - _OPEN_FOR_H) % 24:02d}:00"', f'to = "{(now.hour + _OPEN_FOR_H) % 24:02d}:00"'
    days = 'days = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]'
    for old, new in (('from = "08:00"', hours[0]), ('to = "20:00"', hours[1])):
        text = text.replace(old, new)
    return text.replace('days = ["mon", "tue", "wed", "thu", "fri", "sat"]', days)


def low_battery(folder: Path) -> str:
    """Write a folder like the kernel's power_supply, of a device on a nearly empty battery."""
    supply = folder / "power_supply" / "BAT0"
    supply.mkdir(parents=True)
    (supply / "type").write_text("Battery\n", encoding="ascii")
    (supply / "capacity").write_text(f"{LOW_BATTERY}\n", encoding="ascii")
    return str(supply.parent)
