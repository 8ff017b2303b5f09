"""Transparency log of ledger heads: verification, contradictions, proofs, spending mirror, and answers."""

import asyncio
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from sqlalchemy.exc import SQLAlchemyError

from cloud_hub.core import commands as c
from cloud_hub.database.connection import IN_MEMORY
from cloud_hub.database.parts import DatabaseUrls
from cloud_hub.security.hub_keys import generate_keys
from cloud_hub.storage.ledger_log import LedgerLog, ReceivedHead
from cloud_hub.storage.ledger_service import LedgerBackend, LedgerLogService
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import NOW_S, SimDevice
from wire.ledger import merkle
from wire.ledger.chain import LedgerHead, encode_head_text
from wire.ledger.checkpoint import open_checkpoint
from wire.ledger.merkle import hash_leaf
from wire.process.logging import JsonLog
from wire.protocol.codec import encode_wire_message
from wire.protocol.messages import CheckpointNote, DownNote, LedgerHeadReport, SpendMirror
from wire.protocol.sealing import compute_key_id, sign_frame
from wire.protocol.topics import TopicChannel, build_topic

DEVICE = SimDevice("demo--d1")
KEYS = generate_keys()
HUB_KEY = KEYS.signing.public_key().public_bytes_raw()


def heads(entries: int = 1, device: SimDevice = DEVICE, **changes) -> LedgerHeadReport:
    """A ledger head of the device, correctly signed whatever the changes."""
    head = sha256(b"%d" % entries).digest()
    said = msgspec.structs.replace(LedgerHeadReport(device.epoch, entries, 1000 * entries, head, b"", 0, ()), **changes)
    text = encode_head_text(LedgerHead(device.id, said.epoch, said.entries, said.at_ms, said.head))
    return msgspec.structs.replace(said, signature=said.signature or device.signing.sign(text))


def received(entries: int = 1, device: SimDevice = DEVICE, **changes) -> ReceivedHead:
    key = device.signing.public_key().public_bytes_raw()
    return ReceivedHead(device.id, key, heads(entries, device, **changes), 5_000)


def note(said: LedgerHeadReport, device: SimDevice = DEVICE, channel: TopicChannel = TopicChannel.REPORT) -> bytes:
    header = device.header(0, key=compute_key_id(device.signing.public_key().public_bytes_raw()))
    return sign_frame(header, encode_wire_message(said), by=device.signing, channel=channel)


@pytest.fixture
def log(urls: DatabaseUrls) -> Iterator[LedgerLog]:
    log = LedgerLog.open(urls.ledger, 1_000)
    yield log
    log.close()


@pytest.fixture
def file_log() -> LedgerLog:
    return LedgerLog.open(IN_MEMORY, 1_000)


def refuse_writes(log: LedgerLog, refused: bool) -> None:
    """As a disk that takes nothing any more."""
    connection: Any = log._engine.raw_connection()
    connection.execute(f"pragma query_only={int(refused)}")


# The log


def test_heads_are_logged_in_order_and_every_one_is_proved(log: LedgerLog):
    logged = [log.append([received(n)])[0] for n in range(1, 20)]
    tree = log.tree()
    assert [each.place for each in logged] == list(range(19))
    for each in logged:
        assert merkle.verify_inclusion(
            tree, each.place, hash_leaf(each.leaf.encode_leaf()), log.prove_inclusion(each.place, 19)
        )
        assert log.leaf_at(each.place) == each.leaf
    assert merkle.verify_consistency(log.tree(7), tree, log.prove_consistency(7, 19))
    assert log.leaf_at(19) is None


def test_a_head_that_is_told_twice_stands_in_the_log_once(log: LedgerLog):
    first, second = log.append([received(3)]), log.append([received(3)])
    assert first == second
    assert log.size == 1


@pytest.mark.parametrize(
    ("then", "flaw"),
    [({"head": b"x" * 32}, "forked"), ({"entries": 4, "head": b"y" * 32}, "rewound"), ({"entries": 6}, "")],
)
def test_a_head_that_contradicts_an_earlier_one_is_logged_and_named(log: LedgerLog, then, flaw):
    log.append([received(5)])
    assert log.append([received(**{"entries": 5, **then})])[0].flaw == flaw
    assert log.size == 2
    assert log.flawed_devices() == ((DEVICE.id,) if flaw else ())


def test_each_leaf_says_how_many_ledgers_of_the_device_were_known(log: LedgerLog):
    counts = [log.append([received(1, epoch=epoch)])[0].leaf.epochs for epoch in (7, 8, 7)]
    log.append([received(1, SimDevice("demo--d2"))])
    assert counts == [1, 2, 1], "the third is the first one again"
    assert log.append([received(2, epoch=7)])[0].leaf.epochs == 2


def test_a_log_goes_on_where_it_stopped(urls: DatabaseUrls):
    first = LedgerLog.open(urls.ledger, 1)
    first.append([received(n) for n in range(1, 6)])
    before = first.tree()
    first.close()
    second = LedgerLog.open(urls.ledger, 2)
    assert (second.tree(), second.begun_ms) == (before, 1)
    second.append([received(6)])
    assert merkle.verify_consistency(before, second.tree(), second.prove_consistency(5, 6))
    second.close()


def test_a_group_that_the_disk_does_not_take_leaves_nothing(file_log: LedgerLog):
    log = file_log
    log.append([received(1)])
    refuse_writes(log, True)
    with pytest.raises(SQLAlchemyError):
        log.append([received(2), received(3)])
    refuse_writes(log, False)
    assert log.size == 1
    assert log.append([received(2)])[0].place == 1


def test_the_mirror_keeps_the_most_that_was_ever_said_over_all_epochs(log: LedgerLog):
    log.append([received(1, spend=(("bytes", 20, 700), ("dp", 1, 3)))])
    log.append([received(1, epoch=99, spend=(("bytes", 20, 10), ("dp", 1, 5), ("bytes", 21, 1)))])
    assert log.spend_mirror(DEVICE.id) == (("bytes", 21, 1), ("bytes", 20, 700), ("dp", 1, 5))
    assert log.spend_mirror("demo--d2") == ()


@pytest.mark.parametrize(("first", "second"), [(0, 1), (2, 1), (1, 9)])
def test_sizes_that_the_log_never_had_are_refused(log: LedgerLog, first, second):
    log.append([received(n) for n in (1, 2, 3)])
    with pytest.raises(ValueError, match=r"log|proof"):
        log.prove_consistency(first, second)
    with pytest.raises(ValueError, match=r"log|leaf"):
        log.prove_inclusion(second + 3, second)


# On its way in


def test_a_signed_head_comes_as_a_report_and_becomes_one_command():
    bench = Bench(DEVICE)
    commands = bench.core.on_message(build_topic(DEVICE.id, TopicChannel.REPORT), note(heads(4)), NOW_S)
    assert commands == [c.LogLedgerHead(DEVICE.id, DEVICE.signing.public_key().public_bytes_raw(), heads(4))]


@pytest.mark.parametrize(
    "change",
    [
        {"signature": b"s" * 64}, {"signature": b"x"}, {"head": b"h" * 31}, {"entries": -1}, {"known": -1},
        {"at_ms": 2**63}, {"spend": (("x" * 129, 1, 1),)}, {"spend": (("x", -1, 1),)}, {"spend": (("x", 1, 2**63),)},
        {"spend": (("x", 1, 1),) * 1001},
    ],
)  # fmt: skip
def test_a_head_that_no_device_would_say_is_dropped(change):
    bench = Bench(DEVICE)
    assert (
        bench.core.on_message(
            build_topic(DEVICE.id, TopicChannel.REPORT), note(heads(**{"entries": 4, **change})), NOW_S
        )
        == []
    )
    assert bench.core.counts["dropped.malformed"] == 1


def test_a_head_on_another_channel_and_another_note_as_a_report_are_dropped():
    bench = Bench(DEVICE)
    asked = note(heads(4), channel=TopicChannel.ASK)
    assert bench.core.on_message(DEVICE.ask_topic, asked, NOW_S) == []
    assert bench.core.on_message(build_topic(DEVICE.id, TopicChannel.REPORT), DEVICE.hello(), NOW_S) == []
    assert bench.core.counts["dropped.malformed"] + bench.core.counts["dropped.signature"] == 2


def test_another_devices_head_is_dropped():
    other = SimDevice("demo--d2")
    bench = Bench(DEVICE, other)
    stolen = heads(4, DEVICE, epoch=other.epoch)
    assert bench.core.on_message(build_topic(other.id, TopicChannel.REPORT), note(stolen, other), NOW_S) == []


# Answered


async def answered(
    log: LedgerLog, *told: ReceivedHead, enrolled_ms: int = 2_000
) -> tuple[list[tuple[str, DownNote]], LedgerLogService]:
    """The notes that the ledger service sends for these heads, and the service, stopped."""
    said: list[tuple[str, DownNote]] = []
    desk = LedgerBackend("hub-1", KEYS.signing, lambda *each: said.append(each), lambda _: enrolled_ms, JsonLog())
    clerk = LedgerLogService(log, desk)
    for each in told:
        clerk.add_head(each)
    task = asyncio.create_task(clerk.run())
    while len(said) < 2 * len(told) and not clerk.counts["ledger.unlogged"]:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return said, clerk


async def test_a_group_is_answered_with_one_tree_and_each_with_its_own_proof(log: LedgerLog):
    other = SimDevice("demo--d2")
    said, _ = await answered(log, received(1), received(9, other), received(2, known=1))
    points = [each for _, each in said if isinstance(each, CheckpointNote)]
    assert [device for device, each in said if isinstance(each, CheckpointNote)] == [DEVICE.id, other.id, DEVICE.id]
    assert len({point.text for point in points}) == 1
    tree = open_checkpoint(points[0].text, HUB_KEY).tree
    assert tree.size == 3
    assert [point.index for point in points] == [0, 1, 2]
    assert all(len(point.inclusion) > 0 for point in points)
    assert points[0].consistency == ()
    assert len(points[2].consistency) > 0


@pytest.mark.parametrize(("enrolled_ms", "complete"), [(2_000, True), (500, False)])
async def test_a_device_older_than_the_log_is_told_that_the_mirror_may_lack_something(
    log: LedgerLog, enrolled_ms, complete
):
    said, _ = await answered(log, received(1, spend=(("bytes", 3, 9),)), enrolled_ms=enrolled_ms)
    mirror = said[1][1]
    assert mirror == SpendMirror(DEVICE.epoch, (("bytes", 3, 9),), complete)


async def test_a_new_database_of_a_known_device_gets_what_the_old_one_had_spent(log: LedgerLog):
    log.append([received(5, epoch=1, spend=(("bytes", 3, 900),))])
    said, _ = await answered(log, received(1, epoch=2), enrolled_ms=0)
    assert said[1][1] == SpendMirror(2, (("bytes", 3, 900),), True)


async def test_what_the_disk_does_not_take_is_counted_and_not_answered(file_log: LedgerLog):
    refuse_writes(file_log, True)
    said, clerk = await answered(file_log, received(1))
    assert said == []
    assert clerk.counts["ledger.unlogged"] == 1
