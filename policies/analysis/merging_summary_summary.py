"""What a policy lets happen at the most, in sentences: what somebody who audits it reads first."""

from policies.analysis.merging_summary_layered import said_by
from policies.analysis.wording import (
    account_words,
    condition_words,
    dp_words,
    field_words,
    privacy_words,
    retention_words,
)
from policies.model.merging_differential_privacy_noised import releases
from policies.model.policy import ASKING, Coin, Mode, Policy, Rule, Terms


def summary(policy: Policy) -> list[str]:
    """A sentence a line: the ceiling, then each rule with its case."""
    base = policy.base
    named = ", ".join(f"{part.layer} {part.name}@{part.version}" for part in policy.layers)
    return [f"{named} ({policy.hash}), valid until {policy.expires}", *_ceiling(base), *map(_rule, policy.rules)]


def _ceiling(base: Terms) -> list[str]:
    asks = f"mode {base.mode}: asks below confidence {base.threshold:g}" if base.mode in ASKING else "asks no hub"
    fields = "; ".join(map(field_words, base.fields.values()))
    classes = ", ".join(name for name, leaves in base.data_classes.items() if leaves)
    limits = privacy_words(base.privacy)
    spending = "; ".join(account_words(each) for each in base.accounts if each.coin is not Coin.PRIVACY)
    return [
        asks,
        f"may leave: {fields or 'nothing'}; nothing above {base.ceiling.name}",
        f"of data classes: {classes or 'none'}",
        f"to hubs: {', '.join(base.hubs) or 'none'}; in regions: {', '.join(base.regions) or 'none'}",
        f"only if measured for leakage{f', within {limits}' if limits else ''}",
        f"at most {spending}; {base.max_open} open questions",
        *([f"used for {retention_words(base.retention)}"] if base.retention else []),
        *([dp_words(base.dp)] if base.dp else []),
    ]


def _rule(rule: Rule) -> str:
    """Where it applies, and what it takes away."""
    when, unless = condition_words(rule.when), condition_words(rule.unless) if rule.unless else ""
    case = (f" where {when}" if when else "") + (f" unless {unless}" if unless else "")
    return f"rule {rule.name}{case}: {said_by(rule.narrowing)}"


def releases_by(policy: Policy) -> dict[str, int]:
    """Releases until denial, under the ceiling ("") and under each rule that asks for noise."""
    noised = {"": policy.base.dp, **{rule.name: rule.narrowing.dp for rule in policy.rules}}
    return {name: releases(dp) for name, dp in noised.items() if dp is not None}


def remarks(policy: Policy) -> list[str]:
    """What is allowed to be written but has no effect, or makes every question a denial."""
    base = policy.base
    if base.mode not in ASKING:
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
    if base.mode is Mode.HUB_FIRST:
        blocked.append("escalation.threshold is without effect: mode hub_first asks whatever the confidence")
    return blocked
