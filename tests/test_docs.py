"""What the documents say is tried: blocks run, links lead somewhere, tables agree with the code."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from tests import ROOT
from tests.blocks import LANGUAGES, MARKS, PAGES, blocks, execute, of_mark
from wire.process.exit_codes import ExitCode

ALL_PAGES = (*PAGES, *sorted((ROOT / "docs" / "adr").glob("*.md")), ROOT / "CHANGELOG.md")
HEAVY = {"engines.md"}  # starts whole gangs of ranks: 40 seconds of processor time
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def by_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_shell_and_python_block_says_how_it_is_tested(page):
    unmarked = [b.line for b in blocks(page) if b.language in LANGUAGES and b.mark not in MARKS]
    unexplained = [b.line for b in blocks(page) if b.mark == "shown" and not b.why]
    assert not unmarked, f"lines {unmarked}: add run, live, dry or shown"
    assert not unexplained, f"lines {unexplained}: say behind `shown` why it cannot run"


def pages_that_run() -> Iterator[ParameterSet]:
    for page in PAGES:
        if of_mark(page, "run"):
            yield pytest.param(page, id=by_name(page), marks=[pytest.mark.heavy] if page.name in HEAVY else [])


@pytest.mark.parametrize("page", list(pages_that_run()))
def test_blocks_marked_run_do_run(page, tmp_path):
    for block in of_mark(page, "run"):
        done = execute(block, tmp_path, timeout_s=60)
        assert done.returncode == 0, f"{page.name}:{block.line}\n{done.stdout}{done.stderr}"


def test_readme_names_only_make_targets_that_exist():
    lines = [line for block in of_mark(ROOT / "README.md", "dry") for line in block.text.splitlines() if line]
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


def test_exit_codes_page_agrees_with_the_code():
    page = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", page, re.MULTILINE)
    assert [(int(code), name) for code, name in listed] == [(code.value, code.name) for code in ExitCode]


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "adr").glob("*.md")), ids=by_name)
def test_a_decision_fits_on_one_page_and_says_what_was_decided(page):
    text = page.read_text(encoding="utf-8")
    assert re.match(rf"# 0*{int(page.name[:4])} · ", text)
    assert "## Decision\n" in text or "**Decided.**" in text
    assert len(text.splitlines()) <= 60


def test_decisions_are_numbered_without_gap():
    numbers = [int(page.name[:4]) for page in sorted((ROOT / "docs" / "adr").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))
