"""The policy linter on valid documents: contradictions, unreachable rules, expiry, releases of noise."""

import pytest

from policies.analysis.check import PolicyFinding, check_documents
from policies.language.document import parse_policy
from policies.model.context import date_to_day
from tests.policies.doubles.given import TEXT, with_

DAY = date_to_day("2026-12-01")
RULE = '[[rule]]\nname = "r"\n'


def told(text: str, *more: str) -> list[tuple[str, str, str]]:
    return [
        (each.kind, each.where, each.words)
        for each in check_documents([parse_policy(each) for each in (text, *more)], DAY)
    ]


def test_the_shipped_document_has_nothing_to_be_said_of():
    assert told(TEXT) == []


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("threshold = 0.95", "threshold 0.95 is wider than the base's 0.9"),
        ('novel = "ask"', "novel ask is wider than the base's flag"),
        ('mode = "wait"', "mode wait is wider than the base's answer_now"),
        ('ceiling = "P3"', "ceiling P3 is wider than the base's P2"),
        ('hubs = ["hub-1", "hub-9"]', "hubs hub-9: not in the base's"),
        ('regions = ["eu"]', "regions eu: not in the base's"),
        ('fields = ["image"]', "fields image: not in the base's"),
        ("bytes_per_day = 10_000_001", "bytes_per_day 10000001 is wider than the base's 10000000"),
        ("max_open = 2000", "max_open 2000 is wider than the base's 1000"),
    ],
)
def test_a_rule_wider_than_the_base_is_an_error(rule, words):
    assert ("error", "demo, rule 'r'", words) in told(TEXT + RULE + rule + "\n")


def test_a_rule_that_keeps_longer_or_noises_less_than_the_base_is_an_error():
    base = (
        with_(TEXT, ("keep_days = 7 ", "keep_days = 2 "))
        + "[dp]\nclip_norm = 1.0\nsigma = 5.0\ndelta = 1e-6\nepsilon = 8.0\n"
    )
    longer = told(base + RULE + 'retention = { purpose = "demo", keep_days = 3 }\n')
    assert any("keep_days 3 is wider" in words for _, _, words in longer)
    weaker = told(base + RULE + "dp = { clip_norm = 1.0, sigma = 4.0, delta = 1e-6, epsilon = 8.0 }\n")
    assert any("dp promises less" in words for _, _, words in weaker)


def test_a_rule_that_narrows_nothing_is_said():
    assert told(TEXT + RULE + "threshold = 0.9\n") == [
        ("warning", "demo, rule 'r'", "narrows nothing: the base says all of it already")
    ]
    assert any("drop image: not a field" in words for _, _, words in told(TEXT + RULE + 'drop = ["image"]\n'))


@pytest.mark.parametrize(
    "when",
    [
        'when = { region = ["eu"] }\nunless = { region = ["eu", "us"] }',
        "when = { battery_below = 0.2 }\nunless = { battery_below = 0.5 }",
        'when = { tags = ["a"] }\nunless = { tags = ["a", "b"] }',
        'when = { data_class = ["private"] }',
        'when = { data_class = ["unheard-of"] }',
    ],
)
def test_an_unreachable_rule_is_said(when):
    (finding,) = told(f"{TEXT}{RULE}{when}\ndeny = true\n")
    assert finding[0] == "warning"
    assert "unreachable" in finding[2]


def test_a_rule_that_can_apply_is_not_called_unreachable():
    assert told(f'{TEXT}{RULE}when = {{ tags = ["a"] }}\nunless = {{ tags = ["b"] }}\ndeny = true\n') == []
    assert (
        told(f"{TEXT}{RULE}when = {{ battery_below = 0.5 }}\nunless = {{ battery_below = 0.2 }}\ndeny = true\n") == []
    )


def test_a_class_that_is_allowed_and_never_leaves_is_said():
    assert told(TEXT + RULE + 'when = { data_class = ["open"] }\ndeny = true\n') == [
        ("warning", "data class 'open'", "is allowed, but in every case something keeps it here")
    ]


def test_what_expires_is_said_from_14_days_before():
    assert told(with_(TEXT, ("2099-12-31", "2026-11-30")))[0] == (
        "error", "demo", "expired on 2026-11-30: nothing may leave under it",
    )  # fmt: skip
    assert told(with_(TEXT, ("2099-12-31", "2026-12-15"))) == [("warning", "demo", "expires on 2026-12-15, in 14 days")]
    assert told(with_(TEXT, ("2099-12-31", "2026-12-16"))) == []
    assert told(with_(TEXT, ("issued = 2026-11-22", "issued = 2026-12-02"))) == [
        ("warning", "demo", "is issued on 2026-12-02, which is yet to come")
    ]


def test_a_document_that_says_nothing_expires_90_days_after_it_was_issued():
    assert parse_policy(with_(TEXT, ("expires = 2099-12-31", ""))).last_day == "2027-02-20"


def test_layers_that_have_nothing_in_common_contradict_each_other():
    other = with_(TEXT, ('name = "demo"', 'name = "top"\nlayer = "platform"'), ('["local"]', '["eu"]'))
    kinds = told(TEXT, other)
    assert ("error", "layers", "locality.regions: each layer names some, but all of them have none in common") in kinds
    assert told(TEXT, TEXT)[0][:2] == ("error", "layers")


def test_releases_until_denial_are_told():
    (finding,) = check_documents(
        [parse_policy(TEXT + "[dp]\nclip_norm = 8.0\nsigma = 5.0\ndelta = 1e-6\nepsilon = 8.0\n")], DAY
    )
    assert finding == PolicyFinding(
        "remark", "dp",
        "58 noised fields may leave in 30 days, 11 of them for audits (sigma 5, delta 1e-06, epsilon 8);"
        " then nothing more",
    )  # fmt: skip


def test_noise_too_small_for_whole_numbers_is_said():
    little = "[dp]\nclip_norm = 1.0\nsigma = 5.0\ndelta = 1e-6\nepsilon = 8.0\n"
    assert [kind for kind, where, _ in told(TEXT + little) if where == "dp"] == ["remark", "warning"]
