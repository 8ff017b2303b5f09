"""Policy probes: parsing, results, and the shipped templates against their own probes."""

from pathlib import Path

import pytest

import policies
from policies.analysis.probes import ProbeExpectation, ProbesError, parse_probes, run_probe
from policies.language.document import parse_policy
from policies.model.context import date_to_day
from tests.policies.doubles.given import DEMO_POLICY, TODAY

FOLDER = Path(policies.__file__).parent / "templates"
TEMPLATES = ("clinic", "factory", "shop-camera", "telecom-probe", "airgap")
CASE = '[[case]]\nname = "x"\ngiven = { confidence = 0.4, data_class = "open" }\n'


def shipped(name: str) -> list[tuple[str, tuple[str, ...]]]:
    document = parse_policy((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    cases = parse_probes((FOLDER / f"{name}.probes.toml").read_text(encoding="utf-8"))
    day = date_to_day(document.issued)
    return [(case.name, run_probe(document.compile(), case, day).faults) for case in cases]


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_decides_as_its_probes_say(name):
    outcomes = shipped(name)
    assert len(outcomes) >= 5
    assert [each for each in outcomes if each[1]] == []


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_is_probed_both_ways_where_anything_may_leave(name):
    cases = parse_probes((FOLDER / f"{name}.probes.toml").read_text(encoding="utf-8"))
    assert {case.expect.leaves for case in cases} == ({False} if name == "airgap" else {True, False})


def test_a_case_that_comes_out_otherwise_says_in_what():
    (case,) = parse_probes(CASE + 'expect = { leaves = false, why = "denied_label", fields = ["y"], rules = ["z"] }')
    assert run_probe(DEMO_POLICY, case, TODAY).faults == (
        "leaves should be false, is true",
        "why should be denied_label, is unsure",
        "fields should be y, is features",
        "rules should be z, is none",
    )


def test_what_is_not_expected_is_not_judged():
    (case,) = parse_probes(CASE + "expect = { leaves = true }")
    assert case.expect == ProbeExpectation(leaves=True)
    assert run_probe(DEMO_POLICY, case, TODAY).faults == ()


def test_a_case_starts_from_the_file_and_may_forget_what_that_knows():
    head = '[given]\nconfidence = 0.9\ndata_class = "open"\nregion = "eu"\n'
    case = '[[case]]\nname = "x"\nunknown = ["region"]\ngiven = { confidence = 0.1 }\nexpect = { leaves = true }'
    (probe,) = parse_probes(head + case)
    assert (probe.facts.confidence, probe.facts.region) == (0.1, "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("case = [", "not TOML"),
        ("", "case"),
        ("case = []", "0 cases"),
        (CASE + "expect = { leave = true }", "leave"),
        (CASE + "expect = { leaves = true }\nwhy = 1", "why"),
        (CASE.replace("confidence", "confidense") + "expect = { leaves = true }", "case 'x': unknown key 'confidense'"),
    ],
    ids=["toml", "empty", "none", "misspelt", "unknown", "facts"],
)
def test_a_probes_file_that_is_none_is_one_line(text, says):
    with pytest.raises(ProbesError, match=says):
        parse_probes(text)
