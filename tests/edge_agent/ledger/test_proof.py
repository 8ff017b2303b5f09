"""Proofs of what did not leave: made on the device, checked elsewhere, refused after any change to the file."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from edge_agent.ledger import proof
from edge_agent.ledger.proof import Claim, prove
from edge_agent.storage import ledger
from tests.edge_agent.doubles.hub_double import HUB_TIME_MS
from tests.edge_agent.doubles.ledger_bench import FACES, FEATURES, Bench
from wire.ledger.chain import Form, Kind
from wire.process.exit_codes import Exit, ExitError
from wire.protocol.messages import Level

BEGIN = HUB_TIME_MS + 5_000  # at the fifth entry, whose head is the first


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Five entries, a head, twenty entries, a head, five entries; both heads logged by the hub."""
    bench = Bench(tmp_path)
    for count in (5, 20):
        bench.send(count)
        bench.tell()
    bench.send(5)
    return bench


def claim(level: Level = Level.P2, region: str = "", until: int = 25) -> Claim:
    return Claim(level, region, BEGIN, HUB_TIME_MS + until * 1000)


def proved(bench: Bench, what: Claim) -> dict[str, Any]:
    """The proof as another machine reads it."""
    found: dict[str, Any] = json.loads(prove(bench.db, bench.identity, what))
    return found


def checked(values: dict[str, Any], hub_key: bytes = b"", device_key: bytes = b"") -> proof.Checked:
    return proof.check(proof.read(json.dumps(values).encode()), hub_key, device_key)


def test_a_proof_is_checked_without_device_and_hub(bench: Bench):
    found = checked(proved(bench, claim(region="eu")), bench.hub.keys.signing_key)
    assert found.holds
    assert found.witnessed
    assert [finding.proof.value for finding in found.findings] == [
        "head",
        "head",
        "chain",
        "chain",
        "log",
        "log",
        "log",
    ]
    assert len(found.file.entries) == 20


def test_a_proof_holds_no_payload_and_no_more_than_its_time(bench: Bench):
    values = proved(bench, claim())
    assert [entry[0] for entry in values["entries"]] == list(range(6, 26))
    assert set(values) == {
        "skerry_proof", "claim", "device", "key", "epoch", "start", "end", "forms", "entries", "witnesses",
    }  # fmt: skip


def test_what_did_leave_cannot_be_proved_away(bench: Bench):
    bench.send(1, FACES)
    bench.send(1)
    bench.tell()
    until = claim(until=32)
    with pytest.raises(ExitError) as stop:
        prove(bench.db, bench.identity, until)
    assert stop.value.code is Exit.CHECK_FAILED
    assert "entry 31 sent face (P3) to region us" in str(stop.value)
    assert checked(proved(bench, claim(region="eu", until=32))).holds, "it went to another region"
    assert checked(proved(bench, claim(Level.P3, until=32))).holds


def test_an_unknown_level_counts_as_the_highest(bench: Bench):
    bench.send(1, Form({"x": "P9"}, {}, "r", "", "hub-1", "eu"))
    bench.send()
    bench.tell()
    with pytest.raises(ExitError, match="the claim is false"):
        prove(bench.db, bench.identity, claim(Level.P3, until=32))


def test_what_was_withheld_did_not_leave_but_one_of_two_sendings_did(bench: Bench):
    bench.send(1, FACES)
    ledger.withhold(bench.db, bench.count, bench.now_ms)
    bench.send()
    bench.tell()
    assert checked(proved(bench, claim(until=32))).holds
    bench.send(1, FACES)
    ledger.again(bench.db, bench.count, bench.now_ms)
    ledger.withhold(bench.db, bench.count, bench.now_ms)
    bench.send()
    bench.tell()
    with pytest.raises(ExitError, match="sent face"):
        prove(bench.db, bench.identity, claim(until=34))


@pytest.mark.parametrize("place", ["digest", "size", "at", "kind", "form", "order", "missing", "double"])
def test_case_114_a_proof_with_a_changed_entry_is_refused_by_the_chain(bench: Bench, place: str):
    values = proved(bench, claim())
    entries = values["entries"]
    if place == "order":
        entries[3], entries[4] = entries[4], entries[3]
    elif place == "missing":
        del entries[3]
    elif place == "double":
        entries.insert(3, entries[3])
    else:
        at, new = {"digest": (8, base64.b64encode(b"x" * 32).decode()), "size": (4, 1), "at": (1, HUB_TIME_MS)}.get(
            place, (3, Kind.STATE.value) if place == "kind" else (7, 99)
        )
        entries[3][at] = new
    found = checked(values)
    assert not found.holds
    assert "chain" in {finding.proof.value for finding in found.findings if not finding.good}


def test_case_114_a_proof_whose_form_was_made_harmless_is_refused_by_the_chain(bench: Bench):
    bench.send(1, FACES)
    bench.send()
    bench.tell()
    values = proved(bench, claim(Level.P3, until=32))
    values["claim"]["level"] = 2
    values["forms"] = [{**form, "fields": {"features": "P2"}} for form in values["forms"]]
    assert not checked(values).holds


def test_case_114_a_true_file_with_a_claim_that_it_does_not_bear_out_is_refused(bench: Bench):
    bench.send(1, FACES)
    bench.send()
    bench.tell()
    values = proved(bench, claim(Level.P3, until=32))
    values["claim"]["level"] = 2
    found = checked(values)
    assert [finding.words for finding in found.findings if not finding.good] == ["entry 31 sent face (P3) to region us"]


@pytest.mark.parametrize("key", ["since_ms", "until_ms"])
def test_case_114_a_claim_stretched_beyond_its_heads_is_refused_by_the_heads(bench: Bench, key: str):
    values = proved(bench, claim())
    values["claim"][key] += -60_000 if key == "since_ms" else 3_600_000
    found = checked(values)
    assert [finding.proof.value for finding in found.findings if not finding.good] == ["head"]


def test_case_114_a_tail_cut_off_a_proof_is_refused_by_the_chain(bench: Bench):
    values = proved(bench, claim())
    del values["entries"][-3:]
    assert not checked(values).holds


@pytest.mark.parametrize("part", ["hash", "signature", "at_ms", "entry"])
@pytest.mark.parametrize("head", ["start", "end"])
def test_case_114_a_changed_head_is_refused(bench: Bench, head: str, part: str):
    values = proved(bench, claim())
    old = values[head][part]
    values[head][part] = old + 1 if isinstance(old, int) else base64.b64encode(base64.b64decode(old)[::-1]).decode()
    assert not checked(values).holds


def test_case_114_another_hubs_or_devices_key_is_refused(bench: Bench):
    values = proved(bench, claim())
    assert checked(values, bench.hub.keys.signing_key, base64.b64decode(values["key"])).holds
    assert not checked(values, b"k" * 32).holds
    assert not checked(values, b"", b"k" * 32).holds


@pytest.mark.parametrize("part", ["index", "received_ms", "epochs", "hub", "checkpoint"])
def test_case_114_a_changed_word_of_the_hub_is_refused_by_the_log(bench: Bench, part: str):
    values = proved(bench, claim())
    old = values["witnesses"][1][part]
    values["witnesses"][1][part] = old + 1 if isinstance(old, int) else old.replace("h", "g", 1)
    found = checked(values)
    assert [finding.proof.value for finding in found.findings if not finding.good] == ["log"]


def test_without_a_hub_it_is_the_devices_word_and_says_so(bench: Bench):
    bench.db.execute("delete from witnessed")
    found = checked(proved(bench, claim()))
    assert found.holds
    assert not found.witnessed


def test_case_114_a_second_ledger_in_that_time_is_found_by_the_log(bench: Bench, tmp_path: Path):
    """The hub counts the epochs of each device: between the two heads a second one appeared."""
    (tmp_path / "other").mkdir()
    other = Bench(tmp_path / "other", bench.log)
    other.send()
    other.tell()
    bench.tell()
    found = checked(proved(bench, claim(until=30)))
    assert not found.holds
    assert "another ledger" in next(finding.words for finding in found.findings if not finding.good)


def test_a_ledger_that_begins_in_that_time_is_all_if_the_hub_knew_none_before(bench: Bench):
    values = proved(bench, Claim(Level.P2, "", HUB_TIME_MS - 86_400_000, HUB_TIME_MS + 25_000))
    assert values["start"] is None
    found = checked(values)
    assert found.holds
    assert found.findings[-1].words == "no other ledger of this device was logged in between"


def test_what_the_ledger_does_not_reach_is_not_proved(bench: Bench):
    with pytest.raises(ExitError) as late:
        prove(bench.db, bench.identity, claim(until=10_000))
    assert late.value.code is Exit.NOT_FOUND
    bench.tell()
    ledger.prune(bench.db, 2)
    with pytest.raises(ExitError, match="pruned"):
        prove(bench.db, bench.identity, claim())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"skerry_proof":2}', b"\xff"])
def test_what_is_no_proof_file_is_said_in_one_line(data: bytes):
    with pytest.raises(ExitError) as stop:
        proof.read(data)
    assert stop.value.code is Exit.SAMPLE


def test_forms_are_kept_once(bench: Bench):
    assert bench.rows("select count(*) from forms") == [(1,)]
    assert FEATURES in ledger.forms(bench.db).values()
