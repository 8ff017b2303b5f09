"""What agent.db holds when a process opens it."""

from pathlib import Path
from typing import NamedTuple

from edge_agent.storage import accounts, ledger, outbox, schema, tables
from edge_agent.storage.outbox import OutboxRow
from edge_agent.storage.schema import MarkerState, OpenedDatabase
from policies.decisions.budget import BudgetSpend


class StoredState(NamedTuple):
    """What agent.db held when it was opened.

    `damaged`: the name an unusable database was renamed to, "" if there was none. `floor_ms`, `sure_ms`: the clock's
    lower bounds in hub milliseconds.
    """

    epoch: int
    next_seq: int
    spend: BudgetSpend
    floor_ms: int
    sure_ms: int
    rows: list[OutboxRow]
    damaged: str
    gap: bool  # the write-ahead log was lost: seqs jump, so that none is used twice
    unsent: frozenset[int] = frozenset()  # questions recorded in the ledger and never sent
    past: MarkerState = MarkerState.SAME  # whether the marker file matches this database
    notice: int = 0  # counter of the newest deny-all notice


def read_stored_state(opened: OpenedDatabase, path: Path) -> StoredState:
    """Read the state from a database just opened, and check its marker file."""
    db, next_seq, past = opened.db, ledger.read_next_seq(opened.db), schema.check_marker(opened.db, path)
    if past is MarkerState.SAME and not opened.gap:
        schema.write_marker(db, path)
    return StoredState(
        epoch=tables.read_epoch(db), next_seq=next_seq, spend=accounts.read_spend(db),
        floor_ms=tables.read_value(db, "floor_ms", 0), sure_ms=tables.read_value(db, "sure_ms", 0),
        rows=outbox.read_rows(db), damaged=opened.damaged, gap=opened.gap, unsent=ledger.take_unsent(db),
        past=MarkerState.LOST if opened.gap else past, notice=tables.read_value(db, "notice", 0),
    )  # fmt: skip
