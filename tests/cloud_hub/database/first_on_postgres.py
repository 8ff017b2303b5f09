"""A database as the first version that knew PostgreSQL wrote it, one row of everything that was kept then.

The part `region` is as the first version that had one wrote it: before leases, shared files and releases.
"""

TABLES = """
create schema questions; create schema registry; create schema access; create schema ledger; create schema versions;
create schema rollouts; create schema region;
create table access.keys (id TEXT not null, name TEXT not null, tenant TEXT not null, scopes TEXT not null, made_ms
  BIGINT not null, ends_ms BIGINT not null, revoked_ms BIGINT not null, digest BYTEA not null, primary key (id));
create table access.meta (key VARCHAR(32) not null, value TEXT, primary key (key));
create table ledger.facts (name TEXT not null, value BIGINT not null, primary key (name));
create table ledger.leaves (place BIGINT not null, device TEXT not null, signer BYTEA not null, epoch BIGINT not
  null, entries BIGINT not null, at_ms BIGINT not null, head BYTEA not null, signature BYTEA not null, received_ms
  BIGINT not null, epochs BIGINT not null, flaw TEXT not null, primary key (place));
create index leaves_device on ledger.leaves (device, epoch, entries);
create table ledger.meta (key VARCHAR(32) not null, value TEXT, primary key (key));
create table ledger.nodes (level BIGINT not null, place BIGINT not null, hash BYTEA not null, primary key (level,
  place));
create table ledger.spend (device TEXT not null, account TEXT not null, period BIGINT not null, amount BIGINT not
  null, primary key (device, account, period));
create table questions.effects (device VARCHAR(64) not null, epoch BIGINT not null, seq BIGINT not null, model TEXT
  not null, policy TEXT not null, created_ms BIGINT not null, kept_ms BIGINT not null, digest BYTEA not null,
  fingerprint BYTEA not null, ended_ms BIGINT, refusal TEXT, verdict BYTEA, keep_until_ms BIGINT default '0' not
  null, subject BYTEA, primary key (device, epoch, seq));
create index effects_keep_until on questions.effects (keep_until_ms);
create index effects_kept on questions.effects (kept_ms);
create index effects_subject on questions.effects (device, subject);
create table questions.meta (key VARCHAR(32) not null, value TEXT, primary key (key));
create table questions.sealed (device VARCHAR(64) not null, epoch BIGINT not null, seq BIGINT not null, frame BYTEA
  not null, primary key (device, epoch, seq));
create table questions.tallies (day INTEGER not null, model TEXT not null, label INTEGER not null, count BIGINT not
  null, primary key (day, model, label));
create table questions.tombstones (mark BYTEA not null, device VARCHAR(64) not null, before_ms BIGINT not null, rows
  BIGINT not null, at_ms BIGINT not null, primary key (mark));
create table registry.devices (id TEXT not null, state TEXT not null, signing_key BYTEA not null, hpke_key BYTEA not
  null, serial TEXT not null, certificate_ends_ms BIGINT not null, enrolled_ms BIGINT not null, changed_ms BIGINT
  not null, why TEXT default '' not null, authority TEXT default '' not null, hardware TEXT default '' not null,
  retire_at_ms BIGINT default '0' not null, ledger TEXT default '' not null, device_class TEXT default '' not null,
  region TEXT default '' not null, primary key (id));
create table registry.documents (hash TEXT not null, title TEXT not null, version BIGINT not null, primary key
  (hash));
create table registry.floors (title TEXT not null, version BIGINT not null, primary key (title));
create table registry.invites (token_hash BYTEA not null, device TEXT not null, created_ms BIGINT not null,
  expires_ms BIGINT not null, used_ms BIGINT, hardware TEXT default '' not null, replace BIGINT default '0' not
  null, device_class TEXT default '' not null, region TEXT default '' not null, primary key (token_hash));
create table registry.meta (key VARCHAR(32) not null, value TEXT, primary key (key));
create table registry.notices (scope TEXT not null, counter BIGINT not null, why TEXT not null, issued_ms BIGINT not
  null, primary key (scope));
create table rollouts.counters (family TEXT not null, device TEXT not null, counter BIGINT not null, primary key
  (family, device));
create table rollouts.devices (rollout TEXT not null, device TEXT not null, facts BYTEA not null, primary key
  (rollout, device));
create index devices_device on rollouts.devices (device);
create table rollouts.history (rollout TEXT not null, seq BIGINT not null, at_ms BIGINT not null, by TEXT not null,
  what TEXT not null, why TEXT not null, state TEXT not null, primary key (rollout, seq));
create table rollouts.meta (key VARCHAR(32) not null, value TEXT, primary key (key));
create table rollouts.rollouts (id TEXT not null, family TEXT not null, made_ms BIGINT not null, changed_ms BIGINT
  not null, open BOOLEAN not null, revision BIGINT not null, plan BYTEA not null, head BYTEA not null, primary key
  (id));
create table versions.meta (key VARCHAR(32) not null, value TEXT, primary key (key));
create table versions.retired (model TEXT not null, at_ms BIGINT, primary key (model));
create table versions.spoken (device TEXT not null, name TEXT not null, version BIGINT not null, cut TEXT not null,
  codec TEXT not null, at_ms BIGINT, primary key (device, name, version, cut, codec));
create table region.meta (key varchar(32) not null, value text, primary key (key));
create table region.hubs (name text not null, session text not null, since_ms bigint not null,
  seen_ms bigint not null, primary key (name));
create table region.changes (topic text not null, revision bigint not null, primary key (topic));
create table region.changed (topic text not null, subject text not null, revision bigint not null,
  primary key (topic, subject));
create index changed_revision on region.changed (topic, revision);
"""

ROWS = """
insert into questions.meta values ('schema', '2');
insert into registry.meta values ('schema', '4');
insert into access.meta values ('schema', '1');
insert into ledger.meta values ('schema', '1');
insert into versions.meta values ('schema', '1');
insert into rollouts.meta values ('schema', '1');
insert into region.meta values ('schema', '1');
insert into questions.effects (device, epoch, seq, model, policy, created_ms, kept_ms, digest, fingerprint, ended_ms,
  verdict, keep_until_ms)
  select 'demo--d' || n % 50, 1, n, 'digits', 'live', n, n, 'd', 'f', case when n % 2 = 0 then n end,
  case when n % 2 = 0 then 'v'::bytea end, 99 from generate_series(1, 2000) n;
insert into questions.sealed (device, epoch, seq, frame)
  select device, epoch, seq, 'sealed' from questions.effects where ended_ms is null;
insert into registry.devices (id, state, signing_key, hpke_key, serial, certificate_ends_ms, enrolled_ms, changed_ms)
  values ('demo--d1', 'active', 's', 'h', '7', 5, 1, 2);
insert into access.keys values ('3f9a2c3f9a2c', 'ward', 'clinic', 'infer read', 5, 0, 0, 'x');
insert into ledger.spend values ('demo--d1', 'bytes', 20, 700);
insert into versions.spoken values ('demo--d1', 'digits', 7, 'tail', 'raw', 9);
insert into rollouts.counters values ('digits', 'demo--d1', 8);
insert into region.changes values ('devices', 41);
"""
