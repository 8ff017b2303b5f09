"""The terms of one document stand in its policy as they are; where no rule applies they are the policy's own."""

from policies.model.policy import EscalationMode
from policies.model.terms import compute_terms
from tests.policies.doubles.given import plain
from wire.protocol.messages import SensitivityLevel

RULE = '[[rule]]\nname = "far"\nwhen = {{ data_class = ["open"] }}\n{}\n'


def test_the_base_terms_of_one_document_are_what_it_says():
    policy = plain(("budget_s = 1.0", "budget_s = 1.5"), ("audit_share = 0.0", "audit_share = 0.25")).compile()
    base = policy.base
    assert (base.mode, base.threshold, base.audit_share, base.budget_s) == (EscalationMode.WAIT, 0.9, 0.25, 1.5)
    assert (base.ceiling, base.hubs, base.regions) == (SensitivityLevel.P2, ("hub-1",), ("local",))
    assert (dict(base.data_classes), list(base.fields)) == ({"open": True}, ["features"])
    assert (policy.clears_notice, policy.zones, base.key) == (0, (), policy.hash)
    (account,) = base.accounts
    assert account.limit == 1_000_000


def test_terms_of_no_rule_are_the_base_itself_and_of_a_rule_have_its_name_and_key():
    policy = plain(rules=RULE.format("threshold = 0.5")).compile()
    assert compute_terms(policy, 0) is policy.base
    found = compute_terms(policy, 1, ("tags",))
    assert (found.rules, found.unknown, found.key, found.threshold) == (("far",), ("tags",), f"{policy.hash}/1", 0.5)


def test_the_zones_of_a_policy_are_those_that_its_rules_of_time_name():
    when = 'when = { time = { zone = "UTC", days = ["mon"] }, battery_below = 0.5 }'
    assert plain(rules=f'[[rule]]\nname = "a"\n{when}\ndeny = true\n').compile().zones == ("UTC",)
