"""Result of a forge run as it is printed: warnings first, void attacks in words, trades with their flags."""

import json
from typing import Any

import msgspec
import pytest

from models.bundle.measurements import DomainFigures, DomainScore, GateFigures
from models.cli.compare import format_figures
from models.cli.forge_result import print_measured, print_result
from models.forge.report.report import FACTS_FILE, locate_report
from models.forge.routes.frontier import RoutePoint
from models.forge.training.code_path import Route
from models.runtime.runner import echo_manifest
from tests.models.bundles import write_bundle
from tests.models.conftest import contents, make

POINTS = (
    RoutePoint("learned-64", Route.LEARNED, "P2", 64, 580, 0.9, 0.85, 0.95, 0.5, 0.2, 0.05, 0.1, 400, None),
    RoutePoint("sample-256", Route.SAMPLE, "P1", 250, 772, 0.95, 0.85, 0.95, float("nan"), 0.0, 0.0, 0.1, 400, 0.93),
)
FACTS: dict[str, Any] = {
    "payoff": {
        "warnings": ["asking the hub does not pay: 97.7% alone"],
        "edge": (0.9, 0.99), "pair": (0.9, 0.99), "hub": None, "gain": 0.01, "gained": (-0.01, 0.03),
    },
    "frontier": POINTS,
    "trades": [
        {"best": "fewest bytes", "name": "learned-64", "flags": ""},
        {"best": "keeps most", "name": "sample-256", "flags": "--sample-level LEVEL --max-loss 0.01"},
    ],
    "leakage_summary": ["reconstruction is not measured: from the sample itself the attack reaches ssim 0.31"],
}  # fmt: skip


@pytest.fixture
def bundle(tmp_path):
    made = make(tmp_path / "echo-1")
    locate_report(made.path).mkdir()
    (locate_report(made.path) / FACTS_FILE).write_bytes(msgspec.json.encode(FACTS))
    return made


def test_warnings_void_attacks_and_trades_are_on_the_terminal(bundle, capsys):
    warnings = print_result(bundle, 1.0, as_json=False)
    said = capsys.readouterr()
    assert said.err.startswith("warning: asking the hub does not pay")
    assert warnings == FACTS["payoff"]["warnings"]
    assert "reconstruction is not measured: from the sample itself the attack reaches ssim 0.31" in said.out
    assert "best trades, measured on the calibration samples" in said.out
    rows = [line.split() for line in said.out.splitlines()]
    assert ["fewest", "bytes", "learned-64", "580", "50%", "90.00%", "ships"] in rows
    assert any(row[-4:] == ["--sample-level", "LEVEL", "--max-loss", "0.01"] for row in rows)
    assert any(row[:5] == ["keeps", "most", "sample-256", "772", "no"] for row in rows), "NaN is no gap"


@pytest.mark.parametrize("name", ["edge alone", "pair", "given model", "best gate"])
def test_each_printed_figure_of_quality_says_on_which_samples(bundle, name):
    """The best trades have figures of the calibration part: two figures of one pair differ, and each says why."""
    assert "on held-out samples" in format_figures(bundle)[name]


def test_as_json_the_points_and_trades_are_whole(bundle, capsys):
    print_result(bundle, 1.0, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert [point["name"] for point in told["frontier"]] == ["learned-64", "sample-256"]
    assert told["frontier"][1]["recovered"] is None
    assert told["trades"] == FACTS["trades"]
    assert told["leakage_summary"] == FACTS["leakage_summary"]


@pytest.mark.parametrize("facts", [None, b"{", b'{"payoff": {}}'])
def test_a_bundle_with_an_older_report_or_none_is_told_with_what_there_is(tmp_path, capsys, facts):
    made = make(tmp_path / "echo-1")
    if facts:
        locate_report(made.path).mkdir()
        (locate_report(made.path) / FACTS_FILE).write_bytes(facts)
    assert print_result(made, 1.0, as_json=False) == []
    said = capsys.readouterr().out
    assert "not recorded" in said
    assert "best trades" not in said


def test_limits_that_no_path_meets_show_the_frontier(capsys):
    print_measured((), POINTS)
    said = capsys.readouterr().err
    assert said.index("learned-64") < said.index("sample-256")
    assert "no gap" in said
    print_measured((), ())
    assert capsys.readouterr().err == ""


def test_figures_tell_what_a_question_carries_and_what_is_out_of_domain(tmp_path):
    edge = DomainFigures(DomainScore.NOVELTY, 0.97, 0.05, 0.045, 0.03, 0.066, 800, 0.61, 200)
    manifest = msgspec.structs.replace(echo_manifest(10), gate=GateFigures(novelty_output=True, domain=edge))
    told = msgspec.json.encode({"path": {"name": "early-a-3", "route": "early", "label": "P2", "recovered": 0.93}})
    found = format_figures(write_bundle(tmp_path / "known-1", manifest, contents(), told))
    assert found["a question carries"] == "early-a-3: early features, label P2"
    assert found["kept of the gain"] == "93.0%, on calibration samples"
    assert found["out of domain"] == "novelty above 0.97, false alarms 4.5% (3.0% to 6.6%), finds 61% of 200 that are"
    assert found["out of domain, hub"] == "not told"
    assert found["promised"] == "no limit of what is asked"


def test_figures_say_whether_groups_or_samples_were_promised_what_is_asked(tmp_path):
    plain = echo_manifest(10)
    for groups, told in ((0, "at most 25.0% asked, of the samples"), (30, "asked, of groups never seen, by 30 groups")):
        figures = msgspec.structs.replace(plain.calibration, asked_limit=0.25, groups=groups)
        manifest = msgspec.structs.replace(plain, calibration=figures)
        found = format_figures(write_bundle(tmp_path / f"known-{groups}", manifest, contents()))
        assert told in found["promised"]
