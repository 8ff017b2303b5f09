"""A device restored from a backup that is older than what it did: no number is used twice, what was open ends."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from edge_agent.question.records import AnswerKind
from edge_agent.storage import answers, ledger, schema, tables
from edge_agent.storage.restoring import RESTORE_JUMP, prepare_restored_database
from tests.edge_agent.doubles.hub_double import SURE, AgentRig, HubDouble, policy, sample, until
from wire.backup.archive import copy_database
from wire.process.exit_codes import ExitCode, ExitError

FILE = "agent.db"


async def test_open_questions_of_a_backup_end_and_new_ones_get_numbers_of_their_own(tmp_path: Path):
    """The hub double fails for a number whose content is another one than before."""
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    hub = HubDouble(verdicts=False)
    async with AgentRig(before, policy(), hub) as rig:
        waiting = [await rig.agent.infer(sample()) for _ in range(3)]
        await until(lambda: rig.agent.status()["receipted"] == 3)
        copy_database(before / FILE, after / FILE)  # while the agent runs
        hub.verdicts = True
        for _ in range(5):
            await rig.agent.infer(sample())
        await until(lambda: rig.open == 0)
    known = set(hub.effects)
    assert prepare_restored_database(after / FILE) == 3
    async with AgentRig(after, policy(), hub) as rig:
        await until(lambda: rig.open == 0)
        assert set(hub.effects) == known  # the hub gave what it had
        for record in waiting:
            assert [r.kind for r in await rig.agent.wait(record.id, 1)] == [AnswerKind.ANSWER, AnswerKind.CORRECTION]
        await rig.agent.infer(sample())
        await until(lambda: rig.open == 0)
        assert min(seq for _, seq in set(hub.effects) - known) > RESTORE_JUMP
        assert "ledger_lost" not in rig.agent.status()["alarms"]
        assert not rig.event_count("database_unusable")


async def test_a_restored_device_spends_nothing_before_the_hub_has_told_what_was_spent(tmp_path: Path):
    async with AgentRig(tmp_path, policy()):
        pass
    prepare_restored_database(tmp_path / FILE)
    hub = HubDouble(mirrors=False)
    async with AgentRig(tmp_path, policy(), hub) as rig:
        await rig.agent.infer(sample())
        assert not hub.questions
        assert "ledger_lost" in rig.agent.status()["alarms"]


async def test_events_go_on_beyond_every_number_that_a_caller_can_have_seen(tmp_path: Path):
    async with AgentRig(tmp_path, policy()) as rig:
        await rig.agent.infer(sample(SURE))
    prepare_restored_database(tmp_path / FILE)
    async with AgentRig(tmp_path, policy()) as rig:
        await rig.agent.infer(sample(SURE))
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        events = [row[0] for row in db.execute("select event from answers order by 1")]
        assert len(events) == 2
        assert events[1] > RESTORE_JUMP
        assert answers.prune_answers(db, 1000, 1000) == 0  # a gap of numbers is not as many rows
        assert answers.prune_answers(db, 1, 1) == 1
        assert [row[0] for row in db.execute("select event from answers")] == events[1:]


def test_what_was_recorded_and_not_sent_counts_as_sent(tmp_path: Path):
    with closing(schema.open_connection(tmp_path / FILE).db) as db:
        ledger.store_unsent(db, (7,))
    prepare_restored_database(tmp_path / FILE)
    with closing(schema.open_connection(tmp_path / FILE).db) as db:
        assert ledger.take_unsent(db) == frozenset()
        assert tables.read_value(db, "seq_floor", 0) > RESTORE_JUMP


@pytest.mark.parametrize("fault", ["newer", "damaged", "none"])
def test_a_backup_that_cannot_be_served_is_refused(tmp_path: Path, fault: str):
    with closing(schema.open_connection(tmp_path / FILE).db) as db:
        db.execute("pragma journal_mode=delete")
        if fault == "newer":
            db.execute(f"pragma user_version={len(schema.SCHEMA) + 1}")
    if fault != "newer":
        data = bytearray((tmp_path / FILE).read_bytes())
        data[4096 + 3 : 4200] = b"\xff" * 101
        (tmp_path / FILE).write_bytes(data if fault == "damaged" else b"rubbish" * 1000)
    with pytest.raises(ExitError) as stopped:
        prepare_restored_database(tmp_path / FILE)
    assert stopped.value.code is ExitCode.DATABASE


def test_a_backup_of_an_earlier_version_is_migrated(tmp_path: Path):
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as db:
        for number, text in enumerate(schema.SCHEMA[:3], 1):
            db.executescript(f"{text};pragma user_version={number};")
        ledger.migrate_ledger(db)
        db.execute("insert into meta values('epoch', 5)")
    assert prepare_restored_database(tmp_path / FILE) == 0
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        assert db.execute("pragma user_version").fetchone()[0] == len(schema.SCHEMA)
        assert tables.read_epoch(db) == 5
