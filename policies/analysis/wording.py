"""Wording of policy values: transforms, conditions, accounts, noise and retention as short English phrases. Pure.

One wording for explanations, summaries and diffs.
"""

from collections.abc import Callable

from policies.model.context import MINUTES_OF_WEEK, WEEK_DAYS, RuleCondition, WeeklyHours
from policies.model.policy import (
    AccountUnit,
    BudgetAccount,
    FieldRule,
    LeakageLimits,
    NoiseTerms,
    RetentionTerms,
    TransformKind,
    TransformSpec,
)

TransformWording = Callable[[TransformSpec], str]
_TRANSFORMS: dict[TransformKind, TransformWording] = {
    TransformKind.DROP: lambda _: "dropped",
    TransformKind.COARSEN: lambda t: f"means of {t.step:g} neighbours",
    TransformKind.BUCKETIZE: lambda t: f"in classes parted at {', '.join(f'{edge:g}' for edge in t.values)}",
    TransformKind.CLIP: lambda t: f"clipped to {t.low:g}..{t.high:g}",
    TransformKind.CLIP_NORM: lambda t: f"no longer than {t.high:g}",
    TransformKind.QUANTISE: lambda t: f"rounded to multiples of {t.step:g}",
    TransformKind.KEYED_HASH: lambda t: f"hashed to {t.step:g} bits",
    TransformKind.TOP_K: lambda t: (
        f"the {t.step:g} farthest from {t.values[0]:g} alone" if t.values else f"the {t.step:g} greatest alone"
    ),
    TransformKind.POOL: lambda t: f"pooled by {t.step:g}",
    TransformKind.PROJECT: lambda t: f"projected on {t.step:g} directions",
    TransformKind.NOISE: lambda t: f"noised by {t.step:g}",
    TransformKind.REDACT: lambda t: f"redacted ({', '.join(t.words)})",
}


def transform_words(transform: TransformSpec) -> str:
    """Phrase of a transform, with a comma before it: it follows a label."""
    return f", {_TRANSFORMS[transform.kind](transform)}"


_DAY_MIN = 24 * 60


def condition_words(condition: RuleCondition) -> str:
    """Phrase of a condition; "" for one that asks nothing.

    Example: `data class vitals and time mon to fri 22:00 to 06:00 in Europe/Berlin`.
    """
    said = {
        "data class": _join_alternatives(condition.data_class),
        "device class": _join_alternatives(condition.device_class),
        "region": _join_alternatives(condition.region),
        "tenant": _join_alternatives(condition.tenant),
        "tag": _join_alternatives(condition.tags),
        "label": "" if condition.label_at_least is None else f"{condition.label_at_least.name} or above",
        "link": _join_alternatives(tuple("up" if up else "down" for up in condition.link_up or ())),
        "metered": "" if condition.metered is None else "yes" if condition.metered else "no",
        "battery": "" if condition.battery_below is None else f"below {condition.battery_below:g}",
        "time": "" if condition.hours is None else _hours_words(condition.hours),
    }
    return " and ".join(f"{key} {words}" for key, words in said.items() if words)


def _join_alternatives(names: tuple[str, ...] | None) -> str:
    """Names joined by "or"."""
    return " or ".join(names or ())


def _hours_words(hours: WeeklyHours) -> str:
    """`mon to sat 08:00 to 20:00 in Europe/Berlin`: the same hours of several days are named once."""
    days: dict[tuple[int, int], list[int]] = {}
    for first, last in _join_spans(hours.spans):
        days.setdefault((first % _DAY_MIN, last % _DAY_MIN), []).append(first // _DAY_MIN)
    said = [f"{_days_words(on)}{_format_clock(first)} to {_format_clock(last)}" for (first, last), on in days.items()]
    return f"{', '.join(said)} in {hours.zone}"


def _join_spans(spans: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Join a span over the end of the week, which is stored as two."""
    ends = [span for span in spans if span[1] == MINUTES_OF_WEEK]
    begins = [span for span in spans if span[0] == 0]
    if len(ends) != 1 or len(begins) != 1 or ends == begins:
        return list(spans)
    inner = [span for span in spans if span not in ends + begins]
    return [*inner, (ends[0][0], MINUTES_OF_WEEK + begins[0][1])]


def _days_words(days: list[int]) -> str:
    """Days of the week as `mon to fri `, or a list; "" for all of them."""
    if len(days) == len(WEEK_DAYS):
        return ""
    if len(days) > 1 and days == list(range(days[0], days[-1] + 1)):
        return f"{WEEK_DAYS[days[0]]} to {WEEK_DAYS[days[-1]]} "
    return ", ".join(WEEK_DAYS[day] for day in days) + " "


def format_moment(minute: int) -> str:
    """Format minutes since Monday 00:00 as `wed 23:30`."""
    day, of_day = divmod(minute, _DAY_MIN)
    return f"{WEEK_DAYS[day]} {_format_clock(of_day)}"


def _format_clock(of_day: int) -> str:
    """Format minutes since midnight as `23:30`."""
    return f"{of_day // 60:02d}:{of_day % 60:02d}"


def field_words(rule: FieldRule) -> str:
    """Phrase of a field that may leave: its label and transforms."""
    return f"{rule.name} up to {rule.level.name}" + "".join(map(transform_words, rule.transforms))


def account_words(account: BudgetAccount) -> str:
    """Phrase of an account of bytes, cost or energy; privacy accounts are described by `dp_words`."""
    what = _UNITS[account.coin]
    limit = account.limit // 1000 if account.coin is AccountUnit.ENERGY else account.limit
    span = "a day" if account.period_days == 1 else f"in {account.period_days} days"
    about = account.key.partition("/")[2]
    whose = f" of {_TOPICS.get(about, about)}" if account.topic else f" under {about}" if about else ""
    return f"{limit:,} {what} {span}{whose}"


_UNITS = {
    AccountUnit.BYTES: "bytes",
    AccountUnit.COST: "millionths of cost",
    AccountUnit.ENERGY: "joules of sending questions",
}
_TOPICS = {"q": "questions", "ask": "asks", "report": "reports", "state": "states"}


def dp_words(dp: NoiseTerms) -> str:
    """Phrase of differential privacy terms."""
    lot = "" if dp.random_ask is None else f", asked by lot ({dp.random_ask:g})"
    return (
        f"noise for each {dp.unit}: norm {dp.clip_norm:g}, sigma {dp.sigma:g}, epsilon {dp.epsilon:g} and "
        f"delta {dp.delta:g} in {dp.period_days} days, audits {dp.audit_share:g} of it{lot}"
    )


def retention_words(retention: RetentionTerms) -> str:
    """Phrase of retention: purpose, days, subject field."""
    subject = f", subject {retention.subject_field}" if retention.subject_field else ""
    return f"{retention.purpose}, kept {retention.keep_days} days{subject}"


def privacy_words(limits: tuple[LeakageLimits, ...]) -> str:
    """Phrase of leakage limits; "" where nothing is limited."""
    said = []
    for each in limits:
        named = {each.metric or "max_leakage": each.max_leakage, "attribute advantage": each.max_attribute_advantage}
        said += [f"{key} {limit:g}" for key, limit in named.items() if limit is not None]
    return ", ".join(dict.fromkeys(said))
