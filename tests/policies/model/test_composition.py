"""The terms of one document stand in its policy as they are; where no rule applies they are the policy's own."""

from hashlib import sha256

import pytest

from policies.language.document import compose_policy
from policies.model.composition import hash_documents, order_layers
from policies.model.policy import EscalationMode, PolicyError
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


def test_a_composition_is_named_by_the_first_128_bits_of_its_documents_hashes():
    assert hash_documents(["ab"]) == "ab"
    assert hash_documents(["ab", "cd"]) == sha256(b"ab+cd").hexdigest()[:32]


def test_layers_stand_in_their_order_and_each_at_most_once():
    tenant, site = plain(), plain(('layer = "tenant"', 'layer = "site"'), name="ward", version=3)
    policy = compose_policy([site, tenant])
    assert ([part.name for part in policy.layers], policy.name, policy.version) == (["demo", "ward"], "demo+ward", 4)
    with pytest.raises(PolicyError, match=r"^'demo' and 'other' are both of layer tenant: one of each at most$"):
        order_layers([plain().compile_layer(), plain(name="other").compile_layer()])
    with pytest.raises(PolicyError, match=r"^no document: a policy has at least one$"):
        order_layers([])


def test_the_highest_notice_that_any_layer_clears_is_over():
    tenant = plain(("version = 1", "version = 1\nclears_notice = 3"))
    site = plain(('layer = "tenant"', 'layer = "site"'), ("version = 1", "version = 1\nclears_notice = 2"), name="ward")
    assert compose_policy([tenant, site]).clears_notice == 3
