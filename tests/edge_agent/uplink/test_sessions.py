"""Sessions at the device: opened by invitation, sealed in, lost and outlived, and listed for others."""

import asyncio
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from edge_agent.core.records import AnswerKind, AnswerSource
from edge_agent.uplink.sessions import LIST_INTERVAL_S, LIST_RETRY_S, RENEW_BEFORE_S, SILENT_S
from tests.edge_agent.doubles.hub_double import AgentRig, ManualClock, policy, public_bytes, sample, until
from tests.edge_agent.doubles.session_hub import SessionHub
from wire.protocol.messages import CipherSuite, RefusalReason
from wire.protocol.session_notes import SessionInvite
from wire.protocol.sessions import SESSION_S, VerdictKey


def sessions(rig: AgentRig) -> list[str]:
    return rig.agent._envelopes.list_sessions()


async def opened(rig: AgentRig) -> None:
    await until(lambda: sessions(rig) == ["hub-1"])


def suites(hub: SessionHub) -> list[CipherSuite]:
    """Of the questions that took effect, in their order."""
    return [frame.suite for frame, _, _ in hub.questions]


async def test_questions_are_sealed_in_a_session_once_the_hub_has_invited(tmp_path: Path):
    hub = SessionHub()
    async with AgentRig(tmp_path, policy(mode="wait"), hub) as rig:
        await opened(rig)
        records = [await rig.agent.infer(sample()) for _ in range(5)]
        assert {record.source for record in records} == {AnswerSource.HUB}
        assert suites(hub) == [CipherSuite.SESSION] * 5
        assert len(hub.offers) == 1
        assert rig.agent.status()["sessions"] == ["hub-1"]


@pytest.mark.parametrize("hub", [SessionHub(invites=False), SessionHub(accepts=False), SessionHub(speaks=False)])
async def test_without_an_answer_of_the_hub_questions_are_signed_and_none_waits(tmp_path: Path, hub: SessionHub):
    async with AgentRig(tmp_path, policy(mode="wait"), hub) as rig:
        assert (await rig.agent.infer(sample())).source is AnswerSource.HUB
        assert suites(hub) == [CipherSuite.SEALED]
        assert not sessions(rig)


async def test_a_device_that_signs_each_question_offers_nothing(tmp_path: Path):
    hub = SessionHub()
    async with AgentRig(tmp_path, policy(mode="wait"), hub, sessions=False) as rig:
        await rig.agent.infer(sample())
        assert suites(hub) == [CipherSuite.SEALED]
    assert not hub.offers


# Loss


async def test_a_hub_that_forgot_the_session_gets_the_question_again_and_then_another_session(tmp_path: Path):
    hub, time = SessionHub(), ManualClock()
    async with AgentRig(tmp_path, policy(mode="wait"), hub, clock=time.hub_clock()) as rig:
        await opened(rig)
        hub.sessions.clear()
        assert (await rig.agent.infer(sample())).source is AnswerSource.HUB
        assert suites(hub) == [CipherSuite.SEALED]
        assert (rig.event_count("resealed"), len(hub.effects)) == (1, 1)
        await opened(rig)
        await rig.agent.infer(sample())
        assert suites(hub)[-1] is CipherSuite.SESSION


async def test_a_hub_that_does_not_speak_of_sessions_any_more_gets_the_question_signed(tmp_path: Path):
    """A hub of an earlier release has taken over: it drops what it does not know, without a word."""
    hub, time = SessionHub(), ManualClock()
    async with AgentRig(tmp_path, policy(mode="wait", budget_s=3600.0), hub, clock=time.hub_clock()) as rig:
        await opened(rig)
        hub.speaks = False
        asked = asyncio.create_task(rig.agent.infer(sample()))
        await until(lambda: rig.open == 1)
        for _ in range(60):
            time.advance(SILENT_S / 10)
            rig.agent._executor.run_due()
            await asyncio.sleep(0.01)
            if asked.done():
                break
        assert (await asked).source is AnswerSource.HUB
        assert suites(hub) == [CipherSuite.SEALED]
        assert rig.event_count("sessions_silent") >= 1


async def test_a_verdict_of_a_session_is_read_after_a_restart_of_the_agent(tmp_path: Path):
    """The session's own keys are gone with the process, and no disk has them."""
    hub = SessionHub(verdicts=False, statuses=False)
    async with AgentRig(tmp_path, policy(mode="wait", budget_s=0.05), hub) as rig:
        await opened(rig)
        record = await rig.agent.infer(sample())
        await until(lambda: rig.agent.status()["receipted"] == 1)
    secrets = [part for keys in hub.sessions.values() for part in keys[1:]]
    files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not [secret for secret in secrets if secret in files]
    frame, _, question = hub.questions[0]
    async with AgentRig(tmp_path, policy(mode="wait"), hub) as rig:
        hub.send_frame(hub.seal_verdict(frame, question))
        records = await rig.agent.wait(record.id, 2)
        assert [r.kind for r in records] == [AnswerKind.ANSWER, AnswerKind.CORRECTION]
        assert rig.open == 0


async def test_a_verdict_of_the_earlier_session_is_read_after_the_question_was_sealed_again(tmp_path: Path):
    hub = SessionHub(verdicts=False, statuses=False)
    async with AgentRig(tmp_path, policy(mode="wait", budget_s=0.05), hub) as rig:
        await opened(rig)
        record = await rig.agent.infer(sample())
        await until(lambda: len(hub.questions) == 1)
        frame, data, question = hub.questions[0]
        late = hub.seal_verdict(frame, question)
        hub.send_note(hub.make_refusal(data, RefusalReason.KEY_EXPIRED, final=False))
        await until(lambda: suites(hub) == [CipherSuite.SESSION, CipherSuite.SEALED])
        hub.send_frame(late)
        await until(lambda: rig.open == 0)
        assert [r.kind for r in await rig.agent.wait(record.id, 0)] == [AnswerKind.ANSWER, AnswerKind.CORRECTION]


async def test_a_session_ends_by_the_devices_own_clock_and_the_next_begins_before(tmp_path: Path):
    hub, time = SessionHub(), ManualClock()
    async with AgentRig(tmp_path, policy(mode="wait"), hub, clock=time.hub_clock()) as rig:
        await opened(rig)
        time.wall -= 86_400_000  # a wall clock that goes back by a day prolongs nothing
        time.mono_s += SESSION_S - RENEW_BEFORE_S + 1
        hub.now_ms += int((SESSION_S - RENEW_BEFORE_S + 1) * 1000)
        await until(lambda: len(hub.accepted) == 2)
        hub.accepts = False
        await until(lambda: sessions(rig) == ["hub-1"])
        time.mono_s += SESSION_S + 1
        await until(lambda: not sessions(rig))
        assert (await rig.agent.infer(sample())).source is AnswerSource.HUB
        assert suites(hub) == [CipherSuite.SEALED]


async def test_a_session_outlives_a_lost_connection(tmp_path: Path):
    hub = SessionHub()
    async with AgentRig(tmp_path, policy(mode="wait"), hub) as rig:
        await opened(rig)
        await rig.agent.reconnect()
        await until(lambda: rig.event_count("session_invites") == 2)
        await rig.agent.infer(sample())
        assert suites(hub) == [CipherSuite.SESSION]
        assert len(hub.offers) == 1


# Attacks


async def test_a_forged_or_moved_answer_to_an_offer_opens_no_session(tmp_path: Path):
    hub = SessionHub(accepts=False)
    async with AgentRig(tmp_path, policy(mode="wait"), hub) as rig:
        await until(lambda: hub.offers)
        genuine = hub.accept(hub.offers[0])
        stranger = Ed25519PrivateKey.generate()
        hub.send_frame(hub.sign_note(genuine, by=stranger))
        hub.send_note(msgspec.structs.replace(genuine, offered=public_bytes(X25519PrivateKey.generate())))
        hub.send_note(msgspec.structs.replace(genuine, epoch=genuine.epoch ^ 1))
        hub.send_note(msgspec.structs.replace(genuine, hub="hub-2"))
        hub.send_note(msgspec.structs.replace(genuine, share=bytes(32)))
        await until(lambda: rig.event_count("sessions_refused") == 1)
        assert not sessions(rig)
        assert rig.event_count("refused_signature") == 1
        hub.send_note(genuine)
        await opened(rig)
        hub.send_note(genuine)  # a recorded one, once more
        await rig.agent.infer(sample())
        assert rig.event_count("sessions") == 1


async def test_an_uninvited_device_takes_no_session(tmp_path: Path):
    hub = SessionHub(invites=False)
    async with AgentRig(tmp_path, policy(mode="wait"), hub) as rig:
        hub.send_note(SessionInvite(rig.agent._core.epoch ^ 1, "hub-1"))
        hub.send_note(SessionInvite(rig.agent._core.epoch, "hub-7"))
        await rig.agent.infer(sample())
        assert not hub.offers


async def test_a_verdict_that_is_forged_repeated_or_of_another_question_is_not_taken(tmp_path: Path):
    hub = SessionHub(verdicts=False, statuses=False)
    async with AgentRig(tmp_path, policy(mode="wait", budget_s=0.01), hub) as rig:
        await opened(rig)
        for _ in range(2):
            await rig.agent.infer(sample())
        await until(lambda: len(hub.questions) == 2)
        (one, _, question), (other, _, second) = hub.questions
        hub.send_frame(hub.seal_verdict(one, question, by=Ed25519PrivateKey.generate()))
        await until(lambda: rig.event_count("refused_signature") == 1)
        hub.send_frame(hub.seal_with(VerdictKey(one.header.key_id, bytes(32)), one, question))
        hub.send_frame(hub.seal_with(VerdictKey(bytes(8), bytes(32)), one, question))
        await until(lambda: rig.event_count("refused_seal") == 2)
        assert rig.open == 2
        verdict = hub.seal_verdict(other, second)
        hub.send_frame(verdict)
        hub.send_frame(verdict)
        await until(lambda: rig.event_count("verdicts_repeated") == 1)
        await until(lambda: rig.open == 1)


# Lists


def ledger_digests(folder: Path) -> list[bytes]:
    with closing(sqlite3.connect(folder / "agent.db")) as db, db:
        return [bytes(row[0]) for row in db.execute("select digest from entries where kind in (1, 2) order by entry")]


async def test_every_question_since_the_first_session_is_listed_once_and_in_order(tmp_path: Path):
    hub = SessionHub()
    async with AgentRig(tmp_path, policy(mode="wait"), hub) as rig:
        await opened(rig)
        for _ in range(3):
            await rig.agent.infer(sample())
        rig.agent._sessions._list_at = 0.0
        await until(lambda: len(hub.digests()) == 3)
        hub.sessions.clear()
        await rig.agent.infer(sample())  # sealed twice
        rig.agent._sessions._list_at = 0.0
        await until(lambda: len(hub.digests()) == 5)
        assert [digest for listed in hub.lists for digest in listed.digests] == ledger_digests(tmp_path)
        borders = [(listed.after, listed.entries) for listed in hub.lists]
        assert all(before[1] == after[0] for before, after in pairwise(borders))


async def test_a_list_that_nobody_acknowledged_is_sent_again_also_after_a_restart(tmp_path: Path):
    hub, time = SessionHub(acknowledges_lists=False), ManualClock()
    async with AgentRig(tmp_path, policy(mode="wait"), hub, clock=time.hub_clock()) as rig:
        await opened(rig)
        await rig.agent.infer(sample())
        for number, pause_s in ((1, LIST_INTERVAL_S), (2, LIST_RETRY_S)):
            time.advance(pause_s)
            await until(lambda number=number: len(hub.lists) == number)
    assert len({listed.digests for listed in hub.lists}) == 1
    hub.lists.clear()
    hub.acknowledges_lists = True
    async with AgentRig(tmp_path, policy(mode="wait"), hub):
        await until(lambda: hub.lists)  # the invitation is answered by what is due, the offer follows
        await until(lambda: len(hub.offers) == 2)
        assert list(hub.lists[-1].digests) == ledger_digests(tmp_path)


async def test_a_device_that_never_had_a_session_sends_no_list(tmp_path: Path):
    hub = SessionHub(invites=False)
    async with AgentRig(tmp_path, policy(mode="wait"), hub) as rig:
        await rig.agent.infer(sample())
        rig.agent._sessions._list_at = 0.0
        await asyncio.sleep(0.1)
        assert not hub.lists
