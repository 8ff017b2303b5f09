"""The faults that are planted: they compile, differ from what is there, and leave words and annotations alone."""

import pytest

from tests.mutation.mutants import choose_mutants, choose_share, list_mutants
from tests.mutation.scope import folder_of_tests, list_files

CODE = '''
"""A module."""
LIMIT: int = 3
TAG = b"tag"

def decide(value: int, most: int = LIMIT) -> bool:
    """Words."""
    if value > most and value:
        return False
    if not value:
        raise ValueError(f"{value} is not {LIMIT + 1}")
    self.count += 1
    return min(value, most) == 2
'''


def test_every_fault_is_one_a_person_could_make_and_is_named_by_where_and_what():
    found = {mutant.identity.partition(": ")[2] for mutant in list_mutants("a.py", CODE)}
    assert found == {
        "3 -> 4",
        "b\"tag\" -> b'tagx'",
        "value > most and value -> (value > most) or (value)",
        "value > most and value -> ((value))",
        "value > most and value -> ((value > most))",
        "value > most and value -> False",
        "value > most -> value >= most",
        "False -> True",
        "not value -> False",
        "not value -> bool(value)",
        "self.count += 1 -> pass",
        "1 -> 2",
        "min(value, most) == 2 -> min(value, most) != 2",
        "min(value, most) -> max(value, most)",
        "2 -> 3",
    }


def test_a_fault_knows_whether_its_place_is_run_at_import():
    at_import = {mutant.before for mutant in list_mutants("a.py", CODE) if mutant.at_import}
    assert at_import == {"3", 'b"tag"'}


def test_equal_changes_of_one_function_are_counted_from_the_first():
    twice = [each for each in list_mutants("a.py", "def f():\n    return 1 + g(1)\n") if each.before == "1"]
    assert [(each.identity, each.span.start) for each in twice] == [("a.py f: 1 -> 2", 20), ("a.py f: 1 -> 2 #2", 26)]


def test_a_sample_is_the_same_whatever_changes_elsewhere():
    before, after = list_mutants("a.py", CODE), list_mutants("a.py", "import os\n" + CODE)
    assert [each.draw_number(7) for each in before] == [each.draw_number(7) for each in after]
    assert [each.draw_number(7) for each in before] != [each.draw_number(8) for each in before]


def test_no_fault_comes_into_a_share_of_all_because_other_code_came_or_went():
    other = {"b.py": "def f(a):\n    return " + " + ".join(f"(a > {number})" for number in range(200)) + "\n"}
    alone, beside = choose_share({"a.py": CODE}, 7, 0.5), choose_share({"a.py": CODE} | other, 7, 0.5)
    assert 0 < len(alone) < len(list_mutants("a.py", CODE))
    assert [each for each in beside if each.file == "a.py"] == alone


def test_a_sample_can_be_limited_to_parts_of_the_tree():
    texts = dict.fromkeys(("cloud_hub/a.py", "edge_agent/a.py", "wire/a.py"), CODE)
    everything = choose_mutants(texts, 7, 1000)
    some = choose_mutants(texts, 7, 1000, ["cloud_hub/", "wire/"])
    assert some == [each for each in everything if not each.file.startswith("edge_agent/")] != everything


def test_the_scope_names_files_that_are_there_and_folders_with_tests():
    files = [str(path) for path in list_files()]
    assert any("edge_agent/question/decide.py" in name for name in files)
    assert folder_of_tests("policies/decisions/budget.py") == "tests/policies/decisions"
    assert folder_of_tests("wire/ledger/chain.py") == "tests/wire/ledger"


@pytest.mark.parametrize(
    ("expression", "planted"),
    [
        ("a if a > b else b", False), ("b if a >= b else a", False),
        ("0 if a <= 0 else a if a < b else b", False), ("a if a > b else c", True), ("1 if a > b else 0", True),
    ],
)  # fmt: skip
def test_where_the_greater_of_two_is_written_out_their_equality_is_no_fault(expression, planted):
    found = list_mutants("a.py", f"def f(a, b, c):\n    return {expression}\n")
    assert any(mutant.before.startswith("a >") or mutant.before.startswith("a <") for mutant in found) is planted
