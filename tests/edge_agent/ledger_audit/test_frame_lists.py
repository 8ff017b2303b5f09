"""Signed lists of frames before a third machine: who sealed a frame, and whether the device's ledger says the same."""

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from cloud_hub.core.commands import KeepFrameList
from edge_agent.cli.ledger import app
from edge_agent.ledger_audit.frame_lists import compare_lists, find_sealer, open_list
from edge_agent.ledger_audit.verify import ExportedList, make_owner
from edge_agent.storage import frame_lists, ledger
from tests.edge_agent.doubles.hub_double import DEVICE, SIGNING
from tests.edge_agent.doubles.ledger_bench import FACES, LedgerBench, failed_proofs
from wire.ledger.chain import EntryKind
from wire.process.exit_codes import ExitCode, ExitError
from wire.protocol.codec import encode_wire_message
from wire.protocol.messages import FrameHeader
from wire.protocol.sealing import compute_key_id, sign_frame
from wire.protocol.session_notes import SealedFrameList
from wire.protocol.topics import TopicChannel, compute_shard

KEY = SIGNING.public_key().public_bytes_raw()


@pytest.fixture
def bench(tmp_path: Path) -> LedgerBench:
    """Questions for two hubs, before and after the first session, and notes between them."""
    bench = LedgerBench(tmp_path)
    bench.identity.save(tmp_path, b"certificate", b"key", b"ca")
    bench.append_entries(3)
    frame_lists.begin_lists(bench.db, "hub-1")
    bench.append_entries(4)
    bench.append_entries(2, FACES)  # for another hub
    bench.append_entries(1, kind=EntryKind.ASK)
    bench.append_entries(1, kind=EntryKind.RESEALED)
    bench.witness_head()
    return bench


def sign(note: SealedFrameList, by: Ed25519PrivateKey = SIGNING, device: str = DEVICE) -> bytes:
    key_id = compute_key_id(by.public_key().public_bytes_raw())
    header = FrameHeader(compute_shard(device), device, note.epoch, 0, 1_790_000_000_000, key_id)
    return sign_frame(header, encode_wire_message(note), by=by, channel=TopicChannel.REPORT)


def due(bench: LedgerBench) -> SealedFrameList:
    found = frame_lists.make_next_list(bench.db, "hub-1")
    assert found is not None
    return found


def compared(bench: LedgerBench, note: SealedFrameList, frame: bytes = b"") -> list[str]:
    findings = compare_lists(bench.db, make_owner(bench.identity), [ExportedList(KEY, frame or sign(note))])
    assert findings
    return failed_proofs(findings)


def test_a_list_names_the_hubs_questions_since_the_first_session(bench: LedgerBench):
    note = due(bench)
    assert (note.after, note.entries, len(note.digests)) == (3, 11, 5)
    assert compared(bench, note) == []
    frame_lists.acknowledge_list(bench.db, "hub-1", note.entries)
    assert frame_lists.make_next_list(bench.db, "hub-1") is None
    assert frame_lists.make_next_list(bench.db, "hub-2") is None, "there never was a session with it"


def test_lists_of_many_questions_follow_each_other_without_a_gap(bench: LedgerBench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(frame_lists, "MAX_DIGESTS", 2)
    parts = []
    while (note := frame_lists.make_next_list(bench.db, "hub-1")) is not None:
        parts.append(note)
        frame_lists.acknowledge_list(bench.db, "hub-1", note.entries)
    assert [len(note.digests) for note in parts] == [2, 2, 1]
    exported = [ExportedList(KEY, sign(note)) for note in parts]
    assert failed_proofs(compare_lists(bench.db, make_owner(bench.identity), exported)) == []


def test_the_first_mark_stays_whatever_session_begins_later(bench: LedgerBench):
    frame_lists.begin_lists(bench.db, "hub-1")
    frame_lists.acknowledge_list(bench.db, "hub-1", 1)  # a receipt of long ago
    assert due(bench).after == 3


@pytest.mark.parametrize("attack", ["left out", "added", "swapped", "moved", "other ledger"])
def test_a_list_that_says_other_than_the_ledger_is_found(bench: LedgerBench, attack: str):
    note, digests = due(bench), due(bench).digests
    told = {
        "left out": (note.after, digests[1:]), "added": (note.after, (*digests, bytes(32))),
        "swapped": (note.after, digests[::-1]), "moved": (note.after + 1, digests),
        "other ledger": (note.after, digests),
    }[attack]  # fmt: skip
    epoch = note.epoch ^ (attack == "other ledger")
    assert compared(bench, SealedFrameList(epoch, note.hub, told[0], note.entries, told[1])) == ["frames"]


def test_a_list_that_somebody_else_signed_counts_for_nothing(bench: LedgerBench):
    note, stranger = due(bench), Ed25519PrivateKey.generate()
    assert compared(bench, note, sign(note, stranger)) == ["frames"]
    assert compared(bench, note, sign(note, device="demo--d2")) == ["frames"]
    frame = bytearray(sign(note))
    frame[-70] ^= 1
    assert compared(bench, note, bytes(frame)) == ["frames"]
    assert open_list(ExportedList(KEY[:5], sign(note))) is None


def test_of_a_pruned_ledger_the_rest_is_compared(bench: LedgerBench):
    note = due(bench)
    bench.append_entries(3)
    bench.witness_head()
    assert ledger.prune_ledger(bench.db, 3) == 11
    assert compared(bench, note) == []


def test_who_sealed_a_frame_is_said_by_the_devices_signature(bench: LedgerBench):
    note = due(bench)
    exported = [ExportedList(KEY, sign(note))]
    (found,) = find_sealer(exported, note.digests[2])
    assert found.good
    assert f"{DEVICE}, key {compute_key_id(KEY).hex()}" in found.words
    assert find_sealer(exported, note.digests[2], KEY)[0].good
    stranger = Ed25519PrivateKey.generate()
    assert not find_sealer(exported, note.digests[2], stranger.public_key().public_bytes_raw())[0].good
    assert not find_sealer(exported, bytes(32))[0].good
    assert not find_sealer([*exported, ExportedList(KEY, sign(note, stranger))], note.digests[2])[0].good


def test_a_third_machine_asks_with_the_command_and_a_hubs_export_alone(bench: LedgerBench, tmp_path: Path):
    note = due(bench)
    bench.log.frame_lists.add(KeepFrameList(DEVICE, KEY, note, sign(note)), bench.now_ms)
    bench.exported_heads()
    heads = str(tmp_path / "heads.json")
    words = ["find-frame", note.digests[0].hex(), "--heads", heads]
    for more in ([], ["--device-key", KEY.hex()]):
        done = CliRunner().invoke(app, [*words, *more], env={"COLUMNS": "160"})
        assert (done.exit_code, "its sealer is known" in done.output) == (0, True)
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    assert told["holds"]
    assert CliRunner().invoke(app, ["find-frame", bytes(32).hex(), "--heads", heads]).exit_code == ExitCode.CHECK_FAILED
    wrong = CliRunner().invoke(app, ["find-frame", "digest", "--heads", heads])
    assert isinstance(wrong.exception, ExitError)
    assert wrong.exception.code == ExitCode.USAGE
    verified = CliRunner().invoke(app, ["verify", "--heads", heads, "--dir", str(tmp_path)], env={"COLUMNS": "160"})
    assert "1 signed lists name 5 questions, as the ledger has them" in verified.output
