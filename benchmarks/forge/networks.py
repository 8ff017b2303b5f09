"""Figures that `make forge-unseen` leaves of networks the forge was not written for, and their rows in the table.

Kept as one JSON file beside this module, a network an entry, so that the runs may be done in parts.
"""

from pathlib import Path

import msgspec

from benchmarks.forge.datasets import NETWORKS_FILE, figures_folder, read_commit
from benchmarks.forge.trial_table import TableRow

SOON_S = 60  # a refusal counts as told where it comes within a minute


class NetworkFigures(msgspec.Struct, frozen=True):
    """One network: whether it was cut and exported with equal answers, and whether it was forged whole.

    `forged`: None if that was not tried; a refusal with its reason within `SOON_S` seconds counts as forged.
    """

    commit: str
    exported: bool
    forged: bool | None = None
    note: str = ""


def keep_network(name: str, figures: NetworkFigures, folder: Path | None = None) -> None:
    """Add or replace the figures of one network. `folder`: of the file, if not the usual one."""
    path = (folder or figures_folder()) / NETWORKS_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(read_networks(path) | {name: figures}), indent=1))
    fresh.replace(path)


def record_run(name: str, *, exported: bool, made: str, seconds: float) -> None:
    """Keep what one row of `benchmarks.forge.unseen_nets` says; `made`: its last cell, "" if it was not forged."""
    forged = None if not made else not made.startswith("refused") or seconds <= SOON_S
    keep_network(name, NetworkFigures(read_commit(), exported, forged, made))


def read_networks(path: Path) -> dict[str, NetworkFigures]:
    """Figures by network; nothing if there is no file."""
    return msgspec.json.decode(path.read_bytes(), type=dict[str, NetworkFigures]) if path.exists() else {}


def build_network_rows(found: dict[str, NetworkFigures]) -> list[TableRow]:
    """Two rows: cut and exported, and forged whole or refused soon; with the names of those that were not."""
    exported = {name: figures.exported for name, figures in found.items()}
    forged = {name: figures.forged for name, figures in found.items() if figures.forged is not None}
    commits = ", ".join(sorted({figures.commit for figures in found.values()}))
    return [
        _build_row("unseen networks: cut and exported", exported, commits),
        _build_row(f"unseen networks: forged whole, or the reason within {SOON_S} s", forged, commits),
    ]


def _build_row(name: str, found: dict[str, bool], commits: str) -> TableRow:
    if not found:
        return TableRow(name, (), "", "all", False, "make forge-unseen measures it")
    missing = ", ".join(sorted(network for network, good in found.items() if not good))
    note = f"commit {commits}{f'; not: {missing}' if missing else ''}"
    return TableRow(name, (float(sum(found.values())),), f"of {len(found)}", "all", not missing, note)
