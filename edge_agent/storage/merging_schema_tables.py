"""The schema of agent.db and its forward migrations; each table's rows belong to its own module.

Law: a database written by a newer version is refused, never guessed at; a migration runs once, in one transaction.
"""

import sqlite3

from wire.process.exit_codes import Exit, ExitError

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
    # version 2: the ledger is a chain, its heads are signed; `ledger.adopt` brings the old rows over
    """
    alter table ledger rename to ledger_1;
    drop index ledger_seq;
    drop index ledger_id;
    create table forms(
        form blob primary key, fields text not null, transforms text not null, rule text not null,
        policy text not null, hub text not null, region text not null, accounts text not null) without rowid;
    create table entries(
        entry integer primary key, at_ms integer not null, seq integer not null, kind integer not null,
        size integer not null, charge integer not null, releases integer not null, form blob not null,
        digest blob not null, id text not null, hash blob not null);
    create index entries_seq on entries(seq) where seq>0;
    create index entries_id on entries(id) where id<>'';
    create view ledger as select
        entry, at_ms, seq, (select value from meta where key='epoch') as epoch, id,
        case kind when 1 then 'question' when 2 then 'resealed' when 3 then 'again' when 4 then 'withheld'
        when 5 then 'hello' when 6 then 'ask' when 7 then 'report' else 'state' end as kind,
        fields, transforms, rule, policy, hub, region, accounts, size, charge, releases, digest
        from entries join forms using(form);
    create table heads(
        entry integer primary key, at_ms integer not null, hash blob not null, signature blob not null);
    create table witnessed(
        entry integer not null, hub text not null, key blob not null, checkpoint text not null,
        leaf_index integer not null, received_ms integer not null, epochs integer not null, inclusion blob not null,
        primary key(entry, hub)) without rowid;
    create table hub_logs(
        hub text primary key, key blob not null, checkpoint text not null,
        forked text not null default '') without rowid;
    create table unsent(seq integer primary key);
    create table traffic(hour integer primary key, bytes integer not null);
    """,
    # version 3: accounts of bytes, cost and privacy in place of bytes a day; subjects, as keyed hashes
    """
    create table accounts(
        key text not null, period integer not null, amount integer not null, primary key(key, period)) without rowid;
    insert into accounts select 'bytes', day, bytes from spend;
    drop table spend;
    alter table answers add column subject blob not null default x'';
    alter table outbox add column subject blob not null default x'';
    """,
    # version 4: how rollouts fare here, until the hub knows
    """
    create table reports(
        seq integer primary key, rollout text not null, state text not null, body blob not null,
        unique(rollout, state));
    """,
)


def migrate(db: sqlite3.Connection, path: str) -> None:
    """Bring the database to this version. ExitError(DATABASE) if a newer one wrote it."""
    found = db.execute("pragma user_version").fetchone()[0]
    if found > len(SCHEMA):
        raise ExitError(
            Exit.DATABASE, f"{path}: written by a newer version (schema {found}, here {len(SCHEMA)}): update"
        )
    for version in range(found, len(SCHEMA)):
        # pragma and statements in one script, one transaction: a torn migration leaves the old version
        db.executescript(f"begin immediate;{SCHEMA[version]};pragma user_version={version + 1};commit;")
