"""The faults that are planted: they compile, differ from what is there, and leave words and annotations alone."""

from tests.mutation.mutants import list_mutants
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


def test_a_sample_is_the_same_whatever_changes_elsewhere():
    before, after = list_mutants("a.py", CODE), list_mutants("a.py", "import os\n" + CODE)
    assert [each.rank(7) for each in before] == [each.rank(7) for each in after]
    assert [each.rank(7) for each in before] != [each.rank(8) for each in before]


def test_the_scope_names_files_that_are_there_and_folders_with_tests():
    files = [str(path) for path in list_files()]
    assert any("edge_agent/core/delivery.py" in name for name in files)
    assert folder_of_tests("policies/decisions/budget.py") == "tests/policies/decisions"
    assert folder_of_tests("wire/ledger/chain.py") == "tests/wire/ledger"
