"""Report charts, compression baselines and PNG images: correct, self-contained, empty without data."""

import io
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from models.forge.evaluation.baselines import encode_png, is_picture, measure_baselines, to_pixel_bytes
from models.forge.report.charts import CHART_STYLE, ChartAxis, ChartPoint, ChartRule, ChartSeries, draw_chart

LEGEND = 12  # units from the top: above this are the legend's marks
PICTURES = np.random.default_rng(0).random((20, 3, 8, 8)).astype(np.float32)


def test_a_chart_is_wellformed_and_every_point_lies_inside_it():
    points = tuple(ChartPoint(10.0**k, k / 7, f"cut <{k}>", k == 3) for k in range(6))
    tree = ET.fromstring(
        draw_chart(
            ChartAxis("bytes & more", logarithmic=True), ChartAxis("µs"), [ChartSeries("all", points, line=True)]
        )
    )
    marks = [node for node in tree.iter() if node.tag == "circle" and float(node.attrib["cy"]) > LEGEND]
    circles = [node for node in marks if "class" not in node.attrib]
    assert len(circles) == 6
    for circle in circles:
        assert 0 <= float(circle.attrib["cx"]) <= 460
        assert 0 <= float(circle.attrib["cy"]) <= 280
    across = [float(circle.attrib["cx"]) for circle in circles]
    assert across == sorted(across)
    rings = [node for node in marks if node.attrib.get("class") == "ring"]
    assert [ring.attrib["cx"] for ring in rings] == [circles[3].attrib["cx"]], "one is marked as taken"


def test_labels_are_left_out_where_they_would_cover_one_another_but_the_chosen_ones_stays():
    close = tuple(ChartPoint(100 + k / 100, 0.5, f"a-long-name-{k}", chosen=k == 9) for k in range(12))
    tree = ET.fromstring(draw_chart(ChartAxis("bytes"), ChartAxis("kept"), [ChartSeries("", close)]))
    labels = [node.text for node in tree.iter() if node.attrib.get("class") == "halo"]
    assert "a-long-name-9" in labels
    assert len(labels) < 12
    titles = [node.text for node in tree.iter() if node.tag == "title"]
    assert len(titles) == 12, "every mark keeps its name as a tooltip"


def test_hollow_marks_and_upright_rules_are_drawn_inside():
    series = [ChartSeries("sample", (ChartPoint(600, 0.9, "sample-64", hollow=True),), shape="diamond")]
    drawn = draw_chart(
        ChartAxis("bytes", logarithmic=True),
        ChartAxis("kept"),
        series,
        rules=[ChartRule(1800, "zlib & more")],
        width=720,
    )
    tree = ET.fromstring(drawn)
    (mark,) = [node for node in tree.iter() if node.tag == "rect" and node.find("title") is not None]
    assert mark.attrib["fill"] == "var(--paper)"
    (rule,) = [node for node in tree.iter() if node.attrib.get("class") == "rule"]
    assert float(mark.attrib["x"]) < float(rule.attrib["x1"]) <= 720


def test_every_colour_of_a_chart_has_a_light_and_a_dark_value():
    drawn = draw_chart(ChartAxis("x"), ChartAxis("y"), [ChartSeries(f"s{k}", (ChartPoint(k, k),)) for k in range(9)])
    used = set(re.findall(r"var\((--\w+)\)", drawn + CHART_STYLE))
    light, dark = CHART_STYLE.split("@media", 1)
    assert used
    assert all(f"{name}:" in light and f"{name}:" in dark for name in used)


def test_nothing_to_draw_is_no_chart():
    assert draw_chart(ChartAxis("x"), ChartAxis("y"), [ChartSeries("", ())]) == ""
    assert draw_chart(ChartAxis("x"), ChartAxis("y"), [ChartSeries("", (ChartPoint(float("nan"), 1.0),))]) == ""


@pytest.mark.parametrize("value", [0.0, 1.0, -5.0, 1e-9, 1e12])
def test_one_point_alone_has_axes_too(value):
    ET.fromstring(
        draw_chart(ChartAxis("x", logarithmic=True), ChartAxis("y"), [ChartSeries("", (ChartPoint(value, value),))])
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_a_written_picture_is_read_back_as_it_was(channels):
    image = pytest.importorskip("PIL.Image")
    wanted = to_pixel_bytes(PICTURES[0, :channels])
    assert np.array_equal(np.asarray(image.open(io.BytesIO(encode_png(wanted)))), wanted)


def test_pictures_are_told_from_other_samples():
    assert is_picture(PICTURES)
    assert not is_picture(PICTURES * 3)
    assert not is_picture(PICTURES[:, 0])
    assert not is_picture(np.zeros((4, 2, 8, 8), np.float32))
    assert not is_picture(np.zeros((4, 1, 8, 8), np.int64))


def test_baselines_are_sizes_of_whole_files():
    found = {one.name: one.mean_bytes for one in measure_baselines(PICTURES)}
    assert found["raw"] == 3 * 8 * 8 * 4
    assert found["8 bits a pixel"] == 3 * 8 * 8
    assert {one.name for one in measure_baselines(np.zeros((5, 7)))} == {"raw", "zlib -9"}
    assert dict(measure_baselines(np.zeros((5, 700), np.float32)))["zlib -9"] < 30
