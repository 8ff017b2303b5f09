"""The command `skerry models text`: what a user types, and one line for each way to be wrong."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from models.bundle.bundle import read_manifest
from models.bundle.manifest import ModelKind
from models.cli.models import app
from tests.live.doubles.texts import write_reports
from wire.process.exit_codes import ExitError

RUNNER = CliRunner()


def run(*words: str) -> str:
    done = RUNNER.invoke(app, ["text", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def template(tmp_path: Path) -> Path:
    (tmp_path / "t.txt").write_text("Which? {text}\n")
    return tmp_path / "t.txt"


@pytest.mark.further
def test_a_csv_becomes_a_version_and_a_version_another(tmp_path: Path, template: Path) -> None:
    source, first, second = write_reports(tmp_path / "r.csv"), tmp_path / "one", tmp_path / "two"
    common = ("--llm", "chat", "--template", str(template))
    told = json.loads(run(str(source), *common, "--out", str(first), "--name", "triage", "--json"))
    assert (told["model"], told["llm"], told["labels"]) == ("triage@1", "chat", ["network", "power", "pump"])
    assert read_manifest(first).kind is ModelKind.TEXT
    assert "triage@2" in run(str(first), *common, "--out", str(second))


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"Which?", "0 times"), (b"{text}{text}", "2 times"), (b"\xff", "UTF-8"), (b"", "0 bytes")],
)
def test_a_template_that_cannot_be_filled_is_one_line(tmp_path: Path, template: Path, content: bytes, why: str) -> None:
    template.write_bytes(content)
    reports = write_reports(tmp_path / "r.csv")
    with pytest.raises(ExitError, match=why):
        run(
            str(reports),
            "--llm",
            "chat",
            "--template",
            str(template),
            "--out",
            str(tmp_path / "out"),
        )


@pytest.mark.further
def test_commands_for_graphs_say_in_one_line_that_there_are_none(tmp_path: Path, template: Path) -> None:
    made = tmp_path / "triage"
    run(str(write_reports(tmp_path / "r.csv")), "--llm", "chat", "--template", str(template), "--out", str(made))
    assert RUNNER.invoke(app, ["verify", str(made)], catch_exceptions=False).exit_code == 0
    with pytest.raises(ExitError, match="asks a language model and has no graphs"):
        RUNNER.invoke(app, ["verify", str(made), "--hub"], catch_exceptions=False)


def test_a_level_that_never_leaves_is_one_line(tmp_path: Path, template: Path) -> None:
    source = write_reports(tmp_path / "r.csv")
    out = ("--out", str(tmp_path / "out"), "--level", "P4")
    with pytest.raises(ExitError, match="never leaves"):
        run(str(source), "--llm", "chat", "--template", str(template), *out)
