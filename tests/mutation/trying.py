"""Plants a fault into a copy of the tree and runs tests until one notices it."""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing import Pipe
from pathlib import Path

from tests import ROOT
from tests.mutation.forks import LOADED, End, Result, Trial
from tests.mutation.mutants import Mutant
from tests.mutation.records import SELECTION, list_failed
from tests.mutation.scope import list_tree

TEST_LIMIT_S, FAULT_LIMIT_S = 60, 1800


class Fate(StrEnum):
    NOTICED = "noticed"
    NOT_RUN = "no test runs this line"
    SURVIVED = "survived"
    NOT_TRIED = "not tried"


@dataclass(frozen=True)
class Outcome:
    """What became of one fault. `noticed_by`: the first test that failed."""

    mutant: Mutant
    fate: Fate
    noticed_by: str
    tests: int
    seconds: float


class Tree:
    """A copy of the tree, with a process that has loaded its tests and forks for each fault."""

    def __init__(self, folder: Path, selection: list[str]) -> None:
        copy_tree(folder)
        self._folder = folder
        self._sound: dict[str, bool] = {}  # by test: whether it passes by itself, without a fault
        self._line, theirs = Pipe()
        words = ["-p", "tests.mutation.forks", "-n", "0", f"--timeout={TEST_LIMIT_S}", *SELECTION, *selection]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *words],
            cwd=folder,
            env=self._environment() | {"MUTATION_LINE": str(theirs.fileno())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._loaded = False

    def close(self) -> None:
        self._line.send(None)
        self._process.wait()

    def try_mutant(self, mutant: Mutant, tests: list[str]) -> Outcome:
        """Plant the fault, run the tests until one fails, take the fault out again."""
        if not tests:
            return Outcome(mutant, Fate.NOT_RUN, "", 0, 0.0)
        self._wait_until_loaded()
        began, file = time.monotonic(), self._folder / mutant.file
        text, times = file.read_text(encoding="utf-8"), file.stat()
        file.write_text(mutant.apply(text), encoding="utf-8")
        try:
            noticed_by = "" if mutant.at_import else self._try_in_fork(file, text, mutant.apply(text), tests)
            noticed_by = noticed_by or self._try_afresh(tests)
        finally:
            file.write_text(text, encoding="utf-8")
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # so that what was compiled of it holds again
        fate = Fate.NOTICED if noticed_by else Fate.SURVIVED
        return Outcome(mutant, fate, noticed_by, len(tests), time.monotonic() - began)

    def _wait_until_loaded(self) -> None:
        """Plant nothing before: a fault that is loaded with the tests would be in every fork."""
        if not self._loaded:
            self._loaded = self._line.recv() == LOADED

    def _try_in_fork(self, file: Path, before: str, after: str, tests: list[str]) -> str:
        """The test that notices the fault, if one does: one that passes without it, by itself."""
        while tests:
            result = self._ask(Trial(str(file), before, after, tuple(tests)))
            if result.end in (End.PASSED, End.NOT_TRIED) or not result.test:
                return ""
            if self._is_sound(result.test):
                return result.test
            tests = [test for test in tests if test != result.test]
        return ""

    def _is_sound(self, test: str) -> bool:
        if test not in self._sound:
            self._sound[test] = self._ask(Trial("", "", "", (test,))).end is End.PASSED
        return self._sound[test]

    def _ask(self, trial: Trial) -> Result:
        self._line.send(trial)
        result: Result = self._line.recv()
        return result

    def _try_afresh(self, tests: list[str]) -> str:
        arguments = self._folder / "mutant-tests.txt"
        arguments.write_text("\n".join(tests), encoding="utf-8")
        words = ["-x", "-n", "0", f"--timeout={TEST_LIMIT_S}", "--timeout-method=thread", f"@{arguments}"]
        try:
            run = subprocess.run(
                [sys.executable, "-m", "pytest", *words],
                cwd=self._folder,
                env=self._environment() | {"PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=FAULT_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return "the tests did not end"
        return next(list_failed(run.stdout), "the process ended") if run.returncode else ""

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "CI": "true", "PYTHONPATH": str(self._folder)}


def copy_tree(folder: Path) -> None:
    """A copy of the files that git knows, as they are now."""
    for name in list_tree(ROOT):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
