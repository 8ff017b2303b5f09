"""Named figures of an outcome (`p99_s`, `hub_share`, `lost`, ...), and expectations judged on them.

Rule: reads an outcome and nothing else, so that a saved report can be judged again. A figure that a run does not have
(no answer of that kind came) has no value, and an expectation on it does not hold.
"""

import difflib
from collections import Counter
from collections.abc import Callable, Iterable
from math import ceil
from typing import NamedTuple

import msgspec

from policies.model.reasons import DecisionReason
from simulations.report.formatting import format_clock
from simulations.report.outcome import Bins, JudgedExpectation, Outcome, Series, quantile_s
from simulations.scenario.types import DAY_S, Expectation

ANSWERS = ("local", "hub")


class OutcomeWindow(NamedTuple):
    """Window of an outcome: the buckets from `first` up to but not including `last`."""

    outcome: Outcome
    first: int
    last: int

    @property
    def seconds(self) -> float:
        """Length of the window in virtual seconds."""
        return (self.last - self.first) * self.outcome.step_s

    def sum_series(self, series: Iterable[Series]) -> int:
        """Sum of these series over the window."""
        return sum(sum(each[self.first : self.last]) for each in series)

    def count_answers(self, *sources: str) -> int:
        """Number of answers of these sources (`local`, `hub`, `correction`) in the window."""
        return self.sum_series(select_source(self.outcome.answers, *sources))

    def merge_bins(self, *sources: str) -> Bins:
        """Latency histogram of these sources over the window."""
        found: Counter[int] = Counter()
        for latency in self.outcome.latency:
            if latency.source in sources:
                for bins in latency.bins[self.first : self.last]:
                    found.update(bins)
        return dict(found)


def select_source(series: dict[str, Series], *sources: str) -> list[Series]:
    """Select the series whose name (`source.why`) begins with one of these sources."""
    return [each for name, each in series.items() if name.partition(".")[0] in sources]


def select_window(outcome: Outcome, from_s: float = 0.0, until_s: float = 0.0) -> OutcomeWindow:
    """Window of the whole run, or of the buckets that [from_s, until_s) touches (`until_s` 0 = the end)."""
    last = ceil(until_s / outcome.step_s) if until_s else len(outcome.arrivals)
    return OutcomeWindow(outcome, int(from_s // outcome.step_s), min(last, len(outcome.arrivals)))


def judge_expectations(outcome: Outcome, expected: Iterable[Expectation]) -> Outcome:
    """Return the same outcome with these expectations judged."""
    return msgspec.structs.replace(outcome, expectations=tuple(_judge_expectation(outcome, each) for each in expected))


def _judge_expectation(outcome: Outcome, expect: Expectation) -> JudgedExpectation:
    """Compute the figure of one expectation and compare it with its bounds."""
    value = compute_figure(select_window(outcome, expect.from_s, expect.until_s), expect.figure)
    held = value is not None and _is_within(value, expect)
    return JudgedExpectation(
        figure=expect.figure,
        value=value,
        at_most=expect.at_most,
        at_least=expect.at_least,
        held=held,
        window=_describe_window(expect, outcome),
    )


def _is_within(value: float, expect: Expectation) -> bool:
    """Whether a value lies within the bounds, both inclusive."""
    high = expect.at_most is None or value <= expect.at_most
    return high and (expect.at_least is None or value >= expect.at_least)


def _describe_window(expect: Expectation, outcome: Outcome) -> str:
    """The window as text, "" for the whole run."""
    if not expect.from_s and not expect.until_s:
        return ""
    return f"from {format_clock(expect.from_s)} to {format_clock(expect.until_s or outcome.until_s)}"


def compute_figure(seen: OutcomeWindow, name: str) -> float | None:
    """Compute a figure that `check_figure_name` accepts; None if the run has no value for it.

    Shares are 0..1, times in seconds, sizes in bytes.
    """
    exact = FIGURES.get(name)
    if exact is not None:
        return exact(seen)
    kind, _, rest = name.partition(".")
    return FAMILIES[kind](seen, rest)


def check_figure_name(name: str, hubs: Iterable[str]) -> str:
    """Check the name of a figure: "" if there is such a one, else one line that says what is wrong.

    `hubs`: names of the scenario's hubs, for `queue_peak.HUB`.
    """
    if name in FIGURES:
        return ""
    kind, dot, rest = name.partition(".")
    if not dot or kind not in FAMILIES:
        names = [*FIGURES, *(f"{family}." for family in FAMILIES)]
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
        return f"{name!r} is no figure; " + (f"did you mean {close[0]!r}?" if close else "`skerry sim list` names them")
    if kind == "why" and rest not in set(DecisionReason):
        return f"{rest!r} is no reason of an answer"
    if kind == "queue_peak" and rest not in set(hubs):
        return f"{rest!r} is no hub of this scenario; they are {', '.join(hubs)}"
    return ""


def _divide_or_none(part: float, whole: float) -> float | None:
    """A share, or None where there is no whole."""
    return part / whole if whole else None


def _quantile_figure(share: float, *sources: str) -> Callable[[OutcomeWindow], float | None]:
    """Figure: latency quantile of these sources in seconds (upper edge of its bin, 19 % wide)."""
    return lambda seen: quantile_s(seen.merge_bins(*sources), share)


def _accuracy_figure(*sources: str) -> Callable[[OutcomeWindow], float | None]:
    """Figure: share of right answers among those of these sources."""
    return lambda seen: _divide_or_none(
        seen.sum_series(select_source(seen.outcome.right, *sources)), seen.count_answers(*sources)
    )


def _answer_share(*sources: str) -> Callable[[OutcomeWindow], float | None]:
    """Figure: answers of these sources as a share of all answers."""
    return lambda seen: _divide_or_none(seen.count_answers(*sources), seen.count_answers(*ANSWERS))


def _outcome_share(end: str) -> Callable[[OutcomeWindow], float | None]:
    """Figure: share of accepted questions that ended so; of the whole run, whatever the window."""
    return lambda seen: _divide_or_none(getattr(seen.outcome.history, end), seen.outcome.history.accepted)


def _queue_peak(seen: OutcomeWindow, hub: str = "") -> float | None:
    """Figure: most questions that waited at a hub ("" = any) in a bucket of the window."""
    queues = [series for name, series in seen.outcome.queues.items() if hub in ("", name)]
    return max((max(series[seen.first : seen.last], default=0) for series in queues), default=None)


def _least_online(seen: OutcomeWindow) -> float | None:
    """Figure: smallest share of devices online at the end of a bucket."""
    online = seen.outcome.states.get("online", ())[seen.first : seen.last]
    return _divide_or_none(min(online), seen.outcome.devices) if online else None


def _bytes_a_day(seen: OutcomeWindow) -> float | None:
    """Figure: bytes that left per device, scaled to a day."""
    return _divide_or_none(
        seen.sum_series(seen.outcome.bytes_by_rule.values()) * DAY_S, seen.outcome.devices * seen.seconds
    )


def _exposed_share(seen: OutcomeWindow) -> float | None:
    """Figure: largest share of devices that ran a rollout's candidate at once."""
    most = [max(each.exposed[seen.first : seen.last], default=0) for each in seen.outcome.rollouts]
    return _divide_or_none(max(most), seen.outcome.devices) if most else None


def _reason_share(seen: OutcomeWindow, why: str) -> float | None:
    """Figure: share of answers with this reason, from whichever source."""
    named = (series for name, series in seen.outcome.answers.items() if name in {f"{s}.{why}" for s in ANSWERS})
    return _divide_or_none(seen.sum_series(named), seen.count_answers(*ANSWERS))


# Of the whole run or, where the outcome tells it by bucket, of a stretch of it.
FIGURES: dict[str, Callable[[OutcomeWindow], float | None]] = {
    "samples": lambda seen: seen.sum_series([seen.outcome.arrivals]),
    "answers": lambda seen: seen.count_answers(*ANSWERS),
    "local_share": _answer_share("local"),
    "hub_share": _answer_share("hub"),
    "correction_share": _answer_share("correction"),
    "accuracy": _accuracy_figure(*ANSWERS),
    "accuracy_local": _accuracy_figure("local"),
    "accuracy_hub": _accuracy_figure("hub"),
    "accuracy_correction": _accuracy_figure("correction"),
    "p50_s": _quantile_figure(0.5, *ANSWERS),
    "p99_s": _quantile_figure(0.99, *ANSWERS),
    "hub_p50_s": _quantile_figure(0.5, "hub"),
    "hub_p99_s": _quantile_figure(0.99, "hub"),
    "correction_p50_s": _quantile_figure(0.5, "correction"),
    "correction_p99_s": _quantile_figure(0.99, "correction"),
    "queue_peak": _queue_peak,
    "online_share_least": _least_online,
    "bytes_per_device_day": _bytes_a_day,
    "exposed_share": _exposed_share,
    "asked_share": lambda seen: _divide_or_none(seen.outcome.history.accepted, seen.outcome.samples),
    "answered_share": _outcome_share("answered"),
    "expired_share": _outcome_share("expired"),
    "refused_share": _outcome_share("refused"),
    "denied_share": _outcome_share("denied"),
    "lost": lambda seen: seen.outcome.history.lost,
    "doubled": lambda seen: seen.outcome.history.doubled,
    "open": lambda seen: seen.outcome.history.open,
    "flaws": lambda seen: sum(seen.outcome.history.flaws.values()),
    "violations": lambda seen: len(seen.outcome.violations),
}
FAMILIES: dict[str, Callable[[OutcomeWindow, str], float | None]] = {
    "why": _reason_share,  # share of the answers with this reason
    "queue_peak": _queue_peak,  # of one hub
    "count": lambda seen, name: seen.outcome.counts.get(name, 0),
}
