"""What the documents say is tried: blocks run, links lead somewhere, tables agree with the code."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from _pytest.mark.structures import ParameterSet
from pydantic import BaseModel

from cloud_hub.runtime.config import HubConfig
from cloud_hub.system import config_base
from edge_agent.api.openapi import list_operations
from edge_agent.app.config import AgentConfig
from models.bundle.preparation import parse_preparation
from models.runtime.runner import EchoRunner
from policies.language.document import PolicyDocument
from tests import ROOT
from tests.blocks import (
    CLASSIFIED,
    LANGUAGES,
    MARKS,
    PAGES,
    READMES,
    Block,
    blocks,
    enter,
    execute,
    list_classified,
    list_unset_variables,
    of_mark,
)
from wire.http.openapi import TokenNeed
from wire.process.config import list_known_keys
from wire.process.exit_codes import ExitCode

ALL_PAGES = (*PAGES, *sorted((ROOT / "docs" / "adr").glob("*.md")), ROOT / "CHANGELOG.md")
FURTHER = {"policies.md"}  # a dozen commands: 3 seconds of processor time
HEAVY = {"engines.md"}  # starts whole gangs of ranks: 40 seconds of processor time
READ_ELSEWHERE = {"simulator.md", "projects.md"}  # tests/simulations reads scenarios and project files
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def by_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [*PAGES, *READMES], ids=by_name)
def test_every_block_of_a_program_says_how_it_is_tested(page):
    unmarked = [b.line for b in blocks(page) if b.language in CLASSIFIED and b.mark not in MARKS]
    unexplained = [b.line for b in blocks(page) if b.mark == "shown" and not b.why]
    assert not unmarked, f"lines {unmarked}: add run, live, dry or shown"
    assert not unexplained, f"lines {unexplained}: say behind `shown` why it cannot run"


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_a_block_needs_no_variable_that_it_does_not_set(page):
    """A reader has none: every block is typed in a terminal where nothing was set for it."""
    unset = {b.line: names for b in blocks(page) if b.language in LANGUAGES and (names := list_unset_variables(b))}
    assert unset == {}


def test_every_block_is_listed_with_its_mark_and_the_totals_add_up():
    *lines, totals = list_classified()
    shown = [line for line in lines if line.split()[2] == "shown"]
    assert all(len(line.split()) > 3 for line in shown), "a block that is only shown says why"
    assert sum(map(int, re.findall(r"(?:run|live|serve|region|drill|dry|shown) (\d+)", totals))) == len(lines)
    assert any(line.startswith("clients/") for line in lines)


def test_a_variable_that_no_block_sets_is_found():
    text = "FOUND=1 OTHER=2\nfor each in a; do echo $each ${FOUND}; done\necho '$QUOTED' ${PORT:-8090}\n"
    assert list_unset_variables(Block("sh", "run", "", 1, text)) == set()
    assert list_unset_variables(Block("sh", "run", "", 1, 'skerry policy check "$ROOT/x"')) == {"ROOT"}
    assert list_unset_variables(Block("python", "run", "", 1, 'Path(os.environ["ROOT"])')) == {"ROOT"}


def pages_that_run() -> Iterator[ParameterSet]:
    for page in PAGES:
        if of_mark(page, "run"):
            marks = {"heavy": HEAVY, "further": FURTHER}
            found = [getattr(pytest.mark, mark) for mark, pages in marks.items() if page.name in pages]
            yield pytest.param(page, id=by_name(page), marks=found)


@pytest.mark.parametrize("page", list(pages_that_run()))
def test_blocks_marked_run_do_run(page, tmp_path):
    enter(page, tmp_path)
    for block in of_mark(page, "run"):
        done = execute(block, tmp_path, timeout_s=400)  # the limit of the test comes first
        assert done.returncode == 0, f"{page.name}:{block.line}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=by_name)
def test_pages_name_only_make_targets_that_exist(page):
    lines = [line for block in of_mark(page, "dry") for line in block.text.splitlines() if line]
    assert {"make demo", "make test"} <= {line.split("#")[0].strip() for line in lines}
    for line in lines:
        dry = line.replace("make ", "make --dry-run ", 1)
        subprocess.run(["/bin/sh", "-euc", dry], cwd=ROOT, check=True, capture_output=True)


def test_readme_runs_something():
    assert of_mark(ROOT / "README.md", "run")


@pytest.mark.parametrize("page", ALL_PAGES, ids=by_name)
def test_links_between_pages_lead_somewhere(page):
    local = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    dead = [link for link in local if not (page.parent / link).exists()]
    assert not dead


def test_every_route_of_the_agent_stands_on_its_page_with_a_curl_command():
    text = "".join(block.text for block in of_mark(ROOT / "docs" / "agent-api.md", "live")).replace("\\\n", " ")
    calls = "\n".join(line for line in text.splitlines() if "curl" in line)
    for operation in list_operations(EchoRunner().manifest, TokenNeed.NEVER):
        path = operation.path.replace("{model}", "digits").replace("{version}", "1")
        path = re.sub(r"\{(id|subject)\}", r"(\\$answer|\\$\\([^)]+\\))", path)
        assert re.search(rf"\$agent{path}(?![\w/])", calls), operation.path


def test_exit_codes_page_agrees_with_the_code():
    page = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", page, re.MULTILINE)
    assert [(int(code), name) for code, name in listed] == [(code.value, code.name) for code in ExitCode]


def known_keys() -> dict[str, set[str]]:
    """Keys of each kind of file, dotted, as they stand in the code."""
    tables = {field.alias or name: _table_of(field.annotation) for name, field in PolicyDocument.model_fields.items()}
    plain = {name for name, table in tables.items() if table is None}
    return {
        "hub": set(config_base.list_known_keys(HubConfig)),
        "agent": set(list_known_keys(AgentConfig)),
        "policy": plain | {f"{name}.{key}" for name, table in tables.items() if table for key in _names(table)},
    }


def _table_of(annotation: Any) -> type[BaseModel] | None:
    """The table behind an annotation such as `list[Table] | None`; None for a plain value."""
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation if issubclass(annotation, BaseModel) else None
    return next(filter(None, map(_table_of, get_args(annotation))), None)


def _names(table: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in table.model_fields.items()}


def test_every_configuration_key_that_a_page_names_exists():
    """As `[api] host`, as SKERRY_HUB_API__PORT, or as a row of the table of a policy's keys."""
    keys = known_keys()
    processes = keys["hub"] | keys["agent"]
    dotted = {(kind, key.replace(".", "__").upper()) for kind in ("hub", "agent") for key in keys[kind]}
    variables = {f"SKERRY_{kind.upper()}_{key}" for kind, key in dotted}
    wrong = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = {f"{table}.{key}" for table, key in re.findall(r"`\[(\w+)\] (\w+)", text)}
        named |= {f"{table}.{key}" for key, table in re.findall(r"`(\w+)`(?: \([^)]*\))? (?:in|of) `\[(\w+)\]`", text)}
        wrong += [(page.name, key) for key in named - processes]
        wrong += [(page.name, name) for name in set(re.findall(r"\bSKERRY_(?:HUB|AGENT)_\w+", text)) - variables]
    assert wrong == []


def test_every_key_of_a_policy_stands_in_the_table_of_its_page():
    page = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    table = page[page.index("| `schema` |") : page.index("| `fields` |")]
    cells = re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
    rows = {key for cell in cells for key in re.findall(r"`([\w.]+)`", cell)}
    keys = known_keys()["policy"]
    assert {key for key in rows if key not in keys} == set()
    assert {key for key in keys if key not in rows and not key.startswith("rule.")} == set()


def test_blocks_of_configuration_have_only_keys_that_exist():
    keys = known_keys()
    tables = {kind: {key.partition(".")[0] for key in found} for kind, found in keys.items()}
    for page in PAGES:
        for block in blocks(page):
            if block.language != "toml" or page.name in READ_ELSEWHERE:
                continue
            text = tomllib.loads(block.text)
            if "input" in text:  # an open table, which its own parser reads
                parse_preparation(text.pop("input"))
            flat = {f"{k}.{i}" for k, v in text.items() if isinstance(v, dict) for i in v}
            flat |= {k for k, v in text.items() if not isinstance(v, dict)}
            fits = [kind for kind in keys if flat <= keys[kind] | (tables[kind] & {"rule", "hub"})]
            assert fits, f"{page.name}:{block.line}: {sorted(flat)}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "adr").glob("*.md")), ids=by_name)
def test_a_decision_fits_on_one_page_and_says_what_was_decided(page):
    text = page.read_text(encoding="utf-8")
    assert re.match(rf"# 0*{int(page.name[:4])} · ", text)
    assert "## Decision\n" in text or "**Decided.**" in text
    assert len(text.splitlines()) <= 60


def test_decisions_are_numbered_without_gap():
    numbers = [int(page.name[:4]) for page in sorted((ROOT / "docs" / "adr").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))


def test_each_attack_names_tests_that_exist():
    text = (ROOT / "docs" / "attacks.md").read_text()
    attacks = re.split(r"^- \*\*", text, flags=re.MULTILINE)[1:]
    assert len(attacks) >= 100
    for attack in attacks:
        lines = re.findall(r"^    - `(\S+)`: (.+)$", attack, re.MULTILINE)
        assert lines, attack
        for file, names in lines:
            found = re.findall(r"^ *(?:async )?def (\w+)", (ROOT / file).read_text(), re.MULTILINE)
            assert set(re.findall(r"`(\w+)`", names)) <= set(found), (file, names)
