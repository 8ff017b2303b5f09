"""Erasure on the device: each hub is told the numbers of its questions, also one that was away; later these go."""

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path

from cloud_hub.core.commands import QuestionEnding, QuestionKey, StoredQuestion
from cloud_hub.database.tables import effects
from cloud_hub.storage.jobs import StoreJob
from edge_agent.cli.erasure import STONES_FILE, ErasureResult, erase_subject
from edge_agent.identity.identity import load_identity
from edge_agent.inference.requests import SubjectHasher
from edge_agent.question.records import AnswerKind, AnswerRecord, AnswerSource, Outcome
from edge_agent.storage import answers
from edge_agent.storage.outbox import PayloadVault
from edge_agent.storage.schema import open_connection
from policies.model.reasons import DecisionReason
from tests.edge_agent.doubles.hub_double import SURE, AgentRig, HubDouble, policy, sample, until
from tests.edge_agent.doubles.identity_hub import DEVICE, IdentityHub, serve_identity_hub
from tests.edge_agent.question.test_decide import SURE as PREDICTION
from wire.protocol.sealing import MAX_NAMED_QUESTIONS

EPOCH = 2**63 - 1
NAME = "Ada"


def fill_device(folder: Path, questions: int) -> None:
    """Answers about one person with their ended questions 1 to `questions`, then one question about another."""
    hasher = SubjectHasher(PayloadVault(load_identity(folder).payload_key))
    with contextlib.closing(open_connection(folder / "agent.db").db) as db:
        db.execute("begin")
        for seq in range(1, questions + 2):
            subject = hasher.hash_subject(NAME if seq <= questions else "somebody else")
            record = AnswerRecord(
                f"{seq:032x}", AnswerKind.ANSWER, AnswerSource.HUB, DecisionReason.VERDICT, PREDICTION, "p", "open",
                f"{EPOCH:x}-{seq}", "", at_ms=seq, subject=subject,
            )  # fmt: skip
            answers.insert_answer(db, record)
            answers.insert_outcome(db, answers.QuestionEnd(seq, EPOCH, record.id, Outcome.ANSWERED, "verdict", seq))
        db.execute("commit")


def fill_hub(hub: IdentityHub, questions: int) -> None:
    """The same questions with their verdicts, as a hub has them whose policy names no subject field."""
    keys = [QuestionKey(DEVICE, EPOCH, seq) for seq in range(1, questions + 2)]
    at_ms = hub.now_ms
    keeps = [StoredQuestion(key, "m@1", "p", at_ms, at_ms, b"d", b"f", b"s", at_ms + 10**9, b"") for key in keys]
    hub.store.apply_jobs([StoreJob(keeps=keeps, endings=[QuestionEnding(key, at_ms, verdict=b"v") for key in keys])])


def verdicts(hub: IdentityHub) -> list[int]:
    """Numbers of the questions whose verdict the hub still has."""
    with hub.store._engine.connect() as connection:
        return sorted(row.seq for row in connection.execute(effects.select()) if row.verdict is not None)


async def erase(folder: Path, name: str = NAME) -> ErasureResult:
    return await asyncio.to_thread(erase_subject, folder, name)


async def test_the_hub_forgets_a_person_that_its_policy_never_let_it_know(tmp_path: Path):
    many = MAX_NAMED_QUESTIONS + 5
    async with serve_identity_hub(tmp_path) as hub:
        await hub.enrol(tmp_path / "d")
        fill_device(tmp_path / "d", many)
        fill_hub(hub, many)
        done = await erase(tmp_path / "d")
        assert verdicts(hub) == [many + 1]
    assert (done.answers, done.questions, done.found["hub-1"], done.unreached) == (many, many, many, ())
    stones = [json.loads(json.loads(line)["body"]) for line in (tmp_path / "d" / STONES_FILE).read_text().splitlines()]
    assert [stone["named"] for stone in stones][:2] == [MAX_NAMED_QUESTIONS, 5]
    assert sum(stone["found"] for stone in stones) == stones[-1]["rows"] == many


async def test_a_hub_that_was_away_is_told_the_same_questions_the_next_time(tmp_path: Path):
    async with serve_identity_hub(tmp_path) as hub:
        await hub.enrol(tmp_path / "d")
        fill_device(tmp_path / "d", 3)
        fill_hub(hub, 3)
        hub.away = True
        first = await erase(tmp_path / "d")
        hub.away = False
        second = await erase(tmp_path / "d")
        third = await erase(tmp_path / "d")
        assert verdicts(hub) == [4]
    assert (first.answers, first.questions, len(first.unreached)) == (3, 3, 1)
    assert (second.answers, second.questions, second.found["hub-1"], second.unreached) == (0, 3, 3, ())
    assert (third.found["hub-1"], third.stones[-1].rows) == (0, 3), "what is gone is not counted twice"


async def test_a_person_of_whom_nothing_was_asked_gets_a_tombstone_that_says_so(tmp_path: Path):
    async with serve_identity_hub(tmp_path) as hub:
        await hub.enrol(tmp_path / "d")
        done = await erase(tmp_path / "d", "nobody")
    assert (done.answers, done.questions) == (0, 0)
    assert {(stone.named, stone.found, stone.rows) for stone in done.stones} == {(0, 0, 0)}


async def test_a_running_agent_keeps_the_numbers_of_ended_and_open_questions(tmp_path: Path):
    hub = HubDouble()
    subject = SubjectHasher(PayloadVault(hub.identity().payload_key)).hash_subject("p1")
    async with AgentRig(tmp_path, policy(), hub) as rig:
        await rig.agent.infer(sample(subject="p1"))
        await rig.agent.infer(sample(subject="p2"))
        await until(lambda: rig.open == 0)
        hub.verdicts = False
        await rig.agent.infer(sample(subject="p1"))
        await rig.agent.infer(sample(SURE, subject="p1"))  # answered here: no hub has it
        assert (await rig.agent.erase(subject)).answers > 0
        named = await rig.agent._db.read(lambda db: answers.read_erased(db, subject))
    assert named == [(rig.agent._core.epoch, 1), (rig.agent._core.epoch, 3)]


def test_the_numbers_go_once_no_hub_can_hold_the_questions(tmp_path: Path):
    with contextlib.closing(open_connection(tmp_path / "agent.db").db) as db:
        for seq, at_ms in ((1, 1000), (2, 2000)):
            db.execute("insert into erased values(?,?,?,?)", (b"s", 7, seq, at_ms))
        answers.prune_erased(db, answers.ERASED_KEPT_MS + 1001)
        assert answers.read_erased(db, b"s") == [(7, 2)]


def test_a_database_of_schema_4_is_brought_over_and_names_what_it_erases(tmp_path: Path):
    path = tmp_path / "agent.db"
    with contextlib.closing(open_connection(path).db) as db:
        answers.insert_outcome(db, answers.QuestionEnd(9, 7, "a" * 32, Outcome.ANSWERED, "verdict", 5))
        answers.insert_answer(
            db, AnswerRecord("a" * 32, AnswerKind.ANSWER, AnswerSource.HUB, DecisionReason.VERDICT, PREDICTION, "p",
            "open", "7-9", "", at_ms=5, subject=b"s" * 32),
        )  # fmt: skip
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(
            "drop table erased; alter table answers drop column in_domain; "
            "alter table answers drop column text; alter table answers drop column usage; "
            "alter table answers drop column energy_j; pragma user_version=4;"
        )
    with contextlib.closing(open_connection(path).db) as db:
        assert answers.erase_subject(db, b"s" * 32, 10) == 1
        assert answers.read_erased(db, b"s" * 32) == [(7, 9)]
        assert answers.read_outcome(db, "a" * 32) == ("answered", "verdict", 5)
