"""Plant faults one at a time and see whether the quick tests notice: `make mutants`.

First one run of the quick tests records which test runs which line; it is stored in `.cache/mutation`, and only test
files that change later are run again. Then each fault of a sample is planted into a copy of the tree, and the tests
that run its line are run until one fails: those of its own folder first, and of these those that run the fewest lines.
A fault is noticed if a test fails that passes without it.

Exit codes: 0 = enough were noticed; 1 = too many survive; 3 = the time was over before all were tried, and too many
survive of none that were.
"""

import argparse
import os
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from math import inf
from pathlib import Path
from queue import SimpleQueue

from tests import ROOT
from tests.mutation.mutants import Mutant, choose_mutants, choose_share
from tests.mutation.records import TestMap, record_tests
from tests.mutation.scope import list_files
from tests.mutation.trying import Fate, Outcome, Tree

JUDGED = Path(__file__).parent / "judged.toml"
CI_SHARE, CI_SEED = 0.0075, 3  # of all faults, about 60; a change elsewhere brings no other fault in


class Exit(IntEnum):
    """Exit code of a run."""

    NOTICED = 0
    SURVIVE = 1
    NOT_FINISHED = 3


def try_all(mutants: list[Mutant], tests: TestMap, trees: list[Tree], end_s: float) -> list[Outcome]:
    """Try each fault, in their order; none is begun from `end_s` on, on the monotonic clock."""
    free: SimpleQueue[Tree] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def try_one(numbered: tuple[int, Mutant]) -> Outcome:
        number, mutant = numbered
        tree = free.get()
        try:
            if time.monotonic() >= end_s:
                return Outcome(mutant, Fate.NOT_TRIED, "", 0, 0.0)
            outcome = tree.try_mutant(mutant, tests.find_tests(mutant))
        finally:
            free.put(tree)
        print(f"{number:4d} {outcome.seconds:5.1f} s {outcome.fate:8s} {mutant.identity[:150]}", flush=True)
        return outcome

    with ThreadPoolExecutor(len(trees)) as pool:
        return list(pool.map(try_one, enumerate(mutants, 1)))


def read_judged() -> dict[str, str]:
    """Faults that survive rightly, by identity, each with the reason: what the code does stays the same."""
    return {each["fault"]: each["reason"] for each in tomllib.loads(JUDGED.read_text(encoding="utf-8"))["judged"]}


def report(outcomes: Iterable[Outcome], judged: dict[str, str]) -> float:
    """Print the survivors; returns the share of faults that were noticed, those judged to change nothing left out."""
    all_rows = list(outcomes)
    rows = [each for each in all_rows if each.fate is not Fate.NOT_TRIED]
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
    if len(rows) < len(all_rows):
        print(f"the time was over: {len(all_rows) - len(rows)} of {len(all_rows)} faults were not tried")
    return share


def choose_exit(outcomes: Iterable[Outcome], share: float, least: float) -> Exit:
    """Exit code for this share of noticed faults, of those that were tried."""
    if share < least:
        return Exit.SURVIVE
    return Exit.NOT_FINISHED if any(each.fate is Fate.NOT_TRIED for each in outcomes) else Exit.NOTICED


def main() -> None:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="faults to plant (default 300)")
    parser.add_argument("--seed", type=int, default=1, help="which sample of all faults (default 1)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="faults tried side by side")
    parser.add_argument(
        "--least", type=float, default=0.9, help="fail below this share of noticed faults (default 0.9)"
    )
    parser.add_argument(
        "--only", default="", help="faults whose identity contains one of these, e.g. cloud_hub/,edge_agent/"
    )
    parser.add_argument(
        "--ci",
        action="store_true",
        help=f"{CI_SHARE:.2%} of all faults, by seed {CI_SEED}; fail also for one that survives and is not judged",
    )
    parser.add_argument(
        "--within-s", type=float, default=inf, help="begin no fault later than so many seconds from now; exit code 3"
    )
    parser.add_argument("--list", action="store_true", help="print the sample and try nothing")
    parser.add_argument("tests", nargs="*", help="folders of tests to run; all by default")
    given = parser.parse_args()
    end_s = time.monotonic() + given.within_s
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in list_files()}
    seed = CI_SEED if given.ci else given.seed
    if given.ci:
        sample = choose_share(texts, seed, CI_SHARE)
    else:
        sample = choose_mutants(texts, seed, given.count, given.only.split(","))
    print(f"{len(sample)} faults, seed {seed}", flush=True)
    if given.list:
        for mutant in sample:
            print(f"{mutant.file}:{mutant.span.line} {mutant.identity}")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tests = record_tests(given.tests, given.processes)
        trees = [Tree(folder / f"tree-{number}", given.tests) for number in range(given.processes)]
        outcomes = try_all(sample, tests, trees, end_s)
        for tree in trees:
            tree.close()
    share = report(outcomes, read_judged())
    sys.exit(choose_exit(outcomes, share, 1.0 if given.ci else given.least))


if __name__ == "__main__":
    main()
