"""Comparison of two made-up checkouts, measured in turns."""

import json

import pytest

from benchmarks.harness.layout_compare import GAUGES, compare_checkouts, main, module_name, order_turns

BEFORE = "print('agent RSS, one small model, API on: 100 MB (aim <= 110 MB: held)')"
AFTER = "print('agent RSS, one small model, API on: 106 MB (aim <= 110 MB: held)')"


@pytest.fixture
def checkouts(tmp_path):
    for name, file, text in (("a", "agent_memory.py", BEFORE), ("b", "agent/memory.py", AFTER)):
        path = tmp_path / name / "benchmarks" / file
        path.parent.mkdir(parents=True)
        path.write_text(text)
        (tmp_path / name / "benchmarks" / "__init__.py").touch()
    return tmp_path / "a", tmp_path / "b"


def test_checkouts_take_turns_to_be_the_first():
    sides = [side for _, side in order_turns(3, GAUGES[:1])]
    assert sides == ["before", "after", "after", "before", "before", "after"]


def test_the_ratio_is_that_of_the_medians(checkouts):
    (found,) = compare_checkouts(checkouts[0], checkouts[1], rounds=2, gauges=GAUGES[:1])
    assert (found.before, found.after, found.ratio, found.held) == ([100.0] * 2, [106.0] * 2, 1.06, False)


def test_a_slower_checkout_ends_with_one(checkouts, capsys):
    words = [*map(str, checkouts), "--rounds", "1", "--only", "agent_memory"]
    assert main([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["ratio"] == 1.06
    assert main([words[0], words[0], *words[2:]]) == 0
    assert "100 MB before, 100 MB after, ratio 1.000 (held)" in capsys.readouterr().out


def test_a_benchmark_is_found_in_any_folder(checkouts):
    assert module_name("agent_memory", checkouts[1]) == "benchmarks.agent.memory"
    with pytest.raises(FileNotFoundError, match="no benchmark round_trip"):
        module_name("round_trip", checkouts[0])


def test_a_benchmark_that_fails_is_shown(checkouts):
    (checkouts[0] / "benchmarks" / "agent_memory.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(RuntimeError, match="nothing_of_this_name"):
        compare_checkouts(checkouts[0], checkouts[1], rounds=1, gauges=GAUGES[:1])
