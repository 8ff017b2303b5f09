"""Attacks on the ledger by somebody with the device's disk, its key, or the hub, and which evidence finds each.

Root on the device can stop it from recording: this is evidence of tampering, not protection from root.
"""

import shutil
from pathlib import Path

import pytest

from cloud_hub.storage.ledger_log import HubLog
from edge_agent.ledger.verify import against, hub_file, whose
from edge_agent.storage import ledger, ledger_heads
from edge_agent.storage.ledger import Item
from edge_agent.storage.ledger_heads import HubView
from tests.edge_agent.doubles.ledger_bench import FEATURES, Bench, said, wrong
from wire.ledger import merkle
from wire.ledger.chain import Form, Kind, follow, form_id, genesis
from wire.ledger.checkpoint import opened, origin_of, signed
from wire.ledger.merkle import Tree


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Ten entries, a head in the middle and one at the end, both logged by the hub."""
    bench = Bench(tmp_path)
    bench.send(5)
    bench.tell()
    bench.send(5)
    bench.tell()
    return bench


def rewritten(bench: Bench) -> None:
    """The strongest attack by root: all hashes and signatures made again with the device's key, no witness kept."""
    before, hashes = genesis(bench.epoch), {}
    for link, _ in list(ledger.links(bench.db)):
        before = hashes[link.entry] = follow(before, link)
        bench.db.execute("update entries set hash=? where entry=?", (before, link.entry))
    for head in list(ledger_heads.everything(bench.db)):
        new = said(bench.epoch, head._replace(hash=hashes[head.entry]))
        bench.db.execute("update heads set hash=?, signature=? where entry=?", (new.hash, new.signature, head.entry))
    bench.db.execute("delete from witnessed")


def test_an_honest_ledger_is_whole_by_itself_and_beside_the_hubs_log(bench: Bench):
    assert wrong(bench.verify()) == []
    assert wrong(bench.against()) == []
    assert [finding.proof for finding in bench.verify()] == ["chain", "head", "log"]


@pytest.mark.parametrize(
    "change",
    ["size=1", "at_ms=at_ms-1", "seq=99", "kind=5", "charge=0", "releases=7", "id=''", "digest=zeroblob(32)"],
)
def test_case_114_an_edited_entry_is_found_by_the_chain(bench: Bench, change: str):
    bench.db.execute(f"update entries set {change} where entry=4")
    assert wrong(bench.verify()) == ["chain"]


@pytest.mark.parametrize("change", ["""fields='{"features":"P0"}'""", "region='us'", "rule='x'", "policy=''"])
def test_case_114_an_edited_form_is_found_by_the_chain(bench: Bench, change: str):
    """The form says what left, where to, and under which rule; the chain covers its hash."""
    bench.db.execute(f"update forms set {change}")
    assert wrong(bench.verify()) == ["chain"]


def test_case_114_a_form_exchanged_for_another_is_found_by_the_chain(bench: Bench):
    bench.send(form=Form({"features": "P0"}, {}, "x", "", "hub-1", "eu"))
    other = bench.rows("select form from entries order by entry desc limit 1")[0][0]
    assert other != form_id(FEATURES)
    bench.db.execute("update entries set form=? where entry=2", (other,))
    assert wrong(bench.verify()) == ["chain"]


def test_case_114_a_deleted_entry_is_found_by_the_chain(bench: Bench):
    bench.db.execute("delete from entries where entry=4")
    assert wrong(bench.verify()) == ["chain"]


def test_case_114_a_deleted_beginning_is_found_by_the_chain(bench: Bench):
    """Only a signed head may stand for deleted entries."""
    bench.db.execute("delete from entries where entry<=3")
    assert wrong(bench.verify()) == ["chain"]


def test_case_114_an_inserted_entry_is_found_by_the_chain(bench: Bench):
    """Found even if its own hash is right for its place."""
    before = bench.rows("select hash from entries where entry=4")[0][0]
    bench.db.execute("update entries set entry=entry+100 where entry>4")
    bench.db.execute("update entries set entry=entry-99 where entry>100")
    link = next(link for link, _ in ledger.links(bench.db) if link.entry == 4)._replace(entry=5, id="forged")
    bench.db.execute(f"insert into entries values({','.join('?' * 11)})", (*link, follow(before, link)))
    assert wrong(bench.verify()) == ["chain"]


def test_case_114_reordered_entries_are_found_by_the_chain(bench: Bench):
    bench.db.execute("update entries set entry=99 where entry=4")
    bench.db.execute("update entries set entry=4 where entry=5")
    bench.db.execute("update entries set entry=5 where entry=99")
    assert wrong(bench.verify()) == ["chain"]


def test_case_114_a_tail_cut_behind_a_signed_head_is_found_by_the_head(bench: Bench):
    bench.db.execute("delete from entries where entry>8")
    assert wrong(bench.verify()) == ["head"]


def test_case_114_a_tail_cut_off_with_its_heads_is_found_by_the_head_that_the_hub_has(bench: Bench):
    """The file alone looks intact: only the hub knows what it ended with."""
    for table in ("entries", "heads", "witnessed"):
        bench.db.execute(f"delete from {table} where entry>8")
    assert wrong(bench.verify()) == []
    findings = bench.against()
    assert wrong(findings) == ["head"]
    assert "cut off" in findings[0].words


def test_case_114_a_ledger_rewritten_as_a_whole_is_found_by_the_head_that_the_hub_has(bench: Bench):
    """With the device's own key the file alone can be made to look intact; the hub's log cannot."""
    bench.db.execute("update entries set size=1 where entry=3")
    rewritten(bench)
    assert wrong(bench.verify()) == []
    findings = bench.against()
    assert set(wrong(findings)) == {"head"}
    assert "rewritten" in findings[0].words


def test_case_114_a_rewritten_ledger_that_keeps_the_hubs_word_is_found_by_the_log(bench: Bench):
    kept = list(ledger_heads.witnesses(bench.db))
    bench.db.execute("update entries set size=1 where entry=3")
    rewritten(bench)
    for each in kept:
        ledger_heads.keep_witnessed(bench.db, each)
    assert wrong(bench.verify()) == ["log"]


def test_case_114_a_head_signed_by_somebody_else_is_found_by_the_head(bench: Bench):
    bench.db.execute("update heads set signature=zeroblob(64) where entry=5")
    assert "head" in wrong(bench.verify())


def test_case_114_a_device_that_keeps_two_ledgers_is_found_by_its_own_two_heads(bench: Bench, tmp_path: Path):
    """Two copies of a disk go on: the hub logs two heads of one entry, each signed by the device."""
    (tmp_path / "copy").mkdir()
    bench.db.execute("pragma wal_checkpoint(truncate)").fetchall()
    shutil.copy(tmp_path / "agent.db", tmp_path / "copy" / "agent.db")
    copy = Bench(tmp_path / "copy", bench.log, count=500, now_ms=bench.now_ms)
    bench.send(1)
    copy.send(1)
    bench.tell()
    copy.tell()
    assert wrong(bench.verify()) == wrong(copy.verify()) == []
    assert [each.flaw for each in bench.log.of(bench.identity.device)] == ["", "", "", "forked"]
    assert bench.log.flawed() == (bench.identity.device,)
    assert wrong(bench.against()) == wrong(copy.against()) == ["head"]


def test_case_114_a_ledger_set_back_to_an_earlier_copy_is_found_by_the_head(bench: Bench):
    """The hub sees the number of entries decrease."""
    bench.db.execute("delete from entries where entry>6")
    bench.db.execute("delete from heads where entry>6")
    bench.send(1)
    bench.tell()
    assert bench.log.of(bench.identity.device)[-1].flaw == "rewound"


def test_case_114_another_ledger_of_the_device_is_found_by_the_log(bench: Bench, tmp_path: Path):
    """A new database is a new epoch: the hub knows both, and says so in each leaf."""
    (tmp_path / "new").mkdir()
    new = Bench(tmp_path / "new", bench.log)
    new.send(2)
    witnessed = new.tell()
    assert witnessed.epochs == 2
    assert "another ledger" in new.against()[0].words


def test_case_114_a_hub_with_two_views_is_found_by_the_consistency_proof(bench: Bench):
    """The hub shows the device one log and an auditor another: no proof leads from one to the other."""
    shown = bench.log.tree()
    other = HubLog.open(":memory:", 0)
    for _ in range(3):
        bench.send()
        view, bench.log = bench.log, other
        bench.tell()
        bench.log = view
    forged = other.tree()
    for first in range(1, forged.size + 1):
        assert not merkle.extends(shown, forged, other.consistency(first, forged.size))
    assert not merkle.extends(shown, forged, ())


def test_case_114_two_views_that_a_device_has_seen_stay_on_record(bench: Bench):
    text = bench.rows("select checkpoint from hub_logs")[0][0]
    forked = signed(origin_of("hub-1"), Tree(2, b"x" * 32), bench.hub.signing)
    ledger_heads.keep_view(bench.db, HubView("hub-1", bench.hub.keys.signing_key, text, forked))
    ledger_heads.keep_view(bench.db, HubView("hub-1", bench.hub.keys.signing_key, text))
    assert wrong(bench.verify()) == ["consistency"]
    kept = ledger_heads.views(bench.db)["hub-1"]
    for each in (kept.checkpoint, kept.forked):  # the hub signed both
        assert opened(each, kept.key).origin == "skerry/hub-1"


def test_case_114_a_hubs_export_that_was_edited_is_refused(bench: Bench):
    path = bench.folder / "heads.json"
    bench.exported()
    for before, after in (
        ('"entries": 5', '"entries": 6'),
        ('"epochs": 1', '"epochs": 2'),
        ('"index": 1', '"index": 0'),
    ):
        text = path.read_text()
        assert before in text
        (bench.folder / "edited.json").write_text(text.replace(before, after, 1))
        findings = against(bench.db, whose(bench.identity), hub_file(bench.folder / "edited.json"))
        assert "log" in wrong(findings), before


# What is no attack


def test_a_pruned_ledger_verifies_from_the_head_that_stands_for_what_is_gone(bench: Bench):
    assert ledger.prune(bench.db, 4) == 5
    assert bench.rows("select min(entry) from entries") == [(6,)]
    assert wrong(bench.verify()) == wrong(bench.against()) == []
    bench.send(3)
    bench.tell()
    assert wrong(bench.verify()) == wrong(bench.against()) == []


def test_nothing_is_pruned_that_no_signed_head_stands_for(tmp_path: Path):
    bench = Bench(tmp_path)
    bench.send(9)
    assert ledger.prune(bench.db, 2) == 0
    bench.sign()
    assert ledger.prune(bench.db, 2) == 0, "the head is behind what has to stay"
    bench.send(5)
    assert ledger.prune(bench.db, 2) == 9


def test_the_number_of_the_next_question_outlives_pruning(bench: Bench):
    bench.send(3, kind=Kind.HELLO)
    bench.db.execute("update entries set seq=0 where kind=5")
    assert ledger.next_seq(bench.db) == 11
    bench.tell()
    bench.send(1, kind=Kind.HELLO)
    bench.db.execute("update entries set seq=0 where kind=5")
    ledger.prune(bench.db, 1)
    assert ledger.next_seq(bench.db) == 11


def test_an_entrys_time_never_goes_back(bench: Bench):
    newest = bench.rows("select max(at_ms) from entries")[0][0]
    ledger.append(bench.db, Item(Kind.ASK, FEATURES, newest - 999, 100, b"a" * 32))
    assert bench.rows("select at_ms from entries order by entry desc limit 1") == [(newest,)]
    assert wrong(bench.verify()) == []
