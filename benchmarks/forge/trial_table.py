"""Table of the forge's trials: a row a figure, the median over seeds with smallest and largest, and its aim.

Rule: a row says nothing where a trial is missing or was refused; it is never filled from another set, wish or commit.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.forge.datasets import COST, SIZES, UNSEEN_CASES
from benchmarks.forge.trials import TrialRecord

_ROUNDING = 1e-9
Measure = Callable[[TrialRecord], float]


class TableRow(NamedTuple):
    """One row: `values` one a seed, `aim` in words, and whether their median holds it (None: there is no aim)."""

    name: str
    values: tuple[float, ...]
    unit: str
    aim: str
    held: bool | None
    note: str = ""


def _say_nothing(_records: Sequence[TrialRecord]) -> str:
    return ""


class RowPlan(NamedTuple):
    """How a row is made of the records of one set under one wish; `most`, `least`: the aim's limits of the median."""

    name: str
    set: str
    wish: str
    measure: Measure
    unit: str
    aim: str = ""
    most: float = math.nan
    least: float = math.nan
    note: Callable[[Sequence[TrialRecord]], str] = _say_nothing


def _percent(measure: Measure) -> Measure:
    return lambda record: 100 * measure(record)


def _describe_path(records: Sequence[TrialRecord]) -> str:
    """Path, bytes and shares of the first seed, and the bytes of all."""
    first = records[0]
    payloads = sorted({record.payload_bytes for record in records})
    sealed = sorted({record.sealed_bytes for record in records})
    return (
        f"{first.path or first.cut}, {_format_ends(payloads)} B of codes, {_format_ends(sealed)} B sealed, head "
        f"{first.head_share:.0%}; edge {_quality(first, first.edge)}, hub {_quality(first, first.hub)}"
    )


def _describe_lossless(records: Sequence[TrialRecord]) -> str:
    whole = [100 * record.gap_lossless for record in records]
    kept = [record.gap_recovered / record.gap_lossless for record in records if record.gap_lossless]
    return f"lossless {median(whole):.1f} %, of which {median(kept):.3f} is kept; {_describe_path(records)}"


def _describe_pair(records: Sequence[TrialRecord]) -> str:
    first = records[0]
    return f"pair {_quality(first, first.pair)} asking {first.asked:.1%}; {_describe_path(records)}"


def _describe_leakage(records: Sequence[TrialRecord]) -> str:
    rows = [record.leakage for record in records if record.leakage]
    if not rows:
        return "no reconstruction row"
    score, floor, ceiling = rows[0]
    lost = median(100 * record.lost for record in records)
    return (
        f"{records[0].leakage_metric} {score:.3f}, label alone {floor:.3f}, raw {ceiling:.3f}; loses {lost:.2f} points"
    )


def _above_label(record: TrialRecord) -> float:
    return record.leakage[0] - record.leakage[1] if record.leakage else math.nan


def _behind_hub(record: TrialRecord) -> float:
    """How much larger the pair's RMSE is than the given model's, a share."""
    return record.pair_at / record.hub - 1


def _above_better_half(record: TrialRecord) -> float:
    """Accuracy of the pair less that of the better half, at the threshold that ships."""
    return record.pair - max(record.edge, record.hub)


def _recovered_of_lossless(record: TrialRecord) -> float:
    return record.recovered if record.has_gap else math.nan


def _describe_unseen(records: Sequence[TrialRecord]) -> str:
    first = records[0]
    if not first.has_gap:
        gap = f"no gap above its interval ({first.gap_low:.4f} to {first.gap_high:.4f})"
    else:
        gap = f"interval of the first seed {first.recovered_low:.2f} to {first.recovered_high:.2f}"
    return f"{gap}; {_describe_pair(records)}"


def plan_rows() -> list[RowPlan]:
    """The rows of the table, in its order."""
    return [
        *_plan_fashion(),
        *_plan_cifar(),
        *_plan_text(),
        *_plan_signals(),
        *_plan_leakage(),
        *_plan_unseen(),
        *_plan_cost(),
    ]


def _plan_fashion() -> list[RowPlan]:
    name, gap = "fashion-mnist", "Fashion-MNIST: gap recovered asking 25 %"
    aims = ((">= 55", 55.0), (">= 85", 85.0), ("", math.nan))
    sized = [
        RowPlan(
            f"{gap}, codes <= {size} B, the sample may leave",
            name,
            f"sample-{size}",
            _percent(lambda record: record.gap_recovered),
            "%",
            aim,
            least=least,
            note=_describe_lossless,
        )
        for size, (aim, least) in zip(SIZES, aims, strict=True)
    ]
    over = RowPlan(
        "Fashion-MNIST: the same at 500 B over lossless",
        name,
        "sample-500",
        lambda record: record.gap_recovered / record.gap_lossless,
        "",
        ">= 0.97",
        least=0.97,
    )
    features = RowPlan(
        f"{gap}, features only",
        name,
        "features",
        _percent(lambda record: record.gap_recovered),
        "%",
        note=_describe_lossless,
    )
    return [*sized, over, features]


def _plan_cifar() -> list[RowPlan]:
    name, lost = "cifar10", "CIFAR-10: lost if every sample is asked, head <= 10 %"
    sized = [
        RowPlan(
            f"{lost}, codes <= {size} B, the sample may leave",
            name,
            f"sample-{size}",
            _percent(lambda record: record.lost),
            "points",
            f"<= {most:g}",
            most=most,
            note=_describe_path,
        )
        for size, most in zip(SIZES, (3.0, 1.2, 0.5), strict=True)
    ]
    features = RowPlan(
        f"{lost}, features only",
        name,
        "features",
        _percent(lambda record: record.lost),
        "points",
        note=_describe_path,
    )
    own = RowPlan(
        "CIFAR-10: beside them, the scan of the set's own JPEG, which loses nothing",
        name,
        "features",
        _more("scan_bytes"),
        "B",
    )
    return [*sized, own, features]


def _plan_text() -> list[RowPlan]:
    aims = (
        ("in scope", "accuracy", ">= 92.5", math.nan, 92.5),
        ("out-of-scope recall", "recall", ">= 60", math.nan, 60),
        ("asked", "asked", "<= 25", 25, math.nan),
    )
    return [
        RowPlan(
            f"CLINC150 pair, features only: {told}",
            "clinc150",
            "features",
            _more(name),
            "%",
            aim,
            most=most,
            least=least,
            note=_describe_path if name == "accuracy" else _say_nothing,
        )
        for told, name, aim, most, least in aims
    ]


def _more(name: str) -> Measure:
    """A figure that only one set has."""
    return lambda record: record.more.get(name, math.nan)


def _plan_signals() -> list[RowPlan]:
    return [
        RowPlan(
            "C-MAPSS FD001: pair behind the hub asking 25 %",
            "cmapss",
            "features",
            _percent(_behind_hub),
            "%",
            "<= 2",
            most=2,
            note=_describe_pair,
        ),
        RowPlan(
            "MIT-BIH by patient: pair less the better half",
            "mitbih",
            "features",
            _percent(_above_better_half),
            "points",
            ">= 0",
            least=0,
            note=_describe_pair,
        ),
        RowPlan(
            "MIT-BIH by patient: asked at the threshold chosen for 20 %",
            "mitbih",
            "features",
            _percent(lambda record: record.asked),
            "%",
            "<= 28",
            most=28,
        ),
    ]


def _plan_unseen() -> list[RowPlan]:
    return [
        RowPlan(
            f"{name}: recovered over lossless, {'the sample may leave' if wish == 'sample' else 'features only'}",
            name,
            wish,
            _recovered_of_lossless,
            "",
            ">= 0.9",
            least=0.9,
            note=_describe_unseen,
        )
        for name in UNSEEN_CASES
        for wish in ("features", "sample")
    ]


def _plan_leakage() -> list[RowPlan]:
    return [
        RowPlan(
            "CIFAR-10: inversion above label alone at the shipped point, features only",
            "cifar10",
            "features",
            _above_label,
            "SSIM",
            "stated",
            note=_describe_leakage,
        ),
        RowPlan(
            "CIFAR-10: the same with leakage-aware teaching",
            "cifar10",
            "leakage-aware",
            _above_label,
            "SSIM",
            "<= 0.15 at <= 1 point more lost",
            most=0.15,
            note=_describe_leakage,
        ),
    ]


def _plan_cost() -> list[RowPlan]:
    return [
        RowPlan(
            "forge of a 98,728-parameter net, 10,000 samples, normal",
            COST,
            "features",
            lambda record: record.seconds / 60,
            "min",
            "<= 10",
            most=10,
            note=lambda records: f"{median(record.cpu_s for record in records) / 60:.1f} min of processor time",
        ),
        RowPlan(
            "the same: peak memory", COST, "features", lambda record: record.peak_mib / 1024, "GiB", "<= 1.5", most=1.5
        ),
    ]


def build_rows(records: Iterable[TrialRecord], others: Sequence[TableRow] = ()) -> list[TableRow]:
    """All rows of the table from finished trials; `others` come before the rows of cost."""
    kept = list(records)
    rows = [_build_row(plan, kept) for plan in plan_rows()]
    cost = len(_plan_cost())
    return [*rows[:-cost], _count_silent(kept), *others, *rows[-cost:]]


def _build_row(plan: RowPlan, records: Sequence[TrialRecord]) -> TableRow:
    own = [record for record in records if (record.set, record.wish) == (plan.set, plan.wish)]
    made = [record for record in own if not record.error]
    values = tuple(value for value in (plan.measure(record) for record in made) if math.isfinite(value))
    note = plan.note(made) if made else next((record.error for record in own), "")
    gapless = plan.measure is _recovered_of_lossless and bool(made) and not values  # then there is nothing to recover
    return TableRow(plan.name, values, plan.unit, plan.aim, None if gapless else _judge(plan, values), note)


def _judge(plan: RowPlan, values: Sequence[float]) -> bool | None:
    if math.isnan(plan.most) and math.isnan(plan.least):
        return None
    if not values:
        return False
    middle = median(values)
    return not (middle > plan.most + _ROUNDING or middle < plan.least - _ROUNDING)


def _count_silent(records: Sequence[TrialRecord]) -> TableRow:
    """Bundles whose pair is worse than its edge by more than the interval, and that say nothing of it."""
    made = [record for record in records if not record.error]
    silent = [record for record in made if record.worse_without_a_word]
    worse = [record for record in made if record.gained_high < 0]
    names = ", ".join(f"{record.set}/{record.wish}/{record.seed}" for record in worse)
    note = f"{len(worse)} of {len(made)} worse{f' ({names})' if names else ''}"
    name = "pair worse than its edge by more than its interval, shipped without a word"
    return TableRow(name, (float(len(silent)),) if made else (), f"of {len(made)}", "0", not silent, note)


def render_table(rows: Sequence[TableRow]) -> str:
    """Rows in Markdown, and below them what each is read with."""
    lines = ["| figure | median (smallest to largest) | aim | |", "|---|---|---|---|"]
    lines += [f"| {row.name} | **{format_values(row)}** | {row.aim} | {_format_verdict(row)} |" for row in rows]
    notes = [f"- **{row.name}**: {row.note}" for row in rows if row.note]
    return "\n".join([*lines, "", *notes])


def format_values(row: TableRow) -> str:
    """The median, and the ends where there are several values: `84.2 (83.0 to 85.1) %`."""
    if not row.values:
        return "not measured"
    ends = f" ({_format(min(row.values))} to {_format(max(row.values))})" if len(row.values) > 1 else ""
    return f"{_format(median(row.values))}{ends} {row.unit}".rstrip()


def format_record(record: TrialRecord) -> str:
    """One finished trial in a line."""
    begin = f"{record.set} {record.wish} seed {record.seed} ({record.effort}, {record.seconds:.0f} s)"
    if record.error:
        return f"{begin}: refused: {record.error}"
    kept = f"{record.recovered:.2f} of lossless" if math.isfinite(record.recovered) else "lossless gains nothing"
    edge, pair, best, hub = (
        _quality(record, value) for value in (record.edge, record.pair_at, record.lossless_at, record.hub)
    )
    return (
        f"{begin}: edge {edge}, pair at {record.share:.0%} {pair}, lossless {best}, hub {hub}; {kept}; "
        f"{record.path or record.cut}, {record.payload_bytes} B, {record.sealed_bytes} B sealed; "
        f"asks {record.asked:.1%}" + "".join(f"; {name} {value:.2f}" for name, value in record.more.items())
    )


def _format_verdict(row: TableRow) -> str:
    return "" if row.held is None else "held" if row.held else "**not held**"


def _format_ends(values: Sequence[int]) -> str:
    return f"{values[0]}" if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _quality(record: TrialRecord, value: float) -> str:
    return f"{value:.2f}" if record.metric == "rmse" else f"{100 * value:.2f} %"


def _format(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
