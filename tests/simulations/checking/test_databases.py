"""Histories read from databases made by the product's own schema, whole and broken, in use and closed."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cloud_hub.database.connection import open_part
from cloud_hub.database.parts import QUESTIONS
from cloud_hub.database.tables import effects
from edge_agent.storage import ledger, tables
from edge_agent.storage.ledger import LedgerItem
from edge_agent.storage.schema import migrate_schema
from simulations.checking.databases import find_device_id, judge_run
from wire.ledger.chain import EntryForm, EntryKind

EPOCH = 2**62 + 5
FORM = EntryForm({}, {}, "demo@1", "p", "hub-1", "local")
ANSWER = (
    "insert into answers values(null,?,?,0,?,?,3,0.5,x'90','digits@7','p',?,'open','',0,0,0,0,x'',null,null,null,0)"
)
OUTCOME = "insert into outcomes values(?,?,?,?,'verdict',2000)"


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """An agent's database with a confident answer (id0), an answered question (id1) and a corrected one (id2)."""
    folder = tmp_path / "agent-1"
    folder.mkdir()
    (folder / "identity.json").write_text(json.dumps({"device": "demo--agent-1"}))
    with closing(sqlite3.connect(folder / "agent.db", isolation_level=None)) as db:
        db.execute("pragma journal_mode=wal")
        migrate_schema(db, "agent.db")
        tables.write_value(db, "epoch", EPOCH)
        db.execute(ANSWER, ("id0", "answer", "local", "confident", ""))
        for seq in (1, 2):
            ledger.append_item(db, LedgerItem(EntryKind.QUESTION, FORM, 1000, 300, bytes(32), seq, f"id{seq}"))
        ledger.append_item(db, LedgerItem(EntryKind.RESEALED, FORM, 1500, 300, bytes(32), 1, "id1"))
        db.execute(ANSWER, ("id1", "answer", "hub", "verdict", f"{EPOCH:x}-1"))
        db.execute(ANSWER, ("id2", "answer", "local", "budget_elapsed", f"{EPOCH:x}-2"))
        db.execute(ANSWER, ("id2", "correction", "hub", "verdict", f"{EPOCH:x}-2"))
        for seq in (1, 2):
            db.execute(OUTCOME, (seq, EPOCH, f"id{seq}", "answered"))
    return folder / "agent.db"


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    path = tmp_path / "hub.db"
    engine = open_part(path, QUESTIONS)
    with engine.begin() as connection:
        for seq in (1, 2):
            connection.execute(effects.insert().values(**effect(seq)))
    engine.dispose()
    return path


def effect(seq: int) -> dict[str, object]:
    key = {"device": "demo--agent-1", "epoch": EPOCH, "seq": seq}
    marks = {"digest": bytes(32), "fingerprint": bytes(32), "verdict": b"sealed"}
    return {**key, "model": "digits@7", "policy": "p", "created_ms": 1000, "kept_ms": 1001, "ended_ms": 1002, **marks}


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(statement)


def test_a_run_that_went_well_is_read_back_as_a_whole_history(agent: Path, hub: Path) -> None:
    report = judge_run([agent], hub)
    assert report.ok, report.format_text()
    assert (report.accepted, report.answered, report.late, report.answers, report.effects) == (2, 2, 1, 3, 2)
    assert report.whys == {"budget_elapsed": 1, "confident": 1, "verdict": 2}


def test_a_row_that_left_the_outbox_without_an_outcome_is_lost(agent: Path, hub: Path) -> None:
    change(agent, "delete from outcomes where seq=2")
    report = judge_run([agent], hub)
    assert report.lost == 1
    assert f"demo--agent-1 {EPOCH:x}-2" in report.format_text()


def test_with_times_given_an_open_question_has_its_minute(agent: Path, hub: Path) -> None:
    change(agent, "delete from outcomes where seq=2")
    assert judge_run([agent], hub, last_fault_ended_s=10.0, now_s=60.0).open == 1
    assert judge_run([agent], hub, last_fault_ended_s=10.0, now_s=71.0).lost == 1


def test_an_answer_of_the_hub_that_the_hub_never_stored_is_found(agent: Path, hub: Path) -> None:
    change(hub, "update effects set verdict=null where seq=2")
    assert judge_run([agent], hub).flaws == {"answered without effect": 1}
    assert judge_run([agent], None).ok  # the hub's side unknown is no evidence against it


def test_a_correction_that_was_never_recorded_is_found(agent: Path, hub: Path) -> None:
    change(agent, "delete from answers where kind='correction'")
    assert judge_run([agent], hub).flaws == {"ended unsaid": 1}


def test_what_the_hub_did_after_the_agent_was_read_is_not_judged(agent: Path, hub: Path) -> None:
    engine = open_part(hub, QUESTIONS)
    with engine.begin() as connection:
        connection.execute(effects.insert().values(**effect(3)))
        connection.execute(effects.insert().values(**{**effect(1), "epoch": 7}))
    engine.dispose()
    assert judge_run([agent], hub).ok


def test_a_database_in_use_is_read_without_disturbing_its_owner(agent: Path, hub: Path) -> None:
    with closing(sqlite3.connect(agent, isolation_level=None)) as owner:
        owner.execute("begin immediate")
        ledger.append_item(owner, LedgerItem(EntryKind.QUESTION, FORM, 2000, 300, bytes(32), 3, "id3"))
        assert judge_run([agent], hub).accepted == 2  # not committed, so not accepted
        owner.execute("commit")
        assert judge_run([agent], hub).lost == 1


def test_half_a_history_is_refused(agent: Path, hub: Path) -> None:
    change(agent, "delete from answers where event=1")
    with pytest.raises(ValueError, match="pruned"):
        judge_run([agent], hub)


def test_a_missing_database_is_not_taken_for_an_empty_one(agent: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        judge_run([agent], tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()


def test_a_database_without_an_identity_is_named_after_its_folder(tmp_path: Path) -> None:
    assert find_device_id(tmp_path / "pump-7" / "agent.db") == "pump-7"
