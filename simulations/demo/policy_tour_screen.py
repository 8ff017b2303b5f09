"""Terminal output of `skerry demo --template`.

What was asked, what stayed and by which rule, what left. Pure output.
"""

from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from simulations.demo.screen import format_kilobytes, format_percent

_DENIED = "denied_"
PROTOCOL = "protocol"  # what the ledger calls messages that are no questions


def show_tour(console: Console, figures: dict[str, Any]) -> None:
    """Print the figures of a tour."""
    console.print(
        _make_panel("Which samples might leave, and by which rule the others stayed", _cases_table(figures["cases"]))
    )
    console.print(_make_panel("What left, by the ledgers of the devices", _left_table(figures)))
    console.print(_make_panel("Summary", _summary_table(figures)))


def _make_panel(title: str, body: Any) -> Panel:
    return Panel(body, title=f"[bold]{title}", title_align="left", border_style="cyan", padding=(0, 1))


def _cases_table(cases: list[dict[str, Any]]) -> Table:
    table = Table("device", "class", "answers", "asked", "stayed, and why", "rules", box=None, pad_edge=False)
    for case in cases:
        counts = f"{case['answers']}", f"{case['asked']}"
        table.add_row(
            case["device"], case["data_class"], *counts, _describe_stayed(case), ", ".join(case["rules"]) or "-"
        )
    return table


def _describe_stayed(case: dict[str, Any]) -> Text:
    """Reasons of what stayed; denials stand out, since a confident answer stays because nobody needs to ask."""
    text = Text()
    for why, count in sorted(case["stayed"].items()):
        text.append(f"{count} {why}  ", style="yellow" if why.startswith(_DENIED) else "")
    return text


def _left_table(figures: dict[str, Any]) -> Table:
    table = Table("device", "under", "messages", "kB", "releases", "to", "fields", box=None, pad_edge=False)
    for row in figures["left"]:
        fields = ", ".join(f"{name} {level}" for name, level in row["fields"].items())
        numbers = str(row["messages"]), f"{row['bytes'] / 1000:.1f}", str(row["releases"] or "-")
        of_sample = fields if row["key"] != PROTOCOL else "notes: no field of a sample"
        table.add_row(row["device"], _rule_name(row["key"]), *numbers, ", ".join(row["regions"]), of_sample)
    for device, overhead in figures["overhead"].items():
        if overhead is not None:
            table.add_row(device, "overhead", "-", f"{overhead / 1000:.1f}", "-", "-", "TLS, MQTT, acknowledgements")
    return table


def _rule_name(key: str) -> str:
    """Name of the rule: `patient` of `clinic@1+patient`; without a rule the policy itself."""
    return key.partition("+")[2] or key


def _summary_table(figures: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    answers = ", ".join(f"{count} {name}" for name, count in figures["answers"].items())
    accuracy = ", ".join(f"{name} {format_percent(share)}" for name, share in figures["accuracy"].items())
    sent = sum(row["bytes"] for row in figures["left"] if row["key"] != PROTOCOL)
    table.add_row("answers", answers)
    table.add_row("accuracy", accuracy + "   (pair: what callers got; noise and denials cost some of it)")
    table.add_row(
        "samples", f"{format_kilobytes(sent)} left, sealed, of {format_kilobytes(figures['raw'])} that the devices saw"
    )
    table.add_row("policy", f"{figures['template']} ({figures['policy']}), by TUF; all in {figures['seconds']} s")
    table.add_row("ask it", f"skerry policy new {figures['template']}; skerry policy test {figures['template']}.toml")
    return table
