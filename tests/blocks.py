"""Fenced blocks of the documents. Rule: every block of a program says in its info string what a test does with it.

`python -m tests.blocks` lists the pages and their blocks, each with its mark and the reason of those only shown.

```sh run     executed by `make test`, all blocks of one page in order, in one empty folder
```sh live    the same, but by `make live`: needs a broker, a hub, or seconds of processor time
```sh region  the same, on a PostgreSQL server and a broker that run already (tests/live/regions/test_runbook.py)
```sh drill   the same, once what it restores was destroyed (tests/live/hub/test_backup_drill.py)
```sh dry     make targets: `make -n` must know each
```sh shown   only shown; the words behind `shown` say why it cannot run
"""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests import ROOT

PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
READMES = tuple(
    sorted(
        path
        for top in ("clients", "examples")
        for path in (ROOT / top).glob("**/README.md")
        if "node_modules" not in path.parts
    )
)
LANGUAGES = ("sh", "python")
CLASSIFIED = (*LANGUAGES, "ts")  # languages whose blocks say what a test does with them
MARKS = ("run", "live", "serve", "region", "drill", "dry", "shown")
# Top-level entries of a clone that the README's blocks name or import.
CLONED = (
    "policies",
    "wire",
    "models",
    "edge_agent",
    "cloud_hub",
    "simulations",
    "clients",
    "examples",
    "docs",
    "skerry.py",
)
KEPT = ("LANG", "LC_", "TERM", "TMPDIR", "TZ", "PIP_", "HTTP", "http", "NO_PROXY", "no_proxy")  # of this machine
_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

_INLINE = re.compile(r"`(skerry [^`]+)`")
_NAMED_WORDS = 3  # `skerry`, a command and its sub-command


class Block(NamedTuple):
    language: str
    mark: str
    why: str
    line: int
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [_block(match, text.count("\n", 0, match.start()) + 1) for match in _FENCE.finditer(text)]


def _block(match: re.Match[str], line: int) -> Block:
    words = match[1].split()
    return Block(words[0] if words else "", words[1] if len(words) > 1 else "", " ".join(words[2:]), line, match[2])


def of_mark(page: Path, *marks: str) -> list[Block]:
    return [block for block in blocks(page) if block.language in LANGUAGES and block.mark in marks]


def inline_commands(page: Path) -> list[str]:
    """Commands in a page's text that are meant to be typed: those with arguments, not those that are only named."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return [found for found in _INLINE.findall(text) if len(found.split()) > _NAMED_WORDS]


def command(block: Block, folder: Path) -> list[str]:
    """What runs one block; its text lies in `folder`."""
    script = folder / f"line{block.line}.{'py' if block.language == 'python' else 'sh'}"
    script.write_text(block.text, encoding="utf-8")
    return [*([sys.executable] if block.language == "python" else ["/bin/sh", "-eu"]), str(script)]


def enter(page: Path, folder: Path) -> None:
    """Make `folder` what a reader of the page stands in: the clone for the README, else a folder with nothing in it."""
    if page == ROOT / "README.md":
        for name in CLONED:
            (folder / name).symlink_to(ROOT / name)
        (folder / ".venv").symlink_to(Path(sys.executable).parents[1])


def environment(folder: Path) -> dict[str, str]:
    """As a reader has it: at home in `folder`, the project's environment active, nothing set for Skerry or Python."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return kept | {"PATH": path, "HOME": str(folder)}


def list_unset_variables(block: Block) -> set[str]:
    """Names of variables that a block reads and does not set itself; one with a default (`${NAME:-8090}`) is set."""
    if block.language == "python":
        return set(re.findall(r"os\.(?:environ\[|getenv\(|environ\.get\()[\"'](\w+)[\"'](?!,)", block.text))
    typed = re.sub(r"<<'(\w+)'\n.*?\n\1\n", "\n", block.text, flags=re.DOTALL)
    typed = re.sub(r"'[^'\n]*'", "", typed)
    set_here = {*re.findall(r"(?:^|[\s;(])([A-Za-z_]\w*)=", typed, re.MULTILINE)}
    set_here |= {*re.findall(r"\b(?:for|read|read -r) ([A-Za-z_]\w*)", typed), "HOME", "PWD"}
    return set(re.findall(r"\$\{?([A-Za-z_]\w*)\b(?!:-)", typed)) - set_here


def execute(
    block: Block, folder: Path, timeout_s: float, more: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one block to its end, in `folder`."""
    return subprocess.run(
        command(block, folder),
        cwd=folder,
        env=environment(folder) | (more or {}),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def list_classified() -> Iterator[str]:
    """One line for each block of each page and README, then the totals."""
    found: Counter[str] = Counter()
    pages = (*PAGES, *READMES)
    for page in pages:
        for block in blocks(page):
            if block.language in CLASSIFIED:
                found[block.mark] += 1
                why = f"  {block.why}" if block.why else ""
                yield f"{page.relative_to(ROOT)}:{block.line}  {block.language} {block.mark}{why}"
    totals = ", ".join(f"{mark} {found[mark]}" for mark in MARKS)
    yield f"{len(pages)} pages, {found.total()} blocks: {totals}"


if __name__ == "__main__":
    print(*list_classified(), sep="\n")
