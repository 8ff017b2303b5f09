"""Commands `skerry ledger ...`: show what left a device, verify the egress ledger, make and check proofs about it."""

import json
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from edge_agent.cli.agent import ConfigOption, StateOption, find_state_folder
from edge_agent.identity.identity import load_identity
from edge_agent.ledger_audit import proof as proofs
from edge_agent.ledger_audit import summary
from edge_agent.ledger_audit import verify as verification
from edge_agent.ledger_audit.proof import Claim
from edge_agent.ledger_audit.summary import GroupBy, LedgerSummary
from edge_agent.ledger_audit.verify import (
    Finding,
    open_for_reading,
    parse_key,
    parse_time_ms,
    read_content,
    read_hub_export,
)
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import write_result
from wire.process.terminal import TYPER_SETTINGS, open_console, require_path
from wire.protocol.messages import SensitivityLevel

app = typer.Typer(**TYPER_SETTINGS)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
_TIME_FORMS = "7d, 12h, 2026-11-22 or 2026-11-22T14:00 (UTC)."
Since = Annotated[str, typer.Option("--since", "--from", help=f"Beginning of the period: {_TIME_FORMS}")]
Until = Annotated[str, typer.Option("--until", "--to", help="End of the period; default: now.")]


@app.command()
def show(
    state: StateOption = None,
    config: ConfigOption = None,
    since: Since = "7d",
    until: Until = "now",
    *,
    by: Annotated[GroupBy, typer.Option("--by", help="What to group by.")] = GroupBy.RULE,
    as_json: AsJson = False,
) -> None:
    """Show what left this device: messages, bytes and fields, by rule, day or region.

    The last rows compare the ledger with the bytes that the sockets sent. Entries that were pruned are named.

    Example: skerry ledger show --by day --since 7d
    """
    now_ms = _read_now_ms()
    with open_for_reading(find_state_folder(state, config)) as db:
        shown = summary.summarise_ledger(db, parse_time_ms(since, now_ms), parse_time_ms(until, now_ms), by)
    if as_json:
        print(json.dumps(shown.as_dict(), indent=2))
    else:
        _print_summary(shown)


@app.command()
def verify(
    state: StateOption = None,
    config: ConfigOption = None,
    *,
    heads: Annotated[
        Path | None,
        typer.Option(
            "--heads",
            callback=require_path,
            help="What the hub logged of this device, as `skerry devices heads` wrote it.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify that the ledger is complete and unchanged. Exit code 40 if not.

    With --heads it is also compared with what the hub has logged of it.

    Example: skerry ledger verify --config cam-7.toml
    """
    folder = find_state_folder(state, config)
    owner = verification.make_owner(load_identity(folder))
    with open_for_reading(folder) as db:
        findings = verification.verify_ledger(db, owner)
        if heads is not None:
            findings += verification.compare_with_hub(db, owner, read_hub_export(heads))
    _print_findings(findings, "the ledger is whole", as_json=as_json)


@app.command()
def prove(  # noqa: PLR0917 - options of a command line
    no_field_above: Annotated[str, typer.Option("--no-field-above", help="P0 to P3: no field above it was sent.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")],
    since: Since,
    until: Annotated[
        str, typer.Option("--until", "--to", help="End of the period; default: the newest signed head.")
    ] = "",
    region: Annotated[str, typer.Option("--region", help="Only fields sent to this region; default: any.")] = "",
    state: StateOption = None,
    config: ConfigOption = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Write a file that proves what did not leave. Exit code 40, and no file, if the claim is false.

    The proof covers the ledger's entries of the period, up to a signed head, and needs no access to the device to
    check.

    Example: skerry ledger prove --no-field-above P2 --from 7d --out proof.json
    """
    now_ms = _read_now_ms()
    if no_field_above not in SensitivityLevel.__members__:
        raise ExitError(
            ExitCode.USAGE,
            f"--no-field-above {no_field_above[:20]!r}: one of {', '.join(SensitivityLevel.__members__)}",
        )
    folder = find_state_folder(state, config)
    identity = load_identity(folder)
    with open_for_reading(folder) as db:
        until_ms = parse_time_ms(until, now_ms) if until else proofs.latest_provable_ms(db)
        claim = Claim(SensitivityLevel[no_field_above], region, parse_time_ms(since, now_ms), until_ms)
        data = proofs.make_proof(db, identity, claim)
    write_result(out, data, _is_proof, mode=0o600)
    found = proofs.parse_proof(data)
    if as_json:
        facts = {"proof": str(out), "entries": len(found.entries), "until_ms": claim.until_ms, "bytes": len(data)}
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"wrote {out}: {len(found.entries)} entries up to {_format_time(claim.until_ms)}, {len(data)} bytes")
    typer.echo(f"anybody checks it with: skerry ledger check {out}")


@app.command()
def check(
    file: Annotated[Path, typer.Argument(callback=require_path, help="A proof file.", show_default=False)],
    hub_key: Annotated[str, typer.Option("--hub-key", help="The hub's signing key, from a source you trust.")] = "",
    device_key: Annotated[str, typer.Option("--device-key", help="The device's signing key.")] = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Check a proof file, on any machine. Exit code 40 if it does not prove what it claims.

    Example: skerry ledger check proof.json
    """
    proof = proofs.parse_proof(read_content(file))
    checked = proofs.check_proof(proof, parse_key(hub_key), parse_key(device_key))
    claim = proof.claim
    where = f"region {claim.region}" if claim.region else "any region"
    span = f"from {_format_time(claim.since_ms)} to {_format_time(claim.until_ms)}"
    said = f"{proof.device} sent no field above {claim.level.name} to {where} {span}"
    basis = "witnessed by a hub" if checked.witnessed else "signed by the device alone: no hub has witnessed it"
    _print_findings(checked.findings, f"proved: {said} ({basis})", as_json=as_json)


def _print_findings(findings: Iterable[Finding], good: str, *, as_json: bool) -> None:
    """Print the findings of a check, as lines or as JSON, and end with exit code 40 if one of them is bad.

    `good`: the line that is printed where all of them hold.
    """
    found = list(findings)
    holds = all(each.good for each in found)
    if as_json:
        rows = [{"good": each.good, "proof": each.proof, "words": each.words} for each in found]
        print(json.dumps({"holds": holds, "says": good if holds else "", "findings": rows}, indent=2))
    else:
        for each in found:
            mark = typer.style("good ", fg="green") if each.good else typer.style("WRONG", fg="red")
            typer.echo(f"{mark}  {each.proof:<12} {each.words}")
        typer.echo(good if holds else "the check failed")
    if not holds:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _print_summary(shown: LedgerSummary) -> None:
    """Print a summary as a table, with the overhead of the sockets and the entries that were pruned."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, justify in ((shown.by.value, "left"), ("to region", "left"), ("messages", "right"), ("bytes", "right")):
        table.add_column(title, justify=justify, overflow="fold")  # type: ignore[arg-type]
    table.add_column("fields, at most", overflow="fold")
    for row in shown.rows:
        fields = ", ".join(f"{name} {level}" for name, level in sorted(row.fields.items()))
        table.add_row(*map(Text, (row.key, ", ".join(row.regions), str(row.messages), str(row.bytes), fields)))
    if shown.sockets is not None:
        table.add_row("overhead", "", "", str(shown.overhead), "TLS, MQTT, acknowledgements")
        table.add_row("sockets", "", "", str(shown.sockets), "what the kernel says was sent")
    console = open_console()
    console.print(f"{_format_time(shown.since_ms)} to {_format_time(shown.until_ms)}", highlight=False)
    console.print(table)
    if shown.pruned_ms is not None and shown.pruned_ms > shown.since_ms:
        console.print(f"entries before {_format_time(shown.pruned_ms)} were pruned", highlight=False)


def _format_time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _read_now_ms() -> int:
    return time.time_ns() // 1_000_000


def _is_proof(data: bytes) -> bool:
    """Whether a file is an earlier proof."""
    try:
        proofs.parse_proof(data)
    except ExitError:
        return False
    return True
