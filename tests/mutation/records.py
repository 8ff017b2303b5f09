"""Which test runs which line, recorded while the quick tests run once without a fault."""

import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from coverage import CoverageData

from tests import ROOT
from tests.mutation.mutants import Mutant
from tests.mutation.scope import folder_of_tests

QUICK = "not heavy and not further and not postgres"
SELECTION = ("--ignore=tests/live", "--ignore=tests/models", "-m", QUICK)
MAX_FAILED = 20  # tests, without a fault
MAX_TESTS = 500  # of one fault; those of its own folder come first


class TestMap:
    """Which tests run a line.

    Of a line that an import alone runs: all tests that run anything of its file, and those of the test files that
    import it; if there are none, those of its folder.
    """

    def __init__(self, data: CoverageData, names: set[str]) -> None:
        """`names`: of all tests that may be run."""
        self._by_line = {file: data.contexts_by_lineno(file) for file in data.measured_files()}
        self._names = names
        self._lines = Counter(
            test for lines in self._by_line.values() for tests in lines.values() for test in tests
        )  # that each test runs: those that run few are quick, and look closely

    def find_tests(self, mutant: Mutant) -> list[str]:
        lines = self._by_line.get(str(ROOT / mutant.file), {})
        found = set(lines.get(mutant.span.line, ()))
        if mutant.at_import or found == {""}:  # by import: its own, or that of a test that makes its world there
            found = {test for tests in lines.values() for test in tests} | self._find_importers(mutant.file)
        own = folder_of_tests(mutant.file) + "/"
        if mutant.at_import and found <= {""}:
            found = {test for test in self._names if test.startswith(own)}
        ordered = sorted(found & self._names, key=lambda test: (not test.startswith(own), self._lines[test], test))
        near, far = [t for t in ordered if t.startswith(own)], [t for t in ordered if not t.startswith(own)]
        return _spread(near, MAX_TESTS) + _spread(far, max(0, MAX_TESTS - len(near)))

    def _find_importers(self, file: str) -> set[str]:
        module = file.removesuffix(".py").replace("/", ".")
        names = defaultdict[str, set[str]](set)
        for name in self._names:
            names[name.partition("::")[0]].add(name)
        return {
            name
            for path, found in names.items()
            if f"from {module} import" in (ROOT / path).read_text(encoding="utf-8")
            for name in found
        }


def _spread(tests: list[str], most: int) -> list[str]:
    """At most so many, taken evenly from the whole list."""
    return tests if len(tests) <= most else [tests[number * len(tests) // most] for number in range(most)]


def record_tests(folder: Path, selection: list[str], processes: int) -> TestMap:
    """Run the quick tests once without a fault. Those that fail even so are left out: they would notice anything."""
    words = [sys.executable, "-m", "pytest", "-p", "tests.mutation.coverage_plugin", "-n", str(processes), "--dist"]
    words += ["loadfile", "--no-loadscope-reorder", *SELECTION, *selection]
    run = subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, "MUTATION_COVERAGE": str(folder), "COVERAGE_CORE": "ctrace", "CI": "true"},
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
    names = {name for part in folder.glob("names.*") for name in part.read_text(encoding="utf-8").split("\n")}
    return TestMap(data, names - failed - {""})


def list_failed(output: str) -> Iterator[str]:
    """Names of the tests that failed, from pytest's own summary."""
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            yield line.partition(" ")[2].partition(" - ")[0]
