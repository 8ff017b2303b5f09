"""Benchmark: cost of one policy decision under 50 rules, beside Cedar and Rego on the same rules.

`python -m benchmarks.agent.policy_cost [PYTHON]`; PYTHON: an interpreter that has cedarpy and regopy, else they are
left out. One decision of ours is all of it: which rules apply, what they leave, escalation, hub, fields, leakage,
accounts. The engines beside it say no more than allowed or denied.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import msgspec

from benchmarks.harness.figures import US, Figure, find_percentile, format_line, format_number
from policies.decisions import escalation
from policies.decisions.budget import BudgetSpend, MessageCost
from policies.decisions.egress import DERIVED_FIELDS
from policies.decisions.escalation import LinkState
from policies.decisions.leakage import LeakageCache
from policies.decisions.permit import Permit, PermitPrice, decide_permit
from policies.decisions.routing import HubSite
from policies.language.document import parse_policy
from policies.model.context import DecisionContext
from policies.model.policy import Policy, Terms
from policies.model.terms import resolve_terms
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType

RULES = 50
CONTEXTS = 200
TIMES = 20_000
LIMIT_US = 30.0
CLASSES, REGIONS = [f"class-{n}" for n in range(20)], [f"region-{n}" for n in range(20)]
SCHEMA = (FieldSpec("features", TensorDType.UINT8, (32,), 0.0, 15.0, SensitivityLevel.P1, ""), *DERIVED_FIELDS)
HUBS = (HubSite("hub-1", "local"), HubSite("hub-2", "local"))
DAY = 20_000
HEAD = """
schema = 2
name = "cost"
version = 1
issued = 2026-01-01
expires = 2099-12-31
escalation = { mode = "answer_now", threshold = 0.9, audit_share = 0.01, budget_s = 1.0 }
locality = { hubs = ["hub-1", "hub-2"], regions = ["local"] }
budget = { bytes_per_day = 1_000_000_000 }
retention = { purpose = "benchmark" }
"""


def draw_rules(dice: Random) -> list[dict[str, Any]]:
    """Each asks for three things, as Cedar's and Rego's do; battery in tenths, for Cedar has no fractions here."""
    return [
        {"data_class": dice.sample(CLASSES, 3), "region": dice.sample(REGIONS, 5), "battery": dice.randint(1, 9)}
        for _ in range(RULES)
    ]


def draw_moments(dice: Random, rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def one() -> dict[str, Any]:
        told = {"data_class": dice.choice(CLASSES), "region": dice.choice(REGIONS), "battery": dice.randint(0, 10)}
        hit = (
            told["data_class"] in each["data_class"]
            and told["region"] in each["region"]
            and told["battery"] < each["battery"]
            for each in rules
        )
        return told | {"denied": any(hit)}

    return [one() for _ in range(CONTEXTS)]


def build_policy(rules: list[dict[str, Any]]) -> Policy:
    classes = ", ".join(f"{name} = true" for name in CLASSES)
    tables = (
        f'[[rule]]\nname = "r{number}"\nwhen = {{ data_class = {json.dumps(each["data_class"])}, region ='
        f" {json.dumps(each['region'])}, battery_below = {each['battery'] / 10} }}\ndeny = true\nthreshold = 0.8\n"
        for number, each in enumerate(rules)
    )
    field = '{ name = "features", level = "P1", transforms = [{ kind = "clip", low = 0, high = 15 }] }'
    return parse_policy(
        f'{HEAD}[egress]\nceiling = "P2"\nfield = [{field}]\ndata_class = {{ {classes} }}\n' + "".join(tables)
    ).compile()


def time_ours(under: Policy, contexts: list[dict[str, Any]], *, forget: bool = False) -> list[float]:
    """Seconds of each decision. `forget`: nothing of an earlier one is remembered."""
    link, clearance = LinkState(up=True), LeakageCache(SCHEMA, None)
    known = [
        DecisionContext(
            each["data_class"],
            region=each["region"],
            battery=each["battery"] / 10,
            level=SensitivityLevel.P1,
            link_up=True,
        )
        for each in contexts
    ]
    price = PermitPrice(BudgetSpend(DAY), MessageCost(1024), DAY)

    def decide(now: DecisionContext) -> bool:
        found = resolve_terms(under, now)
        assert isinstance(found, Terms)
        escalation.decide_escalation(0.4, link, found, 0.5, 0.0)
        return isinstance(
            decide_permit(found, SCHEMA, HUBS, now.data_class, price, clearance.finding_for(found)), Permit
        )

    assert [decide(now) for now in known] == [not each["denied"] for each in contexts]
    clock, taken = time.perf_counter, []
    for turn in range(TIMES // (10 if forget else 1)):
        if forget:
            under.memo.clear()
            clearance = LeakageCache(SCHEMA, None)
        began = clock()
        decide(known[turn % CONTEXTS])
        taken.append(clock() - began)
    return taken


def time_peers(python: str, rules: list[dict[str, Any]], contexts: list[dict[str, Any]]) -> dict[str, list[float]]:
    program = Path(__file__).parents[1] / "peers" / "policy_engines.py"
    asked = json.dumps({"rules": rules, "contexts": contexts})
    done = subprocess.run([python, str(program)], input=asked, capture_output=True, text=True, check=True, timeout=120)
    return msgspec.json.decode(done.stdout, type=dict[str, list[float]])


def main() -> int:
    dice = Random(5)
    rules = draw_rules(dice)
    contexts = draw_moments(dice, rules)
    under = build_policy(rules)
    taken = [each * US for each in time_ours(under, contexts)]
    fresh = [each * US for each in time_ours(build_policy(rules), contexts, forget=True)]
    others = time_peers(sys.argv[1], rules, contexts) if len(sys.argv) > 1 else {}
    leave = [each for turn, each in enumerate(taken) if not contexts[turn % CONTEXTS]["denied"]]
    said = [
        f"p99 {format_number(find_percentile(leave, 0.99))} us; "
        f"{sum(each['denied'] for each in contexts)} of {CONTEXTS} contexts are denied by a rule: "
        f"with these p50 {format_number(median(taken))} us",
        f"nothing remembered: p50 {format_number(median(fresh))} us, "
        f"worst of {len(fresh)}: {format_number(max(fresh))} us",
        *(f"{name}: p50 {format_number(median(each) * US)} us" for name, each in others.items() if each),
    ]
    figure = Figure(
        f"a decision to let leave under {RULES} rules, p50", median(leave), "us", LIMIT_US, terms=tuple(said)
    )
    print(format_line(figure), *(f"    {term}" for term in figure.terms), sep="\n")
    return 0 if figure.held else 1


if __name__ == "__main__":
    sys.exit(main())
