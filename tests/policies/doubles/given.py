"""Fixtures of the policy tests: the shipped demo document, its schema, and invalid values."""

from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st

import policies
from policies.decisions.budget import BudgetSpend
from policies.decisions.egress import DERIVED_FIELDS
from policies.decisions.leakage import LeakageFinding
from policies.decisions.routing import HubSite
from policies.language.document import PolicyDocument, parse_policy
from policies.model.policy import AccountUnit, BudgetAccount, Terms
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType

TEXT = (Path(policies.__file__).parent / "templates" / "demo.toml").read_text(encoding="utf-8")
TODAY = 20_000
UNSPENT = BudgetSpend(TODAY)
FEATURES = FieldSpec("features", TensorDType.UINT8, (32,), 0.0, 15.0, SensitivityLevel.P2, "features")
SCHEMA = (FEATURES, *DERIVED_FIELDS)
HUBS = (HubSite("hub-1", "local"),)
DEMO_POLICY = parse_policy(TEXT).compile()
DEMO = DEMO_POLICY.base  # the terms of every context: the demo's document has no rules
MEASURED = LeakageFinding(DEMO.key, None)  # for the features of SCHEMA as the demo's policy changes them

# Values that stand in no sound policy, whatever the key.
JUNK = st.sampled_from([None, float("nan"), float("inf"), -1, "junk", b"\0", object(), [], {}, (), {1: 2}, True, 1e308])


PLAIN = """
schema = 2
name = "{name}"
layer = "tenant"
version = {version}
issued = 2026-01-01
expires = 2099-12-31
[escalation]
mode = "wait"
threshold = 0.9
audit_share = 0.0
budget_s = 1.0
[egress]
ceiling = "P2"
[[egress.field]]
name = "features"
level = "P2"
[egress.data_class]
open = true
[locality]
hubs = ["hub-1"]
regions = ["local"]
[retention]
purpose = "test"
[budget]
bytes_per_day = 1000000
"""


def plain(*edits: tuple[str, str], name: str = "demo", version: int = 1, rules: str = "") -> PolicyDocument:
    """A document without surprises: `features` may leave for one hub. Each edit's old text must stand in it."""
    return parse_policy(with_(PLAIN.format(name=name, version=version), *edits) + rules)


def with_(text: str, *edits: tuple[str, str]) -> str:
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


def policy(**changes: object) -> Terms:
    """The demo's terms with some of them changed; `bytes_per_day` stands for its account."""
    if "bytes_per_day" in changes:
        limit: Any = changes.pop("bytes_per_day")
        changes["accounts"] = (BudgetAccount("bytes", AccountUnit.BYTES, limit),)
    return msgspec.structs.replace(DEMO, **changes)


def spec(name: str = "features", level: SensitivityLevel = SensitivityLevel.P2) -> FieldSpec:
    return FieldSpec(name, TensorDType.UINT8, (32,), 0.0, 15.0, level, "features")


def cleared(under: object) -> LeakageFinding:
    """A finding that the features may leave under whatever stands in for a policy."""
    return LeakageFinding(getattr(under, "key", ""), None)
