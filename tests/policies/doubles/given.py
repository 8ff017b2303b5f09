"""Fixtures of the policy tests: the shipped demo document, its schema, and invalid values."""

from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st

import policies
from policies.decisions.budget import Spend
from policies.decisions.egress import DERIVED
from policies.decisions.leakage import Cleared
from policies.decisions.routing import HubSite
from policies.language.document import Document, parse
from policies.model.policy import Account, Coin, Terms
from wire.protocol.messages import DType, FieldSpec, Level

TEXT = (Path(policies.__file__).parent / "templates" / "demo.toml").read_text(encoding="utf-8")
TODAY = 20_000
UNSPENT = Spend(TODAY)
FEATURES = FieldSpec("features", DType.UINT8, (32,), 0.0, 15.0, Level.P2, "features")
SCHEMA = (FEATURES, *DERIVED)
HUBS = (HubSite("hub-1", "local"),)
DEMO_POLICY = parse(TEXT).compile()
DEMO = DEMO_POLICY.base  # the terms of every context: the demo's document has no rules
MEASURED = Cleared(DEMO.key, None)  # for the features of SCHEMA as the demo's policy changes them

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


def plain(*edits: tuple[str, str], name: str = "demo", version: int = 1, rules: str = "") -> Document:
    """A document without surprises: `features` may leave for one hub. Each edit's old text must stand in it."""
    return parse(with_(PLAIN.format(name=name, version=version), *edits) + rules)


def with_(text: str, *edits: tuple[str, str]) -> str:
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


def policy(**changes: object) -> Terms:
    """The demo's terms with some of them changed; `bytes_per_day` stands for its account."""
    if "bytes_per_day" in changes:
        limit: Any = changes.pop("bytes_per_day")
        changes["accounts"] = (Account("bytes", Coin.BYTES, limit),)
    return msgspec.structs.replace(DEMO, **changes)


def spec(name: str = "features", level: Level = Level.P2) -> FieldSpec:
    return FieldSpec(name, DType.UINT8, (32,), 0.0, 15.0, level, "features")


def cleared(under: object) -> Cleared:
    """A finding that the features may leave under whatever stands in for a policy."""
    return Cleared(getattr(under, "key", ""), None)
