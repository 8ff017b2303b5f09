"""Lists of frames at the hub: kept as signed, held against what came in sessions, and a session begun or not."""

import asyncio
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from cloud_hub.core.commands import KeepFrameList, OpenSession, QuestionEnding, QuestionKey, StoredQuestion
from cloud_hub.database.connection import connect_part
from cloud_hub.database.parts import QUESTIONS, DatabaseUrls
from cloud_hub.storage import frame_lists
from cloud_hub.storage.frame_lists import LIST_DUE_S, LISTS_LIVE_S, FrameLists
from cloud_hub.storage.jobs import StoreJob
from cloud_hub.storage.ledger_log import LedgerLog
from cloud_hub.storage.ledger_service import LedgerBackend, LedgerLogService, export_heads
from cloud_hub.storage.store import Store
from tests.cloud_hub.doubles.devices import HUB, SimDevice
from wire.process.logging import JsonLog
from wire.protocol.codec import SESSION_VERSION, VERSION, decode_up_note, split_frame
from wire.protocol.messages import DownNote, RefusalReason
from wire.protocol.sealing import hash_frame, verify_frame
from wire.protocol.session_notes import SealedFrameList, SealedFrameReceipt, SessionOffer
from wire.protocol.topics import TopicChannel

DEVICE = SimDevice("demo--d1")
NOW_MS = 1_800_000_000_000
DUE_MS = int(LIST_DUE_S * 1000)
OLD_MS = NOW_MS - DUE_MS - 1  # a frame that came then has to be on a list now


class Desk:
    """Both databases of a hub, and questions of a device in them."""

    def __init__(self, urls: DatabaseUrls) -> None:
        self.urls = urls
        self.store = Store.open(urls.questions)
        self.log = LedgerLog.open(urls.ledger, 1_000)
        self.questions = connect_part(urls.questions, QUESTIONS)

    @property
    def lists(self) -> FrameLists:
        return self.log.frame_lists

    def close(self) -> None:
        self.questions.dispose()
        self.log.close()
        self.store.close()

    def take_in(
        self, seq: int, kept_ms: int = OLD_MS, version: int = SESSION_VERSION, *, refused: bool = False,
        waits: bool = False, device: str = DEVICE.id,
    ) -> bytes:  # fmt: skip
        """A question that came in a session, answered unless it waits; its digest."""
        frame = bytes([version]) + seq.to_bytes(4, "big")
        key, digest = QuestionKey(device, DEVICE.epoch, seq), hash_frame(frame)
        kept = StoredQuestion(key, "echo@1", "ab", kept_ms, kept_ms, digest, bytes(32), frame, 2 * NOW_MS)
        end = QuestionEnding(key, kept_ms, refusal=RefusalReason.ENGINE if refused else None, verdict=frame)
        end = QuestionEnding(key, kept_ms, refusal=RefusalReason.ENGINE) if refused else end
        self.store.apply_jobs([StoreJob(keeps=[kept], endings=[] if waits else [end])])
        return digest

    def unlisted(self, now_ms: int = NOW_MS, device: str = DEVICE.id) -> int:
        return self.lists.find_unlisted(self.questions, device, now_ms)

    def keep(self, *digests: bytes, at_ms: int = NOW_MS - 1) -> KeepFrameList:
        told = keep(*digests)
        self.lists.add(told, at_ms)
        return told


def keep(*digests: bytes) -> KeepFrameList:
    frame = DEVICE.frame_list(*digests)
    note = decode_up_note(split_frame(frame).body)
    assert isinstance(note, SealedFrameList)
    return KeepFrameList(DEVICE.id, DEVICE.signing.public_key().public_bytes_raw(), note, frame)


@pytest.fixture
def desk(urls: DatabaseUrls) -> Iterator[Desk]:
    desk = Desk(urls)
    yield desk
    desk.close()


def test_a_frame_of_a_session_that_is_on_no_list_is_found_once_it_is_due(desk: Desk):
    desk.take_in(1, NOW_MS - DUE_MS + 1)
    assert desk.unlisted() == 0
    assert desk.unlisted(NOW_MS + 1) == 1
    assert desk.unlisted(NOW_MS + 86_400_000) == 1, "it is not forgotten"
    assert desk.unlisted(NOW_MS + 1, "demo--d2") == 0


def test_it_is_well_again_once_the_list_has_come(desk: Desk):
    one, other = desk.take_in(1), desk.take_in(2, waits=True)
    assert desk.unlisted() == 2
    desk.keep(one)
    assert desk.unlisted() == 1
    desk.keep(other)
    assert desk.unlisted() == 0


def test_what_was_found_on_lists_is_not_looked_at_again_and_what_follows_is(desk: Desk):
    desk.keep(desk.take_in(1))
    assert desk.unlisted() == 0
    desk.take_in(2, NOW_MS - 5)
    assert desk.unlisted(NOW_MS + DUE_MS) == 1


def test_signed_questions_and_refused_ones_need_no_list(desk: Desk):
    desk.take_in(1, version=VERSION)
    desk.take_in(2, version=VERSION, waits=True)
    desk.take_in(3, refused=True)
    assert desk.unlisted() == 0


def test_a_list_is_kept_as_it_was_signed_once_and_for_its_time(desk: Desk):
    told = desk.keep(bytes(32), at_ms=NOW_MS)
    desk.lists.add(told, NOW_MS + 5)
    (shown,) = export_heads(desk.log, "hub-1", HUB.signing, DEVICE.id)["lists"]
    assert shown["received_ms"] == NOW_MS
    assert export_heads(desk.log, "hub-1", HUB.signing, DEVICE.id, after=3)["lists"] == []
    frame = split_frame(told.frame)
    verify_frame(frame, by=DEVICE.signing.public_key(), channel=TopicChannel.REPORT)
    desk.keep(bytes(31) + b"\x01", at_ms=NOW_MS + int(LISTS_LIVE_S * 1000) + 1)
    assert len(desk.lists.export_lists(DEVICE.id)) == 1


def test_a_later_list_replaces_none(desk: Desk):
    """Nothing that a device signs takes back what it signed before."""
    digest = desk.take_in(1)
    desk.keep(digest)
    desk.keep(bytes(32))
    assert desk.unlisted() == 0
    assert len(desk.lists.export_lists(DEVICE.id)) == 2


# The service


async def run_service(desk: Desk, *commands: KeepFrameList | OpenSession) -> tuple[list[DownNote], list[OpenSession]]:
    """The notes that it sends for these commands, and the sessions that it begins."""
    said: list[DownNote] = []
    begun: list[OpenSession] = []
    backend = LedgerBackend("hub-1", HUB.signing, lambda _, note: said.append(note), lambda _: 0, JsonLog())
    service = LedgerLogService(LedgerLog.open(desk.urls.ledger, 1_000), backend)
    service.serve_sessions(begun.append, lambda: NOW_MS, desk.urls.questions)
    for command in commands:
        service.add_session_command(command)
    task = asyncio.create_task(service.run())
    async with asyncio.timeout(10):
        while sum(service.counts.values()) < len(commands):
            await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return said, begun


def offer() -> OpenSession:
    return OpenSession(DEVICE.enrolled(), SessionOffer(DEVICE.epoch, "hub-1", bytes(8), bytes(32)))


async def test_a_session_begins_if_no_frame_is_missing(desk: Desk):
    digest = desk.take_in(1)
    assert await run_service(desk, offer()) == ([], [])
    told = keep(digest)
    said, begun = await run_service(desk, told, offer())
    assert said == [SealedFrameReceipt(DEVICE.epoch, "hub-1", told.listed.entries)]
    assert [command.offer for command in begun] == [offer().offer]


async def test_what_the_database_does_not_take_is_neither_acknowledged_nor_begun(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> int:
        raise sa.exc.OperationalError("", None, Exception("full"))

    monkeypatch.setattr(frame_lists.FrameLists, "add", fail)
    monkeypatch.setattr(frame_lists.FrameLists, "find_unlisted", fail)
    assert await run_service(desk, keep(bytes(32)), offer()) == ([], [])
