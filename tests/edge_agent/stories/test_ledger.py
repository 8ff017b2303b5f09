"""A running agent and its ledger: every message is recorded before it is sent, and every transmission is recorded."""

import asyncio
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cloud_hub.database.connection import IN_MEMORY
from cloud_hub.storage.ledger_log import LedgerLog, ReceivedHead
from edge_agent.inference.requests import SubjectHasher
from edge_agent.ledger_audit import summary
from edge_agent.ledger_audit.verify import make_owner, open_for_reading, verify_ledger
from edge_agent.storage import ledger, tables
from edge_agent.storage.outbox import PayloadVault
from edge_agent.storage.schema import SCHEMA, open_connection
from policies.language.document import parse_policy
from policies.model.reasons import DecisionReason
from tests.edge_agent.doubles.hub_double import DEFAULTS, POLICY, SIGNING, AgentRig, HubDouble, policy, sample, until
from tests.edge_agent.doubles.ledger_bench import FEATURES, failed_proofs
from wire.ledger.chain import EntryKind
from wire.ledger.checkpoint import build_origin, sign_checkpoint
from wire.protocol.messages import CheckpointNote, LedgerHeadReport
from wire.protocol.sealing import hash_frame
from wire.transport.base import MemoryTransport

KINDS = {kind.value: kind.name.lower() for kind in EntryKind}


@dataclass
class LoggingHub(HubDouble):
    """Keeps a log of heads, as a hub does. `lies`: a false log that it shows instead."""

    log: LedgerLog = field(default_factory=lambda: LedgerLog.open(IN_MEMORY, 0))
    lies: LedgerLog | None = None

    def on_heads(self, heads: LedgerHeadReport) -> None:
        received = ReceivedHead("demo--d1", SIGNING.public_key().public_bytes_raw(), heads, self.now_ms)
        self.log.append([received])
        shown = self.lies or self.log
        logged = shown.append([received])[0]
        tree = shown.tree()
        text = sign_checkpoint(build_origin("hub-1"), tree, self.signing)
        place = (
            logged.place,
            logged.leaf.received_ms,
            logged.leaf.epochs,
            shown.prove_inclusion(logged.place, tree.size),
        )
        grown = shown.prove_consistency(heads.known, tree.size) if 0 < heads.known <= tree.size else ()
        self.send_note(CheckpointNote(heads.epoch, heads.entries, text, *place, grown))
        super().on_heads(heads)


def entries(folder: Path) -> list[tuple[str, int, int, bytes]]:
    """(kind, seq, size, digest), oldest first."""
    with closing(sqlite3.connect(folder / "agent.db")) as db, db:
        rows = db.execute("select kind, seq, size, digest from entries order by entry").fetchall()
    return [(KINDS[kind], *rest) for kind, *rest in rows]


def kinds(folder: Path) -> Counter[str]:
    return Counter(kind for kind, *_ in entries(folder))


def left(folder: Path) -> int:
    """Bytes that left, by the ledger."""
    return sum(-size if kind == "withheld" else size for kind, _, size, _ in entries(folder))


async def test_every_frame_on_the_link_has_its_entry_and_no_entry_is_without_its_frame(tmp_path: Path):
    hub = LoggingHub()
    async with AgentRig(tmp_path, policy(), hub) as rig:
        for _ in range(5):
            await rig.agent.infer(sample())
        await until(lambda: rig.open == 0)
    up = [message for message in hub.broker.carried if "/up/" in message.topic]
    assert sorted(hash_frame(message.payload) for message in up) == sorted(each[3] for each in entries(tmp_path))
    assert left(tmp_path) == sum(len(message.payload) for message in up)
    assert set(kinds(tmp_path)) == {"hello", "report", "question"}


async def test_no_byte_leaves_before_its_entry_is_on_disk(tmp_path: Path):
    """Checked at the moment of each transmission, by a connection that sees only committed rows."""
    missing: list[str] = []

    class Watched(HubDouble):
        async def connect(self) -> MemoryTransport:
            transport = await super().connect()
            post = transport.post

            def looked(topic: str, payload: bytes) -> Any:
                if hash_frame(payload) not in {each[3] for each in entries(tmp_path)}:
                    missing.append(topic)
                return post(topic, payload)

            transport.post = looked  # type: ignore[method-assign]
            return transport

    hub = Watched(verdicts=False)
    async with AgentRig(tmp_path, policy(), hub) as rig:
        for _ in range(5):
            await rig.agent.infer(sample())
        await until(
            lambda: len(hub.questions) >= 5 and any(note.__class__.__name__ == "StatusRequest" for note in hub.notes)
        )
    assert missing == []


async def test_the_same_bytes_once_more_are_an_entry_of_their_own(tmp_path: Path):
    hub = HubDouble(receipts=False, verdicts=False)
    async with AgentRig(tmp_path, policy(), hub) as rig:
        await rig.agent.infer(sample())
        await until(lambda: len(hub.questions) >= 3)
    sent = len(hub.questions)
    found = [each for each in entries(tmp_path) if each[1] == 1]
    again = [each for each in found if each[0] == "again"]
    withheld = [each for each in found if each[0] == "withheld"]
    assert found[0][0] == "question"
    assert len({each[3] for each in found}) == 1, "one ciphertext"
    assert sent <= 1 + len(again) - len(withheld) <= sent + 1, "a repeat may be on its way when the agent stops"


async def test_what_a_new_policy_keeps_here_is_said_to_have_stayed(tmp_path: Path):
    hub = HubDouble()
    async with AgentRig(tmp_path, policy(), hub) as rig:
        hub.broker.kill()
        await until(lambda: rig.agent.status()["link"] == "down")
        await rig.agent.infer(sample())
        rig.agent.use_policy(policy(version=2, level="P0"))
        hub.broker.up = True
        await until(lambda: rig.open == 0)
    assert hub.questions == []
    assert [each[0] for each in entries(tmp_path) if each[1] == 1] == ["question", "withheld"]
    with open_for_reading(tmp_path) as db:
        by_rule = {row.key: row.bytes for row in summary.summarise_ledger(db, 0, 2**45).rows}
    assert by_rule.pop("protocol") > 0
    assert set(by_rule.values()) == {0}


async def test_what_is_erased_while_it_is_being_stored_is_said_to_have_stayed(tmp_path: Path):
    async with AgentRig(tmp_path, policy(mode="wait")) as rig:
        asked = rig.agent.answer_now(sample(subject="p1"))
        await rig.agent.erase(SubjectHasher(PayloadVault(rig.hub.identity().payload_key)).hash_subject("p1"))
        assert isinstance(asked, asyncio.Future)
        assert (await asked).why is DecisionReason.ERASED
        await until(lambda: rig.event_count("accepted") == 1)
    assert [each[0] for each in entries(tmp_path) if each[1] == 1] == ["question", "withheld"]
    assert not rig.hub.questions


async def test_a_question_that_waited_through_a_restart_is_sent_once_and_counted_once(tmp_path: Path):
    hub = HubDouble()
    async with AgentRig(tmp_path, policy(), hub) as rig:
        hub.broker.kill()
        await until(lambda: rig.agent.status()["link"] == "down")
        await rig.agent.infer(sample())
    hub.broker.up = True
    async with AgentRig(tmp_path, policy(), hub) as rig:
        await until(lambda: rig.open == 0)
    assert len(hub.questions) == 1
    assert [each[0] for each in entries(tmp_path) if each[1] == 1] == ["question"]


async def test_bytes_by_rule_and_the_overhead_are_what_the_sockets_sent(tmp_path: Path):
    hub = LoggingHub()
    async with AgentRig(tmp_path, policy(), hub) as rig:
        for _ in range(8):
            await rig.agent.infer(sample())
        await until(lambda: rig.open == 0)
        sent = rig.agent.status()["sent"]
    assert sum(sent["by_rule"].values()) + sent["overhead"] == sent["sockets"]
    assert set(sent["by_rule"]) == {"protocol", "test@1"}
    with open_for_reading(tmp_path) as db:
        shown = summary.summarise_ledger(db, 0, 2**45)
    assert {row.key: row.bytes for row in shown.rows} == sent["by_rule"]
    assert shown.overhead is not None
    assert sum(row.bytes for row in shown.rows) + shown.overhead == shown.sockets == sent["sockets"]


async def test_what_the_sockets_sent_shares_the_commit_of_an_outcome(tmp_path: Path):
    """A device that asks now and then writes twice for a question: what it asks, then how that ended."""
    async with AgentRig(tmp_path, policy(mode="wait"), watchdog_s=1000.0) as rig:
        await rig.agent._db.read(lambda _: None)
        before = rig.agent._db.commits
        await rig.agent.infer(sample())
        await until(lambda: rig.open == 0 and not rig.agent._db.waiting_units)
        assert rig.agent._db.commits - before == 2
        with open_for_reading(tmp_path) as db:
            stored = tables.sum_traffic(db, 0, 2**45)
        by_rule = rig.agent.status()["sent"]["by_rule"]
        assert by_rule["test@1"] > 0
        assert stored >= by_rule["test@1"]


# What hubs have witnessed


async def test_a_head_is_told_on_connect_and_the_hubs_word_on_it_is_kept(tmp_path: Path):
    hub = LoggingHub()
    async with AgentRig(tmp_path, policy(), hub) as rig:
        await until(lambda: rig.event_count("checkpoints") == 1)
        status = rig.agent.status()
        identity = hub.identity()
    assert status["ledger"]["witnessed_by"] == "hub-1"
    assert hub.log.size == 1
    with open_for_reading(tmp_path) as db:
        assert failed_proofs(verify_ledger(db, make_owner(identity))) == []


async def test_each_head_is_proved_to_follow_from_the_log_of_the_one_before(tmp_path: Path):
    hub = LoggingHub()
    for life in range(3):
        async with AgentRig(tmp_path, policy(), hub) as rig:
            await rig.agent.infer(sample())
            await until(lambda: rig.event_count("checkpoints") == 1)
            assert rig.agent.status()["alarms"] == []
        assert hub.log.size == life + 1
    assert [heads.known for heads in hub.heads] == [0, 1, 2]


async def test_a_hub_that_shows_another_log_is_an_alarm_that_outlives_a_restart(tmp_path: Path):
    """The log is signed by the hub's own key, but inconsistent with what it had shown before."""
    hub = LoggingHub()
    async with AgentRig(tmp_path, policy(), hub) as rig:
        await until(lambda: rig.event_count("checkpoints") == 1)
    hub.lies = LedgerLog.open(IN_MEMORY, 0)
    async with AgentRig(tmp_path, policy(), hub) as rig:
        await until(lambda: rig.event_count("checkpoints") == 1)
        assert "hub_log_forked" in rig.agent.status()["alarms"]
    hub.lies = None
    async with AgentRig(tmp_path, policy(), hub) as rig:
        await until(lambda: rig.event_count("checkpoints") == 1)
        assert "hub_log_forked" in rig.agent.status()["alarms"]
    with open_for_reading(tmp_path) as db:
        assert failed_proofs(verify_ledger(db, make_owner(hub.identity()))) == ["consistency"]


@pytest.mark.parametrize("lie", ["text", "index", "received_ms", "inclusion", "entries"])
async def test_a_checkpoint_that_proves_nothing_is_refused_and_not_kept(tmp_path: Path, lie: str):
    class Lying(LoggingHub):
        def send_note(self, note: Any) -> None:
            if isinstance(note, CheckpointNote):
                wrongs: dict[str, Any] = {"text": note.text.replace("\n1\n", "\n2\n"), "inclusion": (b"x" * 32,)}
                note = msgspec.structs.replace(note, **{lie: wrongs.get(lie, 99)})
            super().send_note(note)

    async with AgentRig(tmp_path, policy(), Lying()) as rig:
        await until(lambda: rig.event_count("checkpoints_refused") == 1)
        assert rig.event_count("checkpoints") == 0
    with closing(sqlite3.connect(tmp_path / "agent.db")) as db, db:
        assert db.execute("select count(*) from witnessed").fetchone() == (0,)


# Databases of before


def test_a_ledger_of_the_first_schema_is_brought_into_the_chain(tmp_path: Path):
    path = tmp_path / "agent.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(SCHEMA[0])
        db.execute("pragma user_version=1")
        for entry, kind in ((1, "question"), (2, "resealed"), (3, "question")):
            row = (entry, 1000 + entry, 7 + entry, 5, "", kind, '{"features": "P2"}', "{}", "r@1", "p", "h", "eu", 400)
            db.execute("insert into ledger values(?,?,?,?,?,?,?,?,?,?,?,?,?,?)", (*row, bytes([entry]) * 32))
    opened = open_connection(path).db
    rows = opened.execute("select kind, seq, rule, region, size from ledger order by entry").fetchall()
    assert rows == [
        ("question", 8, "r@1", "eu", 400),
        ("resealed", 9, "r@1", "eu", 400),
        ("question", 10, "r@1", "eu", 400),
    ]
    assert ledger.read_next_seq(opened) == 11
    assert list(ledger.read_forms(opened).values())[0].fields == FEATURES.fields  # noqa: RUF015
    assert failed_proofs(verify_ledger(opened, make_owner(HubDouble().identity()))) == []
    opened.close()


@pytest.mark.parametrize("tells", [False, True])
async def test_a_question_names_its_subject_by_a_keyed_hash_and_only_where_the_policy_says_so(tmp_path: Path, tells):
    text = POLICY.format(**DEFAULTS | {"mode": "wait"})
    if tells:
        text = text.replace('purpose = "test"', 'purpose = "test"\nsubject_field = "subject"')
    async with AgentRig(tmp_path, parse_policy(text).compile()) as rig:
        asked = rig.agent.answer_now(sample(subject="p1"))
        assert isinstance(asked, asyncio.Future)
        await asked
        ((_, _, question),) = rig.hub.questions
        named = SubjectHasher(PayloadVault(rig.hub.identity().payload_key)).hash_subject("p1")
    assert question.subject == (named if tells else b"")
