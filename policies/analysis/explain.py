"""Explanation of a policy's decisions about one sample, in words and as values. Pure.

It calls the same functions as the device, in the same order, and reports the reason of each. Rule: nothing is decided
here.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from policies.analysis.facts import SampleFacts, SampleLeakage, build_context, build_schema
from policies.analysis.wording import transform_words
from policies.decisions import budget, egress, escalation, leakage, routing
from policies.decisions.budget import BudgetSpend, MessageCost
from policies.decisions.egress import OPTIONAL_FIELDS, EgressPlan
from policies.decisions.escalation import EscalationAction, EscalationDecision, LinkState
from policies.decisions.permit import expired_or_denied
from policies.decisions.routing import AllowedHubs, HubSite
from policies.model.context import NO_ZONES
from policies.model.differential_privacy import count_releases
from policies.model.policy import AccountUnit, EscalationMode, Policy, Terms
from policies.model.reasons import Denied
from policies.model.terms import resolve_terms
from wire.protocol.messages import FieldSpec


class ExplanationStep(msgspec.Struct, frozen=True):
    """One decision about the sample.

    `outcome`: a value of the decision itself, `why`: its reason code, `words`: the sentence for people.
    """

    decision: str
    outcome: str
    why: str
    words: str


class Explanation(msgspec.Struct, frozen=True):
    """All decisions about one sample.

    `leaves`: something of the sample goes to a hub, `fields` of it to one of `hubs`. `result`: what the caller sees.
    `rules`: those that apply; `unknown`: attributes because of which some of them do.
    """

    policy: str
    leaves: bool
    why: str
    steps: tuple[ExplanationStep, ...]
    result: str
    rules: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    hubs: tuple[HubSite, ...] = ()

    def format_lines(self) -> list[str]:
        """Lines for a terminal: a decision each, then the result."""
        width = max(len(step.decision) for step in self.steps)
        return [f"{step.decision:<{width}}  {step.words}" for step in self.steps] + [self.result]

    def as_dict(self) -> dict[str, Any]:
        """The explanation as plain dicts and lists, for JSON."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built


class _SampleCase(msgspec.Struct, frozen=True):
    """What all decisions about one sample have in common."""

    policy: Policy
    schema: tuple[FieldSpec, ...]
    facts: SampleFacts
    day: int


def explain_sample(policy: Policy, facts: SampleFacts, day: int, clock: Mapping[str, int] = NO_ZONES) -> Explanation:
    """Explain the decisions in the order the device takes them, up to the first that keeps the sample here.

    `day`: days since 1970, UTC. `clock`: minutes of the week per zone, where the facts name no time.
    """
    found = resolve_terms(policy, build_context(policy, facts, clock))
    if isinstance(found, Denied):
        denied, _ = _build_step("policy", found, "")
        return Explanation(policy.hash, leaves=False, why=found.why, steps=(denied,), result=_STAYS)
    case = _SampleCase(policy, build_schema(policy, facts), facts, day)
    steps: list[ExplanationStep] = []
    for step, goes_on in _run_decisions(case, found):
        steps.append(step)
        if not goes_on:
            result = _NO_ANSWER if found.mode is EscalationMode.DISABLED else _STAYS
            return Explanation(
                policy.hash, leaves=False, why=step.why, steps=tuple(steps), result=result, rules=found.rules,
                unknown=found.unknown,
            )  # fmt: skip
    asked = next(step for step in steps if step.decision == "escalation")
    result = _describe_result(found, asked.outcome)
    if any(step.outcome == NOT_JUDGED for step in steps):
        result = f"If the bundle's measured leakage allows it: {result}"
    return Explanation(
        policy.hash, leaves=True, why=asked.why, steps=tuple(steps), result=result,
        rules=found.rules, unknown=found.unknown, fields=_list_fields(case, found), hubs=_list_targets(found, facts),
    )  # fmt: skip


def _run_decisions(case: _SampleCase, found: Terms) -> Iterator[tuple[ExplanationStep, bool]]:
    """Each decision, and whether the next one is taken."""
    facts = case.facts
    if found.rules:
        yield _build_step("rules", None, _rules_words(found))
    yield _build_step("policy", expired_or_denied(found, case.day), _policy_words(case.policy, found))
    link = LinkState(facts.link_up, float("inf") if facts.hub_quiet else 0.0)
    decision = escalation.decide_escalation(
        facts.confidence, link, found, facts.audit_dice, 0.0, in_domain=facts.in_domain
    )
    words = _escalation_words(found, facts, decision)
    yield (
        ExplanationStep("escalation", decision.action, decision.why, words),
        decision.action is not EscalationAction.KEEP,
    )
    allowed = routing.filter_hubs(found, _list_hubs(found, facts))
    yield _build_step("locality", allowed, _locality_words(allowed))
    out = egress.decide_egress(found, case.schema, facts.data_class)
    yield _build_step(
        "egress", out, "" if isinstance(out, Denied) else _egress_words(facts.data_class, case.schema, out)
    )
    yield _build_leakage_step(found, out, facts.leakage)
    noised = 0 if isinstance(out, Denied) else out.releases
    cost = MessageCost(facts.size_bytes, facts.price, noised, decision.audit, energy_mj=facts.energy_mj)
    yield _build_step(
        "budget",
        budget.charge_accounts(found, _build_spend(found, case), cost, case.day),
        _budget_words(found, case, cost),
    )


def _build_spend(found: Terms, case: _SampleCase) -> BudgetSpend:
    """Spend that the facts describe, charged to every account that it would have been charged to."""
    spent = {AccountUnit.BYTES: case.facts.spent_bytes, AccountUnit.COST: 0, AccountUnit.ENERGY: case.facts.spent_mj}
    totals = {
        (each.key, case.day // each.period_days): spent.get(each.coin, case.facts.spent_releases * each.each)
        for each in found.accounts
    }
    return BudgetSpend(case.day, totals)


def _list_hubs(found: Terms, facts: SampleFacts) -> tuple[HubSite, ...]:
    """Hubs that the facts name, else every hub of the policy in its first region."""
    if facts.hubs is not None:
        return facts.hubs
    return tuple(HubSite(name, region) for name in found.hubs for region in found.regions[:1])


def _list_targets(found: Terms, facts: SampleFacts) -> tuple[HubSite, ...]:
    """Hubs that may answer, in the policy's order."""
    allowed = routing.filter_hubs(found, _list_hubs(found, facts))
    return () if isinstance(allowed, Denied) else allowed.targets


def _list_fields(case: _SampleCase, found: Terms) -> tuple[str, ...]:
    """Names of the fields that leave."""
    out = egress.decide_egress(found, case.schema, case.facts.data_class)
    return () if isinstance(out, Denied) else tuple(each.spec.name for each in out.fields)


def _check_leakage(found: Terms, out: EgressPlan | Denied, rows: tuple[SampleLeakage, ...] | None) -> Denied | None:
    """Denial by the leakage that the facts name; None if they name none."""
    if rows is None or isinstance(out, Denied):
        return None
    specs = tuple(plan.spec for plan in out.fields)
    return leakage.assess_leakage(found, specs, leakage.LeakageEvidence(rows, lambda _: "")).denied


def _build_leakage_step(
    found: Terms, out: EgressPlan | Denied, rows: tuple[SampleLeakage, ...] | None
) -> tuple[ExplanationStep, bool]:
    """Step of the leakage decision; without measurements it is not decided here, and the explanation goes on."""
    specs = () if isinstance(out, Denied) else tuple(plan.spec for plan in out.fields)
    if not leakage.needs_measurement(found, specs):
        return _build_step("leakage", None, "no measurement is needed: no limit is set, and no field is of P2 or above")
    if rows is None:
        return ExplanationStep("leakage", NOT_JUDGED, "", _NOT_MEASURED_HERE), True
    return _build_step("leakage", _check_leakage(found, out, rows), "the measurements given are within the limits")


def _build_step(decision: str, verdict: object, words: str) -> tuple[ExplanationStep, bool]:
    """Step of a decision that may deny, and whether the next one is taken."""
    if isinstance(verdict, Denied):
        return ExplanationStep(decision, "denied", verdict.why, f"denied: {verdict.detail} ({verdict.why})"), False
    return ExplanationStep(decision, "allowed", "", words), True


def _policy_words(policy: Policy, found: Terms) -> str:
    """Layers, hash, mode and expiry of the policy."""
    named = ", ".join(f"{part.layer} {part.name}@{part.version}" for part in policy.layers)
    return f"{named} ({policy.hash}), mode {found.mode}, valid until {found.expires}"


def _rules_words(found: Terms) -> str:
    """Rules that apply, and the unknown attributes that count as narrower."""
    verb = "applies" if len(found.rules) == 1 else "apply"
    unknown = f"; not known, so counted as narrower: {', '.join(found.unknown)}" if found.unknown else ""
    return f"{', '.join(found.rules)} {verb}{unknown}"


def _escalation_words(found: Terms, facts: SampleFacts, decision: EscalationDecision) -> str:
    """Confidence against the threshold, the link, and the decision."""
    sign = "below" if facts.confidence < found.threshold else "not below"
    compared = f"confidence {facts.confidence:g} is {sign} the threshold {found.threshold:g}"
    if not 0.0 <= facts.confidence <= 1.0:
        compared = f"confidence {facts.confidence} is not a number in 0..1"
    novel = f", the sample is unlike what the model knows (novel = {found.novel})" if facts.in_domain is False else ""
    link = "" if facts.link_up else ", the link is down"
    quiet = ", the hub wants no questions now" if facts.hub_quiet else ""
    drawn = ", drawn for an audit" if decision.audit else ""
    return f"{compared}{novel}{link}{quiet}{drawn}: {decision.action} ({decision.why})"


def _budget_words(found: Terms, case: _SampleCase, cost: MessageCost) -> str:
    """Bytes of today with this message, and noised releases that are left."""
    total = case.facts.spent_bytes + cost.size_bytes
    words = f"{cost.size_bytes} bytes: {total} of {found.bytes_per_day} today"
    if found.dp is None:
        return words
    left = count_releases(found.dp) - case.facts.spent_releases - cost.releases
    return f"{words}; {cost.releases} noised: {left} more in these {found.dp.period_days} days"


def _locality_words(allowed: AllowedHubs | Denied) -> str:
    """Hubs that may answer."""
    if isinstance(allowed, Denied):
        return ""
    return "may be answered by " + ", then ".join(f"{hub.name} in {hub.region}" for hub in allowed.targets)


def _egress_words(data_class: str, schema: tuple[FieldSpec, ...], out: EgressPlan) -> str:
    """Fields that leave with their transforms, and derived fields that stay."""
    going = [
        f"{plan.spec.name} ({plan.spec.level.name}{''.join(map(transform_words, plan.transforms))})"
        for plan in out.fields
    ]
    sent = {plan.spec.name for plan in out.fields}
    staying = [spec.name for spec in schema if spec.name not in sent and spec.name in OPTIONAL_FIELDS]
    stays = f"; {', '.join(staying)} stays" if staying else ""
    size = ", in one size for every sample" if out.fixed_size else ""
    return f"data class {data_class!r} may send {', '.join(going)}{size}{stays}"


NOT_JUDGED = "not judged"  # outcome of a step that rests on what was not given
_NOT_MEASURED_HERE = (
    "not judged: no measurements were given (`leakage` of the sample); a device asks its bundle for those of exactly "
    "this, and keeps the question without"
)
_STAYS = "Nothing leaves. The caller gets the local answer."
_NO_ANSWER = "Nothing leaves. There is no answer: the mode is disabled."


def _describe_result(found: Terms, action: str) -> str:
    """What the caller sees of a question that leaves."""
    if action == EscalationAction.ASK and found.mode is not EscalationMode.ANSWER_NOW:
        return f"The hub is asked. The caller waits up to {found.budget_s:g} s, then gets the local answer."
    if action == EscalationAction.QUEUE:
        return "The caller gets the local answer now. The question waits for the link; a correction may follow."
    return "The caller gets the local answer now. The hub is asked; a correction may follow."
