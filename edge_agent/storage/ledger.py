"""SQL of the egress ledger (`entries`, `forms`, `unsent`): everything that left the device, as a hash chain.

Rule: an entry is committed before its bytes are sent, and is never changed; its hash covers the entry before. Entries
name ciphertexts by their SHA-256 and hold no sample values. The oldest are deleted only up to a signed head, which then
stands for them. The newest question's entry determines the number of the next question.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from edge_agent.storage import tables
from edge_agent.storage.outbox import OutboxRow
from policies.decisions.budget import AccountCharge
from policies.decisions.egress import EgressPlan
from wire.ledger import chain
from wire.ledger.chain import EntryForm, EntryKind, LedgerEntry

_LINK = "entry,at_ms,seq,kind,size,charge,releases,form,digest,id"
_FORM = "fields,transforms,rule,policy,hub,region,accounts"
_COLUMNS = "at_ms,seq,epoch,id,kind,fields,transforms,rule,policy,hub,region,size,digest"
_INSERT = f"insert into entries({_LINK},hash) values(?,?,?,?,?,?,?,?,?,?,?)"
_INSERT_FORM = f"insert or ignore into forms(form,{_FORM}) values(?,?,?,?,?,?,?,?)"


_READ_HEAD_TIME = "select at_ms from heads order by entry desc limit 1"
_READ_TAIL = (
    f"select entry, max(at_ms, coalesce(({_READ_HEAD_TIME}), 0)), hash from entries order by entry desc limit 1"  # noqa: S608
)
_MAX_ENTRY = 2**62  # beyond every entry
SUBJECT_MARK = "/s/"  # what follows it in an account's key names a subject, which the ledger must not hold


class LedgerItem(NamedTuple):
    """A new entry: one message to be sent.

    `charge` and `size` in bytes; `releases`: noised values that a privacy budget pays for.
    """

    kind: EntryKind
    form: EntryForm
    at_ms: int
    size: int
    digest: bytes
    seq: int = 0
    id: str = ""
    charge: int = 0
    releases: int = 0


class LedgerTail(NamedTuple):
    """The newest entry, and the earliest time of the next one.

    0 and the genesis hash before there is an entry.
    """

    entry: int
    at_ms: int
    hash: bytes


def append_item(db: sqlite3.Connection, item: LedgerItem) -> None:
    """Append one entry. Its time never goes back, whatever the clock says."""
    _append_link(db, item, _store_form(db, _encode_form(item.form)))


def append_question(
    db: sqlite3.Connection, row: OutboxRow, kind: EntryKind, at_ms: int, charges: tuple[AccountCharge, ...] = ()
) -> None:
    """Append the entry of a question that was sealed, or sealed again, which costs nothing more."""
    accounts = dict.fromkeys(charge.key.partition(SUBJECT_MARK)[0] for charge in charges)
    form = _encode_question_form(row.egress, row.policy, row.hub, row.region, tuple(accounts))
    charge, releases = (row.charge, row.egress.releases) if kind is EntryKind.QUESTION else (0, 0)
    item = LedgerItem(
        kind=kind, form=_NO_FORM, at_ms=at_ms, size=row.size, digest=row.digest, seq=row.seq, id=row.id, charge=charge,
        releases=releases,
    )  # fmt: skip
    _append_link(db, item, _store_form(db, form))


def append_resend(db: sqlite3.Connection, seq: int, at_ms: int) -> None:
    """Append an entry: the same bytes of a question are sent again.

    ValueError if it has no entry; then it must not be sent.
    """
    _append_copy(db, EntryKind.AGAIN, seq, at_ms)


def append_withheld(db: sqlite3.Connection, seq: int, at_ms: int) -> None:
    """Append an entry: the bytes of a question's newest entry were not sent after all."""
    _append_copy(db, EntryKind.WITHHELD, seq, at_ms)


def _append_copy(db: sqlite3.Connection, kind: EntryKind, seq: int, at_ms: int) -> None:
    query = "select size, form, digest, id from entries where seq=? and kind<=2 order by entry desc limit 1"
    found = db.execute(query, (seq,)).fetchone()
    if found is None:
        raise ValueError(f"question {seq} has no ledger entry")
    size, form, digest, id_ = found
    _append_link(db, LedgerItem(kind=kind, form=_NO_FORM, at_ms=at_ms, size=size, digest=digest, seq=seq, id=id_), form)


_NO_FORM = EntryForm(fields={}, transforms={}, rule="", policy="", hub="", region="")


def _append_link(db: sqlite3.Connection, item: LedgerItem, form: bytes) -> None:
    last = read_tail(db)
    link = LedgerEntry(
        entry=last.entry + 1, at_ms=max(item.at_ms, last.at_ms), seq=item.seq, kind=item.kind, size=item.size,
        charge=item.charge, releases=item.releases, form=form, digest=item.digest, id=item.id,
    )  # fmt: skip
    db.execute(_INSERT, (*link, chain.chain_hash(last.hash, link)))


def make_form(egress: EgressPlan, policy: str, hub: str, region: str, accounts: tuple[str, ...] = ()) -> EntryForm:
    """The repeated part of an entry: fields with levels, transforms, rule, policy, hub, region, accounts."""
    fields = {plan.spec.name: plan.spec.level.name for plan in egress.fields}
    transforms = {plan.spec.name: msgspec.to_builtins(plan.transforms) for plan in egress.fields}
    return EntryForm(
        fields=fields, transforms=transforms, rule=egress.rule, policy=policy, hub=hub, region=region, accounts=accounts
    )


FormRow = tuple[bytes, str, str, str, str, str, str, str]  # the form's SHA-256 name, then the columns `_FORM`


@lru_cache(maxsize=64)
def _encode_question_form(egress: EgressPlan, policy: str, hub: str, region: str, accounts: tuple[str, ...]) -> FormRow:
    """The row of a question's form. Kept, as all questions of one class under one policy have the same."""
    return _encode_form(make_form(egress, policy, hub, region, accounts))


def _encode_form(form: EntryForm) -> FormRow:
    """The row of a form."""
    fields, transforms = chain.encode_form_json(form.fields), chain.encode_form_json(form.transforms)
    accounts = "+".join(form.accounts)
    return chain.hash_form(form), fields, transforms, form.rule, form.policy, form.hub, form.region, accounts


def _store_form(db: sqlite3.Connection, row: FormRow) -> bytes:
    """Store a form once and return its SHA-256 name, which entries refer to."""
    db.execute(_INSERT_FORM, row)
    return row[0]


# Reading


def read_tail(db: sqlite3.Connection) -> LedgerTail:
    """The newest entry; its time is not before that of the newest signed head."""
    row = db.execute(_READ_TAIL).fetchone()
    if row is not None:
        return LedgerTail(*row)
    head = db.execute(_READ_HEAD_TIME).fetchone()
    return LedgerTail(0, head[0] if head else 0, chain.genesis_hash(tables.read_epoch(db)))


def read_next_seq(db: sqlite3.Connection) -> int:
    """The number of the next question: above every recorded one and above the stored floor."""
    newest = db.execute("select max(seq) from entries where seq>0").fetchone()[0]
    return max(int(newest or 0) + 1, tables.read_value(db, "seq_floor", 1))


def read_entries(db: sqlite3.Connection, id: str) -> list[dict[str, Any]]:  # noqa: A002 - the column's name
    """The entries of one id, JSON-able."""
    return [_encode_entry(row) for row in db.execute(f"select {_COLUMNS} from ledger where id=? order by entry", (id,))]  # noqa: S608


def iterate_entries(db: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    """All entries, oldest first, JSON-able."""
    for row in db.execute(f"select {_COLUMNS} from ledger order by entry"):  # noqa: S608
        yield _encode_entry(row)


def iterate_links(
    db: sqlite3.Connection, after: int = 0, upto: int | None = None
) -> Iterator[tuple[LedgerEntry, bytes]]:
    """Entries after number `after` up to `upto`, each with the hash stored beside it, oldest first."""
    query = f"select {_LINK},hash from entries where entry>? and entry<=? order by entry"  # noqa: S608
    for row in db.execute(query, (after, _MAX_ENTRY if upto is None else upto)):
        yield LedgerEntry(*row[:10]), row[10]


def read_forms(db: sqlite3.Connection, after: int = 0, upto: int | None = None) -> dict[bytes, EntryForm]:
    """The forms that these entries use, by their SHA-256 name."""
    used = "select distinct form from entries where entry>? and entry<=?"
    query = f"select form,{_FORM} from forms where form in ({used})"  # noqa: S608
    return {row[0]: _decode_form(row[1:]) for row in db.execute(query, (after, _MAX_ENTRY if upto is None else upto))}


def _decode_form(row: tuple[str, ...]) -> EntryForm:
    fields, transforms, rule, policy, hub, region, accounts = row
    charged = tuple(accounts.split("+")) if accounts else ()
    return EntryForm(
        fields=json.loads(fields), transforms=json.loads(transforms), rule=rule, policy=policy, hub=hub,
        region=region, accounts=charged,
    )  # fmt: skip


def _encode_entry(row: tuple[Any, ...]) -> dict[str, Any]:
    """One row of the view `ledger` as JSON-able values."""
    facts = dict(zip(_COLUMNS.split(","), row, strict=True))
    facts["fields"], facts["transforms"] = json.loads(facts["fields"]), json.loads(facts["transforms"])
    facts["digest"], facts["epoch"] = facts["digest"].hex(), f"{facts['epoch']:x}"
    return facts


# Recorded and not sent yet, over a clean shutdown


def store_unsent(db: sqlite3.Connection, seqs: Iterable[int]) -> None:
    """Remember over a clean shutdown which questions are recorded and were never sent."""
    db.executemany("insert or ignore into unsent values(?)", ((seq,) for seq in seqs))


def take_unsent(db: sqlite3.Connection) -> frozenset[int]:
    """Read and delete the numbers of questions that were recorded and never sent.

    Deleted at once: after a crash a question counts as sent, since the ledger may list too much but never too little.
    """
    seqs = frozenset(row[0] for row in db.execute("select seq from unsent"))
    db.execute("delete from unsent")
    return seqs


# Pruning and migration


def prune_ledger(db: sqlite3.Connection, max_rows: int) -> int:
    """Delete the oldest entries beyond `max_rows`, up to a signed head and never an open question's.

    Returns how many were deleted.
    """
    bound = db.execute(
        "select max(entry) from heads where entry <= (select max(entry) from entries) - ? and entry < coalesce("
        "(select min(entry) from entries where seq>0 and seq in (select seq from outbox)), 1<<62)",
        (max_rows,),
    ).fetchone()[0]
    if not bound:
        return 0
    tables.write_value(db, "seq_floor", read_next_seq(db))
    gone = db.execute("delete from entries where entry <= ?", (bound,)).rowcount
    for table in ("heads", "witnessed"):
        db.execute(f"delete from {table} where entry < ?", (bound,))  # noqa: S608 - constant names
    db.execute("delete from forms where form not in (select form from entries)")
    return max(0, gone)


def migrate_ledger(db: sqlite3.Connection) -> None:
    """Migrate the rows of a schema-1 ledger into the chain, in one transaction."""
    if db.execute("select 1 from sqlite_master where name='ledger_1'").fetchone() is None:
        return
    db.execute("begin immediate")
    rows = db.execute(f"select {_COLUMNS} from ledger_1 order by entry").fetchall()  # noqa: S608
    for row in rows:
        old = dict(zip(_COLUMNS.split(","), row, strict=True))
        words = (old["rule"], old["policy"], old["hub"], old["region"])
        form = EntryForm(json.loads(old["fields"]), json.loads(old["transforms"]), *words)
        kind = EntryKind[old["kind"].upper()]
        item = LedgerItem(
            kind=kind, form=form, at_ms=old["at_ms"], size=old["size"], digest=old["digest"], seq=old["seq"],
            id=old["id"], charge=old["size"],
        )  # fmt: skip
        append_item(db, item)
    db.execute("drop table ledger_1")
    db.execute("commit")
