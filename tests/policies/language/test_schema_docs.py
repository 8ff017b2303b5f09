"""docs/policies.md documents the whole language: each key with its narrower side, each mode, level and transform."""

import re
from pathlib import Path

from pydantic import BaseModel

import policies
from policies.decisions.egress import REDACTION_PATTERNS
from policies.language.document import parse_policy
from policies.language.schema import (
    BudgetSection,
    EgressSection,
    EscalationSection,
    LocalitySection,
    NoiseSection,
    PrivacySection,
    RetentionSection,
    RuleCase,
    RuleTable,
)
from policies.model.policy import EscalationMode, TransformKind
from policies.model.reasons import DecisionReason
from tests import ROOT
from wire.protocol.messages import SensitivityLevel

PAGE = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
TEMPLATES = Path(policies.__file__).parent / "templates"
BLOCKS = [block.split("```")[0] for block in PAGE.split("```toml\n")[1:]]
TABLES: dict[str, type[BaseModel]] = {
    "escalation": EscalationSection,
    "egress": EgressSection,
    "locality": LocalitySection,
    "budget": BudgetSection,
    "privacy": PrivacySection,
    "dp": NoiseSection,
    "retention": RetentionSection,
}


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}", 1)[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]


def named(text: str) -> set[str]:
    """Keys in the first column, where several share a row."""
    return {key for row in rows(text) for key in re.findall(r"`([^`]+)`", row[0])}


def lines(text: str) -> list[str]:
    """Without comments and layout."""
    return [line.split("#")[0].strip() for line in text.splitlines() if line.split("#")[0].strip()]


def test_the_page_shows_a_sound_document():
    assert parse_policy(BLOCKS[0]).compile().name == "clinic"


def test_what_the_page_shows_of_a_template_stands_in_that_template():
    shown = 0
    for name in ("clinic", "factory", "shop-camera", "telecom-probe"):
        known = lines((TEMPLATES / f"{name}.toml").read_text(encoding="utf-8"))
        for block in section(f"{name}:").split("```toml\n")[1:]:
            assert [line for line in lines(block.split("```")[0]) if line not in known] == []
            shown += 1
    assert shown >= 5


def test_the_page_says_of_every_key_which_direction_is_narrower():
    text = section("Every key")
    plain = {"schema", "name", "version", "layer", "issued", "expires", "clears_notice"}
    of_tables = {f"{table}.{key}" for table, model in TABLES.items() for key in model.model_fields}
    of_rules = {"fields", "drop", "transforms", "deny"}
    assert named(text) == plain | of_tables | of_rules
    assert all(len(row) == 3 and row[2].strip() for row in rows(text))


def test_the_page_names_every_key_of_a_rule():
    text = section("Every key")
    assert [key for key in RuleTable.model_fields if f"`{key}`" not in text] == []


def test_the_page_names_every_condition_and_what_its_unknown_is():
    text = section("Conditions")
    assert named(text) == set(RuleCase.model_fields)
    assert all(len(row) == 3 and row[2].strip() for row in rows(text))


def test_the_page_names_every_mode_level_transform_pattern_and_denial():
    denials = [why for why in DecisionReason if why.startswith("denied_")]
    for word in (*EscalationMode, *SensitivityLevel.__members__, *TransformKind, *REDACTION_PATTERNS, *denials):
        assert f"`{word}`" in PAGE, word


def test_the_page_states_what_the_promises_do_not_cover():
    for words in ("decision to ask is not covered by epsilon", "guarantee is per period", "tamper-evidence, not"):
        assert words in PAGE
