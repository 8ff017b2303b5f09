"""Pages of the documentation site that are made when it is built: front page, command line, Python API, decisions.

Rule: a text stands once. README, CHANGELOG and the measured figures keep their place, and what they link to is found
from there and from the site; the command line is read from its typer apps, the API from docstrings.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import typer
import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # simulations too, which no wheel ships
import skerry  # noqa: E402

COPIED = {
    "README.md": "index.md",
    "CHANGELOG.md": "reference/changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/RESULTS.md": "reference/measured.md",
}
# what programs that embed Skerry call
API = {
    "Policies": (
        "policies.language.document",
        "policies.model.policy",
        "policies.decisions.escalation",
        "policies.model.terms",
        "policies.model.context",
    ),
    "Bundles": ("models.bundle.bundle", "models.bundle.manifest", "models.runtime.runner"),
    "The agent": (
        "edge_agent.app.agent",
        "edge_agent.question.records",
        "edge_agent.system.settings",
    ),
    "The hub": ("cloud_hub.engine.base", "cloud_hub.system.client"),
    "The link": ("wire.protocol.messages", "wire.transport.base", "wire.errors"),
}
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]+)(#[^)]*)?\)")
_DIAGRAM = re.compile(r"^```mermaid\nsequenceDiagram\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"^```(sh|python) [^\n]*$", re.MULTILINE)  # how a test runs a block is nothing for a reader


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the decisions, numbered, into the navigation."""
    decisions = sorted((ROOT / "docs" / "adr").glob("*.md"))
    if config.nav is not None:
        explanation = next(part["Explanation"] for part in config.nav if "Explanation" in part)
        explanation.append({"Decisions": [f"adr/{path.name}" for path in decisions]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that have no file below docs/."""
    pages = {target: (ROOT / source).read_text(encoding="utf-8") for source, target in COPIED.items()}
    pages |= {"reference/cli.md": command_line_page(), "reference/api.md": api_page()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Drops the words behind a fence that tell tests what to do with the block, and turns links to the site's pages."""
    origin = {target: source for source, target in COPIED.items()}
    name = page.file.src_uri
    if not name.startswith("reference/") or name in origin:
        markdown = relinked(markdown, origin.get(name, f"docs/{name}"), name)
    return _DIAGRAM.sub(lambda match: sequence_list(match[1]), _MARK.sub(r"```\1", markdown))


def relinked(markdown: str, source: str, target: str) -> str:
    """Links that lead from `source` in the checkout, so that they lead from the page `target`, or as plain text."""

    def turn(match: re.Match[str]) -> str:
        opening, link, anchor = match[1], match[2], match[3] or ""
        if "://" in link:
            return match[0]
        page = _page_of((ROOT / source).parent.joinpath(link).resolve())
        return f"{opening}{'../' * target.count('/')}{page}{anchor})" if page else opening[1:-2]

    return _LINK.sub(turn, markdown)


def sequence_list(diagram: str) -> str:
    """A mermaid sequence diagram as a nested list: the theme would load its renderer from another host."""
    names: dict[str, str] = {}
    lines: list[str] = []
    indent = ""
    for words in map(str.strip, diagram.splitlines()):
        if named := re.fullmatch(r"participant (\w+) as (.+)", words):
            names[named[1]] = named[2].split(" (")[0]
        elif arrow := re.fullmatch(r"(\w+)--?>>(\w+): (.+)", words):
            one, other = names[arrow[1]], names[arrow[2]]
            lines.append(f"{indent}- **{one}**{'' if one == other else f' → **{other}**'}: {arrow[3]}")
        elif branch := re.fullmatch(r"(?:alt|else) (.+)", words):
            lines.append(f"- *if {branch[1]}:*")
            indent = "    "
        elif words == "end":
            indent = ""
    return "\n".join(lines)


def _page_of(path: Path) -> str:
    """Where the site has a file of the checkout; empty if it does not."""
    name = path.relative_to(ROOT).as_posix()
    if name == "docs/adr":
        return f"adr/{min(path.glob('*.md')).name}"
    return COPIED.get(name, name.removeprefix("docs/") if name.startswith("docs/") else "")


# the command line


def command_line_page() -> str:
    """Every command of `skerry` with its help, arguments and options."""
    lines = [
        "# Command line",
        "",
        "What `--help` says of every command, in one page. Exit codes: [a page](../exit-codes.md).",
    ]
    for name, room in skerry.SUBCOMMANDS.items():
        lines += ["", f"## skerry {name}", "", room.help]
        for path, command in [*_commands(name, room), *_guests(name, room)]:
            lines += _described(path, command)
    return "\n".join(lines) + "\n"


def _guests(name: str, room: skerry.Subcommand) -> Iterator[tuple[str, click.Command]]:
    for guest, where in room.nested.items():
        yield from _commands(f"{name} {guest}", where)


def _commands(path: str, room: skerry.Subcommand) -> Iterator[tuple[str, click.Command]]:
    module, _, attribute = room.target.partition(":")
    target = getattr(importlib.import_module(module), attribute)
    if not isinstance(target, typer.Typer):
        function, target = target, typer.Typer()
        target.command()(function)
    yield from _leaves(path, typer.main.get_command(target))


def _leaves(path: str, command: Any) -> Iterator[tuple[str, click.Command]]:
    """Commands that do something: a group only where it can be called alone."""
    below = getattr(command, "commands", None)
    if below is None or command.invoke_without_command:
        yield path, command
    for name, each in (below or {}).items():
        yield from _leaves(f"{path} {name}", each)


def _described(path: str, command: Any) -> Iterator[str]:
    context = command.make_context(path, [], resilient_parsing=True)
    usage = " ".join([f"skerry {path}", *command.collect_usage_pieces(context)])
    yield from ("", f"### skerry {path} {{ #{path.replace(' ', '-')} }}", "", f"```text\n{usage}\n```", "")
    yield _plain(command.help or "")
    rows = [record for each in command.get_params(context) if (record := each.get_help_record(context))]
    if rows:
        yield from ("", "| argument or option | meaning |", "|---|---|")
        yield from (f"| `{_cell(names)}` | {_cell(_plain(meaning))} |" for names, meaning in rows)


def _plain(text: str) -> str:
    """Angle brackets are not HTML here."""
    return inspect.cleandoc(text).replace("<", "&lt;")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# the Python API


def api_page() -> str:
    """One section per topic; mkdocstrings puts the docstrings in."""
    lines = [
        "# Python API",
        "",
        "What programs that embed an agent or a hub call. Signatures and docstrings, from the code.",
    ]
    for title, modules in API.items():
        lines += ["", f"## {title}", ""]
        for module in modules:
            members = ", ".join(_own_members(module))
            lines += [f"::: {module}", f"    options: {{heading_level: 3, members: [{members}]}}", ""]
    return "\n".join(lines) + "\n"


def _own_members(module: str) -> list[str]:
    """Public classes and functions that `module` defines; what it re-exports stands where it is defined."""
    found = vars(importlib.import_module(module)).items()
    return [
        name
        for name, each in found
        if not name.startswith("_")
        and (inspect.isclass(each) or inspect.isfunction(each))
        and each.__module__ == module
    ]
