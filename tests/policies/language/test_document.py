"""Policy documents: closed and total, and every error is one line that names the key."""

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

import policies
from policies.language.document import MAX_POLICY_CHARS, parse_policy
from policies.model.context import WeeklyHours, date_to_day, day_to_date
from policies.model.policy import (
    HARD_CEILING_LEVEL,
    EscalationMode,
    LeakageLimits,
    Narrowing,
    NoveltyAction,
    Policy,
    PolicyError,
    PolicyLayer,
    PrivacyUnit,
    TransformKind,
    TransformSpec,
    may_replace_policy,
)
from policies.model.terms import compute_terms
from tests.policies.doubles.given import DEMO, DEMO_POLICY, TEXT, with_
from tests.policies.doubles.random_policies import SEEDS
from tests.random_inputs import COUNTS, random_inputs, try_parser
from wire.protocol.messages import SensitivityLevel

WRONG = {
    "misspelt key": (("threshold", "treshold"), "escalation: unknown key 'treshold'; did you mean 'threshold'?"),
    "misspelt table": (("[locality]", "[local]"), "unknown key 'local'; did you mean 'locality'?"),
    "misspelt mode": (
        ('"answer_now"', '"answernow"'),
        "escalation.mode: 'answernow' is no mode; did you mean 'answer_now'?",
    ),
    "missing key": (("audit_share = 0.02", ""), "escalation.audit_share: is missing"),
    "missing table": (("[budget]\n", "[retention.budget]\n"), "budget: is missing"),
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
        "egress.field[0].transforms[0]: kind must be one of bucketize, clip, clip_norm, coarsen, drop, ",
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
    "language of the future": (("schema = 2", "schema = 3"), "schema: must be 2, not 3"),
    "quoted date": (("expires = 2099-12-31", 'expires = "2030-12-31"'), "expires: '2030-12-31' is not a date"),
    "date with a time": (("expires = 2099-12-31", "expires = 2030-12-31T10:00:00"), "is not a date"),
    "misspelt layer": (
        ("version = 1", 'layer = "tenent"\nversion = 1'),
        "layer: 'tenent' is no layer; did you mean 'tenant'?",
    ),
    "no such unit": (
        ("[budget]", '[dp]\nunit = "person"\nclip_norm = 1\nsigma = 1\ndelta = 0.1\nepsilon = 1\n[budget]'),
        "dp.unit: 'person' is no unit; known are device, record, subject",
    ),
    "expires before it is issued": (
        ("expires = 2099-12-31", "expires = 2026-11-21"),
        "expires 2026-11-21 is before issued 2026-11-22",
    ),
    "no table": (("[budget]", "[other]"), "unknown key 'other'"),
    "number for a table": (("[egress.data_class]", "[retention.x]"), "retention: unknown key 'x'"),
    "no TOML": (("[escalation]", "[escalation"), "not TOML: Expected ']' at the end of a table declaration (at line 8"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_wrong_document_is_one_line_that_names_the_key(case):
    *edits, message = case
    with pytest.raises(PolicyError) as caught:
        parse_policy(with_(TEXT, *edits))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_shipped_document_compiles():
    assert DEMO.mode is EscalationMode.ANSWER_NOW
    assert DEMO.ceiling is SensitivityLevel.P2
    assert DEMO.fields["features"].transforms == (TransformSpec(TransformKind.CLIP, low=0.0, high=15.0),)
    assert DEMO.data_classes == {"open": True, "private": False}
    assert DEMO.expires == "2099-12-31"


def test_transforms_keep_their_order():
    two = with_(TEXT, ("high = 15 }]", 'high = 15 }, { kind = "quantise", step = 2 }]'))
    rule = parse_policy(two).compile().base.fields["features"]
    assert [each.kind for each in rule.transforms] == [TransformKind.CLIP, TransformKind.QUANTISE]
    assert rule.transforms[1].step == 2.0


def test_hash_is_of_the_meaning_not_of_the_layout():
    bare = "\n".join(line.split("#")[0] for line in TEXT.splitlines())
    turned = with_(bare, ("open = true\nprivate = false", "private = false\nopen = true"))
    assert parse_policy(bare).compile().hash == parse_policy(turned).compile().hash == DEMO.hash
    assert len(DEMO.hash) == 32


@pytest.mark.parametrize(
    "edit", [("0.9", "0.8"), ("true", "false"), ("high = 15", "high = 14"), ("version = 1", "version = 2")], ids=str
)
def test_every_change_of_meaning_changes_the_hash(edit):
    assert parse_policy(with_(TEXT, edit)).compile().hash != DEMO.hash


def test_expiry_is_the_last_day():
    dated = parse_policy(with_(TEXT, ("expires = 2099-12-31", "expires = 2026-12-31"))).compile()
    assert dated.expires == "2026-12-31"
    assert dated.expires_day == (date(2026, 12, 31) - date(1970, 1, 1)).days


@given(st.dates())
def test_days_are_counted_as_the_calendar_does(day):
    assert date_to_day(day.isoformat()) == (day - date(1970, 1, 1)).days
    assert day_to_date(date_to_day(day.isoformat())) == day.isoformat()


def test_a_device_never_goes_back_to_an_older_document():
    def changed(*edits: tuple[str, str]) -> Policy:
        return parse_policy(with_(TEXT, *edits)).compile()

    newer = changed(("version = 1", "version = 2"))
    assert may_replace_policy(DEMO_POLICY, newer)
    assert may_replace_policy(DEMO_POLICY, DEMO_POLICY)
    assert not may_replace_policy(newer, DEMO_POLICY)
    assert not may_replace_policy(DEMO_POLICY, changed(("0.9", "0.8"))), "another text under the same version"
    assert not may_replace_policy(
        DEMO_POLICY, changed(('name = "demo"', 'name = "other"'), ("version = 1", "version = 9"))
    )
    assert not may_replace_policy(DEMO_POLICY, changed(("version = 1", 'layer = "tenant"\nversion = 9')))


def test_a_document_too_long_is_refused_before_it_is_parsed():
    with pytest.raises(PolicyError, match="characters"):
        parse_policy("#" * (MAX_POLICY_CHARS + 1))


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 50_000, "a = " + "9" * 10_000, "a = 1e999999", "\ud800 = 1", "a.b = 1\na = 2", "\0"]
)
def test_hostile_text_is_a_policy_error(text):
    with pytest.raises(PolicyError):
        parse_policy(text)


@given(st.text())
def test_arbitrary_text_raises_policy_error_and_nothing_else(text):
    with pytest.raises(PolicyError):
        parse_policy(text)


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
        compiled = parse_policy(text).compile()
        assert compiled.base.ceiling <= SensitivityLevel.P3
        assert 0 <= compiled.base.threshold <= 1
        assert compiled.base.bytes_per_day >= 0


TEMPLATES = sorted((Path(policies.__file__).parent / "templates").glob("*[!s].toml"))
WORDS = (
    "[",
    "]",
    "{",
    "}",
    "=",
    '"',
    "\n",
    "-1",
    "1e999",
    "nan",
    "inf",
    "P4",
    "true",
    "2099-12-31",
    "9" * 30,
    "\ud800",
    "[[rule]]",
)


def fault(text: str) -> str:
    """What is wrong with a text; "" for a document that compiles."""
    try:
        compiled = parse_policy(text).compile()
    except PolicyError as error:
        return str(error)
    assert compiled.base.ceiling <= HARD_CEILING_LEVEL
    return ""


@pytest.mark.examples
def test_a_template_with_characters_changed_is_a_document_or_one_line():
    sound = 0
    for seed in SEEDS:
        dice = random.Random(seed)
        text = dice.choice(TEMPLATES).read_text(encoding="utf-8")
        for _ in range(dice.randint(1, 3)):
            at = dice.randrange(len(text))
            text = (
                text[:at] + dice.choice(("", dice.choice(text), dice.choice(WORDS))) + text[at + dice.randint(0, 9) :]
            )
        said = fault(text)
        sound += not said
        assert len(said.splitlines()) == bool(said), seed
        assert len(said) <= 500, seed
    assert sound


POLICY_WORDS = [word.encode("utf-8", "surrogatepass") for word in WORDS] + [
    b'"P2"', b'"answer_now"', b'"2099-12-31"', b'"22:00"', b'"Europe/Berlin"', b'"clip"', b'"drop"', b'""', b"[]",
    b"rule", b"when", b"unless", b"data_class", b"threshold", b"deny", b"transforms", b"=", b".", b"1e308", b"5e-324",
    b"[dp]\nclip_norm = 1\nsigma = 1e-300\ndelta = 1e-300\nepsilon = 1e300\n", b"00:00:00", b"a.a.a.a.a.a.a",
]  # fmt: skip


@pytest.mark.parametrize("count", COUNTS)
def test_random_policies_are_documents_or_raise_one_error_type(count):
    inputs = random_inputs(count, [path.read_bytes() for path in TEMPLATES], POLICY_WORDS)
    assert try_parser(lambda data: parse_policy(data).compile(), PolicyError, inputs)


def test_a_list_in_a_list_of_names_is_refused_by_its_key():
    assert fault(TEXT.replace('["hub-1"]', '["hub-1", ["hub-1"]]')).startswith(
        "locality.hubs[1]: must be a valid string"
    )


MANY_PARTS = ".".join("a" * 100_000)


@pytest.mark.parametrize(
    "text",
    [f"{MANY_PARTS} = 1", f"[{MANY_PARTS}]", f"[[{MANY_PARTS}]]", f"x = {{ {MANY_PARTS} = 1 }}", f"{MANY_PARTS}"],
)
def test_a_key_of_a_hundred_thousand_parts_is_refused_before_it_is_parsed(text):
    """Its parts took the parser time by the square of their number: hours, on every device that follows the policy."""
    assert fault(f"{TEXT}\n{text}") == f"not TOML: line {len(TEXT.splitlines()) + 2} has more than 1000 points"


def test_a_list_of_names_costs_time_by_its_length_alone():
    """25,000 names were compared with one another: nine seconds."""
    names = ",".join(f'"h{number}"' for number in range(25_000))
    assert fault(TEXT.replace('["hub-1"]', f"[{names}]")) == ""
    assert fault(TEXT.replace('["hub-1"]', f'[{names}, "h7"]')) == "locality: hubs names 'h7' twice"


@pytest.mark.parametrize("epsilon", ["0.0", "1e-9", "1000.0"])
@pytest.mark.parametrize("delta", ["1e-100", "0.999"])
@pytest.mark.parametrize("sigma", ["0.01", "10_000.0"])
def test_the_ends_of_what_noise_may_say_compile(sigma, delta, epsilon):
    table = f"[dp]\nclip_norm = 9e15\nsigma = {sigma}\ndelta = {delta}\nepsilon = {epsilon}\n"
    dp = parse_policy(TEXT + table).compile().base.dp
    assert dp is not None
    assert dp.limit >= 0
    assert dp.each >= 1


RULES = {
    "no such zone word": ('when = { time = { zone = "22:00" } }', "when.time.zone: '22:00' is no time zone"),
    "no time of day": (
        'when = { time = { zone = "UTC", from = "24:00" } }',
        "when.time.from: '24:00' is no time of day",
    ),
    "no zone": ('when = { time = { from = "22:00" } }', "when.time.zone: is missing"),
    "no such day": ('when = { time = { zone = "UTC", days = ["Monday"] } }', "when.time.days[0]: must be 'mon'"),
    "empty list": ("when = { region = [] }", "when.region: names nothing, so that it could never hold"),
    "empty excuse": ("unless = {}", "unless asks nothing"),
    "battery above full": ("when = { battery_below = 1.1 }", "when.battery_below: must be less than or equal to 1"),
    "misspelt condition": ("when = { data_classes = ['a'] }", "unknown key 'data_classes'; did you mean 'data_class'?"),
    "misspelt key": ("treshold = 0.5", "unknown key 'treshold'; did you mean 'threshold'?"),
    "nothing narrowed": ('when = { region = ["eu"] }', "rule 'r' narrows nothing; say what, or deny = true"),
    "raw data": ('ceiling = "P4"', "ceiling: P4 never leaves a device"),
    "no purpose": ("retention = { keep_days = 1 }", "retention.purpose: is missing"),
    "kept too long": (
        'retention = { purpose = "p", keep_days = 8 }',
        "retention.keep_days: must be less than or equal to 7",
    ),
    "no pattern": (
        'transforms = { features = [{ kind = "redact", patterns = ["emails"] }] }',
        "no pattern is called 'emails'; did you mean 'email'?",
    ),
    "edges that fall": ('transforms = { features = [{ kind = "bucketize", edges = [2, 1] }] }', "edges must rise"),
}


@pytest.mark.parametrize(("rule", "message"), RULES.values(), ids=RULES.keys())
def test_wrong_rule_is_one_line_that_names_the_key(rule, message):
    with pytest.raises(PolicyError) as caught:
        parse_policy(f'{TEXT}[[rule]]\nname = "r"\n{rule}\n{"" if "narrows" in message else "deny = true"}\n')
    assert message in str(caught.value)
    assert str(caught.value).startswith("rule[0]")
    assert "\n" not in str(caught.value)


def test_two_rules_of_one_name_are_refused():
    with pytest.raises(PolicyError, match="rule names 'r' twice"):
        parse_policy(TEXT + '[[rule]]\nname = "r"\ndeny = true\n' * 2)


def test_every_step_compiles_to_what_the_device_does():
    steps = {
        '{ kind = "coarsen", factor = 4 }': TransformSpec(TransformKind.COARSEN, step=4.0),
        '{ kind = "bucketize", edges = [1, 5] }': TransformSpec(TransformKind.BUCKETIZE, values=(1.0, 5.0)),
        '{ kind = "clip_norm", norm = 8 }': TransformSpec(TransformKind.CLIP_NORM, high=8.0),
        '{ kind = "keyed_hash", bits = 16 }': TransformSpec(TransformKind.KEYED_HASH, step=16.0),
        '{ kind = "top_k", k = 3 }': TransformSpec(TransformKind.TOP_K, step=3.0),
        '{ kind = "top_k", k = 3, centre = 128 }': TransformSpec(TransformKind.TOP_K, step=3.0, values=(128.0,)),
        '{ kind = "pool", size = 2 }': TransformSpec(TransformKind.POOL, step=2.0),
        '{ kind = "project", seed = 7, dim = 4 }': TransformSpec(TransformKind.PROJECT, low=7.0, step=4.0),
        '{ kind = "noise", sigma = 2.5 }': TransformSpec(TransformKind.NOISE, step=2.5),
        '{ kind = "redact", patterns = ["email"] }': TransformSpec(TransformKind.REDACT, words=("email",)),
    }
    text = with_(TEXT, ('[{ kind = "clip", low = 0, high = 15 }]', f"[{', '.join(steps)}]"))
    assert parse_policy(text).compile().base.fields["features"].transforms == tuple(steps.values())


def test_a_dropped_field_is_not_listed_any_more():
    dropped = TEXT + '[[rule]]\nname = "r"\ntransforms = { features = [{ kind = "drop" }] }\n'
    compiled = parse_policy(dropped).compile()
    assert "features" not in compute_terms(compiled, 1).fields
    with pytest.raises(PolicyError, match="listed and dropped"):
        parse_policy(with_(TEXT, ('{ kind = "clip", low = 0, high = 15 }', '{ kind = "drop" }')))


@pytest.mark.parametrize("key", ["fields", "drop", "hubs", "regions"])
def test_a_rule_names_each_thing_once(key):
    assert fault(f'{TEXT}[[rule]]\nname = "r"\n{key} = ["a", "b", "a"]\n') == f"rule[0]: {key} names 'a' twice"
    assert fault(f'{TEXT}[[rule]]\nname = "r"\n{key} = ["a", "b"]\n') == ""


@pytest.mark.parametrize("edges", ["[1, 1]", "[1, 3, 2]", "[1, 2, 2]"])
def test_edges_that_do_not_rise_are_refused(edges):
    rule = f'[[rule]]\nname = "r"\ntransforms = {{ features = [{{ kind = "bucketize", edges = {edges} }}] }}\n'
    assert fault(TEXT + rule) == "rule[0].transforms.features[0]: edges must rise"


LARGEST = 2**53
# For each key: the text that sets it, the values at its bounds, and those just beyond.
BOUNDS: dict[str, tuple[str, list[object], list[object]]] = {
    "escalation.threshold": ("threshold = 0.9", [0, 1], [-1e-9, 1.000001]),
    "escalation.audit_share": ("audit_share = 0.02", [0, 1], [-1e-9, 1.000001]),
    "escalation.budget_s": ("budget_s = 2.0", [0, 604_800], [-0.1, 604_800.1]),
    "version": ("version = 1", [1, LARGEST], [0, LARGEST + 1]),
    "budget.bytes_per_day": ("bytes_per_day = 10_000_000", [0, LARGEST], [-1, LARGEST + 1]),
    "retention.keep_days": ("keep_days = 7 ", [0, 7], [-1, 8]),
}


@pytest.mark.parametrize("key", BOUNDS)
def test_a_number_is_taken_at_its_bounds_and_refused_by_its_key_beyond_them(key):
    text, inside, beyond = BOUNDS[key]
    name = text.partition(" = ")[0]
    for value in inside:
        assert fault(with_(TEXT, (text, f"{name} = {value} "))) == "", value
    for value in beyond:
        assert fault(with_(TEXT, (text, f"{name} = {value} "))).startswith(f"{key}: must be "), value


STEPS: dict[str, tuple[list[object], list[object]]] = {
    'kind = "clip_norm", norm': ([1e-300, LARGEST], [0, -1, LARGEST * 1.001]),
    'kind = "quantise", step': ([1e-300, LARGEST], [0, -1, LARGEST * 1.001]),
    'kind = "coarsen", factor': ([1e-300, LARGEST], [0, -1, LARGEST * 1.001]),
    'kind = "noise", sigma': ([1e-300, LARGEST], [0, -1, LARGEST * 1.001]),
    'kind = "noise", sigma = 1, grid': ([0, LARGEST], [-1e-9, LARGEST * 1.001]),
    'kind = "keyed_hash", bits': ([1, 31], [0, 32]),
    'kind = "top_k", k': ([1, 2**31 - 1], [0, 2**31]),
    'kind = "top_k", k = 1, centre': ([-LARGEST, LARGEST], [-LARGEST * 1.001, LARGEST * 1.001]),
    'kind = "pool", size': ([1, 2**31 - 1], [0, 2**31]),
    'kind = "project", seed = 1, dim': ([1, 2**31 - 1], [0, 2**31]),
    'kind = "project", dim = 1, seed': ([0, LARGEST], [-1, LARGEST + 1]),
    'kind = "bucketize", edges': (["[1]", str(list(range(256)))], ["[]", str(list(range(257)))]),
    'kind = "redact", patterns': (['["email"]'], ["[]"]),
    'kind = "clip", high = 0, low': ([-LARGEST, -1e-300], [0, 1, -LARGEST * 1.001]),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_parameter_of_a_transform_is_taken_at_its_bounds_and_refused_beyond_them(step):
    inside, beyond = STEPS[step]
    for value, taken in [*((each, True) for each in inside), *((each, False) for each in beyond)]:
        rule = f'[[rule]]\nname = "r"\ntransforms = {{ features = [{{ {step} = {value} }}] }}\n'
        assert (fault(TEXT + rule) == "") is taken, value


def test_what_a_document_does_not_say_is_this():
    left_out = with_(TEXT, ("expires = 2099-12-31", ""))
    compiled = parse_policy(left_out).compile()
    assert compiled.expires_day == date_to_day("2026-11-22") + 90
    assert parse_policy(with_(TEXT, ("expires = 2099-12-31", "expires = 2027-02-20"))).compile().hash == compiled.hash
    assert (compiled.clears_notice, compiled.base.max_open, compiled.layers[0].layer) == (0, 1000, "site")
    noise = "[dp]\nclip_norm = 1\nsigma = 1\ndelta = 0.1\nepsilon = 1\n"
    dp = parse_policy(TEXT + noise).compile().base.dp
    assert dp is not None
    assert (dp.unit, dp.period_days, dp.audit_share, dp.random_ask) == ("device", 30, 0.2, None)
    rule = parse_policy(TEXT + '[[rule]]\nname = "r"\nmax_open = 1\n').compile().rules[0]
    assert (rule.unless, rule.narrowing) == (None, Narrowing(max_open=1, transforms={}))


def test_a_word_left_out_is_checked_like_one_that_is_written():
    """A default passes the same validator: a mode, layer or unit is never a bare text."""
    document = parse_policy(TEXT + "[dp]\nclip_norm = 1\nsigma = 1\ndelta = 0.1\nepsilon = 1\n")
    assert type(document.layer) is PolicyLayer
    assert type(document.escalation.novel) is NoveltyAction
    assert document.dp is not None
    assert type(document.dp.unit) is PrivacyUnit


@pytest.mark.parametrize(
    ("time", "spans"),
    [
        ('from = "22:00", to = "06:30", days = ["mon"]', ((1320, 1830),)),
        ('from = "08:15", to = "17:45", days = ["wed", "tue"]', ((1935, 2505), (3375, 3945))),
        ('from = "22:00", to = "06:00", days = ["sun"]', ((9960, 10_080), (0, 360))),
        ('from = "00:00", to = "00:00", days = ["sun"]', ((8640, 10_080),)),
        ('from = "23:00", to = "00:00", days = ["sun"]', ((10_020, 10_080),)),
    ],
)
def test_hours_become_minutes_of_the_week(time, spans):
    rule = f'[[rule]]\nname = "r"\nwhen = {{ time = {{ zone = "UTC", {time} }} }}\ndeny = true\n'
    hours = parse_policy(TEXT + rule).compile().rules[0].when.hours
    assert hours is not None
    assert hours == WeeklyHours("UTC", spans)
    assert all(hours.contains_minute(first) and hours.contains_minute(last - 1) for first, last in spans)


def test_every_day_counts_where_none_is_named():
    rule = '[[rule]]\nname = "r"\nwhen = { time = { zone = "UTC", to = "01:00" } }\ndeny = true\n'
    hours = parse_policy(TEXT + rule).compile().rules[0].when.hours
    assert hours is not None
    assert hours.spans == tuple((day * 1440, day * 1440 + 60) for day in range(7))


def test_a_limit_of_leakage_without_a_metric_is_of_any():
    limits = parse_policy(TEXT + "[privacy]\nmax_leakage = 0.3\n").compile().base.privacy
    assert limits == (LeakageLimits(0.3, "", None),)
