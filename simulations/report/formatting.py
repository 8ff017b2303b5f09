"""Formats figures, sizes and times as text, the same in the terminal and on the page."""

_COUNTS = ("samples", "answers", "lost", "doubled", "open", "flaws", "violations", "queue_peak", "count")


def format_figure(name: str, value: float | None) -> str:
    """Format a figure by its name: `_s` = seconds, `_share` and `accuracy` = per cent, bytes, or a number.

    "none" for None.
    """
    if value is None:
        return "none"
    kind = name.partition(".")[0]
    if kind.endswith("_s"):
        return format_seconds(value)
    if _is_share(kind):
        return f"{value:.2%}" if 0 < value < 0.01 or 0.99 < value < 1 else f"{value:.1%}"
    if kind.startswith("bytes"):
        return format_bytes(value)
    return f"{value:,.0f}" if kind in _COUNTS else f"{value:,.4g}"


def format_difference(name: str, more: float) -> str:
    """Format a difference of two values of a figure with its sign; shares in percentage points."""
    if _is_share(name.partition(".")[0]):
        return f"{more * 100:+.2f} points".replace("-", "−")
    return f"{'+' if more > 0 else '−'}{format_figure(name, abs(more))}"


def _is_share(kind: str) -> bool:
    """Whether a figure is a share, shown in per cent."""
    return "share" in kind or kind.startswith("accuracy") or kind == "why"


def format_seconds(value: float) -> str:
    """Format seconds: `3.2 ms`, `1.74 s`, `5 min`."""
    if value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s" if value < 120 else format_duration(value)


def format_bytes(value: float) -> str:
    """Format a number of bytes with decimal units: `512 B`, `1.5 kB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"


def format_duration(value: float) -> str:
    """Format a duration in seconds: `90 s`, `15 min`, `1.5 h`, `7 d`."""
    for unit, width in (("d", 86_400), ("h", 3600), ("min", 60)):
        if value >= width and value != 60 * (unit == "min"):
            return f"{value / width:.3g} {unit}"
    return f"{value:.3g} s"


def format_clock(value: float) -> str:
    """Format a moment of the run, in seconds from its start: `1:05:00`; `day 3, 4:00:00`."""
    days, rest = divmod(int(value), 86_400)
    time = f"{rest // 3600}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"day {days + 1}, {time}" if days else time
