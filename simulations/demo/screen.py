"""Terminal output of the demo: live table, acts and summary. Reads a `AnswerTally`, changes nothing."""

from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from simulations.demo.results import AnswerTally, ClientAnswer, compute_accuracy, compute_latency, count_answers

_COLUMNS = ("agent", "all", "local", "asked", "late", "denied", "refused", "queued", "sent kB", "raw kB")


def make_progress(console: Console) -> Progress:
    """Progress bar for the start of the demo."""
    return Progress(
        TextColumn("  {task.description:<34}"), BarColumn(bar_width=32), TimeElapsedColumn(), console=console
    )


def build_agents_table(tally: AnswerTally, status: dict[str, dict[str, Any]]) -> Table:
    """Table with one row per agent. `status` is what each agent reports of itself (queued, sent bytes, refused)."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "agent" else "right")
    for agent in sorted(status):
        table.add_row(agent, *_agent_cells(tally.answers_of(agent), status[agent]))
    return table


def _agent_cells(seen: list[ClientAnswer], status: dict[str, Any]) -> tuple[str, ...]:
    by_way = count_answers(seen)
    return (
        str(len(seen)),
        str(by_way["local"]),
        str(sum(bool(s.escalation) for s in seen)),
        str(by_way["late"]),
        str(by_way["denied"]),
        str(status.get("refused", 0)),
        str(status.get("queued", 0)),
        f"{status.get('bytes_sent', 0) / 1000:.1f}",
        f"{sum(s.truth.raw_bytes for s in seen) / 1000:.1f}",
    )


def render_live(tally: AnswerTally, status: dict[str, dict[str, Any]], note: str) -> Group:
    """Live table with accuracy and latency below it."""
    seen = list(tally.seen.values())
    return Group(
        build_agents_table(tally, status),
        Text(),
        Text(_accuracy_line(seen)),
        Text(_latency_line(seen)),
        Text(note, style="bold yellow"),
    )


def _accuracy_line(seen: list[ClientAnswer]) -> str:
    share = compute_accuracy(seen)
    return (
        f"accuracy     edge alone {format_percent(share['edge'])} | pair {format_percent(share['pair'])} | "
        f"hub alone {format_percent(share['hub'])}"
    )


def _latency_line(seen: list[ClientAnswer]) -> str:
    times = compute_latency(seen)
    return f"p50/p99 ms   local {_format_pair(times['local'])} | hub {_format_pair(times['hub'])}"


def _format_pair(cuts: dict[str, float | None]) -> str:
    return "-" if cuts["p50"] is None else f"{cuts['p50']:.1f}/{cuts['p99']:.1f}"


def show_act(console: Console, number: int, title: str, body: str) -> None:
    """Print one act's result."""
    console.print(
        Panel(body, title=f"[bold]{number}. {title}", title_align="left", border_style="cyan", padding=(0, 1))
    )


def show_summary(console: Console, figures: dict[str, Any]) -> None:
    """Print the figures of the demo; the border is green if nothing was lost or doubled."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, text in _summary_rows(figures):
        table.add_row(name, text)
    border = "green" if figures["lost"] == figures["doubled"] == 0 else "red"
    console.print(Panel(table, title="[bold]Summary", title_align="left", border_style=border, padding=(0, 1)))


def _summary_rows(figures: dict[str, Any]) -> list[tuple[str, str]]:
    answers, share, size, times = (figures[k] for k in ("answers", "accuracy", "bytes", "latency_ms"))
    return [
        (
            "answers",
            ", ".join(f"{count} {name}" for name, count in answers.items()) + f"   ({figures['agents']} agents)",
        ),
        ("accuracy", ", ".join(f"{name} {format_percent(value)}" for name, value in share.items())),
        (
            "bytes",
            f"{format_kilobytes(size['sent'])} sent, sealed, against {format_kilobytes(size['raw'])} of raw samples",
        ),
        ("latency ms", f"local p50/p99 {_format_pair(times['local'])}, hub {_format_pair(times['hub'])}"),
        ("record", f"{figures['lost']} lost, {figures['doubled']} doubled (judged from the databases of both sides)"),
        (
            "time",
            f"first escalated answer after {figures['first_escalated_answer_s']} s, all in {figures['seconds']} s",
        ),
    ]


def format_kilobytes(size: int) -> str:
    """Format bytes as kilobytes with one decimal."""
    return f"{size / 1000:.1f} kB"


def format_percent(share: float) -> str:
    """Format a share (0..1) in per cent with one decimal."""
    return f"{100 * share:.1f} %"
