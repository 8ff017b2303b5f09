"""Attacks on the ledger by somebody with the device's disk, its key, or the hub, and which evidence finds each.

Root on the device can stop it from recording: this is evidence of tampering, not protection from root.
"""

import shutil
from pathlib import Path

import pytest

from cloud_hub.database.connection import IN_MEMORY
from cloud_hub.storage.ledger_log import LedgerLog
from edge_agent.ledger_audit.verify import compare_with_hub, make_owner, read_hub_export
from edge_agent.storage import ledger, ledger_heads
from edge_agent.storage.ledger import LedgerItem
from edge_agent.storage.ledger_heads import HubLogView
from tests.edge_agent.doubles.ledger_bench import FEATURES, LedgerBench, failed_proofs, resign_head
from wire.ledger import merkle
from wire.ledger.chain import EntryForm, EntryKind, chain_hash, genesis_hash, hash_form
from wire.ledger.checkpoint import build_origin, open_checkpoint, sign_checkpoint
from wire.ledger.merkle import TreeHead


@pytest.fixture
def bench(tmp_path: Path) -> LedgerBench:
    """Ten entries, a head in the middle and one at the end, both logged by the hub."""
    bench = LedgerBench(tmp_path)
    bench.append_entries(5)
    bench.witness_head()
    bench.append_entries(5)
    bench.witness_head()
    return bench


def rewritten(bench: LedgerBench) -> None:
    """The strongest attack by root: all hashes and signatures made again with the device's key, no witness kept."""
    before, hashes = genesis_hash(bench.epoch), {}
    for link, _ in list(ledger.iterate_links(bench.db)):
        before = hashes[link.entry] = chain_hash(before, link)
        bench.db.execute("update entries set hash=? where entry=?", (before, link.entry))
    for head in list(ledger_heads.iterate_heads(bench.db)):
        new = resign_head(bench.epoch, head._replace(hash=hashes[head.entry]))
        bench.db.execute("update heads set hash=?, signature=? where entry=?", (new.hash, new.signature, head.entry))
    bench.db.execute("delete from witnessed")


def test_an_honest_ledger_is_whole_by_itself_and_beside_the_hubs_log(bench: LedgerBench):
    assert failed_proofs(bench.verify_ledger()) == []
    assert failed_proofs(bench.verify_against_hub()) == []
    assert [finding.proof for finding in bench.verify_ledger()] == ["chain", "head", "log"]


@pytest.mark.parametrize(
    "change",
    ["size=1", "at_ms=at_ms-1", "seq=99", "kind=5", "charge=0", "releases=7", "id=''", "digest=zeroblob(32)"],
)
def test_an_edited_entry_is_found_by_the_chain(bench: LedgerBench, change: str):
    bench.db.execute(f"update entries set {change} where entry=4")
    assert failed_proofs(bench.verify_ledger()) == ["chain"]


@pytest.mark.parametrize("change", ["""fields='{"features":"P0"}'""", "region='us'", "rule='x'", "policy=''"])
def test_an_edited_form_is_found_by_the_chain(bench: LedgerBench, change: str):
    """The form says what left, where to, and under which rule; the chain covers its hash."""
    bench.db.execute(f"update forms set {change}")
    assert failed_proofs(bench.verify_ledger()) == ["chain"]


def test_a_form_exchanged_for_another_is_found_by_the_chain(bench: LedgerBench):
    bench.append_entries(form=EntryForm({"features": "P0"}, {}, "x", "", "hub-1", "eu"))
    other = bench.query_rows("select form from entries order by entry desc limit 1")[0][0]
    assert other != hash_form(FEATURES)
    bench.db.execute("update entries set form=? where entry=2", (other,))
    assert failed_proofs(bench.verify_ledger()) == ["chain"]


def test_a_deleted_entry_is_found_by_the_chain(bench: LedgerBench):
    bench.db.execute("delete from entries where entry=4")
    assert failed_proofs(bench.verify_ledger()) == ["chain"]


def test_a_deleted_beginning_is_found_by_the_chain(bench: LedgerBench):
    """Only a signed head may stand for deleted entries."""
    bench.db.execute("delete from entries where entry<=3")
    assert failed_proofs(bench.verify_ledger()) == ["chain"]


def test_an_inserted_entry_is_found_by_the_chain(bench: LedgerBench):
    """Found even if its own hash is right for its place."""
    before = bench.query_rows("select hash from entries where entry=4")[0][0]
    bench.db.execute("update entries set entry=entry+100 where entry>4")
    bench.db.execute("update entries set entry=entry-99 where entry>100")
    link = next(link for link, _ in ledger.iterate_links(bench.db) if link.entry == 4)._replace(entry=5, id="forged")
    bench.db.execute(f"insert into entries values({','.join('?' * 11)})", (*link, chain_hash(before, link)))
    assert failed_proofs(bench.verify_ledger()) == ["chain"]


def test_reordered_entries_are_found_by_the_chain(bench: LedgerBench):
    bench.db.execute("update entries set entry=99 where entry=4")
    bench.db.execute("update entries set entry=4 where entry=5")
    bench.db.execute("update entries set entry=5 where entry=99")
    assert failed_proofs(bench.verify_ledger()) == ["chain"]


def test_a_tail_cut_behind_a_signed_head_is_found_by_the_head(bench: LedgerBench):
    bench.db.execute("delete from entries where entry>8")
    assert failed_proofs(bench.verify_ledger()) == ["head"]


def test_a_tail_cut_off_with_its_heads_is_found_by_the_head_that_the_hub_has(bench: LedgerBench):
    """The file alone looks intact: only the hub knows what it ended with."""
    for table in ("entries", "heads", "witnessed"):
        bench.db.execute(f"delete from {table} where entry>8")
    assert failed_proofs(bench.verify_ledger()) == []
    findings = bench.verify_against_hub()
    assert failed_proofs(findings) == ["head"]
    assert "cut off" in findings[0].words


def test_a_ledger_rewritten_as_a_whole_is_found_by_the_head_that_the_hub_has(bench: LedgerBench):
    """With the device's own key the file alone can be made to look intact; the hub's log cannot."""
    bench.db.execute("update entries set size=1 where entry=3")
    rewritten(bench)
    assert failed_proofs(bench.verify_ledger()) == []
    findings = bench.verify_against_hub()
    assert set(failed_proofs(findings)) == {"head"}
    assert "rewritten" in findings[0].words


def test_a_rewritten_ledger_that_keeps_the_hubs_word_is_found_by_the_log(bench: LedgerBench):
    kept = list(ledger_heads.iterate_witnessed(bench.db))
    bench.db.execute("update entries set size=1 where entry=3")
    rewritten(bench)
    for each in kept:
        ledger_heads.store_witnessed(bench.db, each)
    assert failed_proofs(bench.verify_ledger()) == ["log"]


def test_a_head_signed_by_somebody_else_is_found_by_the_head(bench: LedgerBench):
    bench.db.execute("update heads set signature=zeroblob(64) where entry=5")
    assert "head" in failed_proofs(bench.verify_ledger())


def test_a_device_that_keeps_two_ledgers_is_found_by_its_own_two_heads(bench: LedgerBench, tmp_path: Path):
    """Two copies of a disk go on: the hub logs two heads of one entry, each signed by the device."""
    (tmp_path / "copy").mkdir()
    bench.db.execute("pragma wal_checkpoint(truncate)").fetchall()
    shutil.copy(tmp_path / "agent.db", tmp_path / "copy" / "agent.db")
    copy = LedgerBench(tmp_path / "copy", bench.log, count=500, now_ms=bench.now_ms)
    bench.append_entries(1)
    copy.append_entries(1)
    bench.witness_head()
    copy.witness_head()
    assert failed_proofs(bench.verify_ledger()) == failed_proofs(copy.verify_ledger()) == []
    assert [each.flaw for each in bench.log.heads_for(bench.identity.device)] == ["", "", "", "forked"]
    assert bench.log.flawed_devices() == (bench.identity.device,)
    assert failed_proofs(bench.verify_against_hub()) == failed_proofs(copy.verify_against_hub()) == ["head"]


def test_a_ledger_set_back_to_an_earlier_copy_is_found_by_the_head(bench: LedgerBench):
    """The hub sees the number of entries decrease."""
    bench.db.execute("delete from entries where entry>6")
    bench.db.execute("delete from heads where entry>6")
    bench.append_entries(1)
    bench.witness_head()
    assert bench.log.heads_for(bench.identity.device)[-1].flaw == "rewound"


def test_another_ledger_of_the_device_is_found_by_the_log(bench: LedgerBench, tmp_path: Path):
    """A new database is a new epoch: the hub knows both, and says so in each leaf."""
    (tmp_path / "new").mkdir()
    new = LedgerBench(tmp_path / "new", bench.log)
    new.append_entries(2)
    witnessed = new.witness_head()
    assert witnessed.epochs == 2
    assert "another ledger" in new.verify_against_hub()[0].words


def test_a_hub_with_two_views_is_found_by_the_consistency_proof(bench: LedgerBench):
    """The hub shows the device one log and an auditor another: no proof leads from one to the other."""
    shown = bench.log.tree()
    other = LedgerLog.open(IN_MEMORY, 0)
    for _ in range(3):
        bench.append_entries()
        view, bench.log = bench.log, other
        bench.witness_head()
        bench.log = view
    forged = other.tree()
    for first in range(1, forged.size + 1):
        assert not merkle.verify_consistency(shown, forged, other.prove_consistency(first, forged.size))
    assert not merkle.verify_consistency(shown, forged, ())


def test_two_views_that_a_device_has_seen_stay_on_record(bench: LedgerBench):
    text = bench.query_rows("select checkpoint from hub_logs")[0][0]
    forked = sign_checkpoint(build_origin("hub-1"), TreeHead(2, b"x" * 32), bench.hub.signing)
    ledger_heads.store_view(bench.db, HubLogView("hub-1", bench.hub.keys.signing_key, text, forked))
    ledger_heads.store_view(bench.db, HubLogView("hub-1", bench.hub.keys.signing_key, text))
    assert failed_proofs(bench.verify_ledger()) == ["consistency"]
    kept = ledger_heads.read_views(bench.db)["hub-1"]
    for each in (kept.checkpoint, kept.forked):  # the hub signed both
        assert open_checkpoint(each, kept.key).origin == "skerry/hub-1"


def test_a_hubs_export_that_was_edited_is_refused(bench: LedgerBench):
    path = bench.folder / "heads.json"
    bench.exported_heads()
    for before, after in (
        ('"entries": 5', '"entries": 6'),
        ('"epochs": 1', '"epochs": 2'),
        ('"index": 1', '"index": 0'),
    ):
        text = path.read_text()
        assert before in text
        (bench.folder / "edited.json").write_text(text.replace(before, after, 1))
        findings = compare_with_hub(bench.db, make_owner(bench.identity), read_hub_export(bench.folder / "edited.json"))
        assert "log" in failed_proofs(findings), before


# What is no attack


def test_a_pruned_ledger_verifies_from_the_head_that_stands_for_what_is_gone(bench: LedgerBench):
    assert ledger.prune_ledger(bench.db, 4) == 5
    assert bench.query_rows("select min(entry) from entries") == [(6,)]
    assert failed_proofs(bench.verify_ledger()) == failed_proofs(bench.verify_against_hub()) == []
    bench.append_entries(3)
    bench.witness_head()
    assert failed_proofs(bench.verify_ledger()) == failed_proofs(bench.verify_against_hub()) == []


def test_nothing_is_pruned_that_no_signed_head_stands_for(tmp_path: Path):
    bench = LedgerBench(tmp_path)
    bench.append_entries(9)
    assert ledger.prune_ledger(bench.db, 2) == 0
    bench.sign_head()
    assert ledger.prune_ledger(bench.db, 2) == 0, "the head is behind what has to stay"
    bench.append_entries(5)
    assert ledger.prune_ledger(bench.db, 2) == 9


def test_the_number_of_the_next_question_outlives_pruning(bench: LedgerBench):
    bench.append_entries(3, kind=EntryKind.HELLO)
    bench.db.execute("update entries set seq=0 where kind=5")
    assert ledger.read_next_seq(bench.db) == 11
    bench.witness_head()
    bench.append_entries(1, kind=EntryKind.HELLO)
    bench.db.execute("update entries set seq=0 where kind=5")
    ledger.prune_ledger(bench.db, 1)
    assert ledger.read_next_seq(bench.db) == 11


def test_an_entrys_time_never_goes_back(bench: LedgerBench):
    newest = bench.query_rows("select max(at_ms) from entries")[0][0]
    ledger.append_item(bench.db, LedgerItem(EntryKind.ASK, FEATURES, newest - 999, 100, b"a" * 32))
    assert bench.query_rows("select at_ms from entries order by entry desc limit 1") == [(newest,)]
    assert failed_proofs(bench.verify_ledger()) == []
