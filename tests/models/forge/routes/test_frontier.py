"""Which code path ships: limits, a tenth of the gap, the sample's label, and what a refusal says."""

import math
from dataclasses import replace

import msgspec
import pytest

from models.forge.routes.frontier import (
    RoutePoint,
    UnmetPathError,
    best_trades,
    choose_point,
    find_obstacle,
    mark_chosen,
)
from models.forge.spec import ForgeSpec
from models.forge.training.code_path import Route

LEARNED = RoutePoint("learned-64", Route.LEARNED, "P2", 64, 580, 0.90, 0.88, 0.94, 0.33, 0.08, 0.03, 0.1, 1000, 0.3)
EARLY = msgspec.structs.replace(
    LEARNED,
    name="early-a-3",
    route=Route.EARLY,
    payload_bytes=495,
    sealed_bytes=1028,
    recovered=0.97,
    lost=0.002,
    leakage=0.7,
)
SAMPLE = msgspec.structs.replace(
    LEARNED,
    name="sample-256",
    route=Route.SAMPLE,
    label="P4",
    payload_bytes=256,
    sealed_bytes=772,
    recovered=0.93,
    lost=0.004,
    leakage=0.95,
)
POINTS = (LEARNED, EARLY, SAMPLE)


def test_the_cheapest_path_that_keeps_nine_tenths_of_the_gain_ships() -> None:
    assert choose_point(POINTS, ForgeSpec()).name == "early-a-3"
    assert choose_point(POINTS, ForgeSpec(sample_level="P3")).name == "sample-256"


def test_the_sample_never_travels_unless_its_label_was_stated() -> None:
    with pytest.raises(UnmetPathError, match=r"--sample-level is not given.*relax --sample-level"):
        choose_point((SAMPLE,), ForgeSpec())
    assert choose_point((SAMPLE,), ForgeSpec(sample_level="P1")) is SAMPLE


def test_where_nothing_keeps_enough_the_path_that_keeps_most_ships() -> None:
    near = msgspec.structs.replace(LEARNED, name="learned-128", payload_bytes=128, sealed_bytes=644, recovered=0.6)
    alike = msgspec.structs.replace(near, name="learned-256", payload_bytes=256, sealed_bytes=772, recovered=0.605)
    assert choose_point((LEARNED, near, alike), ForgeSpec()) is near


@pytest.mark.parametrize(
    ("wish", "chosen"),
    [
        (ForgeSpec(max_bytes=100), "learned-64"),
        (ForgeSpec(question_bytes=600), "learned-64"),
        (ForgeSpec(max_leakage=0.5), "learned-64"),
        (ForgeSpec(leakage_aware=1.0), "learned-64"),
        (ForgeSpec(max_loss=0.05), "learned-64"),
        (ForgeSpec(max_loss=0.01), "early-a-3"),
        (ForgeSpec(max_loss=0.01, sample_level="P2"), "sample-256"),
    ],
)
def test_each_limit_decides_what_ships(wish: ForgeSpec, chosen: str) -> None:
    assert choose_point(POINTS, wish).name == chosen


def test_a_refusal_names_the_nearest_path_and_the_flag_to_relax() -> None:
    with pytest.raises(UnmetPathError, match=r"nearest is learned-64: --max-bytes 8: 64 B of codes; relax --max-bytes"):
        choose_point(POINTS, ForgeSpec(max_bytes=8))


def test_without_a_gap_the_cheapest_path_ships() -> None:
    flat = [msgspec.structs.replace(point, recovered=math.nan) for point in POINTS]
    assert choose_point(flat, ForgeSpec()).name == "learned-64"


def test_every_path_but_the_chosen_one_has_a_reason() -> None:
    wish = ForgeSpec()
    marked = mark_chosen(POINTS, choose_point(POINTS, wish).name, wish)
    assert [point.chosen for point in marked] == [False, True, False]
    assert marked[0].reason == "keeps 33% of the gain"
    assert "--sample-level" in marked[2].reason
    assert not marked[1].reason
    assert find_obstacle(marked[1], replace(wish, max_bytes=10)) == "495 B of codes"


def test_three_best_trades_are_fewest_bytes_most_kept_and_least_leakage() -> None:
    assert [(what, point.name) for what, point in best_trades(POINTS)] == [
        ("fewest bytes, leaks least", "learned-64"),
        ("keeps most", "early-a-3"),
    ]


@pytest.mark.parametrize(
    ("figure", "tight", "wide"),
    [
        ("device_share", ForgeSpec(head_share=0.25), ForgeSpec(head_share=0.97)),
        ("payload_bytes", ForgeSpec(max_bytes=25), ForgeSpec(max_bytes=97)),
        ("sealed_bytes", ForgeSpec(question_bytes=25), ForgeSpec(question_bytes=97)),
        ("lost", ForgeSpec(max_loss=0.25), ForgeSpec(max_loss=0.97)),
        ("leakage", ForgeSpec(max_leakage=0.25), ForgeSpec(max_leakage=0.97)),
    ],
)
def test_a_path_beyond_a_limit_is_never_shipped(figure, tight, wide):
    path = msgspec.structs.replace(LEARNED, **{figure: 97 if figure.endswith("bytes") else 0.97})
    assert find_obstacle(path, wide) == ""
    assert find_obstacle(path, tight)
    with pytest.raises(UnmetPathError, match=r"relax --[a-z-]+$"):
        choose_point([path], tight)
