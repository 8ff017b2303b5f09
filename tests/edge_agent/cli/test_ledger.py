"""`skerry ledger` on the command line, on a folder whose agent is stopped."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edge_agent.cli.ledger import app
from edge_agent.ledger_audit.verify import parse_key, parse_time_ms
from edge_agent.storage import ledger, tables
from tests.edge_agent.doubles.ledger_bench import FACES, HOUR_MS, LedgerBench
from wire.ledger.chain import PROTOCOL_RULE, EntryForm, EntryKind
from wire.process.exit_codes import ExitCode, ExitError

NOW_MS = 1_790_000_000_000
WIDE = {"COLUMNS": "160"}


@pytest.fixture
def device(tmp_path: Path) -> LedgerBench:
    """Ten questions, two of them of another rule to another region, and a witnessed head."""
    bench = LedgerBench(tmp_path)
    bench.identity.save(tmp_path, b"certificate", b"key", b"ca")
    bench.append_entries(8)
    bench.append_entries(2, FACES)
    bench.append_entries(1, EntryForm({"boot": "P1"}, {}, PROTOCOL_RULE, "", "hub-1", "eu"), EntryKind.HELLO)
    bench.witness_head()
    tables.add_traffic(bench.db, bench.now_ms, 6_000)
    return bench


def run(device: LedgerBench, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*words, "--dir", str(device.folder)], env=WIDE)
    if isinstance(done.exception, ExitError):
        assert done.exception.code == code, done.exception
        return str(done.exception)
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def at(device: LedgerBench, ms: int = 0) -> str:
    from datetime import UTC, datetime  # noqa: PLC0415

    return datetime.fromtimestamp((device.now_ms + ms) / 1000, UTC).isoformat()


def test_what_left_is_shown_by_rule_with_the_rest_of_what_the_sockets_sent(device: LedgerBench):
    rows = [line.split() for line in run(device, "show", "--since", at(device, -HOUR_MS)).splitlines()[2:]]
    assert rows[0] == ["clinic@3", "eu", "8", "3200", "features", "P2"]
    assert rows[1] == ["clinic@3+ward", "us", "2", "800", "face", "P3,", "features", "P2"]
    assert rows[2] == ["protocol", "eu", "1", "400"]
    assert rows[3][:2] == ["overhead", "1600"]
    assert rows[4][:2] == ["sockets", "6000"]


def test_json_by_region_and_day_has_the_same_bytes(device: LedgerBench):
    for by in ("rule", "region", "day"):
        shown = json.loads(run(device, "show", "--since", at(device, -HOUR_MS), "--by", by, "--json"))
        assert sum(row["bytes"] for row in shown["rows"]) == shown["bytes"] == 4400
        assert shown["bytes"] + shown["overhead"] == shown["sockets"] == 6000
    regions = json.loads(run(device, "show", "--since", at(device, -1), "--by", "region", "--json"))["rows"]
    assert [row["key"] for row in regions] == ["eu", "us"]


def test_what_was_before_or_after_is_not_shown(device: LedgerBench):
    early = ("--since", at(device, -48 * HOUR_MS), "--until", at(device, -24 * HOUR_MS))
    assert json.loads(run(device, "show", *early, "--json"))["rows"] == []


def test_pruned_entries_are_said_to_be_gone(device: LedgerBench):
    device.append_entries(5)
    assert ledger.prune_ledger(device.db, 5) == 11
    assert "were pruned" in run(device, "show", "--since", at(device, -HOUR_MS))


def test_verify_says_what_each_finding_rests_on_and_ends_with_40_if_one_is_wrong(device: LedgerBench):
    assert "the ledger is whole" in run(device, "verify")
    device.db.execute("update entries set size=1 where entry=3")
    said = run(device, "verify", code=ExitCode.CHECK_FAILED)
    assert "WRONG  chain" in said
    found = json.loads(run(device, "verify", "--json", code=ExitCode.CHECK_FAILED))
    assert not found["holds"]


def test_verify_beside_the_hubs_file(device: LedgerBench):
    device.exported_heads()
    heads = str(device.folder / "heads.json")
    assert "all 1 heads" in run(device, "verify", "--heads", heads)
    for table in ("entries", "heads", "witnessed"):
        device.db.execute(f"delete from {table} where entry>4")
    assert "WRONG  head" in run(device, "verify", "--heads", heads, code=ExitCode.CHECK_FAILED)
    (device.folder / "heads.json").write_text("{}")
    run(device, "verify", "--heads", heads, code=ExitCode.SAMPLE)


def test_prove_and_check_go_together_and_a_false_claim_writes_no_file(device: LedgerBench):
    out = device.folder / "proof.json"
    words = ("prove", "--since", at(device, -HOUR_MS), "-o", str(out), "--no-field-above")
    said = run(device, *words, "P2", code=ExitCode.CHECK_FAILED)
    assert "sent face (P3) to region us" in said
    assert not out.exists()
    run(device, *words, "P2", "--region", "eu")
    assert out.stat().st_mode & 0o077 == 0
    done = CliRunner().invoke(app, ["check", str(out), "--hub-key", device.hub.keys.signing_key.hex()])
    assert done.exit_code == 0
    assert "witnessed by a hub" in done.output
    assert CliRunner().invoke(app, ["check", str(out), "--hub-key", "00" * 32]).exit_code == ExitCode.CHECK_FAILED
    run(device, *words, "P7", code=ExitCode.USAGE)


def test_a_folder_without_a_ledger_is_said_to_have_none(device: LedgerBench, tmp_path: Path):
    with pytest.raises(ExitError) as stop:
        CliRunner().invoke(app, ["show", "--dir", str(tmp_path / "none")], catch_exceptions=False)
    assert stop.value.code is ExitCode.MISSING


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("now", NOW_MS), ("7d", NOW_MS - 7 * 86_400_000), ("2w", NOW_MS - 14 * 86_400_000), ("90m", NOW_MS - 5_400_000),
        ("2026-11-22", 1_795_305_600_000), ("2026-11-22T14:00", 1_795_356_000_000),
        ("2026-11-22T14:00+02:00", 1_795_348_800_000),
    ],
)  # fmt: skip
def test_times_as_people_type_them(text: str, ms: int):
    assert parse_time_ms(text, NOW_MS) == ms


@pytest.mark.parametrize("text", ["", "7", "7y", "yesterday", "2026-13-01"])
def test_a_time_that_is_none_is_said_in_one_line(text: str):
    with pytest.raises(ExitError) as stop:
        parse_time_ms(text, NOW_MS)
    assert stop.value.code is ExitCode.USAGE


def test_keys_are_taken_in_hex_and_base64_and_nothing_else():
    assert parse_key("ab" * 32) == parse_key("q6urq6urq6urq6urq6urq6urq6urq6urq6urq6urq6s=") == b"\xab" * 32
    assert parse_key("") == b""
    for text in ("ab", "zz" * 32, "é" * 32):
        with pytest.raises(ExitError):
            parse_key(text)
