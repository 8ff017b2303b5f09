"""A chain of decisions in words and as values: the same functions the device calls, with their reasons spoken out."""

import difflib
from collections.abc import Iterator
from typing import Any

import msgspec

from policies import budget, egress, escalation, leakage, locality
from policies.budget import Spend
from policies.egress import OPTIONAL, Egress
from policies.escalation import Action, Decision, Link
from policies.judge import in_force
from policies.locality import HubSite
from policies.policy import ASKING, Mode, Policy, TransformKind, TransformSpec
from policies.reasons import Denied
from wire.messages import DType, FieldSpec, Level


class FactsError(Exception):
    """The description of a sample cannot be used: one line that names the key."""


class SampleField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field as a person writes it down. Without a label it counts as P4."""

    name: str
    level: str = Level.P4.name
    dtype: DType = DType.UINT8
    shape: tuple[int, ...] = (1,)
    low: float = 0.0
    high: float = 255.0
    category: str = ""


class SampleLeakage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the bundle for exactly the chain that the policy makes, as a person writes it down."""

    kind: str
    metric: str
    upper95: float
    subject: str = ""

    @property
    def chain(self) -> str:
        """Of no name: what a person writes here is about this sample's chain."""
        return ""


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of one sample and of the device at that moment.

    `fields` and `hubs` left out = exactly those that the policy lists. `audit_dice` 1.0 = not drawn for an audit.
    `leakage` left out = the bundle is measured for this policy, and within its limits.
    """

    confidence: float
    data_class: str
    fields: tuple[SampleField, ...] | None = None
    hubs: tuple[HubSite, ...] | None = None
    link_up: bool = True
    hub_quiet: bool = False
    audit_dice: float = 1.0
    size_bytes: int = 1024
    spent_bytes: int = 0
    leakage: tuple[SampleLeakage, ...] | None = None


class Step(msgspec.Struct, frozen=True):
    """One decision: `outcome` is a word of the decision itself, `why` its reason, `words` the sentence for people."""

    decision: str
    outcome: str
    why: str
    words: str


class Explanation(msgspec.Struct, frozen=True):
    """`leaves`: something of the sample goes to a hub. `result` says what the caller sees."""

    policy: str
    leaves: bool
    steps: tuple[Step, ...]
    result: str

    def lines(self) -> list[str]:
        width = max(len(step.decision) for step in self.steps)
        return [f"{step.decision:<{width}}  {step.words}" for step in self.steps] + [self.result]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built


def facts_of(values: object) -> Facts:
    """Facts from parsed JSON or TOML; FactsError for an unknown key, a missing one or a wrong type."""
    if isinstance(values, dict):
        for key in values:
            if key not in Facts.__struct_fields__:
                close = difflib.get_close_matches(str(key), Facts.__struct_fields__, n=1, cutoff=0.5)
                hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(Facts.__struct_fields__)}"
                raise FactsError(f"unknown key {str(key)[:40]!r}; {hint}")
    try:
        facts = msgspec.convert(values, Facts)
    except msgspec.ValidationError as error:
        raise FactsError(str(error)) from None
    for each in facts.fields or ():
        if each.level not in Level.__members__:
            raise FactsError(f"field {each.name!r}: level {each.level!r} is not one of {', '.join(Level.__members__)}")
    return facts


def schema_of(policy: Policy, facts: Facts) -> tuple[FieldSpec, ...]:
    """The sample's fields; where it names none, those of the policy with the labels it accepts."""
    if facts.fields is None:
        rules = policy.fields.values()
        return tuple(FieldSpec(each.name, DType.UINT8, (1,), 0.0, 255.0, each.level, "") for each in rules)
    return tuple(
        FieldSpec(each.name, each.dtype, each.shape, each.low, each.high, Level[each.level], each.category)
        for each in facts.fields
    )


def explain_sample(policy: Policy, schema: tuple[FieldSpec, ...], facts: Facts, day: int) -> Explanation:
    """The decisions in the order the device takes them, up to the first that keeps the sample here."""
    steps: list[Step] = []
    for step, goes_on in _chain(policy, schema, facts, day):
        steps.append(step)
        if not goes_on:
            return Explanation(policy.hash, leaves=False, steps=tuple(steps), result=_stays(policy))
    return Explanation(policy.hash, leaves=True, steps=tuple(steps), result=_goes(policy, steps[1].outcome))


def _chain(policy: Policy, schema: tuple[FieldSpec, ...], facts: Facts, day: int) -> Iterator[tuple[Step, bool]]:
    """Each decision, and whether the next one is asked."""
    denied = in_force(policy, day)
    until = f", valid until {policy.expires}" if policy.expires else ""
    yield _step("policy", denied, f"{policy.name}@{policy.version} ({policy.hash}), mode {policy.mode}{until}")
    link = Link(facts.link_up, float("inf") if facts.hub_quiet else 0.0)
    decision = escalation.decide(facts.confidence, link, policy, facts.audit_dice, 0.0)
    words = _escalation_words(policy, facts, decision)
    yield Step("escalation", decision.action, decision.why, words), decision.action is not Action.KEEP
    hubs = facts.hubs
    if hubs is None:
        hubs = tuple(HubSite(name, region) for name in policy.hubs for region in policy.regions[:1])
    allowed = locality.decide(policy, hubs)
    words = (
        "" if isinstance(allowed, Denied) else ", then ".join(f"{hub.name} in {hub.region}" for hub in allowed.targets)
    )
    yield _step("locality", allowed, f"may be answered by {words}")
    out = egress.decide(policy, schema, facts.data_class)
    yield _step("egress", out, "" if isinstance(out, Denied) else _egress_words(facts.data_class, schema, out))
    leaks = _leaks(policy, out, facts.leakage)
    yield _step("leakage", leaks, "measured for exactly this, and within the policy's limits")
    total = budget.charge(policy, Spend(day, facts.spent_bytes), facts.size_bytes, day)
    spent = 0 if isinstance(total, Denied) else total.bytes
    yield _step("budget", total, f"{facts.size_bytes} bytes: {spent} of {policy.bytes_per_day} today")


def _leaks(policy: Policy, out: Egress | Denied, rows: tuple[SampleLeakage, ...] | None) -> Denied | None:
    if rows is None or isinstance(out, Denied):
        return None
    specs = tuple(plan.spec for plan in out.fields)
    return leakage.clear(policy, specs, leakage.Evidence(rows, lambda _: "")).denied


def _step(decision: str, verdict: object, words: str) -> tuple[Step, bool]:
    if isinstance(verdict, Denied):
        return Step(decision, "denied", verdict.why, f"denied: {verdict.detail} ({verdict.why})"), False
    return Step(decision, "allowed", "", words), True


def _escalation_words(policy: Policy, facts: Facts, decision: Decision) -> str:
    sign = "below" if facts.confidence < policy.threshold else "not below"
    compared = f"confidence {facts.confidence:g} is {sign} the threshold {policy.threshold:g}"
    if not 0.0 <= facts.confidence <= 1.0:
        compared = f"confidence {facts.confidence} is not a number in 0..1"
    link = "" if facts.link_up else ", the link is down"
    quiet = ", the hub asked for silence" if facts.hub_quiet else ""
    drawn = ", drawn for an audit" if decision.audit else ""
    return f"{compared}{link}{quiet}{drawn}: {decision.action} ({decision.why})"


def _egress_words(data_class: str, schema: tuple[FieldSpec, ...], out: Egress) -> str:
    going = [
        f"{plan.spec.name} ({plan.spec.level.name}{''.join(map(_transform_words, plan.transforms))})"
        for plan in out.fields
    ]
    sent = {plan.spec.name for plan in out.fields}
    staying = [spec.name for spec in schema if spec.name not in sent and spec.name in OPTIONAL]
    stays = f"; {', '.join(staying)} stays: not listed" if staying else ""
    size = ", in one size for every sample" if out.fixed_size else ""
    return f"data class {data_class!r} may send {', '.join(going)}{size}{stays}"


def _transform_words(transform: TransformSpec) -> str:
    if transform.kind is TransformKind.CLIP:
        return f", clipped to {transform.low:g}..{transform.high:g}"
    return f", rounded to multiples of {transform.step:g}"


def _stays(policy: Policy) -> str:
    if policy.mode is Mode.DISABLED:
        return "Nothing leaves. There is no answer: the mode is disabled."
    return "Nothing leaves. The caller gets the local answer."


def _goes(policy: Policy, action: str) -> str:
    if action == Action.ASK and policy.mode is not Mode.ANSWER_NOW:
        return f"The hub is asked. The caller waits up to {policy.budget_s:g} s, then gets the local answer."
    if action == Action.QUEUE:
        return "The caller gets the local answer now. The question waits for the link; a correction may follow."
    return "The caller gets the local answer now. The hub is asked; a correction may follow."


def summary(policy: Policy) -> list[str]:
    """What a policy lets happen, a sentence a line."""
    asks = f"mode {policy.mode}: asks below confidence {policy.threshold:g}" if policy.mode in ASKING else "asks no hub"
    fields = [
        f"{each.name} up to {each.level.name}" + "".join(map(_transform_words, each.transforms))
        for each in policy.fields.values()
    ]
    classes = [name for name, leaves in policy.data_classes.items() if leaves]
    privacy = policy.privacy
    limits = {"max_leakage": privacy.max_leakage, "max_attribute_advantage": privacy.max_attribute_advantage}
    stated = ", ".join(f"{key} {limit:g}" for key, limit in limits.items() if limit is not None)
    return [
        f"{policy.name}@{policy.version} ({policy.hash})"
        + (f", valid until {policy.expires}" if policy.expires else ""),
        asks,
        f"may leave: {'; '.join(fields) or 'nothing'}; nothing above {policy.ceiling.name}",
        f"of data classes: {', '.join(classes) or 'none'}",
        f"to hubs: {', '.join(policy.hubs) or 'none'}; in regions: {', '.join(policy.regions) or 'none'}",
        f"only if measured for leakage{f', within {stated}' if stated else ''}",
        f"at most {policy.bytes_per_day} bytes a day, {policy.max_open} open questions",
    ]


def remarks(policy: Policy) -> list[str]:
    """What is allowed to be written but has no effect, or makes every question a denial."""
    if policy.mode not in ASKING:
        idle = f"escalation.audit_share is without effect: mode {policy.mode} never asks"
        return [idle] if policy.audit_share else []
    found = {
        "egress.field lists nothing": not policy.fields,
        "egress.data_class lets no class leave": True not in policy.data_classes.values(),
        "locality.hubs is empty": not policy.hubs,
        "locality.regions is empty": not policy.regions,
        "budget.bytes_per_day is 0": not policy.bytes_per_day,
        "budget.max_open is 0": not policy.max_open,
    }
    blocked = [f"{what}: every question is denied; mode local_only says so" for what, is_so in found.items() if is_so]
    if policy.mode is Mode.HUB_FIRST:
        blocked.append("escalation.threshold is without effect: mode hub_first asks whatever the confidence")
    return blocked
