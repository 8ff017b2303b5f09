"""The default values that the pages' tables promise are those that the rules have."""

import re
from pathlib import Path

import msgspec
import pytest

from policies.rollout_rules.plan import RolloutRules
from policies.serving.scaling import ScalingRules
from tests import ROOT

TABLES: dict[tuple[str, str], msgspec.Struct] = {
    ("docs/rollout.md", "| name | default | |"): RolloutRules(),
    ("docs/scaling.md", "| key of `[scaling.models.NAME]` | default | what it says |"): ScalingRules(),
}


def read_defaults(page: Path, heading: str) -> dict[str, str]:
    """Documented default by name, of the table with this heading; what a text says in brackets, `name` (200), too."""
    _, _, rest = page.read_text(encoding="utf-8").partition(f"{heading}\n")
    found: dict[str, str] = {}
    for line in rest.splitlines()[1:]:
        if not line.startswith("|"):
            break
        names, values, says = (cell.strip() for cell in line.split("|")[1:4])
        listed = re.findall(r"`([^`]+)`", names)
        found |= dict(zip(listed, values.split(", "), strict=True))
        found |= dict(re.findall(r"`(\w+)` \(([\d.]+)\)", says))
    return found


@pytest.mark.parametrize("page", TABLES, ids=[page for page, _ in TABLES])
def test_a_default_on_a_page_is_the_one_in_force(page):
    rules, checked = TABLES[page], 0
    for name, shown in read_defaults(ROOT / page[0], page[1]).items():
        value: object = rules
        for part in name.split("."):
            value = getattr(value, part)
        if re.fullmatch(r"[\d.]+", shown):
            assert value == float(shown), name
            checked += 1
        elif shown in {"true", "false"}:
            assert value is (shown == "true"), name
        else:
            assert shown in {"by size", "-"}, name
            assert not value, name  # decided when the rollout is made
    assert checked >= 10


def test_every_parameter_of_a_replica_count_is_on_its_page():
    ((page, heading),) = [each for each in TABLES if each[0] == "docs/scaling.md"]
    assert set(read_defaults(ROOT / page, heading)) == set(ScalingRules.__struct_fields__)
