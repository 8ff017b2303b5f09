"""The schema of agent.db and its forward migrations; each table's rows belong to its own module.

Law: a database written by a newer version is refused, never guessed at; a migration runs once, in one transaction.
"""

import sqlite3

from wire.exits import Exit, Stop

SCHEMA = (
    # version 1
    """
    create table meta(key text primary key, value integer not null) without rowid;
    create table outbox(
        seq integer primary key, epoch integer not null, id text not null unique, state integer not null,
        created_ms integer not null, expires_ms integer not null, not_before_ms integer not null,
        attempts integer not null, jitter real not null, policy text not null, model text not null,
        data_class text not null, hub text not null, region text not null, egress blob not null,
        fingerprint blob not null, digest blob not null, key_id blob not null, size integer not null,
        charge integer not null, payload blob not null, sealed blob not null);
    create table answers(
        event integer primary key autoincrement, id text not null, kind text not null, at_ms integer not null,
        source text not null, why text not null, label integer not null, confidence real not null,
        scores blob not null, model text not null, policy text not null, seq text not null, data_class text not null,
        trace text not null, infer_s real not null, total_s real not null, queue_s real not null,
        compute_s real not null, unique(id, kind));
    create table outcomes(
        seq integer primary key, epoch integer not null, id text not null, outcome text not null,
        reason text not null, at_ms integer not null);
    create index outcomes_id on outcomes(id);
    create table ledger(
        entry integer primary key autoincrement, at_ms integer not null, seq integer not null, epoch integer not null,
        id text not null, kind text not null, fields text not null, transforms text not null, rule text not null,
        policy text not null, hub text not null, region text not null, size integer not null, digest blob not null);
    create index ledger_seq on ledger(seq);
    create index ledger_id on ledger(id);
    create table spend(day integer primary key, bytes integer not null);
    create table feedback(id text primary key, truth integer not null, at_ms integer not null) without rowid;
    """,
)


def migrate(db: sqlite3.Connection, path: str) -> None:
    """Bring the database to this version. Stop(DATABASE) if a newer one wrote it."""
    found = db.execute("pragma user_version").fetchone()[0]
    if found > len(SCHEMA):
        raise Stop(Exit.DATABASE, f"{path}: written by a newer version (schema {found}, here {len(SCHEMA)}): update")
    for version in range(found, len(SCHEMA)):
        # pragma and statements in one script, one transaction: a torn migration leaves the old version
        db.executescript(f"begin immediate;{SCHEMA[version]};pragma user_version={version + 1};commit;")
