"""Semantic diff of two policies: what becomes allowed or forbidden, each with a case in which it is so. Pure.

Rule: both policies are compared in the same contexts, all that their rules distinguish (`cases`), and of these in the
ones in which one lets the most leave that the other does not. A key that no case changes is not named.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Literal

import msgspec

from policies.analysis import cases
from policies.decisions.permit import in_force
from policies.model import differential_privacy, matching
from policies.model.context import Condition, Context
from policies.model.matching import Bits
from policies.model.policy import Account, Dp, FieldRule, Mode, Policy, Privacy, Terms, TransformSpec
from policies.model.reasons import Denied
from policies.model.terms import matched, worked_out
from wire.protocol.messages import Level

Direction = Literal["wider", "narrower", "changed"]
Facts = Iterator[tuple[Direction, str, str, str]]  # direction, key, before, after
_MODES = list(Mode)
_NUMBERS = ("threshold", "audit_share", "budget_s", "max_open")
_PLAIN = ("always", "where no rule applies")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class Change(msgspec.Struct, frozen=True):
    """One change of a key. `when`: a case in words; "always" where no rule plays a part."""

    direction: Direction
    when: str
    key: str
    before: str
    after: str


def diff(before: Policy, after: Policy) -> tuple[Change, ...]:
    """Compare two policies; returns one change per direction, key and values, with the plainest case.

    Raises `cases.TooManyError` if their rules together distinguish more cases than are enumerated.
    """
    found: dict[tuple[Direction, str, str, str], Change] = {
        fact: Change(fact[0], "always", *fact[1:]) for fact in _whole(before, after)
    }
    for context in _contexts(before, after):
        old, new = _terms(before, context), _terms(after, context)
        when = _when(before, after, (old, new), context)
        for fact in _facts(old[0], new[0]):
            held = found.get(fact)
            if held is None or _plainer(when, held.when):
                found[fact] = Change(fact[0], when, *fact[1:])
    return tuple(found.values())


def _contexts(before: Policy, after: Policy) -> Iterator[Context]:
    """Contexts in which one policy allows most and the other least, and the other way round."""
    rules = (*before.rules, *after.rules)
    index = matching.index([(rule.when, rule.unless) for rule in rules])
    old, new = before.index.every, after.index.every << len(before.rules)
    classes = [name for name, lets in before.base.data_classes.items() if lets and after.base.data_classes.get(name)]
    labels = any(each.label_at_least is not None for rule in rules for each in (rule.when, rule.unless) if each)
    goals = (cases.Goal(new, old, unknown=True), cases.Goal(old, new, unknown=True))
    for goal, data_class, level in product(goals, classes, Level if labels else (Level.P2,)):
        for case in cases.cases(index, goal, {"data_class": data_class, "level": level}):
            yield case.context(data_class, level)


def _plainer(first: str, second: str) -> bool:
    """Whether the first case is the simpler one: cases without rules come first, then the shorter text."""
    return (first not in _PLAIN, len(first)) < (second not in _PLAIN, len(second))


def _terms(policy: Policy, context: Context) -> tuple[Terms, Bits]:
    """Terms of a policy in a context, and the bits of the rules that apply."""
    bits, _ = policy.index.match(context)
    return worked_out(policy, bits), bits


def _whole(before: Policy, after: Policy) -> Facts:
    """Changes that hold whatever the case."""
    yield from _number("expires", before.expires, after.expires)
    yield from _number("clears_notice", before.clears_notice, after.clears_notice)
    old, new = before.base.data_classes, after.base.data_classes
    for name in sorted({*old, *new}):
        yield from _number(f"data class {name}", old.get(name, False), new.get(name, False))


def _facts(old: Terms, new: Terms) -> Facts:
    """Changes key by key. Where one side lets nothing leave, nothing else counts."""
    stays, will_stay = in_force(old, old.expires_day), in_force(new, new.expires_day)
    if stays or will_stay:
        if not (stays and will_stay):
            yield "wider" if stays else "narrower", "anything", _leaves(stays), _leaves(will_stay)
        return
    if old.mode is not new.mode:
        wider = _MODES.index(new.mode) < _MODES.index(old.mode)
        yield "wider" if wider else "narrower", "mode", old.mode, new.mode
    for key in _NUMBERS:
        yield from _number(key, getattr(old, key), getattr(new, key))
    yield from _number("ceiling", old.ceiling, new.ceiling)
    yield from _names("hub", old.hubs, new.hubs)
    yield from _names("region", old.regions, new.regions)
    yield from _fields(old.fields, new.fields)
    yield from _accounts({each.key: each for each in old.accounts}, {each.key: each for each in new.accounts})
    yield from _promises(old, new)


def _leaves(denied: Denied | None) -> str:
    """Why nothing leaves, or that something may."""
    return f"stays: {denied.detail}" if denied else "may leave"


def _number(key: str, old: float | str, new: float | str) -> Facts:
    """Change of a key of which more is wider."""
    if old != new:
        wider = new > old  # type: ignore[operator]  # both are of one type
        yield "wider" if wider else "narrower", key, _word(old), _word(new)


def _word(value: object) -> str:
    """Text of a value as the document writes it."""
    return value.name if isinstance(value, Level) else str(value).lower() if isinstance(value, bool) else str(value)


def _names(key: str, old: Iterable[str], new: Iterable[str]) -> Facts:
    """Changes of a list of names: more is wider."""
    for name in sorted({*old, *new}):
        yield from _listed(f"{key} {name}", was=name in old, is_now=name in new)


def _listed(key: str, *, was: bool, is_now: bool) -> Facts:
    """Change of one name: listed or not."""
    if was is not is_now:
        yield "wider" if is_now else "narrower", key, "listed" if was else "-", "listed" if is_now else "-"


def _fields(old: Mapping[str, FieldRule], new: Mapping[str, FieldRule]) -> Facts:
    """Changes of listed fields: their level and transforms.

    More transforms at the end are narrower, fewer are wider, others just a change.
    """
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if before is None or after is None:
            yield from _listed(f"field {name}", was=before is not None, is_now=after is not None)
            continue
        yield from _number(f"field {name}, level", before.level, after.level)
        first, then = before.transforms, after.transforms
        if first != then:
            more, less = then[: len(first)] == first, first[: len(then)] == then
            direction: Direction = "narrower" if more else "wider" if less else "changed"
            yield direction, f"field {name}, transforms", _steps(first), _steps(then)


def _steps(steps: Iterable[TransformSpec]) -> str:
    """Kinds of transforms, in their order."""
    return " ".join(step.kind for step in steps) or "-"


def _accounts(old: Mapping[str, Account], new: Mapping[str, Account]) -> Facts:
    """Changes of accounts: one more, or a smaller limit, is narrower."""
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if before is None or after is None:
            direction: Direction = "wider" if after is None else "narrower"
            yield direction, f"account {key}", _limit(before), _limit(after)
        elif before.limit != after.limit:
            yield "wider" if after.limit > before.limit else "narrower", f"account {key}", _limit(before), _limit(after)


def _limit(account: Account | None) -> str:
    """Limit of an account with its period; of privacy accounts in releases."""
    if account is None:
        return "no limit"
    return f"{account.limit // account.each if account.each else account.limit} in {account.period_days} d"


def _promises(old: Terms, new: Terms) -> Facts:
    """Changes of noise, leakage limits and retention."""
    if old.dp != new.dp:
        yield _dp_direction(old.dp, new.dp), "dp", _noise(old.dp), _noise(new.dp)
    if set(old.privacy) != set(new.privacy):
        more, less = set(new.privacy) > set(old.privacy), set(new.privacy) < set(old.privacy)
        direction: Direction = "narrower" if more else "wider" if less else "changed"
        yield direction, "privacy", _limits(old.privacy), _limits(new.privacy)
    if old.retention and new.retention:
        yield from _number("retention.keep_days", old.retention.keep_days, new.retention.keep_days)
        if old.retention.purpose != new.retention.purpose:
            yield "changed", "retention.purpose", old.retention.purpose, new.retention.purpose


def _limits(limits: Iterable[Privacy]) -> str:
    """Leakage limits in one phrase."""
    keys = ("max_leakage", "max_attribute_advantage")
    said = (f"{key} {getattr(each, key):g}" for each in limits for key in keys if getattr(each, key) is not None)
    return ", ".join(said) or "-"


def _dp_direction(old: Dp | None, new: Dp | None) -> Direction:
    """Which of two noise terms is narrower; "changed" if neither is in every number."""
    if old is None or new is None:
        return "narrower" if old is None else "wider"
    both = differential_privacy.merged(old, new)
    return "narrower" if both == new else "wider" if both == old else "changed"


def _noise(dp: Dp | None) -> str:
    """Noise terms in one phrase."""
    if dp is None:
        return "none"
    return f"sigma {dp.sigma:g}, clip_norm {dp.clip_norm:g}, epsilon {dp.epsilon:g} in {dp.period_days} d"


def _when(before: Policy, after: Policy, found: tuple[tuple[Terms, Bits], tuple[Terms, Bits]], now: Context) -> str:
    """Describe the case by the attributes that the applying rules ask for, on one side or on both."""
    rules = [*matched(before, found[0][1]), *matched(after, found[1][1])]
    if not rules:
        return _PLAIN[1] if before.rules or after.rules else _PLAIN[0]
    asked = [condition for rule in rules for condition in (rule.when, rule.unless) if condition is not None]
    return ", ".join(dict.fromkeys(words for condition in asked for words in _words(condition, now))) or "always"


def _words(condition: Condition, now: Context) -> Iterator[str]:
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
        yield f"{clock_words(now.minute_of_week.get(condition.hours.zone))} {condition.hours.zone}"


def clock_words(minute: int | None) -> str:
    """Format a minute of the week: "Wed 23:30"."""
    if minute is None:
        return "time unknown"
    day, of_day = divmod(minute, 24 * 60)
    return f"{_DAYS[day]} {of_day // 60:02d}:{of_day % 60:02d}"
