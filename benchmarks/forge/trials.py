"""Trials of the forge: one forging each of a set, a seed and a wish, kept as a JSON line; a killed run goes on.

Rule: a trial runs in a process of its own, so that its time and its peak memory are its own. A line is taken again only
where it was measured with the same recipe (of the forge, the zoo and the sets) and at the same effort; it names its
commit.
"""

import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from wire.process.exit_codes import ExitCode, ExitError

_TRIAL = "benchmarks.forge.trial"


class TrialKey(NamedTuple):
    """What makes a trial: name of the set, seed of the forging, name of the wish, effort of the forge."""

    set: str
    seed: int
    wish: str
    effort: str


class TrialRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one forging gave; figures of the held-out part, which chose none of them.

    - `edge`, `pair`, `hub`: accuracies (0..1) or RMSE, `hub` of the given model on raw samples; `asked`: share of the
      held-out samples below the threshold. `pair_at`, `lossless_at`: the pair if it asks exactly `share`, through its
      codes and with the given model on the untouched sample; same edge, same ranking.
    - `gap`, `recovered`: hub less edge (a regressor: how much lower its RMSE is), and
      (pair_at - edge) / (lossless_at - edge); each with its 95 % interval, of resampled samples.
    - `lost`: what the pair loses against the given model if every sample is asked, a share; of an RMSE for a regressor.
    - `gained`: 95 % interval of pair less edge at the threshold; `warnings`: what the forge said of its own accord.
    - `leakage`: reconstruction row: score, floor (label alone), ceiling, metric; empty if there is none.
    - `model`: twelve hex digits of the digest of the given model's weights.
    - `more`: figures that only this set has. `error`: the forge's refusal, "" if it made a bundle.
    """

    set: str
    seed: int
    wish: str
    effort: str
    recipe: str
    commit: str
    model: str = ""
    seconds: float = math.nan
    cpu_s: float = math.nan
    peak_mib: float = math.nan
    error: str = ""
    samples: int = 0
    metric: str = ""
    route: str = ""
    path: str = ""
    cut: str = ""
    payload_bytes: int = 0
    sealed_bytes: int = 0
    head_share: float = math.nan
    edge: float = math.nan
    pair: float = math.nan
    hub: float = math.nan
    asked: float = math.nan
    share: float = math.nan
    pair_at: float = math.nan
    lossless_at: float = math.nan
    gap: float = math.nan
    gap_low: float = math.nan
    gap_high: float = math.nan
    recovered: float = math.nan
    recovered_low: float = math.nan
    recovered_high: float = math.nan
    lost: float = math.nan
    gained_low: float = math.nan
    gained_high: float = math.nan
    warnings: tuple[str, ...] = ()
    leakage: tuple[float, ...] = ()
    leakage_metric: str = ""
    more: dict[str, float] = {}

    @property
    def key(self) -> TrialKey:
        """Set, seed, wish and effort."""
        return TrialKey(self.set, self.seed, self.wish, self.effort)

    @property
    def gap_recovered(self) -> float:
        """Share of the gap between the edge and the given model that the pair recovers, asking `share`; NaN without."""
        return _share_of_gap(self, self.pair_at)

    @property
    def gap_lossless(self) -> float:
        """As `gap_recovered`, if nothing were lost on the way."""
        return _share_of_gap(self, self.lossless_at)

    @property
    def has_gap(self) -> bool:
        """Whether the given model is better than the edge by more than the interval of their difference."""
        return self.gap_low > 0

    @property
    def worse_without_a_word(self) -> bool:
        """Whether the pair is worse than its edge by more than the interval, and the forge did not say so."""
        return self.gained_high < 0 and not self.warnings


def _share_of_gap(record: TrialRecord, value: float) -> float:
    gap = record.hub - record.edge
    return (value - record.edge) / gap if gap else math.nan


class TrialLedger:
    """File of finished trials, one JSON line each; several threads may add to it.

    Other lines than those of `recipe` are kept and not read.
    """

    def __init__(self, path: Path, recipe: str) -> None:
        self._path, self._recipe = path, recipe
        self._lock = threading.Lock()
        self._found = {record.key: record for record in read_records(path) if record.recipe == recipe}

    def find(self, key: TrialKey) -> TrialRecord | None:
        """The trial that is kept under this key, the latest if there are several."""
        return self._found.get(key)

    def add(self, record: TrialRecord) -> None:
        """Append one line and write it through to the disk: a kill after this loses nothing of it."""
        with self._lock:
            self._append(record)
            self._found[record.key] = record

    def _append(self, record: TrialRecord) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        torn = self._path.exists() and not self._path.read_bytes().endswith(b"\n")
        with self._path.open("ab") as file:
            file.write((b"\n" if torn else b"") + encode_record(record) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def encode_record(record: TrialRecord) -> bytes:
    """One line of JSON without its end; what was not measured (NaN) is left out, JSON having no such number."""
    fields = msgspec.to_builtins(record)
    fields["more"] = {name: value for name, value in record.more.items() if math.isfinite(value)}
    return msgspec.json.encode({name: value for name, value in fields.items() if value is not None and value == value})


def read_records(path: Path) -> Iterator[TrialRecord]:
    """Records of a file of trials; a line that a kill has cut short is passed over."""
    if not path.exists():
        return
    for line in path.read_bytes().splitlines():
        try:
            yield msgspec.json.decode(line, type=TrialRecord)
        except msgspec.DecodeError:
            continue


def find_latest_recipe(path: Path) -> str:
    """Recipe of the last line of a file of trials; "" if it has none."""
    return next((record.recipe for record in reversed(list(read_records(path)))), "")


def find_or_run(key: TrialKey, ledger: TrialLedger, run: Callable[[TrialKey], TrialRecord]) -> TrialRecord:
    """The record that is kept under this key, or that of `run`, which is kept before this returns."""
    kept = ledger.find(key)
    if kept is None:
        kept = run(key)
        ledger.add(kept)
    return kept


class TrialFailedError(Exception):
    """The process of a trial broke off; the message is one line and names its log."""


def run_in_process(key: TrialKey, threads: int, folder: Path) -> TrialRecord:
    """One trial in a process of its own, its progress in a log file of `folder`.

    Raises TrialFailedError if the process leaves no record: then nothing is kept, and the next run tries it again;
    ExitError(MISSING), with the process's line, if it has no data.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{key.set}-{key.wish}-{key.seed}.log"
    command = [sys.executable, "-m", _TRIAL, key.set, str(key.seed), key.wish, key.effort, "--threads", str(threads)]
    with log.open("ab") as file:
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=file, check=False)
    if ended.returncode == ExitCode.MISSING:
        raise ExitError(ExitCode.MISSING, log.read_text(encoding="utf-8").splitlines()[-1].partition(": ")[2])
    lines = ended.stdout.splitlines()
    if ended.returncode or not lines:
        raise TrialFailedError(f"{key.set}, seed {key.seed}, {key.wish}: exit code {ended.returncode}; see {log}")
    return msgspec.json.decode(lines[-1], type=TrialRecord)
