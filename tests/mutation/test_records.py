"""What was recorded of unchanged tests is used again; everything else is recorded anew."""

import subprocess

import pytest
from coverage import CoverageData

from tests.mutation import records
from tests.mutation.mutants import Mutant, Span
from tests.mutation.records import describe_tree


@pytest.fixture
def tree(tmp_path):
    for name in ("hub.py", "tests/test_a.py", "tests/test_b.py", "tests/bench.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return tmp_path


def record(tree):
    found = describe_tree(tree)
    found.names |= {f"{file}::test_{number}" for file in found.files for number in (1, 2)}
    found.failed |= {f"{file}::test_2" for file in found.files}
    return found


def take_over(tree, before):
    now = describe_tree(tree)
    now.add_unchanged(before)
    return now.list_changed(before), now.names, now.failed


def test_an_unchanged_tree_needs_no_run(tree):
    before = record(tree)
    assert take_over(tree, before) == ([], before.names, before.failed)


def test_of_a_changed_test_file_alone_the_tests_are_run_again(tree):
    before = record(tree)
    (tree / "tests/test_a.py").write_text("another")
    names = {"tests/test_b.py::test_1", "tests/test_b.py::test_2"}
    assert take_over(tree, before) == (["tests/test_a.py"], names, {"tests/test_b.py::test_2"})


def test_of_a_test_file_that_is_gone_nothing_is_taken_over(tree):
    before = record(tree)
    (tree / "tests/test_a.py").unlink()
    assert take_over(tree, before)[1] == {"tests/test_b.py::test_1", "tests/test_b.py::test_2"}


@pytest.mark.parametrize("file", ["hub.py", "tests/bench.py"])
def test_after_a_change_of_anything_but_tests_everything_is_run_again(tree, file):
    before = record(tree)
    (tree / file).write_text("another")
    assert take_over(tree, before) == (["tests/test_a.py", "tests/test_b.py"], set(), set())


@pytest.mark.parametrize("at_import", [True, False])
def test_of_what_an_import_runs_the_tests_of_its_folder_and_of_its_whole_package_are_asked(at_import):
    names = {
        f"tests/{file}.py::test_1"
        for file in ("policies/test_defaults", "policies/serving/test_cluster", "wire/test_text")
    }
    constant = Mutant("policies/serving/rounds.py", "", Span(1, 0, 1), "1", "2", at_import)
    found = records.TestMap(CoverageData(no_disk=True), names).find_tests(constant)
    near, above = "tests/policies/serving/test_cluster.py::test_1", "tests/policies/test_defaults.py::test_1"
    assert found == ([near, above] if at_import else [])
