"""Terms, as property tests: rules and layers only narrow, in any order; unknown narrows, damaged denies."""

from collections.abc import Mapping
from itertools import permutations
from random import Random
from typing import Any

import msgspec
import pytest

from policies.decisions import egress
from policies.decisions.egress import OPTIONAL_FIELDS, EgressPlan
from policies.decisions.permit import decide_permit, expired_or_denied
from policies.language.document import PolicyDocument, compose_policy, parse_policy
from policies.model.composition import hash_documents
from policies.model.context import DecisionContext, RuleCondition
from policies.model.policy import (
    HARD_CEILING_LEVEL,
    EscalationMode,
    NoveltyAction,
    Policy,
    PolicyError,
    PolicyLayer,
    Terms,
)
from policies.model.reasons import DecisionReason, Denied
from policies.model.terms import list_certain_rules, resolve_terms, resolve_terms_for
from tests.examples import count_examples
from tests.policies.doubles.given import DEMO, DEMO_POLICY, HUBS, MEASURED, SCHEMA, TEXT, TODAY, with_
from tests.policies.doubles.random_policies import SEEDS, context, document, schema
from wire.protocol.messages import SensitivityLevel

pytestmark = pytest.mark.examples

MODES = list(EscalationMode)
NOVELTY_ACTIONS = list(NoveltyAction)


def found(policy: Policy, now: DecisionContext) -> Terms:
    told = resolve_terms(policy, now)
    assert isinstance(told, Terms), told
    return told


def within(narrow: Terms, wide: Terms) -> bool:
    """Nothing that `narrow_terms` allows is denied by `wide`, key by key."""
    limits = {each.key: each for each in narrow.accounts}
    numbers = ("threshold", "audit_share", "budget_s", "max_open", "ceiling", "expires_day", "bytes_per_day")
    return (
        MODES.index(narrow.mode) >= MODES.index(wide.mode)
        and NOVELTY_ACTIONS.index(narrow.novel) >= NOVELTY_ACTIONS.index(wide.novel)
        and all(getattr(narrow, key) <= getattr(wide, key) for key in numbers)
        and set(narrow.hubs) <= set(wide.hubs)
        and set(narrow.regions) <= set(wide.regions)
        and all(leaves <= wide.data_classes.get(name, False) for name, leaves in narrow.data_classes.items())
        and all(_field_within(each, wide.fields) for each in narrow.fields.values())
        and all(each.key in limits and limits[each.key].limit <= each.limit for each in wide.accounts)
        and set(wide.privacy) <= set(narrow.privacy)
        and (not wide.denied_by or bool(narrow.denied_by))
        and _dp_within(narrow, wide)
        and (wide.retention is None or (narrow.retention or wide.retention).keep_days <= wide.retention.keep_days)
    )


def _field_within(rule: Any, wide: Mapping[str, Any]) -> bool:
    other = wide.get(rule.name)
    steps = iter(rule.transforms)
    return other is not None and rule.level <= other.level and all(step in steps for step in other.transforms)


def _dp_within(narrow: Terms, wide: Terms) -> bool:
    if wide.dp is None:
        return True
    a, b = narrow.dp, wide.dp
    return a is not None and a.clip_norm <= b.clip_norm and a.sigma >= b.sigma and a.limit <= b.limit


def applies(when: RuleCondition, unless: RuleCondition | None, context: DecisionContext) -> bool:
    """Whether a rule applies: nothing it asks is known not to hold, and not all that excuses is known to hold.

    The plain reading, one rule at a time; the tables of `matching` say the same of all rules at once.
    """
    if any(holds is False for _, holds in when.check_keys(context)):
        return False
    return unless is None or not all(holds is True for _, holds in unless.check_keys(context))


def test_every_rule_applies_exactly_where_a_plain_reading_says_so():
    for seed in SEEDS:
        dice = Random(seed)
        policy, now = document(dice).compile(), context(dice)
        plainly = tuple(rule.name for rule in policy.rules if applies(rule.when, rule.unless, now))
        assert found(policy, now).rules == plainly, seed


def test_rules_only_narrow_and_what_is_not_known_narrows_most():
    for seed in SEEDS:
        dice = Random(seed)
        policy, now = document(dice).compile(), context(dice)
        narrowed = found(policy, now)
        assert within(narrowed, policy.base), seed
        nothing = DecisionContext(now.data_class, level=now.level)
        assert within(found(policy, nothing), narrowed), seed
        assert set(list_certain_rules(policy, nothing)) <= set(narrowed.rules) <= set(found(policy, nothing).rules), (
            seed
        )


def test_merge_only_narrows():
    for seed in SEEDS:
        dice = Random(seed)
        layers = [document(dice, layer) for layer in dice.sample(list(PolicyLayer), dice.randint(2, 3))]
        merged, now = compose_policy(layers), context(dice)
        for layer in layers:
            assert within(found(merged, now), found(layer.compile(), now)), seed


def test_the_order_of_layers_changes_nothing():
    for seed in SEEDS[: count_examples(100)]:
        dice = Random(seed)
        layers = [document(dice, layer) for layer in PolicyLayer]
        now = context(dice)
        told = {msgspec.json.encode(found(compose_policy(order), now)) for order in permutations(layers)}
        assert len(told) == 1, seed


def test_no_unlisted_field_is_ever_in_what_leaves():
    for seed in SEEDS:
        dice = Random(seed)
        policy, now, fields = document(dice).compile(), context(dice), schema(dice)
        allowed = found(policy, now)
        out = egress.decide_egress(allowed, fields, now.data_class)
        if isinstance(out, Denied):
            continue
        assert policy.base.data_classes[now.data_class], seed
        for plan in out.fields:
            rule = policy.base.fields[plan.spec.name]
            assert plan.spec in fields, seed
            assert plan.spec.level <= min(rule.level, policy.base.ceiling, HARD_CEILING_LEVEL), seed
            assert plan.transforms[: len(rule.transforms)] == rule.transforms, seed
        leaving = {plan.spec.name for plan in out.fields}
        assert {spec.name for spec in fields} - OPTIONAL_FIELDS <= leaving, "a feature left behind makes no question"


def test_a_rule_more_lets_nothing_more_leave():
    for seed in SEEDS:
        dice = Random(seed)
        policy, now, fields = document(dice).compile(), context(dice), schema(dice)
        out = egress.decide_egress(found(policy, now), fields, now.data_class)
        wide = egress.decide_egress(policy.base, fields, now.data_class)
        if isinstance(out, EgressPlan):
            assert isinstance(wide, EgressPlan), seed
            assert {plan.spec for plan in out.fields} <= {plan.spec for plan in wide.fields}, seed


@pytest.mark.parametrize(
    "damage",
    [
        {"battery": float("nan")}, {"battery": -0.1}, {"battery": 1.1}, {"battery": True}, {"battery": "full"},
        {"minute_of_week": {"UTC": 10_080}}, {"minute_of_week": {"UTC": -1}}, {"minute_of_week": {"UTC": 1.0}},
        {"minute_of_week": None}, {"metered": "no"}, {"link_up": 1}, {"level": 2}, {"level": None}, {"tags": "k"},
        {"tags": (1,)}, {"region": None}, {"data_class": 7}, {"device_class": b"x"}, {"tenant": ()},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_attribute_denies(damage):
    hours = 'when = { time = { zone = "UTC", days = ["mon"] }, battery_below = 0.5 }'
    policy = parse_policy(f'{TEXT}[[rule]]\nname = "r"\n{hours}\nthreshold = 0.5\n').compile()
    told = resolve_terms(policy, msgspec.structs.replace(DecisionContext("open"), **damage))
    assert isinstance(told, Denied)
    assert told.why is DecisionReason.DENIED_POLICY_ERROR


def ruled(*tables: str) -> PolicyDocument:
    return parse_policy(TEXT + "".join(f'[[rule]]\nname = "r{n}"\n{table}\n' for n, table in enumerate(tables)))


def test_unknown_counts_as_matching_and_is_named():
    policy = ruled('when = { metered = true }\nmode = "local_only"').compile()
    assert found(policy, DecisionContext("open", metered=False)).rules == ()
    told = found(policy, DecisionContext("open"))
    assert (told.rules, told.unknown, told.mode) == (("r0",), ("metered",), EscalationMode.LOCAL_ONLY)
    assert found(policy, DecisionContext("open", metered=True)).unknown == ()


def test_an_excuse_counts_only_where_it_is_known():
    policy = ruled('unless = { region = ["eu"] }\ndeny = true').compile()
    assert found(policy, DecisionContext("open", region="eu")).rules == ()
    assert expired_or_denied(found(policy, DecisionContext("open", region="us")), TODAY) == Denied(
        DecisionReason.DENIED_RULE, "rule 'r0' lets nothing leave"
    )
    assert found(policy, DecisionContext("open")).denied_by == "r0"


@pytest.mark.parametrize(
    ("minute", "applies_then"),
    [(22 * 60, True), (22 * 60 - 1, False), (24 * 60 + 359, True), (24 * 60 + 360, False), (0, False)],
    ids=["begins", "not yet", "past midnight", "over", "the night before is Sunday's"],
)
def test_a_night_belongs_to_the_day_on_which_it_begins(minute, applies_then):
    night = 'when = { time = { from = "22:00", to = "06:00", days = ["mon"], zone = "Europe/Berlin" } }\ndeny = true'
    policy = ruled(night).compile()
    assert policy.zones == ("Europe/Berlin",)
    told = found(policy, DecisionContext("open", minute_of_week={"Europe/Berlin": minute, "UTC": 0}))
    assert bool(told.rules) is applies_then


def test_a_night_that_begins_on_sunday_ends_on_monday():
    policy = ruled(
        'when = { time = { from = "22:00", to = "06:00", days = ["sun"], zone = "UTC" } }\ndeny = true'
    ).compile()
    assert found(policy, DecisionContext("open", minute_of_week={"UTC": 0})).rules == ("r0",)
    assert found(policy, DecisionContext("open", minute_of_week={"UTC": 360})).rules == ()


def test_a_rule_that_says_more_than_the_base_has_no_effect():
    policy = ruled('threshold = 1.0\nmode = "hub_first"\nhubs = ["hub-1", "hub-2"]\nceiling = "P3"').compile()
    told = found(policy, DecisionContext("open"))
    assert (told.threshold, told.mode, told.hubs, told.ceiling) == (DEMO.threshold, DEMO.mode, DEMO.hubs, DEMO.ceiling)


def test_purpose_missing_is_denied():
    aimless = msgspec.structs.replace(DEMO, retention=None)
    told = egress.decide_egress(aimless, SCHEMA, "open")
    assert isinstance(told, Denied)
    assert told.why is DecisionReason.DENIED_PURPOSE
    with pytest.raises(PolicyError, match="retention is missing"):
        parse_policy(
            with_(TEXT, ('[retention]\npurpose = "demo"          # what the hub may use it for\nkeep_days = 7 ', "# "))
        )


def test_rules_that_are_named_are_taken_and_none_other():
    policy = ruled("threshold = 0.5", "threshold = 0.4").compile()
    told = resolve_terms_for(policy, ["r1"])
    assert isinstance(told, Terms)
    assert (told.threshold, told.rules) == (0.4, ("r1",))
    assert isinstance(resolve_terms_for(policy, ["r2"]), Denied)
    assert isinstance(resolve_terms_for(None, []), Denied)
    assert isinstance(resolve_terms(None, DecisionContext("open")), Denied)


def test_two_documents_of_one_layer_are_refused():
    with pytest.raises(PolicyError, match="one of each at most"):
        compose_policy([parse_policy(TEXT), parse_policy(with_(TEXT, ('"demo"', '"other"')))])
    with pytest.raises(PolicyError, match="no document"):
        compose_policy([])


def test_a_composition_names_its_layers_and_whose_a_rule_is():
    site = with_(TEXT, ('name = "demo"', 'name = "ward"'))
    tenant = with_(TEXT, ('name = "demo"', 'name = "clinic"\nlayer = "tenant"'), ("version = 1", "version = 4"))
    rule = '[[rule]]\nname = "night"\nbytes_per_day = {}\n'
    merged = compose_policy([parse_policy(site + rule.format(10)), parse_policy(tenant + rule.format(20))])
    assert [(part.layer, part.name) for part in merged.layers] == [
        (PolicyLayer.TENANT, "clinic"),
        (PolicyLayer.SITE, "ward"),
    ]
    assert merged.hash == hash_documents([part.hash for part in merged.layers]) != merged.layers[0].hash
    told = found(merged, DecisionContext("open"))
    assert told.rule == "clinic+ward@5+clinic/night+ward/night"
    assert {each.key: each.limit for each in told.accounts} == {
        "bytes": 10_000_000, "bytes/clinic/night": 20, "bytes/ward/night": 10,
    }  # fmt: skip
    assert told.fields["features"].transforms == DEMO.fields["features"].transforms, "clipped once, not twice"


def test_what_is_remembered_of_one_policy_says_nothing_of_another():
    policy = ruled("threshold = 0.5").compile()
    assert found(policy, DecisionContext("open")).threshold == 0.5
    other = msgspec.structs.replace(policy, rules=ruled("threshold = 0.1").compile().rules)
    assert found(other, DecisionContext("open")).threshold == 0.1


def test_judge_denies_where_the_terms_are_denied():
    denied = Denied(DecisionReason.DENIED_POLICY_ERROR, "damaged")
    nothing: Any = None
    assert decide_permit(denied, SCHEMA, HUBS, "open", nothing, MEASURED) is denied


def test_without_rules_the_terms_are_the_base():
    assert found(DEMO_POLICY, DecisionContext("open", level=SensitivityLevel.P2)) is DEMO_POLICY.memo[0, ()]
    assert found(DEMO_POLICY, DecisionContext("open")) == DEMO


def test_no_more_sets_of_rules_are_remembered_than_have_room():
    policy = ruled(
        *(f'when = {{ tags = ["t{n}"] }}\nthreshold = 0.{n + 1}' for n in range(8)), "audit_share = 0.0"
    ).compile()
    for number in range(5000):
        policy.memo[number, ("made up",)] = DEMO
    assert found(policy, DecisionContext("open", tags=("t3",))).rules == ("r3", "r8")
    assert len(policy.memo) == 1
    broken = msgspec.structs.replace(policy, rules=())
    assert isinstance(resolve_terms_for(broken, ["r1"]), Denied)


def test_rules_that_cannot_be_applied_deny():
    policy = ruled("threshold = 0.5").compile()
    nothing: Any = None
    broken = msgspec.structs.replace(policy.rules[0], narrowing=nothing)
    damaged = msgspec.structs.replace(policy, rules=(broken,))
    assert isinstance(resolve_terms(damaged, DecisionContext("open")), Denied)
    assert isinstance(resolve_terms_for(damaged, ["r0"]), Denied)


def test_asking_about_novel_samples_must_be_said_by_every_layer():
    asks = ("threshold = 0.9", 'novel = "ask"\nthreshold = 0.9')
    above = ('name = "demo"', 'name = "tenant"\nlayer = "tenant"')
    site, tenant, both = (parse_policy(with_(TEXT, *edits)) for edits in ((asks,), (above,), (above, asks)))
    assert site.compile().base.novel is NoveltyAction.ASK
    assert compose_policy((site, tenant)).base.novel is NoveltyAction.FLAG
    assert compose_policy((site, both)).base.novel is NoveltyAction.ASK
    assert parse_policy(TEXT).compile().base.novel is NoveltyAction.FLAG


def test_a_document_that_says_nothing_of_novel_samples_keeps_its_hash():
    said = with_(TEXT, ("threshold = 0.9", 'novel = "flag"\nthreshold = 0.9'))
    assert parse_policy(said).compile().hash == parse_policy(TEXT).compile().hash
    with pytest.raises(PolicyError, match="did you mean 'reject'"):
        parse_policy(with_(TEXT, ("threshold = 0.9", 'novel = "rejct"\nthreshold = 0.9')))
