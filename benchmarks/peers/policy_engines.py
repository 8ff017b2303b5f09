"""One decision of Cedar (cedarpy) and of Rego (regopy): the rules and contexts come as JSON, seconds per call go out.

Run by `benchmarks.agent.policy_cost` in an environment of its own. Each engine is given its best: parsed or compiled
once.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

TIMES = 2000


def main() -> None:
    asked = json.load(sys.stdin)
    told = {}
    for name, engine in (("cedar", cedar), ("rego", rego)):
        try:
            told[name] = engine(asked["rules"], asked["contexts"])
        except ImportError:
            told[name] = []
    json.dump(told, sys.stdout)


def timed(decide: Callable[[int], bool], contexts: list[Any]) -> list[float]:
    """Each context in turn; the first tenth does not count. What is decided has to be what the rules say."""
    for number, context in enumerate(contexts):
        if decide(number) is context["denied"]:
            raise ValueError(f"context {number} was decided wrongly")
    taken = []
    for turn in range(TIMES):
        began = time.perf_counter()
        decide(turn % len(contexts))
        taken.append(time.perf_counter() - began)
    return taken[TIMES // 10 :]


def cedar(rules: list[Any], contexts: list[Any]) -> list[float]:
    from cedarpy import Decision, Entities, PolicySet, is_authorized  # noqa: PLC0415

    text = "permit(principal, action, resource);\n" + "\n".join(
        f"forbid(principal, action, resource) when {{ {json.dumps(rule['data_class'])}.contains(context.data_class)"
        f" && {json.dumps(rule['region'])}.contains(context.region) && context.battery < {rule['battery']} }};"
        for rule in rules
    )
    policies, entities = PolicySet.from_str(text), Entities.from_json_str("[]")
    requests = [
        {
            "principal": 'Device::"d"', "action": 'Action::"ask"', "resource": 'Hub::"h"',
            "context": {key: context[key] for key in ("data_class", "region", "battery")},
        }
        for context in contexts
    ]  # fmt: skip
    return timed(lambda n: is_authorized(requests[n], policies, entities).decision == Decision.Allow, contexts)


def rego(rules: list[Any], contexts: list[Any]) -> list[float]:
    from regopy import Interpreter  # noqa: PLC0415

    text = "package skerry\nimport rego.v1\ndefault denied := false\n" + "\n".join(
        f"denied if {{ input.data_class in {json.dumps(rule['data_class'])}; input.region in"
        f" {json.dumps(rule['region'])}; input.battery < {rule['battery']} }}"
        for rule in rules
    )
    maker = Interpreter()
    maker.add_module("skerry", text)
    bundle = maker.build("x=data.skerry.denied", ["skerry/denied"])
    runner = Interpreter()

    def decide(number: int) -> bool:
        runner.set_input(contexts[number])
        told = json.loads(str(runner.query_bundle(bundle)))
        return told["bindings"]["x"] is False

    return timed(decide, contexts)


if __name__ == "__main__":
    main()
