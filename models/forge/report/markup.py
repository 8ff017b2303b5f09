"""HTML pieces of a report's page: its style, tables, and figures as words.

Rule: a page has no script and no link; it is read on a telephone too, so that wide tables scroll inside their own box.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

from models.bundle.measurements import QualityMetric
from models.forge.report.charts import CHART_STYLE

_LONGEST_NUMBER = 14  # characters
_WORDS = ' class="words"'
_STYLE = """
:root{color-scheme:light dark;--soft:#555;--edge:#ccc;--row:#e5e5e5;--mark:#fff3c4;--alarm:#fde2e2;--alarm-edge:#c33}
@media(prefers-color-scheme:dark){:root{--soft:#a8adb3;--edge:#4a4e54;--row:#2c2f34;--mark:#4a4118;--alarm:#4a1f1f;--alarm-edge:#e06666}}
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:68rem;padding:0 1rem}
body{color:var(--ink);background:var(--paper);overflow-wrap:break-word}
h1{margin:0 0 .2rem}h2{margin:2.2rem 0 .6rem;border-bottom:1px solid var(--edge);padding-bottom:.2rem}
.scroll{overflow-x:auto;max-width:100%}table{border-collapse:collapse;margin:.6rem 0}td,th{padding:.22rem .5rem}
td,th{text-align:right;border-bottom:1px solid var(--row);overflow-wrap:normal}
td:first-child,th:first-child{text-align:left;white-space:nowrap}tr.chosen{background:var(--mark)}
.warning{background:var(--alarm);border:1px solid var(--alarm-edge);border-radius:.5rem;padding:.5rem .9rem}
td.words,th.words{text-align:left}td.words:last-child{min-width:10rem}small,.why{color:var(--soft)}
.cards{display:flex;flex-wrap:wrap;gap:.7rem;margin:1rem 0}
.card{border:1px solid var(--edge);border-radius:.5rem;padding:.5rem .9rem}.card b{display:block;font-size:1.5rem}
.wide svg.chart{min-width:40rem}
.plots{display:flex;flex-wrap:wrap;gap:1rem;align-items:flex-start}
.faces td{padding:.15rem;border:0}
.faces img{width:72px;height:72px;image-rendering:pixelated;border:1px solid var(--edge)}
"""
PAGE_STYLE = CHART_STYLE + _STYLE


def render_table(names: Sequence[str], rows: Iterable[Sequence[str]], marks: Sequence[bool] | None = None) -> str:
    """A table of cells that are HTML already, under names that are text; marked rows are set off."""
    kept = list(rows)
    wordy = [any(map(_is_words, column)) for column in zip(*kept, strict=True)] or [False] * len(names)
    head = "".join(
        f"<th{_WORDS if words else ''}>{escape(name)}</th>" for name, words in zip(names, wordy, strict=True)
    )
    drawn = []
    for number, row in enumerate(kept):
        chosen = ' class="chosen"' if marks and marks[number] else ""
        drawn.append(f"<tr{chosen}>" + "".join(map(_render_cell, row)) + "</tr>")
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(drawn)}</table></div>'


def _render_cell(value: str) -> str:
    """One table cell: numbers are set to the right, words to the left."""
    return f"<td{_WORDS if _is_words(value) else ''}>{value}</td>"


def _is_words(value: str) -> bool:
    return bool(value) and (value[0] not in "-0123456789" or len(value) >= _LONGEST_NUMBER)


def format_share(value: float) -> str:
    """A share of a gap in percent; "no gap" for NaN."""
    return "no gap" if math.isnan(value) else f"{value:.1%}"


def metric_formatter(metric: str) -> Callable[[float], str]:
    """The function that words a quality figure: a percentage for accuracies, else the RMSE."""
    return (lambda value: f"{value:.1%}") if metric == QualityMetric.ACCURACY else (lambda value: f"{value:.4g}")
