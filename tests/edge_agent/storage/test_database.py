"""agent.db under full disks, damage, lost write-ahead logs, power loss and newer versions."""

import asyncio
import shutil
import sqlite3
from functools import partial
from pathlib import Path

import pytest

from edge_agent.question.records import AnswerKind, AnswerRecord, AnswerSource, Outcome
from edge_agent.storage import answers, database, ledger, outbox, schema, tables
from edge_agent.storage.database import Database, DatabaseTrouble, prune_tables
from edge_agent.storage.schema import SCHEMA
from policies.model.reasons import DecisionReason
from tests.edge_agent.doubles.hub_double import SURE, UNSURE, AgentRig, HubDouble, policy, sample, until
from tests.edge_agent.question.test_decide import SURE as PREDICTION
from tests.examples import SetTimes
from wire.process.exit_codes import ExitCode, ExitError

FILE = "agent.db"


async def opened(folder: Path) -> Database:
    database = Database(folder / FILE)
    await database.open()
    return database


async def written(database: Database, *ops, must: bool = False) -> DatabaseTrouble | None:
    future: asyncio.Future[DatabaseTrouble | None] = asyncio.get_running_loop().create_future()
    database.write(ops, future.set_result, must=must)
    return await asyncio.wait_for(future, 60)


def record(number: int) -> AnswerRecord:
    return AnswerRecord(
        f"{number:032x}",
        AnswerKind.ANSWER,
        AnswerSource.LOCAL,
        DecisionReason.CONFIDENT,
        PREDICTION,
        "p",
        "open",
        "",
        "",
        at_ms=number,
    )


@pytest.mark.parametrize("page_bytes", [1024, 4096])
async def test_a_new_database_has_small_pages_and_a_former_one_keeps_its_own(tmp_path: Path, page_bytes: int):
    if page_bytes != 1024:  # as a version before made it
        db = sqlite3.connect(tmp_path / FILE)
        db.execute(f"pragma page_size={page_bytes}")
        db.execute("create table before(x)")
        db.close()
    database = await opened(tmp_path)
    try:
        assert await database.read(lambda db: db.execute("pragma page_size").fetchone()[0]) == page_bytes
        pages = await database.read(lambda db: db.execute("pragma wal_autocheckpoint").fetchone()[0])
        assert pages * page_bytes == 4 * 1024 * 1024
    finally:
        await database.close()


class RingingDatabase(Database):
    """Counts how often it was told to write what it held back."""

    rang = 0

    def flush(self) -> None:
        self.rang += 1
        super().flush()


async def test_what_was_held_back_goes_with_the_next_unit_and_no_timer_stays(tmp_path: Path):
    database = RingingDatabase(tmp_path / FILE)
    await database.open()
    try:
        too: asyncio.Future[DatabaseTrouble | None] = asyncio.get_running_loop().create_future()
        database.write((partial(tables.write_value, key="a", value=1),), too.set_result, soon=True)
        assert await written(database, partial(tables.write_value, key="b", value=2)) is None
        assert (too.done(), database.commits) == (True, 1)
        alone: asyncio.Future[DatabaseTrouble | None] = asyncio.get_running_loop().create_future()
        database.write((partial(tables.write_value, key="a", value=2),), alone.set_result, soon=True)
        assert await asyncio.wait_for(alone, 60) is None
        assert database.rang == 1  # of the second: the first one's timer was gone
    finally:
        await database.close()


async def test_a_new_database_draws_an_epoch_and_keeps_it(tmp_path: Path):
    first = Database(tmp_path / FILE)
    epoch = (await first.open()).epoch
    await first.close()
    second = Database(tmp_path / FILE)
    stored = await second.open()
    await second.close()
    assert 0 < epoch < 2**63
    assert (stored.epoch, stored.next_seq, stored.gap, stored.damaged) == (epoch, 1, False, "")
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0


async def test_a_unit_is_written_whole_or_not_at_all_and_spares_its_neighbours(tmp_path: Path):
    database = await opened(tmp_path)
    ok = written(database, partial(tables.write_value, key="a", value=1))
    bad = written(database, partial(tables.write_value, key="b", value=1), lambda db: db.execute("no such sql"))
    too_big = written(database, partial(tables.write_value, key="c", value=2**70))
    good = written(database, partial(tables.write_value, key="d", value=1))
    assert list(await asyncio.gather(ok, bad, too_big, good)) == [
        None,
        DatabaseTrouble.DEFECT,
        DatabaseTrouble.DEFECT,
        None,
    ]
    names = await database.read(lambda db: {row[0] for row in db.execute("select key from meta")})
    assert {"a", "d"} <= names
    assert not {"b", "c"} & names
    await database.close()


async def test_what_waits_is_committed_in_groups(tmp_path: Path):
    database = await opened(tmp_path)
    before = database.commits
    units = [written(database, partial(answers.insert_answer, r=record(n))) for n in range(1, 301)]
    assert set(await asyncio.gather(*units)) == {None}
    assert database.commits - before < 100
    assert len(await database.read(partial(answers.read_records_after, event=0, limit=999))) == 300
    await database.close()


async def test_a_second_answer_or_outcome_of_an_id_is_ignored(tmp_path: Path):
    database = await opened(tmp_path)
    first = answers.QuestionEnd(1, 1, "a", Outcome.ANSWERED, "verdict", 5)
    twice = [partial(answers.insert_answer, r=record(1)), partial(answers.insert_answer, r=record(1))]
    assert await written(database, *twice, partial(answers.insert_outcome, end=first)) is None
    second = first._replace(outcome=Outcome.EXPIRED, reason="expired")
    assert await written(database, partial(answers.insert_outcome, end=second)) is None
    assert len(await database.read(partial(answers.read_records, id=f"{1:032x}"))) == 1
    assert await database.read(partial(answers.read_outcome, id="a")) == ("answered", "verdict", 5)
    await database.close()


async def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path):
    await (await opened(tmp_path)).close()
    db = sqlite3.connect(tmp_path / FILE)
    db.execute(f"pragma user_version={len(SCHEMA) + 1}")
    db.close()
    with pytest.raises(ExitError) as stop:
        await Database(tmp_path / FILE).open()
    assert stop.value.code is ExitCode.DATABASE
    assert "update" in str(stop.value)


async def test_an_emptied_database_raises_an_alarm_that_stays_until_a_person_has_looked(tmp_path: Path):
    """It passed for a new one: nothing was said, and the alarm of a damaged one was gone with the next start."""
    async with AgentRig(tmp_path) as rig:
        epoch = rig.agent.status()["epoch"]
        assert "database_damaged" not in rig.agent.status()["alarms"]
    (tmp_path / FILE).write_bytes(b"")
    for _ in range(2):
        async with AgentRig(tmp_path) as rig:
            status = rig.agent.status()
            assert "database_damaged" in status["alarms"]
            assert status["epoch"] != epoch
    (kept,) = tmp_path.glob("agent.db.damaged-*")
    assert kept.stat().st_size == 0
    async with AgentRig(tmp_path) as rig:
        kept.unlink()
        assert "database_damaged" not in rig.agent.status()["alarms"]


async def test_a_damaged_database_is_put_aside_with_a_new_epoch_and_an_alarm(tmp_path: Path):
    async with AgentRig(tmp_path, policy(mode="wait")) as rig:
        await rig.agent.infer(sample())
        epoch = rig.agent.status()["epoch"]
    data = bytearray((tmp_path / FILE).read_bytes())
    data[4096:12288] = b"\xff" * 8192
    (tmp_path / FILE).write_bytes(data)
    async with AgentRig(tmp_path, policy(mode="wait")) as rig:
        status = rig.agent.status()
        assert status["epoch"] != epoch
        assert "database_damaged" in status["alarms"]
        assert (await rig.agent.infer(sample())).source is AnswerSource.HUB
    assert len(list(tmp_path.glob("agent.db.damaged-*"))) == 1


async def test_a_file_that_is_no_database_is_put_aside(tmp_path: Path):
    (tmp_path / FILE).write_bytes(b"nothing of ours " * 100)
    async with AgentRig(tmp_path, policy()) as rig:
        assert "database_damaged" in rig.agent.status()["alarms"]
        assert (await rig.agent.infer(sample())).why is DecisionReason.UNSURE


async def test_a_lost_log_is_found_out_and_no_seq_is_used_twice(tmp_path: Path):
    live, copy = tmp_path / "live", tmp_path / "copy"
    live.mkdir()
    copy.mkdir()
    hub = HubDouble(receipts=False, verdicts=False)
    async with AgentRig(live, policy(), hub) as rig:
        await rig.agent.infer(sample())
        epoch = rig.agent.status()["epoch"]
        shutil.copy(live / FILE, copy / FILE)  # without its log
    async with AgentRig(copy, policy(), HubDouble()) as rig:
        assert "log_lost" in rig.agent.status()["alarms"]
        record = await rig.agent.infer(sample())
        assert record.seq == f"{epoch}-{1 + schema.SEQ_JUMP}"


async def test_a_full_disk_answers_here_says_so_and_loses_nothing_accepted(tmp_path: Path, set_times: SetTimes):
    set_times(database, RETRY_S=0.05)
    hub = HubDouble(receipts=False, verdicts=False)
    async with AgentRig(tmp_path, policy(mode="wait", budget_s=0.1), hub) as rig:
        kept = await rig.agent.infer(sample())
        await until(lambda: hub.questions)
        # no page may be added any more: SQLite says "database or disk is full"
        await rig.agent._db.read(lambda db: db.execute("pragma max_page_count=1").fetchone())
        refused = [await rig.agent.infer(sample(UNSURE)) for _ in range(40)]
        while rig.agent.status()["disk"] != "full":  # a small row may still have found room on a page
            refused.append(await rig.agent.infer(sample(UNSURE)))
        assert refused[-1].why is DecisionReason.NO_DISK
        assert refused[-1].seq == ""
        assert rig.agent.status()["disk"] == "full"
        assert "disk_full" in rig.agent.status()["alarms"]
        assert (await rig.agent.infer(sample(SURE))).why is DecisionReason.CONFIDENT
        frame, _, question = hub.questions[0]
        hub.send_frame(hub.seal_verdict(frame, question))  # the outcome of an accepted question must not be lost
        await until(lambda: rig.event_count("verdicts") == 1)
        await rig.agent._db.read(lambda db: db.execute("pragma max_page_count=1000000").fetchone())
        await until(lambda: rig.agent._db.kept_units == 0)
        ours = await rig.agent.wait(kept.id, 3)
        assert [r.kind for r in ours] == [AnswerKind.ANSWER, AnswerKind.CORRECTION]
        assert (await rig.agent.explain(kept.id))["outcome"]["outcome"] == "answered"
        assert rig.agent.status()["disk"] == "ok"


async def test_a_disk_that_became_read_only_answers_here(tmp_path: Path):
    async with AgentRig(tmp_path, policy(mode="wait")) as rig:
        await rig.agent._db.read(lambda db: db.execute("pragma query_only=1").fetchone())
        record = await rig.agent.infer(sample())
        assert (record.source, record.why) == (AnswerSource.LOCAL, DecisionReason.NO_DISK)
        assert rig.agent.status()["disk"] == "read_only"
        await rig.agent._db.read(lambda db: db.execute("pragma query_only=0").fetchone())
        assert (await rig.agent.infer(sample())).source is AnswerSource.HUB


async def test_a_folder_that_allows_no_database_answers_here_and_tries_again(tmp_path: Path):
    folder = tmp_path / "later"
    async with AgentRig(folder, policy(mode="wait"), reopen_s=0.05) as rig:
        assert (await rig.agent.infer(sample())).why is DecisionReason.NO_DISK
        assert (await rig.agent.infer(sample(SURE))).why is DecisionReason.CONFIDENT
        assert rig.agent.status()["disk"] == "io"
        folder.mkdir()
        await until(lambda: rig.agent.status()["disk"] == "ok")
        assert (await rig.agent.infer(sample())).source is AnswerSource.HUB


async def test_after_power_loss_every_committed_question_is_there(tmp_path: Path):
    live, copy = tmp_path / "live", tmp_path / "copy"
    live.mkdir()
    copy.mkdir()
    hub = HubDouble(receipts=False, verdicts=False)
    async with AgentRig(live, policy(), hub) as rig:
        records = [await rig.agent.infer(sample()) for _ in range(20)]
        assert await rig.agent._db.read(lambda db: db.execute("pragma synchronous").fetchone()[0]) == 2  # FULL
        for file in live.glob("agent.db*"):
            shutil.copy(file, copy / file.name)
        torn = copy / "agent.db-wal"
        torn.write_bytes(torn.read_bytes() + b"\x37" * 1000)  # a page that was being written
    other = HubDouble()
    async with AgentRig(copy, policy(), other) as rig:
        assert rig.agent.status()["alarms"] == []
        await until(lambda: rig.open == 0)
        for record in records:
            kinds = [r.kind for r in await rig.agent.wait(record.id, 1)]
            assert kinds == [AnswerKind.ANSWER, AnswerKind.CORRECTION]
    assert len(other.effects) == 20


async def test_records_stay_inside_their_limits_and_open_answers_are_never_pruned(tmp_path: Path):
    hub = HubDouble(receipts=False, verdicts=False)
    async with AgentRig(tmp_path, policy(), hub) as rig:
        asked = await rig.agent.infer(sample())
        for _ in range(50):
            rig.agent.answer_now(sample(SURE))
        rig.agent._journal.flush()
        gone = await rig.agent._db.read(partial(prune_tables, limits=(10, 10, 10)))
        assert gone == 40
        assert await rig.agent.wait(asked.id, 0)
        assert await rig.agent._db.read(ledger.read_next_seq) == 2


async def test_local_answers_beyond_the_queue_are_dropped_from_the_record_and_counted(tmp_path: Path):
    async with AgentRig(tmp_path, policy(), pending_max_rows=10, answers_every_s=1.0) as rig:
        answers_given = [rig.agent.answer_now(sample(SURE)) for _ in range(25)]
        assert all(isinstance(answer, AnswerRecord) for answer in answers_given)
        assert rig.event_count("answers_dropped") == 15


async def test_a_row_survives_exactly_as_it_was_written(tmp_path: Path):
    hub = HubDouble(receipts=False, verdicts=False)
    async with AgentRig(tmp_path, policy(), hub) as rig:
        await rig.agent.infer(sample())
        row = await rig.agent._db.read(partial(outbox.read_row, seq=1))
        assert row is not None
        assert row.answered
        assert row.egress.fields[0].spec.name == "features"
        sealed = await rig.agent._db.read(partial(outbox.read_sealed, seq=1))
        await until(lambda: hub.questions)
        assert sealed == hub.questions[0][1]


@pytest.mark.parametrize("damage", ["gone", "damaged"])
async def test_the_loss_of_a_database_is_one_warning_and_an_alarm(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
):
    async with AgentRig(tmp_path, policy()) as rig:
        await until((tmp_path / schema.MARKER_FILE).exists)
        await rig.agent.infer(sample(SURE))
    for each in tmp_path.glob(f"{FILE}*"):
        each.unlink()
    if damage == "damaged":
        (tmp_path / FILE).write_bytes(b"rubbish" * 1000)
    capsys.readouterr()
    async with AgentRig(tmp_path, policy()) as rig:
        word = "database_lost" if damage == "gone" else "database_damaged"
        assert word in rig.agent.status()["alarms"]
    lines = [line for line in capsys.readouterr().err.splitlines() if "database_" in line]
    assert len(lines) == 1
    assert word in lines[0]
    assert str(tmp_path / FILE) in lines[0]
