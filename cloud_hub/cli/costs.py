"""`skerry hub costs`: what was used and what it costs, by day, tenant, model and region."""

import json
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from cloud_hub.cli.options import AsJson, ConfigFile, State, open_hub
from cloud_hub.storage.costs import KEPT_DAYS, US_PER_S, CostKind
from wire.process.terminal import open_console


def costs(
    *,
    days: Annotated[int, typer.Option("--days", help="Today, and so many days before.", min=1, max=KEPT_DAYS)] = 31,
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Show what was used and what it costs, by day, tenant, model and region; prices are those of hub.toml.

    Example: skerry hub costs --days 7
    """
    bill = open_hub(config, state).read_costs(days)
    if as_json:
        typer.echo(json.dumps(bill))
        return
    if not bill["costs"]:
        typer.echo("nothing was used yet")
        return
    counts = ("requests", "engine s", "tokens in", "cached", "out", "bytes", "joules", "estimated")
    titles = ("day", "tenant", "model", "region", *counts)
    table = Table(*titles, *([bill["currency"]] if bill["currency"] else []), box=None)
    for line in bill["costs"]:
        table.add_row(*_describe_line(line))
    open_console().print(table)
    if bill["currency"]:
        typer.echo(f"total {bill['total']:.2f} {bill['currency']}")


def _describe_line(line: dict[str, Any]) -> list[str]:
    amounts = line["amounts"]
    named = [line["day"], *(escape(line[name]) for name in ("tenant", "model", "region"))]
    counts = [str(amounts.get(kind.value, 0)) for kind in CostKind]
    counts[1] = f"{amounts.get(CostKind.ENGINE_US.value, 0) / US_PER_S:.3f}"
    return [*named, *counts, *([f"{line['price']:.4f}"] if line["price"] is not None else [])]
