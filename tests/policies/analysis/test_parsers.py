"""Fuzzing of all parsers of the policy commands: one error of ours, in bounded time."""

import contextlib
import random
import time
from pathlib import Path

import pytest

import policies
from policies.analysis.facts import FactsError, parse_facts
from policies.analysis.probes import ProbesError, parse_probes
from policies.language.document import parse_policy
from policies.model.policy import PolicyError
from tests.policies.doubles.random_policies import EXAMPLES, FIRST

pytestmark = pytest.mark.examples

FOLDER = Path(policies.__file__).parent / "templates"
SLOWEST_S = 2.0  # of the processor, for one text
_PIECES = (
    "[[rule]]", "deny = true", "nan", "inf", "-1", "1e999", '"', "'''", "[", "]", "{", "}", "=", "\n", "\0", "\x7f",
    "é", "when = {}", "unless = {}", "99999999999999999999", "2026-02-30", "0x7f", "true", '"P4"', "[rule.dp]",
    ".", "a.b.c",
)  # fmt: skip


def broken(text: str, dice: random.Random) -> str:
    """Lines left out, doubled, moved; characters changed; pieces of the language where they do not belong."""
    lines = text.splitlines()
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(lines))
        match dice.randrange(5):
            case 0:
                lines.pop(at)
            case 1:
                lines.insert(dice.randrange(len(lines)), lines[at])
            case 2:
                lines[at] = dice.choice(_PIECES)
            case 3:
                place = dice.randint(0, len(lines[at]))
                lines[at] = lines[at][:place] + dice.choice(_PIECES) + lines[at][place:]
            case _:
                place = dice.randint(0, len(lines[at]))
                lines[at] = lines[at][:place] + chr(dice.randrange(0x250)) + lines[at][place + 1 :]
        lines = lines or [""]
    return "\n".join(lines)


def timed(text: str, seed: int, parser: object) -> None:
    began = time.thread_time()
    assert callable(parser)
    with contextlib.suppress(PolicyError, ProbesError):
        parser(text)
    assert time.thread_time() - began < SLOWEST_S, seed


@pytest.mark.parametrize("name", ["clinic", "factory", "shop-camera", "telecom-probe", "airgap"])
def test_a_broken_document_is_a_document_or_one_policy_error(name):
    text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    for seed in range(FIRST, FIRST + EXAMPLES // 5):
        timed(broken(text, random.Random(seed)), seed, parse_policy)


@pytest.mark.parametrize("name", ["clinic", "telecom-probe"])
def test_broken_probes_are_probes_or_one_error(name):
    text = (FOLDER / f"{name}.probes.toml").read_text(encoding="utf-8")
    for seed in range(FIRST, FIRST + EXAMPLES // 5):
        timed(broken(text, random.Random(seed)), seed, parse_probes)


def fault(text: str) -> str:
    """What a person is told; a sound document needs no words."""
    try:
        parse_policy(text)
    except PolicyError as error:
        return str(error)
    return "sound"


def test_an_error_is_one_line_that_a_terminal_can_show():
    text = (FOLDER / "clinic.toml").read_text(encoding="utf-8")
    for seed in range(FIRST, FIRST + EXAMPLES // 5):
        told = fault(broken(text, random.Random(seed)))
        assert 0 < len(told) <= 500
        assert "\n" not in told, seed


@pytest.mark.parametrize("depth", [100, 5000])
def test_a_deeply_nested_document_is_refused_at_once(depth):
    for text in ("a = " + "[" * depth, "a = " + "{a = " * depth, ".".join("a" * depth) + " = 1"):
        with pytest.raises(PolicyError):
            parse_policy(text)
        with pytest.raises(ProbesError):
            parse_probes(text)


KEYS = ("confidence", "data_class", "time", "tags", "fields")


def test_facts_of_broken_probes_raise_facts_error_alone():
    for seed in range(FIRST, FIRST + EXAMPLES // 5):
        dice = random.Random(seed)
        values = {dice.choice(KEYS): dice.choice((*_PIECES, 1.5, None))}
        with contextlib.suppress(FactsError):
            parse_facts({"confidence": 0.5, "data_class": "open", **values})
