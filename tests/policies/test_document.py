"""A document is closed and total: anything that cannot be meant is one line that names the key."""

import contextlib
import random
import tomllib
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from policies.document import MAX_CHARS, Budget, Egress, Escalation, Leakage, Locality, parse
from policies.policy import Mode, PolicyError, TransformKind, TransformSpec, day_of, may_replace
from tests.policies.given import DEMO, TEXT, policy, with_
from wire.messages import Level

WRONG = {
    "misspelt key": (("threshold", "treshold"), "escalation: unknown key 'treshold'; did you mean 'threshold'?"),
    "misspelt table": (("[locality]", "[local]"), "unknown key 'local'; did you mean 'locality'?"),
    "misspelt mode": (
        ('"answer_now"', '"answernow"'),
        "escalation.mode: 'answernow' is no mode; did you mean 'answer_now'?",
    ),
    "missing key": (("audit_share = 0.02", ""), "escalation.audit_share: is missing"),
    "missing table": (("[budget]\nbytes_per_day = 10_000_000", ""), "max_open"),
    "not a number": (("0.9", "nan"), "escalation.threshold: must be a finite number, not nan"),
    "infinite": (("budget_s = 2.0", "budget_s = inf"), "escalation.budget_s: must be a finite number, not inf"),
    "share above one": (("0.9", "1.5"), "escalation.threshold: must be less than or equal to 1, not 1.5"),
    "text for a number": (("0.9", '"0.9"'), "escalation.threshold: must be a valid number, not '0.9'"),
    "number for a bool": (("open = true", "open = 1"), "egress.data_class.open: must be a valid boolean, not 1"),
    "bool for a number": (("0.9", "true"), "escalation.threshold: must be a valid number, not True"),
    "negative budget": (("10_000_000", "-1"), "budget.bytes_per_day: must be greater than or equal to 0, not -1"),
    "raw data": (
        ('ceiling = "P2"', 'ceiling = "P4"'),
        "egress.ceiling: P4 never leaves a device; at most P3 can be allowed",
    ),
    "no such level": (('ceiling = "P2"', 'ceiling = "P9"'), "egress.ceiling: 'P9' is not one of P0, P1, P2, P3, P4"),
    "field above ceiling": (
        ('level = "P2"', 'level = "P3"'),
        "egress: field 'features' accepts P3, above the ceiling P2",
    ),
    "empty interval": (("low = 0", "low = 15"), "egress.field[0].transforms[0]: low 15 must be below high 15"),
    "key of another transform": (
        ("low = 0", "step = 2, low = 0"),
        "egress.field[0].transforms[0]: unknown key 'step'; known are high, kind, low",
    ),
    "unknown transform": (
        ('kind = "clip"', 'kind = "clap"'),
        "egress.field[0].transforms[0]: kind must be one of clip, quantise, not 'clap'",
    ),
    "name with a space": (("open = true", '"o n" = true'), "egress.data_class.o n: 'o n' is no name"),
    "hub twice": (('["hub-1"]', '["hub-1", "hub-1"]'), "locality: hubs names 'hub-1' twice"),
    "field twice": (
        ("[egress.data_class]", '[[egress.field]]\nname = "features"\nlevel = "P1"\n[egress.data_class]'),
        "egress: field names 'features' twice",
    ),
    "waiting for nothing": (
        ('"answer_now"', '"wait"'),
        ("budget_s = 2.0", "budget_s = 0"),
        "escalation: mode wait waits for the hub, but budget_s is 0; use answer_now or more seconds",
    ),
    "language of the future": (("schema = 1", "schema = 2"), "schema: must be 1, not 2"),
    "quoted date": (("version = 1", 'version = 1\nexpires = "2030-12-31"'), "expires: '2030-12-31' is not a date"),
    "date with a time": (("version = 1", "version = 1\nexpires = 2030-12-31T10:00:00"), "is not a date"),
    "no TOML": (("[escalation]", "[escalation"), "not TOML: Expected ']' at the end of a table declaration (at line 7"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_wrong_document_is_one_line_that_names_the_key(case):
    *edits, message = case
    with pytest.raises(PolicyError) as caught:
        parse(with_(TEXT, *edits))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_shipped_document_compiles():
    assert DEMO.mode is Mode.ANSWER_NOW
    assert DEMO.ceiling is Level.P2
    assert DEMO.fields["features"].transforms == (TransformSpec(TransformKind.CLIP, low=0.0, high=15.0),)
    assert DEMO.data_classes == {"open": True, "private": False}
    assert DEMO.expires_day is None


def test_transforms_keep_their_order():
    two = with_(TEXT, ("high = 15 }]", 'high = 15 }, { kind = "quantise", step = 2 }]'))
    rule = parse(two).compile().fields["features"]
    assert [each.kind for each in rule.transforms] == [TransformKind.CLIP, TransformKind.QUANTISE]
    assert rule.transforms[1].step == 2.0


def test_hash_is_of_the_meaning_not_of_the_layout():
    bare = "\n".join(line.split("#")[0] for line in TEXT.splitlines())
    turned = with_(bare, ("open = true\nprivate = false", "private = false\nopen = true"))
    assert parse(bare).compile().hash == parse(turned).compile().hash == DEMO.hash
    assert len(DEMO.hash) == 32


@pytest.mark.parametrize(
    "edit", [("0.9", "0.8"), ("true", "false"), ("high = 15", "high = 14"), ("version = 1", "version = 2")], ids=str
)
def test_every_change_of_meaning_changes_the_hash(edit):
    assert parse(with_(TEXT, edit)).compile().hash != DEMO.hash


def test_expiry_is_the_last_day():
    dated = parse(with_(TEXT, ("version = 1", "version = 1\nexpires = 2026-12-31"))).compile()
    assert dated.expires == "2026-12-31"
    assert dated.expires_day == (date(2026, 12, 31) - date(1970, 1, 1)).days


@given(st.dates())
def test_days_are_counted_as_the_calendar_does(day):
    assert day_of(day.isoformat()) == (day - date(1970, 1, 1)).days


def test_a_device_never_goes_back_to_an_older_document():
    newer = policy(version=2, hash="n" * 32)
    assert may_replace(DEMO, newer)
    assert may_replace(DEMO, DEMO)
    assert not may_replace(newer, DEMO)
    assert not may_replace(DEMO, policy(hash="x" * 32)), "another text under the same version"
    assert not may_replace(DEMO, policy(name="other", version=9))


def test_a_document_too_long_is_refused_before_it_is_parsed():
    with pytest.raises(PolicyError, match="characters"):
        parse("#" * (MAX_CHARS + 1))


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 50_000, "a = " + "9" * 10_000, "a = 1e999999", "\ud800 = 1", "a.b = 1\na = 2", "\0"]
)
def test_hostile_text_is_a_policy_error(text):
    with pytest.raises(PolicyError):
        parse(text)


@given(st.text())
def test_arbitrary_text_raises_policy_error_and_nothing_else(text):
    with pytest.raises(PolicyError):
        parse(text)


def _toml(value: Any) -> str:
    """Enough of a TOML writer for documents that are wrong in every place."""
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}" = {_toml(each)}' for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


LEAVES = (
    st.booleans()
    | st.integers()
    | st.floats()
    | st.text("ab-", max_size=3)
    | st.sampled_from(["P0", "P4", "wait", "clip"])
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3)
)


def _places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every path in a document."""
    if path:
        yield path
    steps = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, each in steps:
        yield from _places(each, (*path, key))


@given(value=VALUES, seed=st.integers(0, 10**6))
def test_a_sound_document_with_one_value_replaced_parses_or_raises_policy_error(value, seed):
    tree = tomllib.loads(TEXT)
    path = random.Random(seed).choice(list(_places(tree)))
    owner: Any = tree
    for key in path[:-1]:
        owner = owner[key]
    owner[path[-1]] = value
    text = "\n".join(f"{key} = {_toml(each)}" for key, each in tree.items())
    with contextlib.suppress(PolicyError):
        compiled = parse(text).compile()
        assert compiled.ceiling <= Level.P3
        assert 0 <= compiled.threshold <= 1
        assert compiled.bytes_per_day >= 0


PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")


def test_the_page_shows_a_sound_document():
    assert parse(PAGE.split("```toml\n")[1].split("```")[0]).compile().name == "demo"


def test_the_page_says_of_every_key_which_direction_is_narrower():
    tables: dict[str, type[BaseModel]] = {
        "escalation": Escalation,
        "egress": Egress,
        "locality": Locality,
        "budget": Budget,
        "privacy": Leakage,
    }
    keys = {f"{table}.{key}" for table, model in tables.items() for key in model.model_fields} | {"expires"}
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    assert {row[0].strip("`") for row in rows} == keys
    assert all(len(row) == 3 and row[2].strip() for row in rows)


def test_the_page_names_every_mode_level_and_transform():
    for word in (*Mode, *Level.__members__, *TransformKind):
        assert word in PAGE
