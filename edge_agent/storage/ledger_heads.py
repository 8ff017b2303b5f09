"""Owns the tables `heads`, `witnessed`, `hub_logs`: how far our ledger came, signed, and what hubs have signed of it.

Law: a head is written in the order of the entries it covers, and no later entry has an earlier time. Of each hub's log
the newest checkpoint is kept; one that does not follow from it is kept too, beside it, as evidence.
"""

import sqlite3
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from edge_agent.storage import accounts, ledger, tables
from wire.protocol.messages import Totals

_SIGNED = "entry,at_ms,hash,signature"
_WITNESSED = "entry,hub,key,checkpoint,leaf_index,received_ms,epochs,inclusion"
_proof_encoder = msgspec.msgpack.Encoder()
_proof_decoder = msgspec.msgpack.Decoder(tuple[bytes, ...])


class Signed(NamedTuple):
    """Our signed word that the ledger had come to `entry` at `at_ms`."""

    entry: int
    at_ms: int
    hash: bytes
    signature: bytes


class Witnessed(NamedTuple):
    """A hub's word that it has logged the head of `entry`. `key`: the raw Ed25519 key that signed `checkpoint`."""

    entry: int
    hub: str
    key: bytes
    checkpoint: str
    place: int
    received_ms: int
    epochs: int
    inclusion: tuple[bytes, ...]


class HubView(NamedTuple):
    """A hub's log as we last saw it; `forked`: a checkpoint of it that does not follow from that one, or ""."""

    hub: str
    key: bytes
    checkpoint: str
    forked: str = ""


class Wish(NamedTuple):
    """When a head is due: entries came and `every_s` has gone by, or `idle_s` has; `now` = there is a hub to tell."""

    at_ms: int
    every_s: float
    idle_s: float
    now: bool


class Due(NamedTuple):
    """What to tell the hub."""

    epoch: int
    signed: Signed
    spend: Totals
    views: dict[str, HubView]


Sign = Callable[[int, int, int, bytes], bytes]  # (epoch, entries, at_ms, hash) -> signature


def due(db: sqlite3.Connection, wish: Wish, sign: Sign) -> Due | None:
    """Sign the newest entry if that is due. A head that no hub has seen yet is told again."""
    last, tail = newest(db), ledger.tail(db)
    epoch = tables.epoch(db)
    if last is not None and last.entry == tail.entry:
        told = wish.now and not _is_witnessed(db, last.entry)
        return Due(epoch, last, accounts.running(db), views(db)) if told else None
    if last is not None and not wish.now:
        gone_s = (wish.at_ms - last.at_ms) / 1000
        if gone_s < (wish.every_s if tail.entry > last.entry + 1 else wish.idle_s):  # one entry: the report itself
            return None
    at_ms = max(wish.at_ms, tail.at_ms)
    signed = Signed(tail.entry, at_ms, tail.hash, sign(epoch, tail.entry, at_ms, tail.hash))
    db.execute(f"insert or ignore into heads({_SIGNED}) values(?,?,?,?)", signed)
    return Due(epoch, signed, accounts.running(db), views(db))


def newest(db: sqlite3.Connection) -> Signed | None:
    row = db.execute(f"select {_SIGNED} from heads order by entry desc limit 1").fetchone()  # noqa: S608
    return Signed(*row) if row else None


def of(db: sqlite3.Connection, entry: int) -> Signed | None:
    row = db.execute(f"select {_SIGNED} from heads where entry=?", (entry,)).fetchone()  # noqa: S608
    return Signed(*row) if row else None


def everything(db: sqlite3.Connection) -> Iterator[Signed]:
    """Oldest first; the first of a pruned ledger stands for what is gone."""
    yield from map(Signed._make, db.execute(f"select {_SIGNED} from heads order by entry"))  # noqa: S608


def witnesses(db: sqlite3.Connection) -> Iterator[Witnessed]:
    """Oldest first."""
    for row in db.execute(f"select {_WITNESSED} from witnessed order by entry"):  # noqa: S608
        yield Witnessed._make((*row[:-1], _proof_decoder.decode(row[-1])))


def _is_witnessed(db: sqlite3.Connection, entry: int) -> bool:
    return db.execute("select 1 from witnessed where entry=?", (entry,)).fetchone() is not None


def keep_witnessed(db: sqlite3.Connection, said: Witnessed) -> None:
    values = (*said[:-1], _proof_encoder.encode(said.inclusion))
    db.execute(f"insert or replace into witnessed({_WITNESSED}) values(?,?,?,?,?,?,?,?)", values)


def views(db: sqlite3.Connection) -> dict[str, HubView]:
    rows = db.execute("select hub, key, checkpoint, forked from hub_logs")
    return {row[0]: HubView(*row) for row in rows}


def keep_view(db: sqlite3.Connection, view: HubView) -> None:
    """A fork that was found once stays on record."""
    db.execute(
        "insert into hub_logs(hub,key,checkpoint,forked) values(?,?,?,?) on conflict(hub) do update set "
        "key=excluded.key, checkpoint=excluded.checkpoint, "
        "forked=case when forked='' then excluded.forked else forked end",
        view,
    )


class Story(NamedTuple):
    """What a hub's word is judged by: the head it speaks of, and each hub's log as we saw it last."""

    signed: Signed | None
    views: dict[str, HubView]


def story(db: sqlite3.Connection, entry: int) -> Story:
    return Story(of(db, entry), views(db))
