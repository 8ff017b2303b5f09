"""Plant faults one at a time and see whether the quick tests notice: `make mutants`.

First one run of the quick tests records which test runs which line. Then each fault of a sample is planted into a copy
of the tree, and the tests that run its line are run until one fails: those of its own folder first, and of these those
that run the fewest lines.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from queue import SimpleQueue

from coverage import CoverageData

from tests import ROOT
from tests.mutation.mutants import Mutant, list_mutants
from tests.mutation.scope import folder_of_tests, list_files

QUICK = "not heavy and not further and not postgres"
MAX_FAILED = 20  # tests, without a fault
MAX_TESTS = 500  # of one fault; those of its own folder come first
TEST_LIMIT_S, FAULT_LIMIT_S = 60, 600
JUDGED = Path(__file__).parent / "judged.toml"


class Fate(StrEnum):
    NOTICED = "noticed"
    NOT_RUN = "no test runs this line"
    SURVIVED = "survived"


@dataclass(frozen=True)
class Outcome:
    """What became of one fault. `noticed_by`: the first test that failed."""

    mutant: Mutant
    fate: Fate
    noticed_by: str
    tests: int
    seconds: float


class TestMap:
    """Which tests run a line.

    Of a line that an import alone runs: all tests that run anything of its file; if none does, those of its folder.
    """

    def __init__(self, data: CoverageData, left_out: set[str]) -> None:
        self._by_line = {file: data.contexts_by_lineno(file) for file in data.measured_files()}
        self._left_out = left_out
        self._lines = Counter(
            test for lines in self._by_line.values() for tests in lines.values() for test in tests
        )  # that each test runs: those that run few are quick, and look closely

    def find_tests(self, mutant: Mutant) -> list[str]:
        lines = self._by_line.get(str(ROOT / mutant.file), {})
        found = set(lines.get(mutant.span.line, ()))
        if mutant.at_import or found == {""}:  # by import: its own, or that of a test that makes its world there
            found = {test for tests in lines.values() for test in tests}
        own = folder_of_tests(mutant.file) + "/"
        if mutant.at_import and found <= {""}:
            found = {test for test in self._lines if test.startswith(own)}
        ordered = sorted(
            found - {""} - self._left_out, key=lambda test: (not test.startswith(own), self._lines[test], test)
        )
        near, far = [t for t in ordered if t.startswith(own)], [t for t in ordered if not t.startswith(own)]
        return _spread(near, MAX_TESTS) + _spread(far, max(0, MAX_TESTS - len(near)))


def _spread(tests: list[str], most: int) -> list[str]:
    """At most so many, taken evenly from the whole list."""
    return tests if len(tests) <= most else [tests[number * len(tests) // most] for number in range(most)]


def record_tests(folder: Path, selection: list[str]) -> TestMap:
    """Run the quick tests once without a fault. Those that fail even so are left out: they would notice anything."""
    words = [sys.executable, "-m", "pytest", "-p", "tests.mutation.coverage_plugin", "-n", "auto", "--dist", "loadfile"]
    words += ["--no-loadscope-reorder", "--ignore=tests/live", "--ignore=tests/models", "-m", QUICK, *selection]
    run = subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, "MUTATION_COVERAGE": str(folder), "CI": "true"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(run.stdout.splitlines()[-1], flush=True)
    failed = set(list_failed(run.stdout))
    if run.returncode and not 0 < len(failed) <= MAX_FAILED:
        sys.exit(f"{run.stdout[-2000:]}\nmutants: the tests fail without a fault; make them pass first")
    for test in sorted(failed):
        print(f"left out, it fails without a fault: {test}", flush=True)
    data = CoverageData(str(folder / "combined"))
    for part in sorted(folder.glob("coverage.*")):
        one = CoverageData(str(part))
        one.read()
        data.update(one)
    return TestMap(data, failed)


def list_failed(output: str) -> Iterator[str]:
    """Names of the tests that failed, from pytest's own summary."""
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            yield line.partition(" ")[2].partition(" - ")[0]


def copy_tree(folder: Path) -> None:
    """The files that git knows, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def try_mutant(mutant: Mutant, tests: list[str], tree: Path) -> Outcome:
    """Plant the fault into the copy of the tree, run the tests until one fails, take the fault out again."""
    if not tests:
        return Outcome(mutant, Fate.NOT_RUN, "", 0, 0.0)
    began, file = time.monotonic(), tree / mutant.file
    text = file.read_text(encoding="utf-8")
    arguments = tree / "mutant-tests.txt"
    arguments.write_text("\n".join(tests), encoding="utf-8")
    file.write_text(mutant.apply(text), encoding="utf-8")
    try:
        run = subprocess.run(
            [sys.executable, "-B", "-m", "pytest", "-x", "-n", "0", f"--timeout={TEST_LIMIT_S}", f"@{arguments}"],
            cwd=tree,
            env={**os.environ, "CI": "true", "PYTHONPATH": str(tree)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=FAULT_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return Outcome(mutant, Fate.NOTICED, "the tests did not end", len(tests), time.monotonic() - began)
    finally:
        file.write_text(text, encoding="utf-8")
    failed = list(list_failed(run.stdout))
    fate = Fate.NOTICED if run.returncode else Fate.SURVIVED
    first = failed[0] if failed else ("the process ended" if run.returncode else "")
    return Outcome(mutant, fate, first, len(tests), time.monotonic() - began)


def try_all(mutants: list[Mutant], tests: TestMap, processes: int, folder: Path) -> list[Outcome]:
    trees: SimpleQueue[Path] = SimpleQueue()
    for number in range(processes):
        copy_tree(folder / f"tree-{number}")
        trees.put(folder / f"tree-{number}")

    def try_one(numbered: tuple[int, Mutant]) -> Outcome:
        number, mutant = numbered
        tree = trees.get()
        try:
            outcome = try_mutant(mutant, tests.find_tests(mutant), tree)
        finally:
            trees.put(tree)
        print(f"{number:4d} {outcome.seconds:5.1f} s {outcome.fate:8s} {mutant.identity[:150]}", flush=True)
        return outcome

    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(try_one, enumerate(mutants, 1)))


def read_judged() -> dict[str, str]:
    """Faults that survive rightly, by identity, each with the reason: what the code does stays the same."""
    return {each["fault"]: each["reason"] for each in tomllib.loads(JUDGED.read_text(encoding="utf-8"))["judged"]}


def report(outcomes: Iterable[Outcome], judged: dict[str, str]) -> float:
    """Print the survivors; returns the share of faults that were noticed, those judged to change nothing left out."""
    rows = list(outcomes)
    survivors = [each for each in rows if each.fate is not Fate.NOTICED]
    harmless = [each for each in survivors if each.mutant.identity in judged]
    open_ones = [each for each in survivors if each.mutant.identity not in judged]
    for each in harmless:
        print(f"changes nothing: {each.mutant.identity}\n    {judged[each.mutant.identity]}")
    for each in open_ones:
        print(f"{each.fate}: {each.mutant.file}:{each.mutant.span.line}\n    {each.mutant.identity}")
    counted = len(rows) - len(harmless)
    noticed = counted - len(open_ones)
    share = noticed / counted if counted else 1.0
    print(
        f"{noticed} of {counted} faults noticed ({share:.1%}), {len(open_ones)} survive; {len(harmless)} change nothing"
    )
    return share


def main() -> None:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="faults to plant (default 300)")
    parser.add_argument("--seed", type=int, default=1, help="which sample of all faults (default 1)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="faults tried side by side")
    parser.add_argument(
        "--least", type=float, default=0.9, help="fail below this share of noticed faults (default 0.9)"
    )
    parser.add_argument("--only", default="", help="faults whose identity contains this")
    parser.add_argument("--list", action="store_true", help="print the sample and try nothing")
    parser.add_argument("tests", nargs="*", help="folders of tests to run; all by default")
    given = parser.parse_args()
    everything = [
        mutant
        for path in list_files()
        for mutant in list_mutants(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    ]
    sample = sorted(
        (each for each in everything if given.only in each.identity), key=lambda each: each.rank(given.seed)
    )
    sample = sample[: given.count]
    print(f"{len(sample)} of {len(everything)} faults, seed {given.seed}", flush=True)
    if given.list:
        for mutant in sample:
            print(f"{mutant.file}:{mutant.span.line} {mutant.identity}")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        outcomes = try_all(sample, record_tests(folder, given.tests), given.processes, folder)
    sys.exit(report(outcomes, read_judged()) < given.least)


if __name__ == "__main__":
    main()
