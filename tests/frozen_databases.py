"""Frozen databases of releases: how they are written once, and read ever after.

`python -m tests.frozen_databases` runs a device and a hub and writes what is in their databases to
`tests/vectors/databases`, as SQL, one file for each schema number. Rule: what is there is never changed.
"""

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from cloud_hub.core.commands import ErasureRequest, QuestionEnding, QuestionKey, StoredQuestion
from cloud_hub.core.lineup import ModelUse
from cloud_hub.database.parts import ACCESS, LEDGER, PARTS, QUESTIONS, REGISTRY, ROLLOUTS, VERSIONS
from cloud_hub.registry.access import ApiKeys, KeyRequest, Scope
from cloud_hub.registry.orders import DenyNotice
from cloud_hub.registry.orders_store import OrdersStore
from cloud_hub.registry.registry import DeviceInvitation, DeviceKeys, Registry
from cloud_hub.rollout.planning import RolloutOrder, build_plan, build_record
from cloud_hub.rollout.store import RolloutStore, raise_counters
from cloud_hub.storage.jobs import StoreJob
from cloud_hub.storage.ledger_log import LedgerLog, ReceivedHead
from cloud_hub.storage.store import Store
from cloud_hub.storage.versions import ModelUsageStore
from edge_agent.storage import tables
from edge_agent.storage.schema import SCHEMA
from models.update.floors import SCHEMA as FLOORS_SCHEMA
from models.update.floors import FloorDatabase
from models.update.trust import VersionFloor
from tests.cloud_hub.doubles.rollout_bench import NEW, OLD, members
from tests.edge_agent.doubles.hub_double import (
    HUB_TIME_MS,
    SURE,
    AgentRig,
    HubDouble,
    ManualClock,
    policy,
    sample,
    until,
)
from tests.edge_agent.doubles.ledger_bench import LedgerBench
from tests.second_implementation import frames, vectors
from wire.ledger.chain import HeadLeaf
from wire.protocol.messages import LedgerHeadReport, ModelRef, RefusalReason

FOLDER = vectors.FOLDER / "databases"
AGENT, FLOORS = "agent", "floors"
EPOCH, ASKED_MS = 2**62 + 5, HUB_TIME_MS
PERSON = vectors.fixed_bytes("subject")
SECRET = ".secret"  # beside a file of keys: the secret of its key, which the database holds as a hash alone
Rows = dict[str, list[dict[str, Any]]]


def name_file(name: str, number: int) -> str:
    return f"{name}-{number}.sql"


def newest_files() -> dict[str, str]:
    """The file of each database in the schema of this release, by the database's name."""
    found = {AGENT: len(SCHEMA), FLOORS: FLOORS_SCHEMA, **{part.name: part.newest for part in PARTS}}
    return {name: name_file(name, number) for name, number in found.items()}


def dump_database(path: Path) -> str:
    """A database as SQL, its number too."""
    with closing(sqlite3.connect(path)) as db:
        number = db.execute("pragma user_version").fetchone()[0]
        return "\n".join([*db.iterdump(), f"pragma user_version={number};"]) + "\n"


def load_database(file: str, path: Path) -> None:
    """Make a database of a frozen file."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript((FOLDER / file).read_text(encoding="utf-8"))


def read_rows(path: Path) -> Rows:
    """All rows of all tables, by the table's name."""
    with closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        names = "select name from sqlite_master where type='table' and name not like 'sqlite_%' order by name"
        found = [row[0] for row in db.execute(names)]
        return {name: [dict(row) for row in db.execute(f'select * from "{name}"')] for name in found}


def find_lost_rows(before: Rows, after: Rows) -> list[tuple[str, dict[str, Any]]]:
    """Rows that are not there any more, or not with the same values; new columns and tables are no loss."""
    lost = []
    for name, rows in before.items():
        there = after.get(name, [])
        lost += [(name, row) for row in rows if not any(row.items() <= each.items() for each in there)]
    return lost


def fill_empty_tables(path: Path) -> None:
    """One row in each table that has none: it stands for what no story here writes."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for name, rows in read_rows(path).items():
            if not rows:
                kinds = [row[2].lower() for row in db.execute(f'pragma table_info("{name}")')]
                values = [_make_value(kind, place) for place, kind in enumerate(kinds, 1)]
                db.execute(f'insert into "{name}" values ({",".join("?" * len(values))})', values)


def _make_value(kind: str, place: int) -> Any:
    if "blob" in kind:
        return vectors.fixed_bytes(f"column {place}")
    if "int" in kind or "bool" in kind:
        return place
    return place / 4 if "real" in kind or "float" in kind else f"column {place}"


async def run_device(folder: Path) -> None:
    """A device that answered by itself, asked and was answered, and has a question open that the hub has stored."""
    clock, hub = ManualClock(), HubDouble()
    async with AgentRig(folder, policy(), hub, clock=clock.hub_clock()) as rig:
        agent = rig.agent
        await agent.infer(sample(SURE))
        asked = await agent.infer(sample())
        await until(lambda: rig.event_count("verdicts") == 1)
        await agent.feedback(asked.id, 1)
        hub.verdicts = False
        await agent.infer(sample())
        await until(lambda: rig.open == 1 and len(hub.effects) == 2)
    bench = LedgerBench(folder)
    bench.witness_head()
    tables.write_value(bench.db, "clean", 1)  # as the end of an agent notes it
    bench.db.close()


def write_floors(folder: Path) -> None:
    with FloorDatabase(folder) as db:
        db.raise_root(3, b'{"signed": {}}')
        db.raise_floors((VersionFloor("meta/targets.json", 12, frozenset({"ab", "cd"})),))
        db.write_note("frozen_polls", 1)


def write_questions(path: Path) -> None:
    """A question that is open, one with a verdict, one refused, and an erased person."""
    sealed = {vector["name"]: vector for vector in vectors.load("frames.json")["sealed"]}
    question, verdict = sealed["question"], sealed["verdict"]
    kept = [
        StoredQuestion(
            QuestionKey(vectors.DEVICE, EPOCH, seq), "digits@7", question["message"]["policy"], ASKED_MS, ASKED_MS + 5,
            frames.digest(question["frame"]), frames.fingerprint(question["padded"]), question["frame"],
            keep_until_ms=ASKED_MS + 86_400_000, subject=PERSON if seq == 4 else b"",
        )
        for seq in (1, 2, 3, 4)
    ]  # fmt: skip
    endings = [
        QuestionEnding(
            kept[1].key, ASKED_MS + 40, verdict["frame"], label=3, model="digits@7", region="local", engine_us=900,
            question_bytes=1200,
        ),
        QuestionEnding(kept[2].key, ASKED_MS + 41, refusal=RefusalReason.POLICY),
    ]  # fmt: skip
    store = Store.open(f"sqlite:///{path}")
    store.apply_jobs([StoreJob(keeps=kept), StoreJob(endings=endings)])
    store.apply_jobs([StoreJob(erases=[ErasureRequest(vectors.DEVICE, PERSON, ASKED_MS + 50, ASKED_MS + 60)])])
    store.close()


def write_registry(path: Path) -> None:
    """An enrolled device, an open invitation, a deny-all notice."""
    registry = Registry.open(path)
    invite = registry.invite(DeviceInvitation(vectors.DEVICE, ("serial-1",), device_class="camera"), ASKED_MS, 3600.0)
    signing, hpke = frames.signing_public(vectors.DEVICE_SIGNING), frames.hpke_public(vectors.DEVICE_HPKE)
    registry.enrol(invite.token, DeviceKeys(signing, hpke, "0a", ASKED_MS + 86_400_000, "aa", "serial-1"), ASKED_MS + 1)
    registry.invite(DeviceInvitation("demo--cam-2"), ASKED_MS, 3600.0)
    registry.close()
    orders = OrdersStore.open(path)
    orders.write_notice(DenyNotice(7, "recall", "demo", ASKED_MS))
    orders.close()


def write_ledger(path: Path) -> None:
    """The frozen leaves, as the hub logs them."""
    log = LedgerLog.open(path, ASKED_MS)
    for vector in vectors.load("ledger.json")["leaves"]:
        leaf = HeadLeaf(**vector["leaf"])
        report = LedgerHeadReport(
            leaf.epoch, leaf.entries, leaf.at_ms, leaf.head, leaf.signature, 0, (("bytes", 20_000, leaf.entries),)
        )
        log.append([ReceivedHead(leaf.device, leaf.key, report, leaf.received_ms)])
    log.close()


def write_rollouts(path: Path) -> None:
    store = RolloutStore.open(path)
    order = RolloutOrder("digits", NEW, back=OLD, id="r1")
    record, entry = build_record(build_plan(order, members(4), "ann", ASKED_MS))
    store.create_rollout(record, (entry,))
    with store._engine.begin() as connection:
        raise_counters(connection, "digits", [(vectors.DEVICE, 12)])
    store.close()


def write_access(path: Path) -> None:
    """A key of the web API, and its secret beside it."""
    keys = ApiKeys.open(path)
    token = keys.create(KeyRequest("panel", (Scope.INFER,), "demo"), ASKED_MS)[1]
    keys.close()
    path.with_suffix(SECRET).write_text(token, encoding="utf-8")


def write_versions(path: Path) -> None:
    uses = ModelUsageStore.open(path)
    uses.put_uses({vectors.DEVICE: ModelUse((ModelRef("digits", 7, "block2", "pack4"),), ASKED_MS)})
    uses.retire("digits@5", ASKED_MS)
    uses.close()


def write_all(folder: Path) -> dict[str, Path]:
    """The databases of this release, by name."""
    asyncio.run(run_device(folder))
    write_floors(folder)
    write_questions(folder / QUESTIONS.file)
    write_registry(folder / REGISTRY.file)
    write_ledger(folder / LEDGER.file)
    write_rollouts(folder / ROLLOUTS.file)
    write_versions(folder / VERSIONS.file)
    write_access(folder / ACCESS.file)
    paths = {AGENT: folder / "agent.db", FLOORS: folder / "floors.db"}
    return {**paths, **{part.name: folder / part.file for part in PARTS}}


def main() -> None:
    """Freeze the schemas that are not frozen yet."""
    with tempfile.TemporaryDirectory() as name:
        paths = write_all(Path(name))
        for database, file in newest_files().items():
            if not (FOLDER / file).exists():
                fill_empty_tables(paths[database])
                (FOLDER / file).write_text(dump_database(paths[database]), encoding="utf-8")
                secret = paths[database].with_suffix(SECRET)
                if secret.exists():
                    (FOLDER / file).with_suffix(SECRET).write_bytes(secret.read_bytes())
                print(f"{file} written")


if __name__ == "__main__":
    main()
