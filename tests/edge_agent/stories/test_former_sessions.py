"""A device on the database of release 0.2, which sealed questions in sessions (wire version 2)."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from edge_agent.question.commands import OutboxState
from edge_agent.question.records import AnswerKind
from edge_agent.storage import outbox
from edge_agent.storage.outbox import PayloadVault, StoredPayload
from tests.edge_agent.doubles.hub_double import DEVICE, AgentRig, HubDouble, policy, sample, until
from tests.second_implementation import frames, msgpack
from wire.protocol.sealing import hash_frame

FILE = "agent.db"
SESSION = b"session!"


class FormerPayload(StoredPayload, frozen=True, array_like=True, gc=False):
    """A payload of 0.2. `verdict_keys`: of each session that the question was sealed in."""

    verdict_keys: tuple[tuple[bytes, bytes], ...] = ()


def seal_in_session(file: Path, state: OutboxState) -> None:
    """Make each question of an outbox one that 0.2 has sealed in a session and left in this state."""
    vault = PayloadVault(b"p" * 32)
    with closing(sqlite3.connect(file)) as db, db:
        for row in outbox.read_rows(db):
            frame = outbox.read_sealed(db, row.seq) or b""
            former = b"\x02\x21" + frame[2:-64]
            kept = vault.decrypt(row.epoch, row.seq, row.payload)
            payload = vault.encrypt(
                row.epoch, row.seq, FormerPayload(kept.padded, kept.local, kept.trace, ((SESSION, bytes(32)),))
            )
            db.execute(
                "update outbox set sealed=?, digest=?, key_id=?, size=?, payload=?, state=?, not_before_ms=0 "
                "where seq=?",
                (former, hash_frame(former), SESSION, len(former), payload, state, row.seq),
            )


@pytest.mark.parametrize("state", [OutboxState.SEALED, OutboxState.SENT, OutboxState.RECEIPTED])
async def test_questions_that_02_sealed_in_a_session_are_sealed_again_and_answered_once(
    tmp_path: Path, state: OutboxState
):
    hub = HubDouble(receipts=False, verdicts=False)
    async with AgentRig(tmp_path, policy(), hub) as rig:
        asked = [await rig.agent.infer(sample(trace=f"00-{n:032x}-{1:016x}-01")) for n in (1, 2)]
        await until(lambda: len(hub.questions) == 2)
        spent = rig.agent.status()["spent_bytes"]
    seal_in_session(tmp_path / FILE, state)
    hub.questions.clear()
    hub.receipts = hub.verdicts = True
    async with AgentRig(tmp_path, policy(), hub) as rig:
        await until(lambda: rig.open == 0)
        assert {data[:2] for _, data, _ in hub.questions} == {b"\x01\x11"}, "version 1, sealed and signed"
        for record in asked:
            assert [r.kind for r in await rig.agent.wait(record.id, 1)] == [AnswerKind.ANSWER, AnswerKind.CORRECTION]
            kinds = [entry["kind"] for entry in (await rig.agent.explain(record.id))["ledger"]]
            assert kinds[-2:] == ["withheld", "resealed"], "the frame of the session never leaves"
        assert rig.event_count("frames_outdated") == 2
        assert rig.event_count("reseal_failed") == 0
        assert rig.agent.status()["spent_bytes"] == spent, "sealing again charges nothing"
    assert len(hub.effects) == 2


async def test_what_a_hub_of_02_says_of_sessions_is_refused_and_stops_nothing(tmp_path: Path):
    hub = HubDouble()
    async with AgentRig(tmp_path, policy(), hub) as rig:
        epoch = rig.agent._core.epoch
        for note in (["g", epoch, "hub-1"], ["k", epoch, "hub-1", bytes(32), bytes(32), 0], ["e", epoch, "hub-1", 7]):
            hub.send_frame(sign_array(hub, epoch, note))
        await until(lambda: rig.event_count("refused_malformed") == 3)
        record = await rig.agent.infer(sample())
        verdict = await rig.agent.wait(record.id, 2)
        assert [r.kind for r in verdict] == [AnswerKind.ANSWER, AnswerKind.CORRECTION]
        hub.send_frame(b"\x02\x22" + hub.questions[0][1][2:])
        await until(lambda: rig.event_count("refused_version") == 1)


def sign_array(hub: HubDouble, epoch: int, note: list[object]) -> bytes:
    """A signed frame with a note that no release of today makes."""
    header = frames.header(DEVICE, epoch, 0, hub.now_ms, hub.signing_id)
    return frames.sign(header, msgpack.encode(note), hub.signing.private_bytes_raw(), "down/r")
