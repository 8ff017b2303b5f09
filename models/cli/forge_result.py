"""Result of a forge run on the terminal: warnings first, then figures, leakage in words, and the best trades.

Rule: nothing is computed here; what is said stands in the bundle's manifest and in the report beside it, and a bundle
without a report, or with an older one, is told with what there is.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from models.bundle.bundle import Bundle
from wire.process.terminal import open_console

if TYPE_CHECKING:
    from models.forge.partition.cost import CutCost
    from models.forge.routes.frontier import RoutePoint


def print_result(bundle: Bundle, seconds: float, *, as_json: bool) -> list[str]:
    """Print whether asking pays, the figures of the bundle, its best trades, and where it and its report are.

    Returns the lines that say why asking the hub does not pay.
    """
    from models.cli.compare import bundle_fields  # noqa: PLC0415 - numpy only after the work is done
    from models.forge.report.report import HTML_FILE, locate_report, read_facts  # noqa: PLC0415 - as above

    page, facts = locate_report(bundle.path) / HTML_FILE, read_facts(bundle.path)
    warnings: list[str] = facts.get("payoff", {}).get("warnings", [])
    for line in warnings:
        Console(stderr=True).print(Text(f"warning: {line}", style="bold red"), soft_wrap=True)
    if as_json:
        told = {name: facts.get(name, empty) for name, empty in _SHOWN_FACTS.items()}
        told |= {**bundle_fields(bundle), "report": str(page), "took_s": round(seconds, 1)}
        open_console().print_json(data=told)
        return warnings
    console = open_console()
    console.print(_list_figures(bundle, facts))
    if facts.get("trades"):
        console.print(_list_trades(bundle, facts))
    console.print(f"bundle  {bundle.path}\nreport  {page}", markup=False, highlight=False, soft_wrap=True)
    return warnings


# of the report's figures, what `--json` prints too, and what stands there without a report
_SHOWN_FACTS: dict[str, Any] = {"payoff": {}, "frontier": [], "trades": [], "leakage_summary": []}


def _list_figures(bundle: Bundle, facts: Mapping[str, Any]) -> Table:
    """Table of the figures, a row each; leakage in the words of the report where there is one."""
    from models.cli.compare import format_figures  # noqa: PLC0415 - see `print_result`

    table = Table.grid("", Column("", overflow="fold"), padding=(0, 2, 0, 0))
    summary: list[str] = facts.get("leakage_summary", [])
    for name, value in {**format_figures(bundle), **_format_intervals(bundle, facts)}.items():
        lines = summary if name == "leakage" and summary else [value]
        for number, line in enumerate(lines):
            table.add_row(Text("" if number else name, style="bold"), Text(line))
    return table


def _format_intervals(bundle: Bundle, facts: Mapping[str, Any]) -> dict[str, str]:
    """Rows of the printed figures: each with its 95 % interval, and what asking gains."""
    from models.forge.report.payoff import Interval, format_gain, format_range  # noqa: PLC0415 - see `print_result`

    payoff = facts.get("payoff")
    if not payoff:
        return {}
    metric = bundle.manifest.calibration.metric
    named = (("edge alone", "edge"), ("pair", "pair"), ("given model", "hub"))
    shown = [f"{name} {format_range(metric, Interval(*payoff[key]))}" for name, key in named if payoff[key]]
    gain, gained = format_gain(metric, payoff["gain"]), format_range(metric, Interval(*payoff["gained"]))
    return {"gain by asking": f"{gain}, with 95 % {gained}", "95 % intervals": "; ".join(shown)}


def _list_trades(bundle: Bundle, facts: Mapping[str, Any]) -> Table:
    """Table of the best trades on the frontier, and the flags that would take each."""
    from models.cli.compare import figure_format  # noqa: PLC0415 - see `print_result`

    form, points = figure_format(bundle.manifest), {point["name"]: point for point in facts["frontier"]}
    names = "best trades", "a question carries", "sealed B", "kept", "pair", "leakage", "take it by"
    title = "best trades, measured on the calibration samples"
    table = Table(*names, box=None, title=title, title_justify="left")
    for trade in facts["trades"]:
        point = points[trade["name"]]
        kept = "no gap" if point["recovered"] is None else f"{point['recovered']:.0%}"
        size, quality = f"{point['sealed_bytes']:,}", form(point["quality"])
        cells = (
            trade["best"],
            trade["name"],
            size,
            kept,
            quality,
            _format_bound(point["leakage"]),
            trade["flags"] or "ships",
        )
        table.add_row(*map(Text, cells))
    return table


def print_measured(rows: "Sequence[CutCost]", points: "Sequence[RoutePoint]") -> None:
    """Print what was measured before the limits were missed, on standard error, so that limits can be chosen from it.

    `rows`: the cuts; `points`: the frontier of code paths.
    """
    if rows:
        title = "measured so far, and kept; accuracy (or RMSE) on calibration samples"
        table = Table("cut", "head ms", "tail ms", "coded B", "accuracy", "leakage", title=title)
        for row in rows:
            speed = f"{row.head_us / 1e3:.3f}", f"{row.tail_us / 1e3:.3f}"
            table.add_row(
                row.cut.name, *speed, f"{row.coded_bytes:,}", f"{row.accuracy:.4f}", _format_bound(row.leakage)
            )
        Console(stderr=True).print(table)
    if points:
        title = "measured so far; kept and lost on calibration samples"
        table = Table("a question carries", "codes B", "sealed B", "kept", "lost", "leakage", title=title)
        for point in sorted(points, key=lambda p: (p.sealed_bytes, p.payload_bytes)):
            kept = "no gap" if math.isnan(point.recovered) else f"{point.recovered:.0%}"
            sizes = f"{point.payload_bytes:,}", f"{point.sealed_bytes:,}"
            table.add_row(point.name, *sizes, kept, f"{point.lost:.4f}", _format_bound(point.leakage))
        Console(stderr=True).print(table)


def _format_bound(leakage: float | None) -> str:
    return "" if leakage is None else f"{leakage:.2f}"
