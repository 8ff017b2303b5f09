"""Append-only transparency log (Merkle tree) of the devices' ledger heads, and the mirror of their spending.

The tree is as in RFC 6962, see `wire.ledger.merkle`. Rule: the only owner of `ledger.db`. A head is logged as the
device signed it, also one that contradicts an earlier one: then the log holds both signatures, which is the proof. A
leaf is never changed and never removed.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from wire.ledger import merkle
from wire.ledger.chain import HeadLeaf
from wire.ledger.merkle import TreeHead
from wire.process.exit_codes import ExitCode, ExitError
from wire.protocol.messages import LedgerHeadReport, SpendTotals

SCHEMA = 1
KEPT_PERIODS = 400  # periods (days or longer) of spending remembered per account
_TABLES = """
create table nodes(level integer, place integer, hash blob not null, primary key(level, place)) without rowid;
create table leaves(
  place integer primary key, device text not null, signer blob not null, epoch integer not null,
  entries integer not null, at_ms integer not null, head blob not null, signature blob not null,
  received_ms integer not null, epochs integer not null, flaw text not null);
create index leaves_device on leaves(device, epoch, entries);
create table spend(
  device text not null, account text not null, period integer not null, amount integer not null,
  primary key(device, account, period)) without rowid;
create table facts(name text primary key, value integer not null) without rowid;
"""
_LEAF = "device,signer,epoch,entries,at_ms,head,signature,received_ms,epochs"


class ReceivedHead(NamedTuple):
    """A verified ledger head of `device`, signed with `key` (raw Ed25519). Times in ms of hub time."""

    device: str
    key: bytes
    heads: LedgerHeadReport
    received_ms: int


class LoggedHead(NamedTuple):
    """A logged head with its index.

    `flaw`: "" or how it contradicts earlier heads of this device (`forked`, `rewound`).
    """

    place: int
    leaf: HeadLeaf
    flaw: str


class LedgerLog:
    """The transparency log in SQLite: one connection, used by one thread at a time."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.size = int(db.execute("select count(*) from leaves").fetchone()[0])

    @classmethod
    def open(cls, path: Path | str, now_ms: int) -> Self:
        """Open or create the log. ExitError(DATABASE) if it is damaged or written by a newer version."""
        try:
            if isinstance(path, Path):
                path.touch(mode=0o600, exist_ok=True)
            db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            for pragma in ("journal_mode=wal", "synchronous=full", "busy_timeout=2000"):
                db.execute(f"pragma {pragma}")
            found = db.execute("pragma user_version").fetchone()[0]
            if found > SCHEMA:
                raise ExitError(
                    ExitCode.DATABASE, f"{path} has schema {found}, newer than this program's {SCHEMA}: update it"
                )
            if not found:
                db.executescript(f"begin immediate;{_TABLES};pragma user_version={SCHEMA};commit;")
                db.execute("insert into facts values('begun_ms', ?)", (now_ms,))
            return cls(db)
        except (OSError, sqlite3.Error) as error:
            raise ExitError(ExitCode.DATABASE, f"{path} cannot be used ({error}): restore it from a backup") from None

    def close(self) -> None:
        self._db.close()

    @property
    def begun_ms(self) -> int:
        """Hub time (ms) at which this log was created; earlier heads are not in it."""
        return int(self._db.execute("select value from facts where name='begun_ms'").fetchone()[0])

    # Appending

    def append(self, received: Sequence[ReceivedHead]) -> list[LoggedHead]:
        """Log heads in one transaction, durable when it returns; repeats add nothing.

        Returns where each head stands, in order. On sqlite3.Error none was logged.
        """
        before = self.size
        self._db.execute("begin immediate")
        try:
            logged = [self._append_head(each) for each in received]
            self._db.execute("commit")
        except sqlite3.Error:
            self.size = before
            self._db.rollback()
            raise
        return logged

    def _append_head(self, said: ReceivedHead) -> LoggedHead:
        self._remember_spend(said.device, said.heads.spend)
        heads = said.heads
        same = "device=? and epoch=? and entries=? and at_ms=? and head=?"
        values = (said.device, heads.epoch, heads.entries, heads.at_ms, heads.head)
        known = self._db.execute(f"select place,{_LEAF},flaw from leaves where {same}", values).fetchone()  # noqa: S608
        if known is not None:
            return LoggedHead(known[0], HeadLeaf(*known[1:-1]), known[-1])
        epochs = {row[0] for row in self._db.execute("select distinct epoch from leaves where device=?", values[:1])}
        leaf = HeadLeaf(
            said.device, said.key, epoch=heads.epoch, entries=heads.entries, at_ms=heads.at_ms, head=heads.head,
            signature=heads.signature, received_ms=said.received_ms, epochs=len(epochs | {heads.epoch}),
        )  # fmt: skip
        return self._add_leaf(leaf, self._find_flaw(heads, said.device))

    def _add_leaf(self, leaf: HeadLeaf, flaw: str) -> LoggedHead:
        place = self.size
        values = (place, *(getattr(leaf, name) for name in leaf.__struct_fields__), flaw)
        self._db.execute(f"insert into leaves values({','.join('?' * len(values))})", values)
        self._db.executemany(
            "insert into nodes values(?,?,?)",
            merkle.append_leaf(place, merkle.hash_leaf(leaf.encode_leaf()), self._read_node),
        )
        self.size += 1
        return LoggedHead(place, leaf, flaw)

    def _find_flaw(self, heads: LedgerHeadReport, device: str) -> str:
        """How a head contradicts earlier ones: a ledger only grows, and each length has one hash."""
        mine = (device, heads.epoch)
        query = "select max(entries) from leaves where device=? and epoch=?"
        longest = self._db.execute(query, mine).fetchone()[0]
        query = "select 1 from leaves where device=? and epoch=? and entries=? and head<>?"
        if self._db.execute(query, (*mine, heads.entries, heads.head)).fetchone():
            return "forked"
        return "rewound" if longest is not None and heads.entries < longest else ""

    def _remember_spend(self, device: str, spend: SpendTotals) -> None:
        put = (
            "insert into spend values(?,?,?,?) on conflict(device, account, period) "
            "do update set amount=max(amount, excluded.amount)"
        )
        self._db.executemany(put, ((device, *total) for total in spend))
        drop = "delete from spend where device=? and account=? and period < ?"
        self._db.executemany(drop, ((device, account, period - KEPT_PERIODS) for account, period, _ in spend))

    # Proofs

    def tree(self, size: int | None = None) -> TreeHead:
        """Size and root hash of the tree now, or when it had `size` leaves. ValueError if it never had so many."""
        size = self.size if size is None else size
        if not 0 <= size <= self.size:
            raise ValueError(f"the log has {self.size} heads")
        return TreeHead(size, merkle.compute_root(size, self._read_node))

    def prove_inclusion(self, index: int, size: int) -> tuple[bytes, ...]:
        """Inclusion proof of the leaf `index` in the tree of `size` leaves. ValueError if there is no such leaf."""
        return merkle.build_inclusion_proof(index, self.tree(size).size, self._read_node)

    def prove_consistency(self, first: int, second: int) -> tuple[bytes, ...]:
        """Consistency proof between two tree sizes. ValueError unless 0 < first <= second <= size."""
        return merkle.build_consistency_proof(first, self.tree(second).size, self._read_node)

    def _read_node(self, level: int, place: int) -> bytes:
        row = self._db.execute("select hash from nodes where level=? and place=?", (level, place)).fetchone()
        return bytes(row[0])

    # Reading

    def heads_for(self, device: str, after: int = -1, limit: int = 1000) -> list[LoggedHead]:
        """Logged heads of a device with an index above `after`, oldest first."""
        query = f"select place,{_LEAF},flaw from leaves where device=? and place>? order by place limit ?"  # noqa: S608
        return [
            LoggedHead(row[0], HeadLeaf(*row[1:-1]), row[-1]) for row in self._db.execute(query, (device, after, limit))
        ]

    def leaf_at(self, index: int) -> HeadLeaf | None:
        """The leaf at this index, or None."""
        row = self._db.execute(f"select {_LEAF} from leaves where place=?", (index,)).fetchone()  # noqa: S608
        return HeadLeaf(*row) if row else None

    def spend_mirror(self, device: str) -> SpendTotals:
        """Highest spending that the device ever reported: (account, period, amount), newest periods first."""
        query = "select account, period, amount from spend where device=? order by account, period desc"
        return tuple(self._db.execute(query, (device,)))

    def flawed_devices(self) -> tuple[str, ...]:
        """Devices that have contradicting heads."""
        rows: list[tuple[Any, ...]] = self._db.execute("select distinct device from leaves where flaw<>''").fetchall()
        return tuple(sorted(row[0] for row in rows))
