"""docs/simulator.md names every scenario, key, kind of event and figure of the language, and no other."""

import re

from pydantic import BaseModel

from simulations.report.expectations import FAMILIES, FIGURES
from simulations.scenario.schema import (
    EventTable,
    ExpectTable,
    LimitsTable,
    LinkTable,
    LoadTable,
    ModelTable,
    RegionTable,
    RolloutTable,
    ScenarioTable,
)
from simulations.scenario.types import EventKind
from simulations.scenario_files import list_scenarios, load_scenario
from tests import ROOT

PAGE = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
TABLES: dict[str, type[BaseModel]] = {
    "[link]": LinkTable, "[[region]]": RegionTable, "[region.limits]": LimitsTable, "[load]": LoadTable,
    "[model]": ModelTable, "[[event]]": EventTable, "[[expect]]": ExpectTable, "[rollout]": RolloutTable,
}  # fmt: skip
OWN = {"region", "link", "load", "model", "event", "expect", "rollout", "limits"}  # tables have rows of their own


def section(title):
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ")[0]


def rows(title):
    return [line.strip("| ").split(" | ") for line in section(title).splitlines() if line.startswith("| `")]


def named(text):
    return re.findall(r"`([^`]+)`", text)


def keys(table):
    return {info.alias or name for name, info in table.model_fields.items()}


def test_every_shipped_scenario_is_there_with_its_question():
    told = {named(row[0])[0]: row[1] for row in rows("Ask")}
    assert sorted(told) == list_scenarios()
    assert {name: load_scenario(name).question for name in told} == told


def test_every_kind_of_event_is_there_and_no_other():
    assert sorted(named(row[0])[0] for row in rows("What may happen")) == sorted(EventKind)


def test_every_figure_is_there_and_no_other():
    told = [name for row in rows("Figures") for name in named(row[0])]
    exact, families = [n for n in told if "." not in n], {n.partition(".")[0] for n in told if "." in n}
    assert sorted(exact) == sorted(FIGURES)
    assert families == set(FAMILIES)


def test_every_key_is_there():
    told = {row[0]: " ".join(row[1:]) for row in rows("Keys")}
    top = {name for first in told if "[" not in first for name in named(first)}
    assert top == keys(ScenarioTable) - OWN
    for title, table in TABLES.items():
        words = next(text for first, text in told.items() if title in named(first))
        assert keys(table) - OWN - set(named(words)) <= ({"link"} if title != "[[event]]" else set()), title
