"""Summary of a policy in sentences, for an auditor; and per key, which layer or rule says what. Pure.

For people: no device calls it.
"""

from collections.abc import Callable, Iterator

import msgspec

from policies.analysis.wording import (
    account_words,
    condition_words,
    dp_words,
    field_words,
    privacy_words,
    retention_words,
)
from policies.model.differential_privacy import count_releases
from policies.model.policy import (
    ASKING_MODES,
    HARD_CEILING_LEVEL,
    AccountUnit,
    EscalationMode,
    Narrowing,
    NoveltyAction,
    Policy,
    PolicyRule,
    Terms,
)

SourceWords = tuple[str, str]  # who, and what of it


class KeySummary(msgspec.Struct, frozen=True):
    """One key of the language: what each layer and rule says of it, the outermost layer first, and what holds."""

    key: str
    said: tuple[SourceWords, ...]
    holds: str

    def format_line(self) -> str:
        """Format the key as one line: sources, then the value that holds."""
        told = "; ".join(f"{who}: {what}" for who, what in self.said)
        return f"{told}  ->  {self.holds}" if len(self.said) > 1 else f"{self.holds}  ({self.said[0][0]})"


def summarise_layers(policy: Policy, found: Terms) -> tuple[KeySummary, ...]:
    """Summarise which layer or rule says what, for terms of this policy; keys that nobody sets are left out.

    `found`: terms in one context; rules that do not apply in it are left out.
    """
    sources = list(_list_sources(policy, found))
    keys = []
    for name, words in _KEYS.items():
        said = tuple((who, what) for who, narrowing in sources if (what := words(narrowing)) is not None)
        if said:
            keys.append(KeySummary(name, said, words(found) or "nothing"))
    return tuple(keys)


def describe_narrowing(narrowing: Narrowing) -> str:
    """Describe all that a rule takes away, in one line."""
    found = {name: words(narrowing) for name, words in _KEYS.items()}
    return "; ".join(
        f"{name} {words}" if name != "deny" else "nothing leaves" for name, words in found.items() if words
    )


def _list_sources(policy: Policy, found: Terms) -> Iterator[tuple[str, Narrowing]]:
    """Layers and applying rules, each with what it takes away."""
    for part in policy.layers:
        yield f"{part.layer} {part.name}@{part.version}", part.base
    for rule in policy.rules:
        if rule.name in found.rules:
            yield f"rule {rule.name}", rule.narrowing


_Either = Narrowing | Terms


def _make_number_words(name: str) -> Callable[[_Either], str | None]:
    """Function that formats the number of this name; None where it is not set."""

    def words(one: _Either) -> str | None:
        value = getattr(one, name)
        return None if value is None else f"{value:g}"

    return words


def _make_name_words(name: str) -> Callable[[_Either], str | None]:
    """Function that joins the names at this key; None where they are not set."""

    def words(one: _Either) -> str | None:
        value = getattr(one, name)
        return None if value is None else ", ".join(value) or "none"

    return words


def _describe_fields(one: _Either) -> str | None:
    """Fields that leave, or what a rule takes away of them; None if it says nothing."""
    rules = (one.fields or {}).values()
    said = [field_words(rule) for rule in rules]
    if isinstance(one, Terms):
        return "; ".join(said) or "none"
    if all(rule.level is HARD_CEILING_LEVEL and not rule.transforms for rule in rules):
        said = [f"only {rule.name}" for rule in rules]
    said += [f"not {name}" for name in one.drop]
    said += [f"{name} changed more" for name in one.transforms or {}]
    return ("; ".join(said) or "none") if said or one.fields is not None else None


def _describe_classes(one: _Either) -> str | None:
    """Data classes that may leave; None where they are not set."""
    if one.data_classes is None:
        return None
    return ", ".join(name for name, leaves in one.data_classes.items() if leaves) or "none"


def _describe_accounts(one: _Either) -> str | None:
    """Accounts of bytes, cost and energy; None without any."""
    return "; ".join(account_words(each) for each in one.accounts if each.coin != "privacy") or None


_KEYS: dict[str, Callable[[_Either], str | None]] = {
    "expires": lambda one: one.expires,
    "deny": lambda one: f"denied by {one.denied_by}" if one.denied_by else None,
    "mode": lambda one: one.mode,
    "threshold": _make_number_words("threshold"),
    "audit_share": _make_number_words("audit_share"),
    "budget_s": _make_number_words("budget_s"),
    "novel": lambda one: one.novel,
    "ceiling": lambda one: None if one.ceiling is None else one.ceiling.name,
    "field": _describe_fields,
    "data_class": _describe_classes,
    "hubs": _make_name_words("hubs"),
    "regions": _make_name_words("regions"),
    "budget": _describe_accounts,
    "max_open": _make_number_words("max_open"),
    "privacy": lambda one: privacy_words(one.privacy) or None,
    "dp": lambda one: dp_words(one.dp) if one.dp else None,
    "retention": lambda one: retention_words(one.retention) if one.retention else None,
}


def summarise_policy(policy: Policy) -> list[str]:
    """Summarise a policy, a sentence a line: the most it allows, then each rule with its case."""
    base = policy.base
    named = ", ".join(f"{part.layer} {part.name}@{part.version}" for part in policy.layers)
    return [
        f"{named} ({policy.hash}), valid until {policy.expires}",
        *_describe_base(base),
        *map(_describe_rule, policy.rules),
    ]


_NOVEL_WORDS = {
    NoveltyAction.ASK: ", and of samples unlike what the model knows",
    NoveltyAction.FLAG: "",
    NoveltyAction.REJECT: "; rejects samples unlike what the model knows",
}


def describe_asking(base: Terms) -> str:
    """When a device under these terms asks the hub, in a few words."""
    return f"mode {base.mode}: asks below confidence {base.threshold:g}" if base.mode in ASKING_MODES else "asks no hub"


def _describe_base(base: Terms) -> list[str]:
    """Sentences about the base: when it asks, what leaves, to whom, at which limits."""
    asks = describe_asking(base) + _NOVEL_WORDS[base.novel]
    fields = "; ".join(map(field_words, base.fields.values()))
    classes = ", ".join(name for name, leaves in base.data_classes.items() if leaves)
    limits = privacy_words(base.privacy)
    spending = "; ".join(account_words(each) for each in base.accounts if each.coin is not AccountUnit.PRIVACY)
    return [
        asks,
        f"may leave: {fields or 'nothing'}; nothing above {base.ceiling.name}",
        f"of data classes: {classes or 'none'}",
        f"to hubs: {', '.join(base.hubs) or 'none'}; in regions: {', '.join(base.regions) or 'none'}",
        f"only if measured for leakage{f', within {limits}' if limits else ''}",
        f"at most {spending}; {base.max_open:,} open questions",
        *([f"used for {retention_words(base.retention)}"] if base.retention else []),
        *([dp_words(base.dp)] if base.dp else []),
    ]


def _describe_rule(rule: PolicyRule) -> str:
    """Describe where a rule applies, and what it takes away."""
    when, unless = condition_words(rule.when), condition_words(rule.unless) if rule.unless else ""
    case = (f" where {when}" if when else "") + (f" unless {unless}" if unless else "")
    return f"rule {rule.name}{case}: {describe_narrowing(rule.narrowing)}"


def count_releases_by_rule(policy: Policy) -> dict[str, int]:
    """Releases until denial, of the base ("") and of each rule that asks for noise."""
    noised = {"": policy.base.dp, **{rule.name: rule.narrowing.dp for rule in policy.rules}}
    return {name: count_releases(dp) for name, dp in noised.items() if dp is not None}


def list_remarks(policy: Policy) -> list[str]:
    """List settings that have no effect, or that make every question a denial."""
    base = policy.base
    if base.mode not in ASKING_MODES:
        idle = f"escalation.audit_share is without effect: mode {base.mode} never asks"
        return [idle] if base.audit_share else []
    found = {
        "egress.field lists nothing": not base.fields,
        "egress.data_class lets no class leave": True not in base.data_classes.values(),
        "locality.hubs is empty": not base.hubs,
        "locality.regions is empty": not base.regions,
        "budget.bytes_per_day is 0": not base.bytes_per_day,
        "budget.max_open is 0": not base.max_open,
    }
    blocked = [f"{what}: every question is denied; mode local_only says so" for what, is_so in found.items() if is_so]
    if base.mode is EscalationMode.HUB_FIRST:
        blocked.append("escalation.threshold is without effect: mode hub_first asks whatever the confidence")
    return blocked
