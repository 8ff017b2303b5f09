BEGIN TRANSACTION;
CREATE TABLE floors (name text primary key, version integer not null, signers text not null) without rowid;
INSERT INTO "floors" VALUES('meta/targets.json',12,'ab cd');
CREATE TABLE notes (name text primary key, value integer not null) without rowid;
INSERT INTO "notes" VALUES('frozen_polls',1);
CREATE TABLE root (one integer primary key check (one = 1), version integer not null, metadata blob not null);
INSERT INTO "root" VALUES(1,3,X'7B227369676E6564223A207B7D7D');
COMMIT;
pragma user_version=1;
