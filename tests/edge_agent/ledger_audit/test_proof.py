"""Proofs of what did not leave: made on the device, checked elsewhere, refused after any change to the file."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from edge_agent.ledger_audit import proof
from edge_agent.ledger_audit.proof import Claim, make_proof
from edge_agent.storage import ledger
from tests.edge_agent.doubles.hub_double import HUB_TIME_MS
from tests.edge_agent.doubles.ledger_bench import FACES, FEATURES, LedgerBench
from tests.second_implementation import ledger as stranger
from tests.second_implementation import vectors
from tests.second_implementation.frames import signing_public
from wire.ledger.chain import EntryForm, EntryKind
from wire.process.exit_codes import ExitCode, ExitError
from wire.protocol.messages import SensitivityLevel

BEGIN = HUB_TIME_MS + 5_000  # at the fifth entry, whose head is the first


@pytest.fixture
def bench(tmp_path: Path) -> LedgerBench:
    """Five entries, a head, twenty entries, a head, five entries; both heads logged by the hub."""
    bench = LedgerBench(tmp_path)
    for count in (5, 20):
        bench.append_entries(count)
        bench.witness_head()
    bench.append_entries(5)
    return bench


def claim(level: SensitivityLevel = SensitivityLevel.P2, region: str = "", until: int = 25) -> Claim:
    return Claim(level, region, BEGIN, HUB_TIME_MS + until * 1000)


def proved(bench: LedgerBench, what: Claim) -> dict[str, Any]:
    """The proof as another machine reads it."""
    found: dict[str, Any] = json.loads(make_proof(bench.db, bench.identity, what))
    return found


def checked(values: dict[str, Any], hub_key: bytes = b"", device_key: bytes = b"") -> proof.CheckedProof:
    return proof.check_proof(proof.parse_proof(json.dumps(values).encode()), hub_key, device_key)


def test_a_proof_is_checked_without_device_and_hub(bench: LedgerBench):
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


def test_a_proof_holds_no_payload_and_no_more_than_its_time(bench: LedgerBench):
    values = proved(bench, claim())
    assert [entry[0] for entry in values["entries"]] == list(range(6, 26))
    assert set(values) == {
        "skerry_proof", "claim", "device", "key", "epoch", "start", "end", "forms", "entries", "witnesses",
    }  # fmt: skip


def test_what_did_leave_cannot_be_proved_away(bench: LedgerBench):
    bench.append_entries(1, FACES)
    bench.append_entries(1)
    bench.witness_head()
    until = claim(until=32)
    with pytest.raises(ExitError) as stop:
        make_proof(bench.db, bench.identity, until)
    assert stop.value.code is ExitCode.CHECK_FAILED
    assert "entry 31 sent face (P3) to region us" in str(stop.value)
    assert checked(proved(bench, claim(region="eu", until=32))).holds, "it went to another region"
    assert checked(proved(bench, claim(SensitivityLevel.P3, until=32))).holds


def test_an_unknown_level_counts_as_the_highest(bench: LedgerBench):
    bench.append_entries(1, EntryForm({"x": "P9"}, {}, "r", "", "hub-1", "eu"))
    bench.append_entries()
    bench.witness_head()
    with pytest.raises(ExitError, match="the claim is false"):
        make_proof(bench.db, bench.identity, claim(SensitivityLevel.P3, until=32))


def test_what_was_withheld_did_not_leave_but_one_of_two_sendings_did(bench: LedgerBench):
    bench.append_entries(1, FACES)
    ledger.append_withheld(bench.db, bench.count, bench.now_ms)
    bench.append_entries()
    bench.witness_head()
    assert checked(proved(bench, claim(until=32))).holds
    bench.append_entries(1, FACES)
    ledger.append_resend(bench.db, bench.count, bench.now_ms)
    ledger.append_withheld(bench.db, bench.count, bench.now_ms)
    bench.append_entries()
    bench.witness_head()
    with pytest.raises(ExitError, match="sent face"):
        make_proof(bench.db, bench.identity, claim(until=34))


@pytest.mark.parametrize("place", ["digest", "size", "at", "kind", "form", "order", "missing", "double"])
def test_a_proof_with_a_changed_entry_is_refused_by_the_chain(bench: LedgerBench, place: str):
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
            place, (3, EntryKind.STATE.value) if place == "kind" else (7, 99)
        )
        entries[3][at] = new
    found = checked(values)
    assert not found.holds
    assert "chain" in {finding.proof.value for finding in found.findings if not finding.good}


def test_a_proof_whose_form_was_made_harmless_is_refused_by_the_chain(bench: LedgerBench):
    bench.append_entries(1, FACES)
    bench.append_entries()
    bench.witness_head()
    values = proved(bench, claim(SensitivityLevel.P3, until=32))
    values["claim"]["level"] = 2
    values["forms"] = [{**form, "fields": {"features": "P2"}} for form in values["forms"]]
    assert not checked(values).holds


def test_a_true_file_with_a_claim_that_it_does_not_bear_out_is_refused(bench: LedgerBench):
    bench.append_entries(1, FACES)
    bench.append_entries()
    bench.witness_head()
    values = proved(bench, claim(SensitivityLevel.P3, until=32))
    values["claim"]["level"] = 2
    found = checked(values)
    assert [finding.words for finding in found.findings if not finding.good] == ["entry 31 sent face (P3) to region us"]


@pytest.mark.parametrize("key", ["since_ms", "until_ms"])
def test_a_claim_stretched_beyond_its_heads_is_refused_by_the_heads(bench: LedgerBench, key: str):
    values = proved(bench, claim())
    values["claim"][key] += -60_000 if key == "since_ms" else 3_600_000
    found = checked(values)
    assert [finding.proof.value for finding in found.findings if not finding.good] == ["head"]


def test_a_tail_cut_off_a_proof_is_refused_by_the_chain(bench: LedgerBench):
    values = proved(bench, claim())
    del values["entries"][-3:]
    assert not checked(values).holds


@pytest.mark.parametrize("part", ["hash", "signature", "at_ms", "entry"])
@pytest.mark.parametrize("head", ["start", "end"])
def test_a_changed_head_is_refused(bench: LedgerBench, head: str, part: str):
    values = proved(bench, claim())
    old = values[head][part]
    values[head][part] = old + 1 if isinstance(old, int) else base64.b64encode(base64.b64decode(old)[::-1]).decode()
    assert not checked(values).holds


def test_another_hubs_or_devices_key_is_refused(bench: LedgerBench):
    values = proved(bench, claim())
    assert checked(values, bench.hub.keys.signing_key, base64.b64decode(values["key"])).holds
    assert not checked(values, b"k" * 32).holds
    assert not checked(values, b"", b"k" * 32).holds


@pytest.mark.parametrize("part", ["index", "received_ms", "epochs", "hub", "checkpoint"])
def test_a_changed_word_of_the_hub_is_refused_by_the_log(bench: LedgerBench, part: str):
    values = proved(bench, claim())
    old = values["witnesses"][1][part]
    values["witnesses"][1][part] = old + 1 if isinstance(old, int) else old.replace("h", "g", 1)
    found = checked(values)
    assert [finding.proof.value for finding in found.findings if not finding.good] == ["log"]


def test_without_a_hub_it_is_the_devices_word_and_says_so(bench: LedgerBench):
    bench.db.execute("delete from witnessed")
    found = checked(proved(bench, claim()))
    assert found.holds
    assert not found.witnessed


def test_a_second_ledger_in_that_time_is_found_by_the_log(bench: LedgerBench, tmp_path: Path):
    """The hub counts the epochs of each device: between the two heads a second one appeared."""
    (tmp_path / "other").mkdir()
    other = LedgerBench(tmp_path / "other", bench.log)
    other.append_entries()
    other.witness_head()
    bench.witness_head()
    found = checked(proved(bench, claim(until=30)))
    assert not found.holds
    assert "another ledger" in next(finding.words for finding in found.findings if not finding.good)


def test_a_ledger_that_begins_in_that_time_is_all_if_the_hub_knew_none_before(bench: LedgerBench):
    values = proved(bench, Claim(SensitivityLevel.P2, "", HUB_TIME_MS - 86_400_000, HUB_TIME_MS + 25_000))
    assert values["start"] is None
    found = checked(values)
    assert found.holds
    assert found.findings[-1].words == "no other ledger of this device was logged in between"


def test_what_the_ledger_does_not_reach_is_not_proved(bench: LedgerBench):
    with pytest.raises(ExitError) as late:
        make_proof(bench.db, bench.identity, claim(until=10_000))
    assert late.value.code is ExitCode.NOT_FOUND
    bench.witness_head()
    ledger.prune_ledger(bench.db, 2)
    with pytest.raises(ExitError, match="pruned"):
        make_proof(bench.db, bench.identity, claim())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"skerry_proof":2}', b"\xff"])
def test_what_is_no_proof_file_is_said_in_one_line(data: bytes):
    with pytest.raises(ExitError) as stop:
        proof.parse_proof(data)
    assert stop.value.code is ExitCode.SAMPLE


def test_forms_are_kept_once(bench: LedgerBench):
    assert bench.query_rows("select count(*) from forms") == [(1,)]
    assert FEATURES in ledger.read_forms(bench.db).values()


def test_a_proof_of_this_release_satisfies_a_program_written_from_the_page_alone(bench: LedgerBench) -> None:
    data = make_proof(bench.db, bench.identity, claim(until=24))
    found = stranger.check_proof(data)
    assert found == (bench.identity.device, bench.identity.signing.public_key().public_bytes_raw())


def test_the_frozen_proof_file_still_holds() -> None:
    data = (vectors.FOLDER / "proof.json").read_bytes()
    checked = proof.check_proof(proof.parse_proof(data), hub_key=signing_public(vectors.HUB_SIGNING))
    assert checked.holds
    assert checked.witnessed
    assert stranger.check_proof(data) == (vectors.DEVICE, signing_public(vectors.DEVICE_SIGNING))
