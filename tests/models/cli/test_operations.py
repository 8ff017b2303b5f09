"""The page of operations is what the command prints, and what the tables hold."""

import json
from pathlib import Path

from typer.testing import CliRunner

from models.cli.models import app
from models.cli.operations import format_operations_page
from models.graph.aten_operations import ALLOWED_OPERATIONS, OPERATIONS_PAGE

ROOT = Path(__file__).parents[3]


def test_the_page_is_what_the_command_prints():
    found = CliRunner().invoke(app, ["operations"])
    assert found.exit_code == 0
    page = (ROOT / OPERATIONS_PAGE).read_text(encoding="utf-8")
    assert found.stdout == page, f"skerry models operations > {OPERATIONS_PAGE}"


def test_as_json_it_has_the_tables_of_the_page():
    found = json.loads(CliRunner().invoke(app, ["operations", "--json"]).stdout)
    assert set(found) == {"hub", "refused", "divided"}
    named = {name for table in found.values() for names in table.values() for name in names}
    assert {name for name in named if f"`{name}`" not in format_operations_page()} == set()
    assert {name for names in found["divided"].values() for name in names} < named


def test_every_operation_that_runs_stands_on_the_page():
    page = format_operations_page()
    named = {name.removeprefix("aten.").removesuffix(".default") for name in ALLOWED_OPERATIONS}
    assert [name for name in named if f"`{name}`" not in page] == []
