"""The page of results, `benchmarks/RESULTS.md`: a part for each suite, with its machine and its commit."""

import subprocess
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.benchmark import Benchmark
from benchmarks.harness.figures import Figure, render_markdown
from benchmarks.harness.machine import describe_machine

RESULTS = Path(__file__).parents[1] / "RESULTS.md"
TITLE = "# Measured\n\nOther machines give other figures: run it on yours.\n"


class BenchmarkSuite(NamedTuple):
    """`command` writes this suite's part of the page."""

    title: str
    command: str
    benchmarks: dict[str, Benchmark]


def replace_part(name: str, text: str) -> None:
    """Replace one suite's part of the page, or add it at the end."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    page = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else TITLE
    before, found, rest = page.partition(begin)
    after = rest.partition(end)[2] if found else ""
    RESULTS.write_text(f"{before.rstrip()}\n\n{begin}{text}{end}{after}", encoding="utf-8")


def render_part(suite: BenchmarkSuite, figures: list[Figure], seconds: float, load: float) -> str:
    machine = "\n".join(f"| {what} | {value} |" for what, value in describe_machine(load))
    terms = "\n".join(f"- **{figure.name}**: {'; '.join(figure.terms)}" for figure in figures if figure.terms)
    return (
        f"## {suite.title}\n\n"
        f"Written by `{suite.command}` ({seconds:.0f} s, commit {_short_commit()}). Everything, broker and "
        "senders included, ran on one machine. "
        "Medians of several rounds; what is compared took turns in the same run.\n\n"
        f"{render_markdown(figures)}\n\n{terms}\n\n| | |\n|---|---|\n{machine}\n"
    )


def _short_commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=RESULTS.parent, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"
