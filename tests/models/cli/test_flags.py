"""Tests of flags as one dataclass: what typer sees, and which specification the forge gets."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from models.cli.flags import accepts_flags
from models.cli.forge import ForgeFlags
from models.forge.spec import Effort, ForgeSpec


@dataclass(frozen=True)
class Flags:
    word: Annotated[str, typer.Argument(help="Said.")]
    times: Annotated[int, typer.Option(min=1, help="How often.")] = 2


def test_a_dataclass_becomes_the_flags_of_a_command():
    app = typer.Typer()

    @app.command()
    @accepts_flags(Flags)
    def say(flags: Flags) -> None:
        """Says a word."""
        typer.echo(flags.word * flags.times)

    assert CliRunner().invoke(app, ["ho"]).output == "hoho\n"
    assert CliRunner().invoke(app, ["ho", "--times", "3"]).output == "hohoho\n"
    assert CliRunner().invoke(app, ["ho", "--times", "0"]).exit_code == 2
    assert CliRunner().invoke(app, []).exit_code == 2
    assert "Says a word." in CliRunner().invoke(app, ["--help"]).output


def test_every_field_of_a_wish_has_a_flag_with_the_same_default_and_no_other_decides_content():
    known = {field.name: field.default for field in fields(ForgeFlags)}
    flags = {"preparation": "input"}  # where the flag names a file, whose content is the wish
    for field in fields(ForgeSpec):
        if field.name in flags:
            assert known[flags[field.name]] is None
            continue
        assert field.name in known, field.name
        if field.name not in {"name", "threads"}:
            assert known[field.name] == field.default, field.name


@pytest.mark.parametrize(
    ("folder", "name"),
    [("digits-3", "digits"), ("my model v2", "my-model"), ("a/b/Fashion_1", "fashion_1"), ("7", "7"), ("___", "model")],
)
def test_a_model_without_a_name_is_called_like_its_folder(folder, name):
    assert ForgeFlags("m:f", "m:g", Path("/x") / folder).forge_spec.name == name


def test_what_is_typed_reaches_the_wish(tmp_path, monkeypatch):
    flags = ForgeFlags("m:f", "m:g", tmp_path, name="n", max_bytes=9, effort=Effort.QUICK, threads=3)
    assert (flags.forge_spec.name, flags.forge_spec.max_bytes, flags.forge_spec.effort, flags.forge_spec.threads) == (
        "n",
        9,
        Effort.QUICK,
        3,
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert flags.cache_folder == tmp_path / "skerry" / "forge"
    assert ForgeFlags("m:f", "m:g", tmp_path, no_cache=True).cache_folder is None
    assert ForgeFlags("m:f", "m:g", tmp_path, cache=Path("c")).cache_folder == Path("c")
