"""Summary of a leakage measurement in plain words: what each attack won, what is hidden, and what was not measured.

Rule: every sentence follows from a row's figures; a measurement that is void or absent is said as loudly as one that
succeeded.
"""

from collections.abc import Iterable, Sequence

from models.bundle.measurements import LeakageRow, LeakKind
from models.forge.leakage.inversion import ReconstructionMetric
from models.forge.leakage.measure import LeakageMeasurement

NEAR_RAW = 0.9  # of what the raw sample gives beyond the label: from here on nothing counts as hidden
_SLIGHT = 0.05  # a raw sample that gives less than this beyond the label has nothing to hide
_HIDES_MUCH = 0.5


def describe_leakage(measured: LeakageMeasurement) -> list[str]:
    """Lines for a terminal: one for each attack, one for each that is void or absent, and what all of it has cost."""
    told = [_describe_row(row) for row in _select_main_rows(measured.rows)]
    if measured.void:
        told.append(f"reconstruction is not measured: {measured.void.removeprefix('void: ')}")
    told += measured.absent
    told += list_near_raw(measured.rows)
    cost = measured.cost
    if cost.cpu_s:
        several = "" if cost.networks == 1 else "s"
        work = f"{cost.networks} network{several} of {cost.macs:.1e} multiply-accumulates in all"
        networks = f"{work}, " if cost.networks else ""
        told.append(f"attacks: {networks}{cost.cpu_s:,.0f} s of processor time")
    return told


def list_near_raw(rows: Sequence[LeakageRow]) -> list[str]:
    """A warning for each attack that won from the codes nearly all that it wins from the raw sample."""
    return [
        f"{_name_hidden(row)} ({row.metric} {row.score:.2f} from the codes, {row.ceiling:.2f} from the sample itself,"
        f" {row.floor:.2f} from the label alone)"
        for row in _select_main_rows(rows)
        if row.kind is not LeakKind.MEMBERSHIP and (share := share_of_raw(row)) is not None and share >= NEAR_RAW
    ]


def share_of_raw(row: LeakageRow) -> float | None:
    """What an attack won beyond the label, as a share of what the raw sample gives beyond it, at least 0.

    None where the raw sample itself gives next to nothing beyond the label.
    """
    room = row.ceiling - row.floor
    return None if room < _SLIGHT else max(0.0, (row.score - row.floor) / room)


def _select_main_rows(rows: Iterable[LeakageRow]) -> list[LeakageRow]:
    """The rows that a reader needs: reconstruction by its own metric and the most pairs, attributes, membership."""
    own = [row for row in rows if row.kind is LeakKind.RECONSTRUCTION and row.metric in set(ReconstructionMetric)]
    advantages = [row for row in rows if row.kind is not LeakKind.RECONSTRUCTION and row.metric == "advantage"]
    return [*([max(own, key=lambda row: row.score)] if own else []), *advantages]


def _describe_row(row: LeakageRow) -> str:
    """One line on one attack: what it won, beside what the label and the raw sample give."""
    figure = f"{row.metric.replace('_', ' ')} {row.score:.2f} (at most {row.upper95:.2f}, {row.pairs:,} pairs)"
    if row.kind is LeakKind.MEMBERSHIP:
        found = "no member is told from others" if row.upper95 < _SLIGHT or row.score <= row.floor else "members show"
        return f"membership: {found}: {figure}, blind guessing {row.floor:.2f}"
    subject = "reconstruction of the sample" if row.kind is LeakKind.RECONSTRUCTION else f"guess of {row.subject}"
    beside = f"{row.floor:.2f} by the label alone, {row.ceiling:.2f} from the sample itself"
    return f"{subject}: {figure}, {beside}: {_judge_share(row)}"


def _judge_share(row: LeakageRow) -> str:
    """What the codes hide, in words."""
    share = share_of_raw(row)
    if share is None:
        return "the sample itself tells hardly more than its label"
    if share >= NEAR_RAW:
        return "nothing is hidden"
    if share <= 1 - NEAR_RAW:
        return "hardly more than the label is told"
    return f"{share:.0%} of what the sample tells is told" + (", most is hidden" if share < _HIDES_MUCH else "")


def _name_hidden(row: LeakageRow) -> str:
    if row.kind is LeakKind.RECONSTRUCTION:
        return "nothing is hidden of the sample: it is rebuilt as well as from the raw sample"
    return f"nothing is hidden of the {row.subject}: the codes tell it as well as the raw sample does"
