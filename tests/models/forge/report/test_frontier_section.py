"""First section of a report: what a question may carry, what each way keeps, and which flags would take it."""

import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from models.bundle.measurements import QualityMetric
from models.forge.report.frontier_section import FrontierView, render_frontier
from models.forge.report.trades import find_flags, list_trades
from models.forge.routes.frontier import RoutePoint, choose_point, mark_chosen
from models.forge.spec import ForgeSpec
from models.forge.training.code_path import Route

WISH = ForgeSpec()


def point(name: str, payload_bytes: int, kept: float, leakage: float | None = None) -> RoutePoint:
    """A path over an edge that lossless features bring from 0.8 to 0.9."""
    route = Route(name.partition("-")[0])
    lost = 0.1 * (1 - kept) if not math.isnan(kept) else 0.0
    sealed = 516 + 64 * (payload_bytes // 64)
    return RoutePoint(
        name, route, "P2", payload_bytes, sealed, 0.9 - lost, 0.8, 0.9, kept, 4 * lost, lost, 0.2, 400, leakage
    )


POINTS = (
    point("learned-64", 64, 0.5, 0.3),
    point("early-body.relu-3", 130, 0.8, 0.6),
    point("early-body.relu-8", 260, 0.97, 0.7),
    point("sample-128", 128, 0.99, 0.9),
)


def frontier(points: tuple[RoutePoint, ...], wish: ForgeSpec = WISH) -> FrontierView:
    marked = mark_chosen(points, choose_point(points, wish).name, wish)
    return FrontierView(marked, list_trades(marked, wish), {"raw": 1348, "zlib -9": 900, "JPEG": 900}, 0.25)


def as_tree(html: str) -> ET.Element:
    return ET.fromstring(f"<body>{html}</body>")


def test_every_path_is_a_mark_and_a_row_and_what_ships_is_ringed():
    tree = as_tree(render_frontier(frontier(POINTS), QualityMetric.ACCURACY))
    titles = {node.text for node in tree.iter("title")}
    assert {each.name for each in POINTS} <= titles
    assert {"raw", "zlib -9, JPEG"} <= titles, "samples that weigh the same share a line"
    assert len([node for node in tree.iter("circle") if node.attrib.get("class") == "ring"]) == 1
    rows = ["".join(row.itertext()) for row in tree.iter("tr") if row.attrib.get("class") == "chosen"]
    assert all("early-body.relu-8" in row and "ships" in row for row in rows)
    assert "--sample-level must state its label" in "".join(tree.itertext())


def test_only_marks_of_the_sample_are_hollow():
    tree = as_tree(render_frontier(frontier(POINTS), QualityMetric.ACCURACY))
    hollow = [
        n.findtext("title")
        for n in tree.iter()
        if n.attrib.get("fill") == "var(--paper)" and n.find("title") is not None
    ]
    assert hollow == ["sample-128"]


def test_where_lossless_features_gain_nothing_the_section_says_so():
    flat = tuple(msgspec.structs.replace(p, recovered=math.nan, lossless=0.8) for p in POINTS)
    words = "".join(as_tree(render_frontier(frontier(flat), QualityMetric.ACCURACY)).itertext())
    assert "gain nothing over the edge here (80.0% alone, 80.0% with lossless features)" in words
    assert "no gap" in words
    assert "nan" not in words


def test_a_report_without_a_frontier_has_no_such_section():
    assert render_frontier(FrontierView((), (), {}, 0.25), QualityMetric.ACCURACY) == ""


def test_a_path_far_below_the_edge_stays_inside_the_plot():
    bad = (*POINTS, point("learned-1", 1, -40.0))
    tree = as_tree(render_frontier(frontier(bad), QualityMetric.ACCURACY))
    heights = [float(node.attrib["cy"]) for node in tree.iter("circle") if node.find("title") is not None]
    assert heights
    assert all(0 < height < 240 for height in heights)
    assert "-4000.0%" in "".join(tree.itertext())


def test_each_trade_names_flags_with_which_the_forge_would_take_it():
    view = frontier(POINTS)
    found = {trade.point.name: (trade.best, trade.flags) for trade in view.trades}
    assert found == {
        "learned-64": ("fewest bytes, leaks least", "--question-bytes 580"),
        "sample-128": ("keeps most", "--sample-level LEVEL"),
    }


HIDDEN = (*POINTS, point("learned-128", 130, 0.7, 0.65))  # no limit alone singles the last one out


@pytest.mark.parametrize("name", [each.name for each in HIDDEN])
def test_flags_do_what_they_say(name):
    wanted = next(each for each in frontier(HIDDEN).points if each.name == name)
    words = find_flags(wanted, HIDDEN, WISH).split()
    limits: dict[str, Any] = {
        flag.removeprefix("--").replace("-", "_"): {"LEVEL": "P1", name: name}.get(value) or float(value)
        for flag, value in zip(words[::2], words[1::2], strict=True)
    }
    assert choose_point(HIDDEN, replace(WISH, **limits)).name == name
    assert ("--path" in words) is (name == "learned-128")
    assert bool(words) is (not wanted.chosen)


def test_trades_keep_the_limits_that_were_given():
    wish = replace(WISH, max_leakage=0.65)
    view = frontier(POINTS, wish)
    assert {trade.point.name for trade in view.trades} == {"learned-64", "early-body.relu-3"}
