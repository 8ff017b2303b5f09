"""The layout figures, counted on a small tree whose figures can be counted by hand."""

import json

import pytest

from benchmarks.harness.layout import main, measure_layout

PROJECT = """
[[tool.importlinter.contracts]]
name = "pure modules touch no I/O"
source_modules = ["wire.coding"]
"""
CODEC = '''"""Bytes."""

import models.running


def split_frame():
    return 1


def pad():
    """Fill.
    """
    return 2
'''
RUNNER = """from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from models.forge import report


class Row:
    def __init__(self): ...
    def load_all_rows(self): ...
"""
REPORT = """from ..running import Row as Line


class Row(Line):
    def _run(self): ...


class _Row: ...
"""
TREE = {
    "pyproject.toml": PROJECT,
    "wire/__init__.py": "",
    "wire/coding.py": CODEC,
    "models/__init__.py": '"""What the folder is."""\n',
    "models/py.typed": "",
    "models/running.py": RUNNER,
    "models/forge/__init__.py": "",
    "models/forge/report.py": REPORT,
    "models/echo@3/edge.onnx": "",
    "benchmarks/questions.py": "class Row: ...\n\n\nclass _Row: ...\n" + "\n" * 80,
    "tests/test_row.py": "class Row: ...\nclass Row: ...\n",
}


@pytest.fixture
def checkout(tmp_path):
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_files_and_lines_are_counted_without_package_files(checkout):
    report = measure_layout(checkout)
    assert (report.files, report.median_lines, report.small_files) == (4, 9, 3)
    assert report.lines == 13 + 1 + 9 + 8 + 84


def test_entries_are_modules_and_folders_of_modules(checkout):
    report = measure_layout(checkout)
    assert report.top_entries["models"] == 2  # runner, forge; no data folder
    assert report.files_at_top["models"] == 3  # __init__, py.typed, runner


def test_words_count_functions_of_the_top_level_and_methods_without_dunders(checkout):
    report = measure_layout(checkout)
    assert report.function_words == 1.5  # split_frame, pad
    assert report.method_words == 2.0  # load_all_rows, _run


def test_a_class_name_is_repeated_only_within_its_package(checkout):
    assert measure_layout(checkout).repeated == {"models.Row": 2}


def test_docstrings_are_set_against_code_without_blank_lines(checkout):
    report = measure_layout(checkout)
    assert report.docstrings_per_100["wire"] == report.pure_docstrings_per_100 == 60.0  # 3 lines to 5
    assert report.docstrings_per_100["models"] == 10.0  # 1 to 10


def test_imports_under_type_checking_make_a_cycle(checkout):
    report = measure_layout(checkout)
    assert report.cycles == [["models.forge.report", "models.running"]]
    assert report.both_ways == [("models", "models/forge")]


def test_table_and_json_agree(checkout, capsys):
    assert main([str(checkout)]) == 0
    assert "| product files; median lines; under 60 lines | 4; 9; 3 |" in capsys.readouterr().out
    assert main([str(checkout), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == 4


def test_a_folder_without_the_packages_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path)])
    assert "holds none of wire" in capsys.readouterr().err
