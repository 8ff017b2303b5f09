"""Which test runs which line, recorded while the quick tests run once without a fault.

What was recorded is stored, and used again as long as nothing but test files changes: then only the tests of those that
changed are run. A test of a changed file counts as running also the lines that it ran before.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
from coverage import CoverageData

from tests import ROOT
from tests.mutation.mutants import Mutant
from tests.mutation.scope import folder_of_tests, list_tree

QUICK = "not heavy and not further and not postgres"
NOT_RUN = ("tests/live/", "tests/models/")
SELECTION = (*(f"--ignore={folder}" for folder in NOT_RUN), "-m", QUICK)
NO_TESTS = 5  # pytest: none was selected, for instance because all are marked heavy
MAX_FAILED = 20  # tests, without a fault
MAX_TESTS = 500  # of one fault; those of its own folder come first
STORED = ROOT / ".cache" / "mutation"


class TestMap:
    """Which tests run a line.

    Of a line that an import alone runs: all tests that run anything of its file, those of the test files that import
    it, and those of its whole package; if there are none, those of its folder.
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
        if mutant.at_import:
            found |= self._find_above(mutant.file)
        ordered = sorted(found & self._names, key=lambda test: (not test.startswith(own), self._lines[test], test))
        near, far = [t for t in ordered if t.startswith(own)], [t for t in ordered if not t.startswith(own)]
        return _spread(near, MAX_TESTS) + _spread(far, max(0, MAX_TESTS - len(near)))

    def _find_above(self, file: str) -> set[str]:
        """Tests of the whole package that a file is in: those that stand above the folder of its own."""
        above = {str(folder) for folder in Path(folder_of_tests(file)).parents} - {"tests", "."}
        return {name for name in self._names if str(Path(name.partition("::")[0]).parent) in above}

    def _find_importers(self, file: str) -> set[str]:
        package, _, name = file.removesuffix(".py").replace("/", ".").rpartition(".")
        imports = re.compile(rf"from {package}\.{name} import|from {package} import [^\n]*\b{name}\b")
        by_file = defaultdict[str, set[str]](set)
        for test in self._names:
            by_file[test.partition("::")[0]].add(test)
        return {
            test
            for path, found in by_file.items()
            if imports.search((ROOT / path).read_text(encoding="utf-8"))
            for test in found
        }


def _spread(tests: list[str], most: int) -> list[str]:
    """At most so many, taken evenly from the whole list."""
    return tests if len(tests) <= most else [tests[number * len(tests) // most] for number in range(most)]


class Recorded(msgspec.Struct):
    """What stored lines belong to: tests by name, those that fail without a fault too, and the tree that they ran in.

    `rest`: hash of all files but those of tests; `files`: by test file, its hash.
    """

    rest: str
    files: dict[str, str]
    names: set[str]
    failed: set[str]

    def list_changed(self, before: "Recorded") -> list[str]:
        """The test files to run: all, unless nothing but test files changed."""
        return [file for file in self.files if not (self.rest == before.rest and self._is_same(file, before))]

    def add_unchanged(self, before: "Recorded") -> None:
        """Take over the tests of the files that are as they were."""
        if self.rest == before.rest:
            for mine, earlier in ((self.names, before.names), (self.failed, before.failed)):
                mine |= {name for name in earlier if self._is_same(name.partition("::")[0], before)}

    def _is_same(self, file: str, before: "Recorded") -> bool:
        return file in self.files and self.files[file] == before.files.get(file)


def describe_tree(root: Path) -> Recorded:
    """The tree as it is now, with no test recorded."""
    files, rest = dict[str, str](), hashlib.sha256()
    for name in list_tree(root):
        digest = hashlib.sha256((root / name).read_bytes()).hexdigest()
        if name.startswith("tests/") and Path(name).name.startswith("test_"):
            if not name.startswith(NOT_RUN):
                files[name] = digest
        else:
            rest.update(f"{name} {digest}\n".encode())
    return Recorded(rest.hexdigest(), files, set(), set())


def record_tests(selection: list[str], processes: int) -> TestMap:
    """Run the quick tests without a fault, as far as no earlier run recorded them; of a `selection` nothing is stored.

    Those that fail even so are left out: they would notice anything.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recorded, before = describe_tree(ROOT), Recorded("", {}, set(), set())
        if not selection and (STORED / "recorded.json").exists():
            shutil.copytree(STORED, folder, dirs_exist_ok=True)
            before = msgspec.json.decode((folder / "recorded.json").read_bytes(), type=Recorded)
        if recorded.rest != before.rest:
            (folder / "lines").unlink(missing_ok=True)
        recorded.add_unchanged(before)
        changed = recorded.list_changed(before)
        if selection or changed:
            _run_tests(folder, selection or (changed if before.rest == recorded.rest else []), processes, recorded)
        for test in sorted(recorded.failed):
            print(f"left out, it fails without a fault: {test}", flush=True)
        data = CoverageData(str(folder / "lines"))
        data.read()
        if not selection:
            STORED.mkdir(parents=True, exist_ok=True)
            shutil.copy2(folder / "lines", STORED)
            (STORED / "recorded.json").write_bytes(msgspec.json.encode(recorded))
        return TestMap(data, recorded.names - recorded.failed)


def _run_tests(folder: Path, wanted: list[str], processes: int, recorded: Recorded) -> None:
    """Run these tests, all where none are given.

    Adds their lines to the file `lines` of the folder, and their names to what is recorded.
    """
    arguments = folder / "tests.txt"
    arguments.write_text("\n".join(wanted), encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-p", "tests.mutation.coverage_plugin", "-n", str(processes), "--dist"]
    words += ["loadfile", "--no-loadscope-reorder", *SELECTION, f"@{arguments}"]
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
    if run.returncode not in (0, NO_TESTS) and not 0 < len(failed) <= MAX_FAILED:
        sys.exit(f"{run.stdout[-2000:]}\nmutants: the tests fail without a fault; make them pass first")
    data = CoverageData(str(folder / "lines"))
    data.read()  # what is there stays
    for part in sorted(folder.glob("coverage.*")):
        one = CoverageData(str(part))
        one.read()
        data.update(one)
    recorded.failed |= failed
    for part in folder.glob("names.*"):
        recorded.names |= {name for name in part.read_text(encoding="utf-8").split("\n") if name}


def list_failed(output: str) -> Iterator[str]:
    """Names of the tests that failed, from pytest's own summary."""
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            yield line.partition(" ")[2].partition(" - ")[0]
