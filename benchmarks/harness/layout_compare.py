"""Compares two checkouts in turns: memory of the agent, time per local answer, round trip of an escalation.

    python -m benchmarks.harness.layout_compare BEFORE AFTER [--rounds 5] [--only agent_memory] [--json]

Each round runs every benchmark once in each checkout, as a process of its own with that checkout on PYTHONPATH, and the
next round begins with the other checkout: both see the same machine. What counts is the ratio of the medians.

Rule: nothing of a checkout is imported here, and a benchmark is found by its file's name: folders may differ.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

LIMIT_S = 600.0
TOLERANCE = 0.03  # how much more the second checkout may take


@dataclass(frozen=True)
class GaugeDefinition:
    """A figure of a benchmark: `module` prints it where `pattern` finds it."""

    module: str
    title: str
    unit: str
    pattern: str


GAUGES = (
    GaugeDefinition("agent_memory", "RSS of the agent", "MB", r"(?m)^agent RSS, .*?: ([\d.,]+) MB"),
    GaugeDefinition("local_answer", "added time per local answer", "us", r"(?m)^agent's added time .*?: ([\d.,]+) us"),
    GaugeDefinition("round_trip", "round trip of an escalation, p50", "us", r"(?m)^ +escalation p50 ([\d.,]+) us"),
)
RENAMED = {"agent_memory": "agent/memory"}  # where the file is called otherwise in another layout


@dataclass(frozen=True)
class Comparison:
    """`before` and `after`: what each round measured; `ratio`: median after / median before."""

    figure: str
    unit: str
    before: list[float]
    after: list[float]
    ratio: float

    @property
    def held(self) -> bool:
        return self.ratio <= 1 + TOLERANCE


def compare_checkouts(
    before: Path, after: Path, rounds: int, gauges: Sequence[GaugeDefinition] = GAUGES
) -> list[Comparison]:
    """Every gauge, `rounds` times in each checkout, in turns. RuntimeError if a benchmark does not tell its figure."""
    checkouts = {"before": before, "after": after}
    taken: dict[tuple[GaugeDefinition, str], list[float]] = {}
    for gauge, side in order_turns(rounds, gauges):
        value = measure_checkout(gauge, checkouts[side])
        taken.setdefault((gauge, side), []).append(value)
        print(f"{gauge.module} {side}: {value:g} {gauge.unit}", file=sys.stderr, flush=True)
    return [_make_comparison(gauge, taken[gauge, "before"], taken[gauge, "after"]) for gauge in gauges]


def order_turns(rounds: int, gauges: Sequence[GaugeDefinition]) -> Iterator[tuple[GaugeDefinition, str]]:
    """What is run when: before, after, after, before, ..."""
    for number in range(rounds):
        pair = ("before", "after") if number % 2 == 0 else ("after", "before")
        yield from ((gauge, side) for gauge in gauges for side in pair)


def measure_checkout(gauge: GaugeDefinition, checkout: Path) -> float:
    """One run of one benchmark. Its exit code only says whether its own limit was held."""
    words = [sys.executable, "-m", module_name(gauge.module, checkout)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SKERRY_")}
    done = subprocess.run(
        words,
        cwd=checkout,
        env=kept | {"PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    found = re.search(gauge.pattern, done.stdout)
    if found is None:
        raise RuntimeError(f"{' '.join(words)} in {checkout} told no {gauge.title}:\n{done.stdout}{done.stderr}")
    return float(found[1].replace(",", ""))


def module_name(name: str, checkout: Path) -> str:
    """Dotted, wherever under benchmarks the file lies. FileNotFoundError if it does not."""
    folder = checkout / "benchmarks"
    for path in sorted([*folder.rglob(f"{name}.py"), *folder.rglob(f"{RENAMED.get(name, name)}.py")]):
        return ".".join(path.relative_to(checkout).with_suffix("").parts)
    raise FileNotFoundError(f"{checkout} has no benchmark {name}")


def _make_comparison(gauge: GaugeDefinition, before: list[float], after: list[float]) -> Comparison:
    return Comparison(gauge.title, gauge.unit, before, after, median(after) / median(before))


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 1 if a figure of AFTER is more than 3 % above that of BEFORE."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.harness.layout_compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each benchmark in each checkout (default 5)")
    parser.add_argument("--only", choices=[gauge.module for gauge in GAUGES], action="append", help="this one alone")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    asked = parser.parse_args(arguments)
    gauges = [gauge for gauge in GAUGES if not asked.only or gauge.module in asked.only]
    found = compare_checkouts(asked.before.resolve(), asked.after.resolve(), asked.rounds, gauges)
    if asked.json:
        print(json.dumps([asdict(each) for each in found], indent=2))
    else:
        print(*map(_format_line, found), sep="\n")
    return 0 if all(each.held for each in found) else 1


def _format_line(each: Comparison) -> str:
    before, after = (f"{median(values):g} {each.unit}" for values in (each.before, each.after))
    verdict = "held" if each.held else f"more than {TOLERANCE:.0%} above"
    return f"{each.figure}: {before} before, {after} after, ratio {each.ratio:.3f} ({verdict})"


if __name__ == "__main__":
    sys.exit(main())
