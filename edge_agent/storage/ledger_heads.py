"""SQL of the ledger's signed heads, of hubs' witness records, and of hub logs (`heads`, `witnessed`, `hub_logs`).

A head is the device's signature over the newest entry; a hub logs it in its Merkle log and returns a signed checkpoint.
Rule: heads are written in the order of the entries they cover, and no later entry has an earlier time. Of each hub's
log the newest checkpoint is kept; one that is inconsistent with it is kept beside it, as evidence.
"""

import sqlite3
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from edge_agent.storage import accounts, ledger, tables
from wire.protocol.messages import SpendTotals

_SIGNED = "entry,at_ms,hash,signature"
_WITNESSED = "entry,hub,key,checkpoint,leaf_index,received_ms,epochs,inclusion"
_proof_encoder = msgspec.msgpack.Encoder()
_proof_decoder = msgspec.msgpack.Decoder(tuple[bytes, ...])


class SignedHead(NamedTuple):
    """A signed head: the device's signature that its ledger had `entry` entries, with this hash, at `at_ms`."""

    entry: int
    at_ms: int
    hash: bytes
    signature: bytes


class WitnessedHead(NamedTuple):
    """A hub's statement that it has logged the head of `entry`.

    `key`: raw Ed25519 key that signed `checkpoint`. `place`: index of the leaf in the hub's log. `inclusion`: Merkle
    inclusion proof. `epochs`: how many databases the hub has seen of this device.
    """

    entry: int
    hub: str
    key: bytes
    checkpoint: str
    place: int
    received_ms: int
    epochs: int
    inclusion: tuple[bytes, ...]


class HubLogView(NamedTuple):
    """Newest checkpoint seen of a hub's log; `forked`: a checkpoint inconsistent with it, or ""."""

    hub: str
    key: bytes
    checkpoint: str
    forked: str = ""


class HeadRequest(NamedTuple):
    """When a head is to be signed: new entries and `every_s` seconds gone by, or `idle_s` without; `now`: at once.

    `at_ms`: the present, in hub milliseconds. `now` is set while a hub is connected that can be sent the head.
    """

    at_ms: int
    every_s: float
    idle_s: float
    now: bool


class PendingHead(NamedTuple):
    """A head to send to the hub, with the totals of the accounts and the checkpoints known of each hub's log."""

    epoch: int
    signed: SignedHead
    spend: SpendTotals
    views: dict[str, HubLogView]


HeadSigner = Callable[[int, int, int, bytes], bytes]  # (epoch, entries, at_ms, hash) -> signature


def sign_due_head(db: sqlite3.Connection, wish: HeadRequest, sign: HeadSigner) -> PendingHead | None:
    """Sign the newest entry if that is due, and return what to send; None if nothing is.

    A head that no hub has logged yet is sent again.
    """
    last, tail = read_newest(db), ledger.read_tail(db)
    epoch = tables.read_epoch(db)
    if last is not None and last.entry == tail.entry:
        told = wish.now and not _is_witnessed(db, last.entry)
        return PendingHead(epoch, last, accounts.read_hub_totals(db), read_views(db)) if told else None
    if last is not None and not wish.now:
        gone_s = (wish.at_ms - last.at_ms) / 1000
        if gone_s < (wish.every_s if tail.entry > last.entry + 1 else wish.idle_s):  # 1: the last report
            return None
    at_ms = max(wish.at_ms, tail.at_ms)
    signed = SignedHead(tail.entry, at_ms, tail.hash, sign(epoch, tail.entry, at_ms, tail.hash))
    db.execute(f"insert or ignore into heads({_SIGNED}) values(?,?,?,?)", signed)
    return PendingHead(epoch, signed, accounts.read_hub_totals(db), read_views(db))


def read_newest(db: sqlite3.Connection) -> SignedHead | None:
    """The newest signed head, None if there is none."""
    row = db.execute(f"select {_SIGNED} from heads order by entry desc limit 1").fetchone()  # noqa: S608
    return SignedHead(*row) if row else None


def read_head(db: sqlite3.Connection, entry: int) -> SignedHead | None:
    """The signed head of an entry, None if there is none."""
    row = db.execute(f"select {_SIGNED} from heads where entry=?", (entry,)).fetchone()  # noqa: S608
    return SignedHead(*row) if row else None


def iterate_heads(db: sqlite3.Connection) -> Iterator[SignedHead]:
    """All heads, oldest first; the first of a pruned ledger stands for the deleted entries."""
    yield from map(SignedHead._make, db.execute(f"select {_SIGNED} from heads order by entry"))  # noqa: S608


def iterate_witnessed(db: sqlite3.Connection) -> Iterator[WitnessedHead]:
    """All witness records, oldest first."""
    for row in db.execute(f"select {_WITNESSED} from witnessed order by entry"):  # noqa: S608
        yield WitnessedHead._make((*row[:-1], _proof_decoder.decode(row[-1])))


def _is_witnessed(db: sqlite3.Connection, entry: int) -> bool:
    return db.execute("select 1 from witnessed where entry=?", (entry,)).fetchone() is not None


def store_witnessed(db: sqlite3.Connection, said: WitnessedHead) -> None:
    """Store a hub's witness record, in place of its earlier one for the same head."""
    values = (*said[:-1], _proof_encoder.encode(said.inclusion))
    db.execute(f"insert or replace into witnessed({_WITNESSED}) values(?,?,?,?,?,?,?,?)", values)


def read_views(db: sqlite3.Connection) -> dict[str, HubLogView]:
    """The newest checkpoint of each hub's log, by hub name."""
    rows = db.execute("select hub, key, checkpoint, forked from hub_logs")
    return {row[0]: HubLogView(*row) for row in rows}


def store_view(db: sqlite3.Connection, view: HubLogView) -> None:
    """Store the newest checkpoint of a hub's log. A fork that was found once is never overwritten."""
    db.execute(
        "insert into hub_logs(hub,key,checkpoint,forked) values(?,?,?,?) on conflict(hub) do update set "
        "key=excluded.key, checkpoint=excluded.checkpoint, "
        "forked=case when forked='' then excluded.forked else forked end",
        view,
    )


class HeadHistory(NamedTuple):
    """What a hub's statement is checked against: the head it names, and the checkpoints seen so far."""

    signed: SignedHead | None
    views: dict[str, HubLogView]


def read_history(db: sqlite3.Connection, entry: int) -> HeadHistory:
    """Read what a statement about this entry is checked against."""
    return HeadHistory(read_head(db, entry), read_views(db))
