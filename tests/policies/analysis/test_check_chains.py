"""Transform chains: every chain that any context can make of a model's features is listed, and can be measured."""

from random import Random

import msgspec
import pytest

from policies.analysis.check import list_transform_chains
from policies.decisions import egress
from policies.decisions.egress import OPTIONAL_FIELDS
from policies.language.document import parse_policy
from policies.model.reasons import Denied
from policies.model.terms import resolve_terms
from tests.policies.doubles.given import FEATURES, TEXT
from tests.policies.doubles.random_policies import SEEDS, context, document
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType

pytestmark = pytest.mark.examples

NOISE = "dp = { clip_norm = 8.0, sigma = 5.0, delta = 1e-6, epsilon = 8.0 }"
STEP = 'transforms = {{ features = [{{ kind = "quantise", step = {} }}] }}'


def ruled(*tables: str) -> list[list[str]]:
    text = TEXT + "".join(f'[[rule]]\nname = "r{n}"\n{table}\n' for n, table in enumerate(tables))
    return [
        [step.kind.value for step in plans[0].transforms]
        for plans in list_transform_chains(parse_policy(text).compile(), (FEATURES,))
    ]


def test_without_rules_there_is_one_chain():
    assert ruled() == [["clip"]]


def test_rules_that_exclude_each_other_make_no_chain_together():
    low = f"when = {{ battery_below = 0.5 }}\n{STEP.format(2)}"
    told = ruled(low, f"unless = {{ battery_below = 0.5 }}\n{NOISE}")
    assert sorted(told) == [
        ["clip", "clip_norm", "noise"],
        ["clip", "quantise"],
        ["clip", "quantise", "clip_norm", "noise"],  # where the battery is unknown
    ]
    both = ruled(f'when = {{ region = ["a"] }}\n{STEP.format(2)}', f'when = {{ region = ["b"] }}\n{STEP.format(4)}')
    assert sorted(map(len, both)) == [1, 2, 2, 3]


def test_no_context_makes_a_chain_that_was_not_named():
    made = 0
    for seed in SEEDS:
        dice = Random(seed)
        policy, level = document(dice).compile(), dice.choice(list(SensitivityLevel)[:3])
        features = (FieldSpec("features", TensorDType.FP32, (4,), 0.0, 1.0, level, ""),)
        named = list_transform_chains(policy, features)
        for _ in range(10):
            now = context(dice)
            found = resolve_terms(policy, msgspec.structs.replace(now, level=level))
            assert not isinstance(found, Denied)
            out = egress.decide_egress(found, features, now.data_class)
            if not isinstance(out, Denied):
                made += 1
                assert tuple(plan for plan in out.fields if plan.spec.name not in OPTIONAL_FIELDS) in named, seed
    assert made
