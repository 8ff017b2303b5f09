"""Append-only transparency log (Merkle tree) of the devices' ledger heads, and the mirror of their spending.

The tree is as in RFC 6962, see `wire.ledger.merkle`. Rule: the only owner of its tables. A head is logged as the device
signed it, also one that contradicts an earlier one: then the log holds both signatures, which is the proof. A leaf is
never changed and never removed, so several hubs may read one log, and append to it one after the other.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import sqlalchemy as sa

from cloud_hub.database.changes import Topic, record_change
from cloud_hub.database.connection import Location, open_part, read_snapshot
from cloud_hub.database.parts import LEDGER
from cloud_hub.database.statements import insert_missing, lock_exclusively, write_rows
from cloud_hub.database.tables import facts, leaves, nodes, spend
from wire.ledger import merkle
from wire.ledger.chain import HeadLeaf
from wire.ledger.merkle import NodeReader, TreeHead
from wire.protocol.messages import LedgerHeadReport, SpendTotals

KEPT_PERIODS = 400  # periods (days or longer) of spending remembered per account
MAX_CACHED_NODES = 65_536  # some 10 MB; proofs and appends read the same right edge of the tree again and again
_LEAF_COLUMNS = (
    "device", "signer", "epoch", "entries", "at_ms", "head", "signature", "received_ms", "epochs",
)  # fmt: skip # in the order of `HeadLeaf`
_LOGGED = sa.select(leaves.c.place, leaves.c.flaw, *(leaves.c[name] for name in _LEAF_COLUMNS))
_SAME = ("device", "epoch", "entries", "at_ms", "head")
_FIND_SAME = _LOGGED.where(*(leaves.c[name] == sa.bindparam(name) for name in _SAME))
_EPOCHS = sa.select(leaves.c.epoch).where(leaves.c.device == sa.bindparam("device")).distinct()
_MINE = (leaves.c.device == sa.bindparam("device"), leaves.c.epoch == sa.bindparam("epoch"))
_LONGEST = sa.select(sa.func.max(leaves.c.entries)).where(*_MINE)
_OTHERS = sa.select(leaves.c.place).where(
    *_MINE, leaves.c.entries == sa.bindparam("entries"), leaves.c.head != sa.bindparam("head")
)
_NODE = sa.select(nodes.c.hash).where(nodes.c.level == sa.bindparam("level"), nodes.c.place == sa.bindparam("place"))
_SIZE = sa.select(sa.func.coalesce(sa.func.max(leaves.c.place) + 1, 0))


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
    """The transparency log in the hub's database; used by one thread at a time. `size`: leaves when last looked."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._nodes: dict[tuple[int, int], bytes] = {}  # complete subtrees that are committed: they never change
        self.size, self._last = 0, b""  # hash of the last leaf of these
        with read_snapshot(engine) as connection:
            self._look(connection)

    @classmethod
    def open(cls, where: Location, now_ms: int) -> Self:
        """Open or create the log. ExitError(DATABASE) if it is damaged or written by a newer version."""
        engine = open_part(where, LEDGER)
        with engine.begin() as connection:
            insert_missing(connection, facts, {"name": "begun_ms", "value": now_ms})
        return cls(engine)

    def close(self) -> None:
        self._engine.dispose()

    @property
    def begun_ms(self) -> int:
        """Hub time (ms) at which this log was created; earlier heads are not in it."""
        with read_snapshot(self._engine) as connection:
            return int(connection.execute(sa.select(facts.c.value).where(facts.c.name == "begun_ms")).scalar_one())

    # Appending

    def append(self, received: Sequence[ReceivedHead]) -> list[LoggedHead]:
        """Log heads in one transaction, durable when it returns; repeats add nothing.

        Returns where each head stands, in order. On SQLAlchemyError none was logged.
        """
        with self._engine.begin() as connection:
            lock_exclusively(connection, "ledger")
            writer = _LogWriter(connection, self._look(connection), self._reader(connection))
            logged = [writer.append_head(each) for each in received]
            flawed = {each.leaf.device for each in logged if each.flaw}
            if flawed:
                record_change(connection, Topic.FLAWS, flawed)
        self.size, self._last = writer.size, writer.made.get((0, writer.size - 1), self._last)
        self._remember_nodes(writer.made)
        return logged

    # Proofs

    def tree(self, size: int | None = None) -> TreeHead:
        """Size and root hash of the tree now, or when it had `size` leaves. ValueError if it never had so many."""
        with read_snapshot(self._engine) as connection:
            if size is None or size > self.size:
                self._look(connection)
            size = self.size if size is None else size
            if not 0 <= size <= self.size:
                raise ValueError(f"the log has {self.size} heads")
            return TreeHead(size, merkle.compute_root(size, self._reader(connection)))

    def prove_inclusion(self, index: int, size: int) -> tuple[bytes, ...]:
        """Inclusion proof of the leaf `index` in the tree of `size` leaves. ValueError if there is no such leaf."""
        self._check_size(size)
        with read_snapshot(self._engine) as connection:
            return merkle.build_inclusion_proof(index, size, self._reader(connection))

    def prove_consistency(self, first: int, second: int) -> tuple[bytes, ...]:
        """Consistency proof between two tree sizes. ValueError unless 0 < first <= second <= size."""
        self._check_size(second)
        with read_snapshot(self._engine) as connection:
            return merkle.build_consistency_proof(first, second, self._reader(connection))

    def _look(self, connection: sa.Connection) -> int:
        """See how large the log is. What is remembered of one that went back is forgotten: a database was restored."""
        if _read_leaf_hash(connection, self.size - 1) != self._last:
            self._nodes.clear()
        self.size = int(connection.execute(_SIZE).scalar_one())
        self._last = _read_leaf_hash(connection, self.size - 1)
        return self.size

    def _check_size(self, size: int) -> None:
        if not 0 <= size <= self.size:
            raise ValueError(f"the log has {self.size} heads")

    def _reader(self, connection: sa.Connection) -> NodeReader:
        """Reads nodes, those that are committed from memory where they are known."""

        def read(level: int, place: int) -> bytes:
            known = self._nodes.get((level, place))
            if known is not None:
                return known
            found = bytes(connection.execute(_NODE, {"level": level, "place": place}).scalar_one())
            if (place + 1) << level <= self.size:
                self._remember_nodes({(level, place): found})
            return found

        return read

    def _remember_nodes(self, made: dict[tuple[int, int], bytes]) -> None:
        if len(self._nodes) + len(made) > MAX_CACHED_NODES:
            self._nodes.clear()
        self._nodes |= made

    # Reading

    def heads_for(self, device: str, after: int = -1, limit: int = 1000) -> list[LoggedHead]:
        """Logged heads of a device with an index above `after`, oldest first."""
        query = _LOGGED.where(leaves.c.device == device, leaves.c.place > after).order_by(leaves.c.place).limit(limit)
        with read_snapshot(self._engine) as connection:
            return [_parse_head(row) for row in connection.execute(query)]

    def newest_heads(self, device: str, limit: int) -> list[LoggedHead]:
        """The newest logged heads of a device, newest first."""
        query = _LOGGED.where(leaves.c.device == device).order_by(leaves.c.place.desc()).limit(limit)
        with read_snapshot(self._engine) as connection:
            return [_parse_head(row) for row in connection.execute(query)]

    def leaf_at(self, index: int) -> HeadLeaf | None:
        """The leaf at this index, or None."""
        with read_snapshot(self._engine) as connection:
            row = connection.execute(_LOGGED.where(leaves.c.place == index)).first()
        return _parse_head(row).leaf if row else None

    def spend_mirror(self, device: str) -> SpendTotals:
        """Highest spending that the device ever reported: (account, period, amount), newest periods first."""
        query = sa.select(spend.c.account, spend.c.period, spend.c.amount).where(spend.c.device == device)
        with read_snapshot(self._engine) as connection:
            found = connection.execute(query.order_by(spend.c.account, spend.c.period.desc()))
            return tuple((row.account, row.period, row.amount) for row in found)

    def flawed_devices(self) -> tuple[str, ...]:
        """Devices that have contradicting heads."""
        with read_snapshot(self._engine) as connection:
            return read_flawed(connection)


class _LogWriter:
    """Appends heads in a transaction that is under way.

    `size`: leaves with those appended; `made`: the nodes of these by (level, index).
    """

    def __init__(self, connection: sa.Connection, size: int, committed: NodeReader) -> None:
        self.size = size
        self.made: dict[tuple[int, int], bytes] = {}
        self._connection = connection
        self._committed = committed

    def append_head(self, said: ReceivedHead) -> LoggedHead:
        self._remember_spend(said.device, said.heads.spend)
        heads = said.heads
        same = {"device": said.device, **{name: getattr(heads, name) for name in _SAME[1:]}}
        known = self._connection.execute(_FIND_SAME, same).first()
        if known is not None:
            return _parse_head(known)
        epochs = {row.epoch for row in self._connection.execute(_EPOCHS, {"device": said.device})}
        leaf = HeadLeaf(
            said.device, said.key, epoch=heads.epoch, entries=heads.entries, at_ms=heads.at_ms, head=heads.head,
            signature=heads.signature, received_ms=said.received_ms, epochs=len(epochs | {heads.epoch}),
        )  # fmt: skip
        return self._add_leaf(leaf, self._find_flaw(same))

    def _add_leaf(self, leaf: HeadLeaf, flaw: str) -> LoggedHead:
        place = self.size
        values = (getattr(leaf, name) for name in leaf.__struct_fields__)
        row: dict[str, Any] = dict(zip(_LEAF_COLUMNS, values, strict=True))
        self._connection.execute(leaves.insert(), {**row, "place": place, "flaw": flaw})
        made = merkle.append_leaf(place, merkle.hash_leaf(leaf.encode_leaf()), self._read_node)
        self._connection.execute(nodes.insert(), [each._asdict() for each in made])
        self.made |= {(each.level, each.place): each.hash for each in made}
        self.size += 1
        return LoggedHead(place, leaf, flaw)

    def _read_node(self, level: int, place: int) -> bytes:
        found = self.made.get((level, place))
        return self._committed(level, place) if found is None else found

    def _find_flaw(self, same: dict[str, Any]) -> str:
        """How a head contradicts earlier ones: a ledger only grows, and each length has one hash."""
        mine = {"device": same["device"], "epoch": same["epoch"]}
        longest = self._connection.execute(_LONGEST, mine).scalar()
        others = {**mine, "entries": same["entries"], "head": same["head"]}
        if longest is not None and self._connection.execute(_OTHERS, others).first():
            return "forked"
        return "rewound" if longest is not None and same["entries"] < longest else ""

    def _remember_spend(self, device: str, totals: SpendTotals) -> None:
        rows = {(account, period): amount for account, period, amount in sorted(totals)}  # of two the larger stays
        written = [
            {"device": device, "account": account, "period": period, "amount": amount}
            for (account, period), amount in rows.items()
        ]
        write_rows(self._connection, spend, written, raised=("amount",))
        newest: dict[str, int] = {}
        for account, period in rows:
            newest[account] = max(period, newest.get(account, period))
        for account, period in newest.items():
            mine = (spend.c.device == device, spend.c.account == account)
            self._connection.execute(spend.delete().where(*mine, spend.c.period < period - KEPT_PERIODS))


def read_flawed(connection: sa.Connection) -> tuple[str, ...]:
    """Devices that have contradicting heads."""
    found = connection.execute(sa.select(leaves.c.device).where(leaves.c.flaw != "").distinct())
    return tuple(sorted(row.device for row in found))


def _read_leaf_hash(connection: sa.Connection, place: int) -> bytes:
    """Hash of a leaf, b"" where there is none."""
    return bytes(connection.execute(_NODE, {"level": 0, "place": place}).scalar() or b"")


def _parse_head(row: sa.Row[Any]) -> LoggedHead:
    return LoggedHead(row.place, HeadLeaf(*(getattr(row, name) for name in _LEAF_COLUMNS)), row.flaw)
