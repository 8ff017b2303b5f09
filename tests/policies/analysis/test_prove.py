"""The egress proof agrees with trying every context; its counter-examples are real."""

from itertools import product
from random import Random
from typing import Any

import pytest

from policies.analysis.cases import TooManyCasesError
from policies.analysis.prove import EgressClaim, EgressProof, ProofSample, list_samples, prove_claim
from policies.decisions import egress, permit, routing
from policies.decisions.routing import HubSite
from policies.language.document import parse_policy
from policies.model.context import DecisionContext
from policies.model.policy import Policy, Terms
from policies.model.reasons import Denied
from policies.model.terms import resolve_terms
from tests.policies.doubles.given import TEXT, with_
from tests.policies.doubles.random_policies import SEEDS, document, every_context
from wire.protocol.messages import SensitivityLevel

pytestmark = pytest.mark.examples

RULES = with_(TEXT, ('regions = ["local"]', 'regions = ["local", "eu"]'), ("private = false", "private = true"))


def leaves(policy: Policy, sample: ProofSample, context: DecisionContext, region: str) -> bool:
    """As a device would decide it."""
    found = resolve_terms(policy, context)
    assert isinstance(found, Terms)
    out = egress.decide_egress(found, sample.schema, context.data_class)
    sites = tuple(HubSite(hub, at) for hub in found.hubs for at in found.regions if region in ("", at))
    if isinstance(out, Denied) or isinstance(routing.filter_hubs(found, sites), Denied):
        return False
    return permit.expired_or_denied(found, found.expires_day) is None and sample.field in [
        plan.spec for plan in out.fields
    ]


def by_trying(policy: Policy, claim: EgressClaim) -> bool:
    """Whether the claim holds in every context, one after the other."""
    asked = [sample for sample in list_samples(policy) if sample.field.level > claim.level]
    for data_class, level in product(
        policy.base.data_classes, {egress.find_highest_level(each.schema) for each in asked}
    ):
        seen = set()
        for context in every_context(policy, data_class, level):
            bits, _ = policy.index.match_rules(context)
            if bits in seen:  # the same rules, so the same terms
                continue
            seen.add(bits)
            if any(
                leaves(policy, s, context, claim.region) for s in asked if egress.find_highest_level(s.schema) == level
            ):
                return False
    return True


def shown(policy: Policy, proof: EgressProof) -> None:
    """The counter-example leaves, by the device's own functions."""
    counter = proof.counter
    assert counter is not None
    meant = [
        each
        for each in list_samples(policy)
        if (each.field.name, each.field.level) == (counter.field, counter.level)
        and egress.find_highest_level(each.schema) == counter.context.level
    ]
    assert any(leaves(policy, sample, counter.context, counter.region) for sample in meant)
    found = resolve_terms(policy, counter.context)
    assert isinstance(found, Terms)
    assert (found.mode, found.rules) == (counter.mode, counter.rules)
    assert counter.hub in found.hubs


def test_static_proof_agrees_with_brute_force():
    held = 0
    for seed in SEEDS:
        dice = Random(seed)
        policy = document(dice, most_rules=4, most_keys=1 + (seed % 10 == 0)).compile()
        claim = EgressClaim(dice.choice(list(SensitivityLevel)[:3]), dice.choice(("", *policy.base.regions)))
        proof = prove_claim(policy, claim)
        held += proof.counter is None
        if proof.counter is not None:
            shown(policy, proof)
        else:
            assert by_trying(policy, claim), seed
    assert 0.1 < held / len(SEEDS) < 0.9, "of both kinds enough"


def proven(rules: str, level: SensitivityLevel, region: str = "") -> Any:
    return prove_claim(parse_policy(RULES + rules).compile(), EgressClaim(level, region)).counter


def test_without_rules_the_base_decides():
    assert proven("", SensitivityLevel.P2) is None
    counter = proven("", SensitivityLevel.P1, "eu")
    assert (counter.field, counter.level, counter.hub, counter.region) == (
        "features",
        SensitivityLevel.P2,
        "hub-1",
        "eu",
    )


def test_a_region_that_is_not_listed_gets_nothing():
    assert proven("", SensitivityLevel.P0, "mars") is None


def test_a_rule_holds_only_where_it_surely_applies():
    narrowed = '[[rule]]\nname = "keep"\nwhen = { data_class = ["private"] }\nregions = ["local"]\n'
    assert proven(narrowed, SensitivityLevel.P1, "eu").context.data_class == "open"
    both = narrowed + '[[rule]]\nname = "open"\nwhen = { data_class = ["open"] }\nceiling = "P1"\n'
    assert proven(both, SensitivityLevel.P1, "eu") is None
    assert proven(both, SensitivityLevel.P1, "local").context.data_class == "private"


def test_an_excuse_is_found():
    excuse = 'unless = { region = ["de"], tags = ["vip", "test"], battery_below = 0.2 }'
    excused = f'[[rule]]\nname = "away"\n{excuse}\ndeny = true\n'
    counter = proven(excused, SensitivityLevel.P1)
    assert counter.context.region == "de"
    assert set(counter.context.tags) & {"vip", "test"}
    assert counter.context.battery < 0.2


def test_a_gap_of_one_minute_in_the_week_is_found():
    hours = '[[rule]]\nname = "{}"\nwhen = {{ time = {{ from = "{}", to = "{}", zone = "UTC" }} }}\ndeny = true\n'
    assert (
        proven(hours.format("a", "00:00", "12:00") + hours.format("b", "12:00", "00:00"), SensitivityLevel.P1) is None
    )
    counter = proven(hours.format("a", "00:00", "12:00") + hours.format("b", "12:01", "00:00"), SensitivityLevel.P1)
    assert counter.context.minute_of_week["UTC"] % 1440 == 720


@pytest.mark.further
def test_rules_that_tell_apart_too_many_cases_prove_nothing():
    pairs = "".join(
        f'[[rule]]\nname = "a{n}"\nwhen = {{ tags = ["t{n}"] }}\ndeny = true\n'
        f'[[rule]]\nname = "b{n}"\nunless = {{ tags = ["t{n}"] }}\ndeny = true\n'
        for n in range(30)
    )
    with pytest.raises(TooManyCasesError):
        proven(pairs, SensitivityLevel.P1)
