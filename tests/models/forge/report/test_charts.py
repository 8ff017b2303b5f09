"""Report charts, compression baselines and PNG images: correct, self-contained, empty without data."""

import io
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from models.forge.evaluation.baselines import encode_png, is_picture, measure_baselines, to_pixel_bytes
from models.forge.report.charts import ChartAxis, ChartPoint, ChartSeries, draw_chart

PICTURES = np.random.default_rng(0).random((20, 3, 8, 8)).astype(np.float32)


def test_a_chart_is_wellformed_and_every_point_lies_inside_it():
    points = tuple(ChartPoint(10.0**k, k / 7, f"cut <{k}>", k == 3) for k in range(6))
    tree = ET.fromstring(
        draw_chart(
            ChartAxis("bytes & more", logarithmic=True), ChartAxis("µs"), [ChartSeries("all", points, line=True)]
        )
    )
    circles = [node for node in tree.iter() if node.tag == "circle"]
    assert len(circles) == 6
    for circle in circles:
        assert 0 <= float(circle.attrib["cx"]) <= 460
        assert 0 <= float(circle.attrib["cy"]) <= 280
    across = [float(circle.attrib["cx"]) for circle in circles]
    assert across == sorted(across)
    assert sum("stroke" in circle.attrib for circle in circles) == 1, "one is marked as taken"


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
