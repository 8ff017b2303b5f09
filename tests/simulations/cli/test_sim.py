"""Command `skerry sim`: a report or one line that says why not, and the exit code."""

import json
import signal
import subprocess
import sys
import time

import msgspec
import pytest
from typer.testing import CliRunner

from simulations.cli.sim import app
from simulations.report.files import exit_code_of, load_outcome, set_replay_command
from simulations.report.outcome import Outcome, Violation
from simulations.scenario_files import list_scenarios
from tests import ROOT
from tests.simulations.doubles.outcomes import HISTORY, outcome
from wire.process.exit_codes import ExitCode, ExitError

SMALL = """schema = 1
question = "Does a small fleet hold?"
devices = 20
duration = "2min"
heal = "3min"
event = [{ kind = "partition", at = "30s", lasts = "20s", share = 0.5 }]
expect = [{ figure = "lost", at_most = 0 }, { figure = "accuracy", at_least = LEAST }]
"""


@pytest.fixture
def sim(tmp_path):
    """Types `skerry sim ...` in an empty folder where small.toml lies."""

    def call(*words, least="0.5"):
        (tmp_path / "small.toml").write_text(SMALL.replace("LEAST", least))
        typed = [str(tmp_path / word) if word.endswith((".toml", ".json", ".html")) else word for word in words]
        more = ["--out", str(tmp_path / "reports")] if words[0] == "run" else []
        return CliRunner().invoke(app, [*typed, *more])

    return call


def test_a_run_writes_its_page_and_its_figures_and_says_that_all_held(sim, tmp_path):
    done = sim("run", "small.toml")
    assert done.exit_code == ExitCode.OK, done.output
    assert "Yes: all 2 expectations held" in done.output
    assert (tmp_path / "reports" / "small.html").read_text().startswith("<!doctype html>")
    found = load_outcome(tmp_path / "reports" / "small.json")
    assert found.complete
    assert found.ok
    assert sum(found.arrivals) == found.samples == found.history.answers


def test_an_expectation_that_did_not_hold_has_a_code_of_its_own(sim):
    done = sim("run", "small.toml", least="1.0")
    assert done.exit_code == ExitCode.EXPECTATION
    assert "No: 1 of 2 expectations did not hold" in done.output


@pytest.mark.further
def test_the_same_seed_twice_is_the_same_json_but_for_wall_time(sim):
    first, second, other = (
        msgspec.json.decode(sim("run", "small.toml", "--json", "--seed", seed).stdout, type=Outcome) for seed in "778"
    )
    assert first.to_plain(wall=False) == second.to_plain(wall=False)
    assert first.to_plain(wall=False) != other.to_plain(wall=False)


def test_the_bulk_lane_is_for_large_runs_unless_it_is_asked_for(sim):
    small, bulk, exact = (
        msgspec.json.decode(sim("run", "small.toml", "--json", *more).stdout, type=Outcome)
        for more in ((), ("--bulk",), ("--exact",))
    )
    assert "bulk.samples" not in small.counts
    assert small.to_plain(wall=False) == exact.to_plain(wall=False)
    assert bulk.counts["bulk.samples"] > 0
    assert bulk.samples == exact.samples


@pytest.mark.further
def test_the_summary_says_how_much_was_decided_in_bulk(sim):
    assert "in bulk: " in sim("run", "small.toml", "--bulk").output
    assert "in bulk: " not in sim("run", "small.toml").output


def test_an_unreadable_scenario_runs_nothing_and_writes_nothing(sim, tmp_path):
    done = sim("run", "small.toml", least="nan")
    assert isinstance(done.exception, ExitError)
    assert done.exception.code is ExitCode.SCENARIO
    assert str(done.exception).startswith("small.toml: expect[1].at_least: ")
    assert not (tmp_path / "reports").exists()


def test_the_list_names_every_scenario_with_its_question(sim):
    assert list(json.loads(sim("list", "--json").output)) == list_scenarios()
    assert "p99_s" in sim("list").output


def test_show_prints_a_scenario_or_what_a_run_has_shown(sim, tmp_path):
    (tmp_path / "saved.json").write_text(json.dumps(outcome().to_plain()))
    assert 'question = "Does a small fleet hold?"' in sim("show", "small.toml").output
    assert "history holds" in sim("show", "saved.json", "--html", "again.html").output
    assert (tmp_path / "again.html").is_file()


def test_two_runs_are_compared(sim, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(outcome().to_plain()))
    (tmp_path / "b.json").write_text(json.dumps(outcome(queues={"eu-1": (9,) * 84}).to_plain()))
    found = {row["figure"]: row for row in json.loads(sim("compare", "a.json", "b.json", "--json").output)}
    assert found["queue_peak"]["second"] == 9
    assert "+" in sim("compare", "a.json", "b.json", "--html", "both.html").output
    assert (tmp_path / "both.html").is_file()


@pytest.mark.parametrize(
    ("text", "code"), [("{}", ExitCode.SCENARIO), ("", ExitCode.SCENARIO), (None, ExitCode.MISSING)]
)
def test_what_no_run_has_written_is_not_compared(sim, tmp_path, text, code):
    if text is not None:
        (tmp_path / "a.json").write_text(text)
    done = sim("compare", "a.json", "a.json")
    assert isinstance(done.exception, ExitError)
    assert done.exception.code is code


def test_a_folder_that_cannot_be_written_is_said_before_the_run(sim, tmp_path):
    (tmp_path / "reports").write_text("in the way")
    done = sim("run", "small.toml")
    assert isinstance(done.exception, ExitError)
    assert done.exception.code is ExitCode.DISK


def test_a_broken_law_comes_before_everything_and_says_how_to_see_it_again():
    broken = outcome(violations=(Violation("lost", "q 1", "?"),), complete=False)
    assert exit_code_of(broken) == ExitCode.CHECK_FAILED
    assert set_replay_command(broken, "skerry sim run x.toml").violations[0].replay == "skerry sim run x.toml --seed 1"
    assert (
        exit_code_of(outcome(history=msgspec.structs.replace(HISTORY, lost=1, flaws={"lost": 1})))
        == ExitCode.CHECK_FAILED
    )
    assert exit_code_of(outcome(complete=False)) == 130


@pytest.mark.further
def test_ctrl_c_writes_the_report_of_what_there_is(tmp_path):
    """A week of so many devices is far from over when it is asked to stop."""
    text = SMALL.replace("LEAST", "0").replace("devices = 20", "devices = 1_000").replace('"2min"', '"7d"')
    (tmp_path / "long.toml").write_text(text)
    command = [sys.executable, str(ROOT / "skerry.py"), "sim", "run", "long.toml", "--processes", "1"]
    child = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "reports").is_dir() and time.monotonic() < deadline:
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        output, errors = child.communicate(timeout=90)
    finally:
        child.kill()
    assert child.returncode == 130, errors
    assert "Not finished" in output
    found = load_outcome(tmp_path / "reports" / "long.json")
    assert not found.complete
    assert found.until_s < found.duration_s
