"""Command of `make bench-forge`: forges every set for several seeds, goes on after a kill, and writes the table.

Rule: finished trials are kept as lines of `benchmarks/forge/trials.jsonl`, rows are printed as they come, and the part
`forge` of RESULTS.md is written at the end of a run over all sets. `SKERRY_DATA` names the data, `SKERRY_ZOO_CACHE` the
trained models, `SKERRY_ZOO_BUNDLES` the folder of bundles. Seeds are of the forging; each given model is trained once.

A run of an older commit goes on in a checkout of that commit that is given the lines kept since:

    git worktree add ../forge-run COMMIT && cp benchmarks/forge/trials.jsonl ../forge-run/benchmarks/forge/
    make -C ../forge-run bench-forge
"""

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.forge.datasets import (
    CASES,
    COST,
    LINES_FILE,
    NETWORKS_FILE,
    bundles_folder,
    figures_folder,
    read_commit,
    trial_digest,
)
from benchmarks.forge.networks import build_network_rows, read_networks
from benchmarks.forge.trial_table import TableRow, build_rows, format_record, format_values, render_table
from benchmarks.forge.trials import (
    TrialFailedError,
    TrialKey,
    TrialLedger,
    TrialRecord,
    find_latest_recipe,
    find_or_run,
    run_in_process,
)
from benchmarks.harness.machine import describe_machine, read_load
from benchmarks.harness.results import replace_part
from models.forge.spec import Effort
from wire.process.main import run_to_exit

SEEDS = (11, 12, 13)


def plan_trials(sets: Sequence[str], seeds: Sequence[int], effort: Effort) -> list[TrialKey]:
    """Every trial, seed by seed, so that an early end has measured every set once; each set at the effort it needs."""
    return [
        TrialKey(name, seed, wish, str(CASES[name].effort or effort))
        for seed in seeds
        for name in sets
        for wish in CASES[name].wishes
    ]


def render_forge_part(rows: Sequence[TableRow], records: Sequence[TrialRecord], seconds: float, load: float) -> str:
    """The part of RESULTS.md: how it was measured, the table, its notes and the machine."""
    machine = "\n".join(f"| {what} | {value} |" for what, value in describe_machine(load))
    commits = ", ".join(sorted({record.commit for record in records})) or "none"
    efforts = ", ".join(sorted({record.effort for record in records}))
    seeds = ", ".join(str(seed) for seed in sorted({record.seed for record in records}))
    spent = sum(record.seconds for record in records if record.seconds == record.seconds)
    return (
        f"## The forge\n\nWritten by `make bench-forge` (commit {commits}; this run {seconds / 60:.0f} min, "
        f"all trials {spent / 60:.0f} min). Seeds {seeds}, effort {efforts}; figures are of the held-out "
        "parts, which chose nothing. The two sets of packages are Debian's package index; motion is simulated and "
        f"speech synthesised, for want of public recordings.\n\n{render_table(rows)}\n\n| | |\n|---|---|\n{machine}\n"
    )


def main() -> int:
    """0 if every trial that was asked for has a record and every aim was held."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forge.run", description=__doc__)
    parser.add_argument("--sets", type=lambda text: text.split(","), default=list(CASES), help="names, by commas")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=list(SEEDS))
    parser.add_argument("--effort", type=Effort, choices=list(Effort), default=Effort.QUICK)
    parser.add_argument("--jobs", type=int, default=2, help="forgings at a time, of one thread each")
    parser.add_argument("--table", action="store_true", help="forge nothing: write the table of the latest recipe")
    given = parser.parse_args()
    if unknown := [name for name in given.sets if name not in CASES]:
        parser.error(f"--sets: {', '.join(unknown)}: there are {', '.join(CASES)}")
    began, load = time.monotonic(), read_load()
    keys = plan_trials(given.sets, given.seeds, given.effort)
    lines = figures_folder() / LINES_FILE
    ledger = TrialLedger(lines, find_latest_recipe(lines) if given.table else trial_digest())
    runner = TrialRunner(ledger)
    if given.table:
        runner.records = [found for key in keys if (found := ledger.find(key))]
    else:
        runner.run_all(keys, given.jobs)
    records = sorted(runner.records, key=lambda record: record.key)
    rows = build_rows(records, build_network_rows(read_networks(figures_folder() / NETWORKS_FILE)))
    for row in rows:
        print(f"{row.name}: {format_values(row)} (aim {row.aim or 'none'})", flush=True)
    if given.table or set(given.sets) == set(CASES):
        replace_part("forge", render_forge_part(rows, records, time.monotonic() - began, load))
    return 0 if not runner.failed and all(row.held is not False for row in rows) else 1


def group_trials(keys: Sequence[TrialKey]) -> tuple[list[list[TrialKey]], list[list[TrialKey]]]:
    """Trials that share stages, in one group each: those that may run beside others, and those that are timed alone."""
    groups: dict[tuple[str, int], list[TrialKey]] = {}
    for key in keys:
        groups.setdefault((key.set, key.seed), []).append(key)
    beside = [group for group in groups.values() if group[0].set != COST]
    return beside, [group for group in groups.values() if group[0].set == COST]


class TrialRunner:
    """Runs trials and prints each as it is done; what breaks off is said and left to the next run."""

    def __init__(self, ledger: TrialLedger) -> None:
        self._ledger = ledger
        self.records: list[TrialRecord] = []
        self.failed: list[str] = []

    def run_all(self, keys: Sequence[TrialKey], jobs: int) -> None:
        """All trials, `jobs` groups at a time of one thread each; then those that are timed, alone with `jobs` threads.

        Wishes of one set and seed run one after another, as they share the stages that the forge keeps.
        """
        print(f"{len(keys)} trials, commit {read_commit()}, in {bundles_folder()}", flush=True)
        beside, alone = group_trials(keys)
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(self._run_group, beside))
        for group in alone:
            self._run_group(group, jobs)

    def _run_group(self, keys: Sequence[TrialKey], threads: int = 1) -> None:
        logs = bundles_folder() / "logs"
        for key in keys:
            try:
                record = find_or_run(key, self._ledger, lambda one: run_in_process(one, threads, logs))
            except TrialFailedError as error:
                self.failed.append(str(error))
                print(f"FAILED: {error}", file=sys.stderr, flush=True)
                continue
            self.records.append(record)
            print(format_record(record), flush=True)


if __name__ == "__main__":
    sys.exit(run_to_exit("python -m benchmarks.forge.run", main))
