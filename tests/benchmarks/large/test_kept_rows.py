"""Rows that are kept between runs: taken up by a run of the same code, and by no other."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.harness.figures import Figure
from benchmarks.large import __main__ as command

CODE = "0123456789abcdef"
FIGURE = Figure("step", 1.2, "x", 1.3, terms=("12 ms over 10 ms",))


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(command, "KEPT", tmp_path)
    monkeypatch.setattr(command, "describe_code", lambda: CODE)
    monkeypatch.setattr(command, "ROWS", {"step": lambda _: [FIGURE]})
    return tmp_path / "step.json"


def test_a_row_that_was_measured_before_the_run_was_cut_is_taken_up(kept: Path) -> None:
    assert command._measure_row("step", kept) == 0
    row = command._run_row("step", anew=False)
    assert (row.code, row.figures) == (CODE, (FIGURE,))
    assert row.seconds > 0


def test_a_row_of_other_code_is_not_shown_as_one_of_this(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command._measure_row("step", kept)
    monkeypatch.setattr(command, "describe_code", lambda: f"{CODE} fedcba987654")
    assert command.read_kept_row(kept, command.describe_code()) is None


def test_a_file_of_an_earlier_form_is_measured_anew(kept: Path) -> None:
    kept.write_text(json.dumps([{"name": "step", "value": 1.0}]))
    assert command.read_kept_row(kept, CODE) is None


def test_a_row_whose_process_ends_without_figures_says_how_it_ended(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    (figure,) = command._run_row("step", anew=True).figures
    assert not figure.held
    assert figure.terms == ("its process ended with 1",)


def test_changes_since_the_commit_are_part_of_what_names_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    said = {"rev-parse": f"{CODE}\n", "diff": ""}
    monkeypatch.setattr(command, "_ask_git", lambda verb, *_: said[verb])
    assert command.describe_code() == CODE
    said["diff"] = "-a\n+b\n"
    changed = command.describe_code()
    said["diff"] = "-a\n+c\n"
    assert len({CODE, changed, command.describe_code()}) == 3
