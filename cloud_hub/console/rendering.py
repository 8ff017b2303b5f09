"""Templates of the console, and the formats in which they show times, sizes, shares and names.

Rule: everything is escaped; no template marks anything as safe, has a script or a style in it, or decides anything.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

FOLDER = Path(str(resources.files("cloud_hub.console")))
STATIC = FOLDER / "static"
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def make_environment(globals_: Mapping[str, Any]) -> Environment:
    """Return the environment of the templates. `globals_`: values that every page has."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(globals_)
    environment.filters.update(
        time=format_time, bytes=format_bytes, count=format_count, share=format_share, points=format_points,
        duration=format_duration, words=format_words, json=encode_json, short=shorten,
    )  # fmt: skip
    return environment


def digest_static() -> str:
    """Return a digest of everything in the folder of static files: part of their addresses, so that they never age."""
    digest = sha256()
    for path in sorted(STATIC.rglob("*")):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def format_time(ms: int) -> Markup:
    """Format a time in ms as an element that the page's script shows in the reader's own time; "never" for 0."""
    if ms <= 0:
        return Markup('<span class="none">never</span>')  # no value in it
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return Markup('<span class="none">not a time</span>')  # no value in it
    iso, text = moment.isoformat(timespec="milliseconds"), moment.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" data-ms="{}" title="{}">{}</time>').format(iso, ms, text, text)


def format_bytes(size: float) -> str:
    """Format a number of bytes: 512 B, 1.5 MB."""
    value, unit = float(size), 0
    while abs(value) >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 or value >= 100 else f"{value:.1f} {_UNITS[unit]}"


def format_count(number: float) -> str:
    """Format a number with separators of thousands."""
    return f"{number:,.0f}"


def format_share(share: float, digits: int = 1) -> str:
    """Format a share 0..1 in percent."""
    return f"{100 * share:.{digits}f} %"


def format_points(share: float) -> str:
    """Format a difference of shares in points, with its sign."""
    return f"{100 * share:+.1f}"


def format_duration(seconds: float) -> str:
    """Format a duration with its two largest units: 2 d 3 h, 45 s, 120 ms."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0 ")) or parts[0]


def format_words(name: object) -> str:
    """Format a code such as `clone_suspect` as words."""
    return str(name).replace("_", " ").replace(".", ": ")


def encode_json(value: object) -> str:
    """Encode a value for a data attribute; the template escapes it."""
    return msgspec.json.encode(value).decode()


def shorten(text: object, limit: int = 80) -> str:
    """Return at most so many characters of a text."""
    shown = str(text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
