"""Every command of the pages, as it stands there: its own command line takes it, and every default is in its bounds."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

import msgspec
import pytest
import typer

from cloud_hub.runtime.config import HubConfig
from edge_agent.app.config import AgentConfig
from models.cli.forge import ForgeFlags
from models.forge.spec import MAX_THREADS, validate_spec
from skerry import SUBCOMMANDS, Subcommand
from tests import ROOT
from tests.blocks import PAGES, blocks, inline_commands
from tests.test_skerry import suppress_missing

README = ROOT / "README.md"
_END = re.compile(r"\s(?:[|<>&;#]|\d>).*")
_SUBSTITUTED = re.compile(r"\"?\$\([^)]*\)\"?")


def click_command(name: str, where: Subcommand) -> Any:
    """The sub-command as its own package builds it, with the commands below it."""
    module, _, attribute = where.target.partition(":")
    target = getattr(import_module(module), attribute)
    if not isinstance(target, typer.Typer):
        target, function = typer.Typer(add_completion=False), target
        target.command(name)(function)
    made = typer.main.get_command(target)
    for inner, place in where.nested.items():
        made.commands[inner] = click_command(inner, place)  # type: ignore[attr-defined]
    return made


@cache
def whole_command_line() -> dict[str, Any]:
    return {name: click_command(name, where) for name, where in SUBCOMMANDS.items()}


def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for inner, below in getattr(command, "commands", {}).items():
        yield from walk(f"{name} {inner}", below)


ALL = [pytest.param(c, id=n) for name, command in whole_command_line().items() for n, c in walk(name, command)]


def plain(text: str) -> list[str]:
    """The words of one command: what the shell would replace is one word, what it would redirect is gone."""
    return shlex.split(_END.sub("", _SUBSTITUTED.sub("substituted", text)))


def commands_of(page: Any) -> Iterator[tuple[str, list[str]]]:
    """Commands of a page's shell blocks; of the README's text too, where each is meant to be typed."""
    for block in blocks(page):
        if block.language == "sh":
            lines = block.text.replace("\\\n", " ").replace(".venv/bin/skerry", "skerry").splitlines()
            yield from ((line.strip(), plain(line.strip())) for line in lines if line.strip().startswith("skerry "))
    if page == README:
        yield from ((found, plain(found)) for found in inline_commands(page))


def parse(command: Any, name: str, words: list[str]) -> None:
    """Read the words as the command line would, down to the last sub-command, and run nothing."""
    with suppress_missing(), command.make_context(name, list(words)) as context:
        if not hasattr(command, "commands"):
            return
        if not context._protected_args and command.invoke_without_command:
            return
        rest = [*context._protected_args, *context.args]
        inner, below, left = command.resolve_command(context, rest)
        parse(below, inner, left)


EVERY = [pytest.param(words, id=said) for page in PAGES for said, words in commands_of(page)]


@pytest.mark.parametrize("words", EVERY)
def test_a_command_of_the_pages_is_taken_as_it_stands(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if words[1].startswith("-"):
        assert words[1] in {"--help", "--version"}
        return
    if "--help" not in words:
        parse(whole_command_line()[words[1]], words[1], words[2:])


def test_the_readme_names_commands_with_their_arguments():
    assert {words[1] for _, words in commands_of(README)} >= {"models", "policy", "sim"}


@pytest.mark.parametrize("command", ALL)
def test_a_default_is_inside_the_bounds_of_its_own_option(command):
    with command.context_class(command, info_name="skerry") as context:
        for option in command.params:
            default = option.get_default(context)
            if default is not None and not option.required:
                with suppress_missing():
                    option.process_value(context, default)


def test_the_forge_takes_its_own_defaults_on_a_machine_of_any_size(tmp_path, monkeypatch):
    for processors in (1, MAX_THREADS, 4 * MAX_THREADS):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, count=processors: set(range(count)))
        spec = ForgeFlags("m:f", "m:g", tmp_path).forge_spec
        validate_spec(spec)
        assert spec.threads == min(processors, MAX_THREADS)


def test_a_configuration_key_has_a_default_inside_its_own_bounds():
    HubConfig.model_validate(HubConfig().model_dump(by_alias=True))
    config = AgentConfig(bundle="b")
    assert msgspec.convert(msgspec.to_builtins(config), AgentConfig) == config


_INSTALL = re.compile(r"pip install ((?:[^\n`&;]|\n(?!\n))*)")
_OF_THE_TREE = re.compile(r"\.(?:\[[a-z,]+\])?|(?:\./)?clients/python|PATH_OF_THE_CLONE")
_TELLING = (
    *PAGES,
    *(ROOT / "docs" / "adr").glob("*.md"),
    *(ROOT / "clients").glob("*/README.md"),
    *(ROOT / "examples").rglob("*.md"),
    *(
        path
        for name in ("edge_agent", "cloud_hub", "models", "simulations", "wire")
        for path in (ROOT / name).rglob("*.py")
    ),
)


def find_replacing_installs(text: str) -> list[str]:
    """Commands by which pip would put a copy of this tree in place of the editable install of a clone."""
    found = []
    for match in _INSTALL.finditer(text):
        words = re.sub(r"[\"']", " ", match[1]).split()
        for before, word in zip(["", *words], words, strict=False):
            if _OF_THE_TREE.fullmatch(word) and before not in {"-e", "--editable"}:
                found.append(match[0])
    return found


def test_what_is_told_to_be_installed_of_this_tree_stays_editable():
    told = {str(path.relative_to(ROOT)): find_replacing_installs(path.read_text(encoding="utf-8")) for path in _TELLING}
    assert not {name: found for name, found in told.items() if found}
    seen = [path for path in _TELLING if "pip install" in path.read_text(encoding="utf-8")]
    assert len(seen) > 5


@pytest.mark.parametrize("told", ["pip install '.[hf]'", "pip install --no-deps\n.", "pip install ./clients/python"])
def test_an_install_that_would_replace_the_clones_own_is_found(told):
    assert find_replacing_installs(f"type `{told}`, then go on")
