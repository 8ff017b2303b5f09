"""Databases of devices, frozen in `tests/vectors/databases`: this release opens each and goes on with it."""

from contextlib import closing
from pathlib import Path

import pytest

from edge_agent.ledger_audit.verify import make_owner, verify_ledger
from edge_agent.question.records import AnswerSource
from edge_agent.storage import answers, ledger, outbox
from edge_agent.storage.outbox import PayloadVault
from edge_agent.storage.schema import SCHEMA, open_connection
from models.update.floors import FLOORS_FILE, FloorDatabase
from tests import frozen_databases as frozen
from tests.edge_agent.doubles.hub_double import DEVICE, AgentRig, HubDouble, ManualClock, policy, until
from tests.second_implementation import frames
from wire.protocol.codec import hash_plaintext

DEVICES = sorted(path.name for path in frozen.FOLDER.glob(f"{frozen.AGENT}-*.sql"))
FLOORS = sorted(path.name for path in frozen.FOLDER.glob(f"{frozen.FLOORS}-*.sql"))


@pytest.mark.parametrize("name", [frozen.AGENT, frozen.FLOORS])
def test_the_schema_of_this_release_is_frozen(name: str) -> None:
    file = frozen.FOLDER / frozen.newest_files()[name]
    assert file.exists(), "a schema has a new number: python -m tests.frozen_databases, and see tests/vectors/README.md"


@pytest.mark.parametrize("file", DEVICES)
def test_every_row_of_a_frozen_device_is_there_after_this_release_opened_it(file: str, tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    frozen.load_database(file, path)
    before = frozen.read_rows(path)
    assert all(before.values()), "each of its tables has a row"
    opened = open_connection(path)
    with closing(opened.db) as db:
        assert not opened.damaged
        assert not opened.gap
        assert db.execute("pragma user_version").fetchone()[0] == len(SCHEMA)
    del before["meta"]  # it counts the starts
    assert frozen.find_lost_rows(before, frozen.read_rows(path)) == []


@pytest.mark.parametrize("file", DEVICES)
def test_the_rows_of_a_frozen_device_mean_what_they_meant(file: str, tmp_path: Path) -> None:
    path, identity = tmp_path / "agent.db", HubDouble().identity()
    frozen.load_database(file, path)
    with closing(open_connection(path).db) as db:
        findings = verify_ledger(db, make_owner(identity))
        assert {finding.proof.value for finding in findings} == {"chain", "head", "log"}
        assert all(finding.good for finding in findings)
        records = answers.read_records_after(db, 0, 10)
        assert {record.source for record in records} == {AnswerSource.LOCAL, AnswerSource.HUB}
        assert answers.read_truth(db, records[1].id) == 1
        row = next(row for row in outbox.read_rows(db))
        kept = PayloadVault(identity.payload_key).decrypt(row.epoch, row.seq, row.payload)
        assert hash_plaintext(kept.padded) == row.fingerprint
        sealed = outbox.read_sealed(db, row.seq)
        assert sealed is not None
        assert frames.digest(sealed) == row.digest
        assert [entry["kind"] for entry in ledger.iterate_entries(db)][-1] in ("question", "report", "ask")


@pytest.mark.parametrize("file", DEVICES)
async def test_an_agent_goes_on_with_a_frozen_database_and_its_open_question_is_answered(
    file: str, tmp_path: Path
) -> None:
    frozen.load_database(file, tmp_path / "agent.db")
    with closing(open_connection(tmp_path / "agent.db").db) as db:
        (row,) = outbox.read_rows(db)
        db.execute("update meta set value=1 where key='clean'")
    async with AgentRig(tmp_path, policy(), HubDouble(), clock=ManualClock().hub_clock()) as rig:
        await until(lambda: rig.event_count("verdicts") == 1 and rig.open == 0)
        known = await rig.agent.explain(row.id)
        assert known["outcome"]["outcome"] == "answered"
    frame = rig.hub.questions[0][0]
    assert (frame.header.device, frame.header.epoch, frame.header.seq) == (DEVICE, row.epoch, row.seq)


@pytest.mark.parametrize("file", FLOORS)
def test_the_version_floors_of_a_frozen_device_hold(file: str, tmp_path: Path) -> None:
    path = tmp_path / FLOORS_FILE
    frozen.load_database(file, path)
    before = frozen.read_rows(path)
    with FloorDatabase(tmp_path) as db:
        assert not db.damaged
        floors = db.read_floors()
        assert (floors["meta/targets.json"].version, floors["root"].version) == (12, 3)
        assert floors["meta/targets.json"].signers == {"ab", "cd"}
        assert db.read_root() == b'{"signed": {}}'
        assert db.read_note("frozen_polls") == 1
    assert frozen.find_lost_rows(before, frozen.read_rows(path)) == []
