"""Semantic diff of two policies: what becomes allowed or forbidden, each with a case in which it is so. Pure.

Rule: both policies are compared in the same contexts, all that their rules distinguish (`cases`), and of these in the
ones in which one lets the most leave that the other does not. A key that no case changes is not named.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Literal

import msgspec

from policies.analysis import cases
from policies.decisions.permit import expired_or_denied
from policies.model import differential_privacy, matching
from policies.model.context import DecisionContext, RuleCondition
from policies.model.matching import RuleBits
from policies.model.policy import (
    BudgetAccount,
    EscalationMode,
    FieldRule,
    LeakageLimits,
    NoiseTerms,
    NoveltyAction,
    Policy,
    Terms,
    TransformSpec,
)
from policies.model.reasons import Denied
from policies.model.terms import compute_terms, list_matched_rules
from wire.protocol.messages import SensitivityLevel

Direction = Literal["wider", "narrower", "changed"]
ChangeRows = Iterator[tuple[Direction, str, str, str]]  # direction, key, before, after
_MODES = list(EscalationMode)
_NOVELTY_ACTIONS = list(NoveltyAction)
_NUMBERS = ("threshold", "audit_share", "budget_s", "max_open")
_PLAIN = ("always", "where no rule applies")
_DAY_NAMES = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class PolicyChange(msgspec.Struct, frozen=True):
    """One change of a key. `when`: a case in words; "always" where no rule plays a part."""

    direction: Direction
    when: str
    key: str
    before: str
    after: str


def diff_policies(before: Policy, after: Policy) -> tuple[PolicyChange, ...]:
    """Compare two policies; returns one change per direction, key and values, with the plainest case.

    Raises `cases.TooManyCasesError` if their rules together distinguish more cases than are enumerated.
    """
    found: dict[tuple[Direction, str, str, str], PolicyChange] = {
        fact: PolicyChange(fact[0], "always", *fact[1:]) for fact in _diff_base(before, after)
    }
    for context in _list_contexts(before, after):
        old, new = _resolve_terms(before, context), _resolve_terms(after, context)
        when = _describe_case(before, after, (old, new), context)
        for fact in _diff_terms(old[0], new[0]):
            held = found.get(fact)
            if held is None or _is_plainer(when, held.when):
                found[fact] = PolicyChange(fact[0], when, *fact[1:])
    return tuple(found.values())


def _list_contexts(before: Policy, after: Policy) -> Iterator[DecisionContext]:
    """Contexts in which one policy allows most and the other least, and the other way round."""
    rules = (*before.rules, *after.rules)
    index = matching.build_index([(rule.when, rule.unless) for rule in rules])
    old, new = before.index.every, after.index.every << len(before.rules)
    classes = [name for name, lets in before.base.data_classes.items() if lets and after.base.data_classes.get(name)]
    labels = any(each.label_at_least is not None for rule in rules for each in (rule.when, rule.unless) if each)
    goals = (cases.CaseGoal(new, old, unknown=True), cases.CaseGoal(old, new, unknown=True))
    for goal, data_class, level in product(goals, classes, SensitivityLevel if labels else (SensitivityLevel.P2,)):
        for case in cases.enumerate_cases(index, goal, {"data_class": data_class, "level": level}):
            yield case.to_context(data_class, level)


def _is_plainer(first: str, second: str) -> bool:
    """Whether the first case is the simpler one: cases without rules come first, then the shorter text."""
    return (first not in _PLAIN, len(first)) < (second not in _PLAIN, len(second))


def _resolve_terms(policy: Policy, context: DecisionContext) -> tuple[Terms, RuleBits]:
    """Terms of a policy in a context, and the bits of the rules that apply."""
    bits, _ = policy.index.match_rules(context)
    return compute_terms(policy, bits), bits


def _diff_base(before: Policy, after: Policy) -> ChangeRows:
    """Changes that hold whatever the case."""
    yield from _diff_value("expires", before.expires, after.expires)
    yield from _diff_value("clears_notice", before.clears_notice, after.clears_notice)
    old, new = before.base.data_classes, after.base.data_classes
    for name in sorted({*old, *new}):
        yield from _diff_value(f"data class {name}", old.get(name, False), new.get(name, False))


def _diff_terms(old: Terms, new: Terms) -> ChangeRows:
    """Changes key by key. Where one side lets nothing leave, nothing else counts."""
    stays, will_stay = expired_or_denied(old, old.expires_day), expired_or_denied(new, new.expires_day)
    if stays or will_stay:
        if not (stays and will_stay):
            yield "wider" if stays else "narrower", "anything", _describe_denial(stays), _describe_denial(will_stay)
        return
    if old.mode is not new.mode:
        wider = _MODES.index(new.mode) < _MODES.index(old.mode)
        yield "wider" if wider else "narrower", "mode", old.mode, new.mode
    if old.novel is not new.novel:
        wider = _NOVELTY_ACTIONS.index(new.novel) < _NOVELTY_ACTIONS.index(old.novel)
        yield "wider" if wider else "narrower", "novel", old.novel, new.novel
    for key in _NUMBERS:
        yield from _diff_value(key, getattr(old, key), getattr(new, key))
    yield from _diff_value("ceiling", old.ceiling, new.ceiling)
    yield from _diff_names("hub", old.hubs, new.hubs)
    yield from _diff_names("region", old.regions, new.regions)
    yield from _diff_fields(old.fields, new.fields)
    yield from _diff_accounts({each.key: each for each in old.accounts}, {each.key: each for each in new.accounts})
    yield from _diff_safeguards(old, new)


def _describe_denial(denied: Denied | None) -> str:
    """Why nothing leaves, or that something may."""
    return f"stays: {denied.detail}" if denied else "may leave"


def _diff_value(key: str, old: float | str, new: float | str) -> ChangeRows:
    """Change of a key of which more is wider."""
    if old != new:
        wider = new > old  # type: ignore[operator]  # both are of one type
        yield "wider" if wider else "narrower", key, _format_value(old), _format_value(new)


def _format_value(value: object) -> str:
    """Text of a value as the document writes it."""
    return (
        value.name
        if isinstance(value, SensitivityLevel)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )


def _diff_names(key: str, old: Iterable[str], new: Iterable[str]) -> ChangeRows:
    """Changes of a list of names: more is wider."""
    for name in sorted({*old, *new}):
        yield from _diff_listed(f"{key} {name}", was=name in old, is_now=name in new)


def _diff_listed(key: str, *, was: bool, is_now: bool) -> ChangeRows:
    """Change of one name: listed or not."""
    if was is not is_now:
        yield "wider" if is_now else "narrower", key, "listed" if was else "-", "listed" if is_now else "-"


def _diff_fields(old: Mapping[str, FieldRule], new: Mapping[str, FieldRule]) -> ChangeRows:
    """Changes of listed fields: their level and transforms.

    More transforms at the end are narrower, fewer are wider, others just a change.
    """
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if before is None or after is None:
            yield from _diff_listed(f"field {name}", was=before is not None, is_now=after is not None)
            continue
        yield from _diff_value(f"field {name}, level", before.level, after.level)
        first, then = before.transforms, after.transforms
        if first != then:
            more, less = then[: len(first)] == first, first[: len(then)] == then
            direction: Direction = "narrower" if more else "wider" if less else "changed"
            yield direction, f"field {name}, transforms", _format_steps(first), _format_steps(then)


def _format_steps(steps: Iterable[TransformSpec]) -> str:
    """Kinds of transforms, in their order."""
    return " ".join(step.kind for step in steps) or "-"


def _diff_accounts(old: Mapping[str, BudgetAccount], new: Mapping[str, BudgetAccount]) -> ChangeRows:
    """Changes of accounts: one more, or a smaller limit, is narrower."""
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if before is None or after is None:
            direction: Direction = "wider" if after is None else "narrower"
            yield direction, f"account {key}", _format_limit(before), _format_limit(after)
        elif before.limit != after.limit:
            yield (
                "wider" if after.limit > before.limit else "narrower",
                f"account {key}",
                _format_limit(before),
                _format_limit(after),
            )


def _format_limit(account: BudgetAccount | None) -> str:
    """Limit of an account with its period; of privacy accounts in releases."""
    if account is None:
        return "no limit"
    return f"{account.limit // account.each if account.each else account.limit} in {account.period_days} d"


def _diff_safeguards(old: Terms, new: Terms) -> ChangeRows:
    """Changes of noise, leakage limits and retention."""
    if old.dp != new.dp:
        yield _dp_direction(old.dp, new.dp), "dp", _format_noise(old.dp), _format_noise(new.dp)
    if set(old.privacy) != set(new.privacy):
        more, less = set(new.privacy) > set(old.privacy), set(new.privacy) < set(old.privacy)
        direction: Direction = "narrower" if more else "wider" if less else "changed"
        yield direction, "privacy", _format_limits(old.privacy), _format_limits(new.privacy)
    if old.retention and new.retention:
        yield from _diff_value("retention.keep_days", old.retention.keep_days, new.retention.keep_days)
        if old.retention.purpose != new.retention.purpose:
            yield "changed", "retention.purpose", old.retention.purpose, new.retention.purpose


def _format_limits(limits: Iterable[LeakageLimits]) -> str:
    """Leakage limits in one phrase."""
    keys = ("max_leakage", "max_attribute_advantage")
    said = (f"{key} {getattr(each, key):g}" for each in limits for key in keys if getattr(each, key) is not None)
    return ", ".join(said) or "-"


def _dp_direction(old: NoiseTerms | None, new: NoiseTerms | None) -> Direction:
    """Which of two noise terms is narrower; "changed" if neither is in every number."""
    if old is None or new is None:
        return "narrower" if old is None else "wider"
    both = differential_privacy.merge_noise_terms(old, new)
    return "narrower" if both == new else "wider" if both == old else "changed"


def _format_noise(dp: NoiseTerms | None) -> str:
    """Noise terms in one phrase."""
    if dp is None:
        return "none"
    return f"sigma {dp.sigma:g}, clip_norm {dp.clip_norm:g}, epsilon {dp.epsilon:g} in {dp.period_days} d"


def _describe_case(
    before: Policy, after: Policy, found: tuple[tuple[Terms, RuleBits], tuple[Terms, RuleBits]], now: DecisionContext
) -> str:
    """Describe the case by the attributes that the applying rules ask for, on one side or on both."""
    rules = [*list_matched_rules(before, found[0][1]), *list_matched_rules(after, found[1][1])]
    if not rules:
        return _PLAIN[1] if before.rules or after.rules else _PLAIN[0]
    asked = [condition for rule in rules for condition in (rule.when, rule.unless) if condition is not None]
    return (
        ", ".join(dict.fromkeys(words for condition in asked for words in _describe_condition(condition, now)))
        or "always"
    )


def _describe_condition(condition: RuleCondition, now: DecisionContext) -> Iterator[str]:
    """Each attribute that a condition asks for, with the context's value."""
    for key in ("data_class", "device_class", "region", "tenant"):
        if getattr(condition, key) is not None:
            yield f"{key} {getattr(now, key) or 'unknown'}"
    if condition.tags is not None:
        yield f"tags {'unknown' if now.tags is None else ' '.join(now.tags) or '-'}"
    if condition.label_at_least is not None:
        yield f"label {now.level.name}"
    if condition.link_up is not None:
        yield f"link {'unknown' if now.link_up is None else 'up' if now.link_up else 'down'}"
    if condition.metered is not None:
        yield f"metered {'unknown' if now.metered is None else 'yes' if now.metered else 'no'}"
    if condition.battery_below is not None:
        yield f"battery {'unknown' if now.battery is None else f'{now.battery:g}'}"
    if condition.hours is not None:
        yield f"{format_minute(now.minute_of_week.get(condition.hours.zone))} {condition.hours.zone}"


def format_minute(minute: int | None) -> str:
    """Format a minute of the week: "Wed 23:30"."""
    if minute is None:
        return "time unknown"
    day, of_day = divmod(minute, 24 * 60)
    return f"{_DAY_NAMES[day]} {of_day // 60:02d}:{of_day % 60:02d}"
