"""Fenced blocks of the documents. Rule: every shell or Python block says in its info string what a test does with it.

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
from pathlib import Path
from typing import NamedTuple

from tests import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
LANGUAGES = ("sh", "python")
MARKS = ("run", "live", "serve", "region", "drill", "dry", "shown")
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


def environment(folder: Path) -> dict[str, str]:
    """As a reader has it: the project's programs on PATH, at home in `folder`, `$ROOT` the clone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SKERRY_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return kept | {"PATH": path, "HOME": str(folder), "ROOT": str(ROOT)}


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
