"""HTML report of a run: one self-contained file, every event on every time axis, and no markup from data."""

import json
import re
import shutil
import subprocess

import pytest
from msgspec.structs import replace

from simulations.report.comparison import compare_figures, render_comparison
from simulations.report.expectations import judge_expectations
from simulations.report.outcome import TimelineMark, Violation
from simulations.report.page import render_page
from simulations.report.plots import build_figure, build_panels, format_moment, mark_letter
from simulations.scenario.types import Expectation, Scenario
from tests.simulations.doubles.outcomes import HISTORY, outcome

LABELS = ["<b>A</b> rollout", "<b>B</b> partition", "<b>C</b> kill_hub"]
KEYS = ["answers", "latency", "right", "queues", "bytes", "states", "rollout-cam@8"]


def figures(html):
    return json.loads(re.findall(r'<script type="application/json" id="figures">(.*?)</script>', html)[0])


def words(html):
    """What stands on the page itself: plotly's own code apart."""
    return re.sub(r'<script type="text/plain" id="plotly">.*?</script>', "", html, flags=re.DOTALL)


def test_the_page_needs_no_network():
    html = words(render_page(outcome(), Scenario()))
    assert "http" not in html.replace("http-equiv", "")
    assert "default-src 'none'" in html
    assert not re.search(r"(src|href)=", html)


def test_every_panel_has_its_place_and_marks_every_event():
    html = render_page(outcome())
    found = figures(html)
    assert [each["key"] for each in found] == KEYS
    for each in found:
        assert f'id="{each["key"]}"' in html
        assert [band["x0"] for band in each["layout"]["shapes"]] == [
            format_moment(at_s) for at_s in (100.0, 180.0, 400.0)
        ]
        assert [label["text"] for label in each["layout"]["annotations"]] == LABELS


def test_a_panel_without_anything_to_show_is_left_out():
    assert [panel.key for panel in build_panels(outcome(rollouts=(), queues={}, bytes_by_rule={}))] == [
        "answers", "latency", "right", "states",
    ]  # fmt: skip


def test_every_series_has_a_value_for_each_bucket_and_its_end():
    made = outcome()
    for panel in build_panels(made):
        assert all(len(trace["y"]) == len(made.arrivals) + 1 for trace in panel.traces if "dx" in trace)


def test_exposure_stands_under_the_staircase_of_its_waves():
    panel = next(panel for panel in build_panels(outcome()) if panel.key == "rollout-cam@8")
    exposed, allowed = (trace["y"] for trace in panel.traces[:2])
    assert all(one <= (most or 0) for one, most in zip(exposed, allowed, strict=True))
    assert [trace["name"] for trace in panel.traces[2:]] == ["gate: pass", "gate: inconclusive", "gate: fail"]


def test_the_verdict_stands_at_the_top():
    held = judge_expectations(outcome(), [Expectation("lost", at_most=0)])
    missed = judge_expectations(outcome(), [Expectation("lost", at_most=0), Expectation("p99_s", at_most=0.001)])
    broken = outcome(violations=(Violation("lost", "q 1 has no outcome", "skerry sim run fuzz-7.toml"),))
    assert "Yes: all 1 expectations held" in render_page(held)
    assert "No: 1 of 2 expectations did not hold" in render_page(missed)
    assert "No: a law was broken" in render_page(broken)
    assert "skerry sim run fuzz-7.toml" in render_page(broken)
    assert "Stopped at 0:05:00" in render_page(outcome(complete=False, until_s=300.0))


def test_words_of_a_scenario_are_no_markup():
    evil = "</script><script>alert(1)</script>"
    named = outcome(scenario=evil, question=evil, marks=(TimelineMark(1.0, 0.0, evil, evil),), queues={evil: (1,) * 84})
    for html in (render_page(named), render_comparison(named, outcome())):
        assert "<script>alert" not in html


def test_equal_outcomes_give_equal_pages():
    assert render_page(outcome(), Scenario()) == render_page(outcome(), Scenario())


def test_two_runs_stand_side_by_side_on_the_same_scale():
    first, second = outcome(), outcome(scenario="other", queues={"eu-1": (50,) * 84}, rollouts=())
    found = {each["key"]: each for each in figures(render_comparison(first, second))}
    assert found["queues-0"]["layout"]["yaxis"]["range"] == found["queues-1"]["layout"]["yaxis"]["range"]
    assert found["latency-0"]["layout"]["yaxis"]["range"] == found["latency-1"]["layout"]["yaxis"]["range"]
    assert {"rollout-cam@8-0"} == {key for key in found if key.startswith("rollout")}


def test_a_comparison_names_what_differs_and_by_how_much():
    more = replace(HISTORY, late=300, refused=80)
    found = {row.name: row for row in compare_figures(outcome(), outcome(history=more))}
    assert found["refused_share"].formatted == ("3.4%", "6.7%", "+3.36 points")
    assert not found["p99_s"].differs
    assert compare_figures(outcome(), outcome(rollouts=()))[-1].differs is False


@pytest.mark.parametrize(
    ("seconds", "date"),
    [
        (0, "2001-01-01T00:00:00.000"), (86_400 * 31 + 61.5, "2001-02-01T00:01:01.500"),
        (86_400 * 364, "2001-12-31T00:00:00.000"),
    ],
)  # fmt: skip
def test_virtual_time_as_a_date(seconds, date):
    assert format_moment(seconds) == date


def test_letters_go_on_as_numbers():
    assert [mark_letter(place) for place in (0, 25, 26)] == ["A", "Z", "27"]


def test_marks_near_each_other_stand_on_different_levels():
    made = outcome(rollouts=(), marks=tuple(TimelineMark(100.0 + n, 5.0, "partition", "") for n in range(5)))
    labels = build_figure(build_panels(made)[0], made)["layout"]["annotations"]
    assert len({label["yshift"] for label in labels[:3]}) == 3


@pytest.mark.heavy
def test_a_browser_without_a_network_draws_every_panel(tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser here")
    (tmp_path / "page.html").write_text(render_page(outcome(), Scenario()))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]
    done = subprocess.run(
        [*command, f"file://{tmp_path}/page.html"], capture_output=True, text=True, timeout=100, check=True
    )
    drawn = done.stdout.rpartition("</head>")[2]
    assert 'data-drawn="yes"' in drawn
    assert all(f'class="plot js-plotly-plot" id="{key}"' in drawn for key in KEYS)
