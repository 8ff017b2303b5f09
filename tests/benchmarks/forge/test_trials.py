"""Trials of the forge: kept as lines, taken again by recipe, compared with a lossless hub, shown as a table."""

import math

import numpy as np
import pytest

from benchmarks.forge import networks, run, trial_table
from benchmarks.forge.datasets import CASES, COST, NETWORKS_FILE
from benchmarks.forge.trial import compare_lossless, replace_hub
from benchmarks.forge.trials import (
    TrialFailedError,
    TrialKey,
    TrialLedger,
    TrialRecord,
    encode_record,
    find_or_run,
    read_records,
)
from models.forge.data.types import Data, DataPart
from models.forge.evaluation.outcomes import Outcomes, regressor_outcomes
from models.forge.spec import Effort, validate_spec

KEY = TrialKey("fashion-mnist", 11, "sample-300", "quick")


def make_record(key=KEY, recipe="r1", **fields):
    return TrialRecord(**key._asdict(), recipe=recipe, commit="abc", **fields)


def forbid_run(_key):
    raise AssertionError("a finished trial was run again")


def test_a_finished_trial_is_not_run_again_after_a_kill_in_the_middle_of_the_next_line(tmp_path):
    path = tmp_path / "trials.jsonl"
    find_or_run(KEY, TrialLedger(path, "r1"), lambda key: make_record(key, edge=0.9, more={"recall": 61.0}))
    with path.open("ab") as file:
        file.write(encode_record(make_record(KEY._replace(seed=12)))[:40])
    again = TrialLedger(path, "r1")
    kept = find_or_run(KEY, again, forbid_run)
    assert (kept.edge, kept.more) == (0.9, {"recall": 61.0})
    assert again.find(KEY._replace(seed=12)) is None


def test_a_trial_of_another_recipe_is_measured_anew_and_the_old_line_stays(tmp_path):
    path = tmp_path / "trials.jsonl"
    TrialLedger(path, "r1").add(make_record(edge=0.5))
    newer = TrialLedger(path, "r2")
    assert newer.find(KEY) is None
    newer.add(make_record(recipe="r2", edge=0.6))
    assert [record.edge for record in read_records(path)] == [0.5, 0.6]


def test_a_line_cut_short_does_not_swallow_the_trial_that_follows_it(tmp_path):
    path = tmp_path / "trials.jsonl"
    path.write_bytes(encode_record(make_record())[:30])
    TrialLedger(path, "r1").add(make_record(edge=0.7))
    assert [record.edge for record in read_records(path)] == [0.7]


def test_what_was_not_measured_is_left_out_of_the_line_and_read_as_no_number():
    line = encode_record(make_record(edge=0.9, more={"recall": math.nan}))
    assert b"null" not in line
    assert b"hub" not in line


@pytest.fixture
def outcomes():
    """400 samples; the edge is wrong in the 80 least sure; codes lose every fourth of what the hub knows of those."""
    confidence = np.linspace(0, 1, 400)
    edge = confidence > 0.2
    hub = np.ones(400, bool)
    hub[:80:4] = False
    return Outcomes(confidence, edge, hub)


def test_recovered_is_what_codes_keep_of_the_gain_of_lossless_features_with_the_same_edge(outcomes):
    lossless = Outcomes(outcomes.confidence, outcomes.edge_right, np.ones(400, bool))
    found = compare_lossless(outcomes, lossless, 0.25)
    assert found["recovered"] == pytest.approx(0.75)
    assert found["recovered_low"] < 0.75 < found["recovered_high"]
    assert 0 < found["gap_low"] < found["gap"] == pytest.approx(0.2, abs=0.01)


def test_a_hub_no_better_than_its_edge_has_no_gap_and_recovers_nothing(outcomes):
    same = Outcomes(outcomes.confidence, outcomes.edge_right, outcomes.edge_right)
    found = compare_lossless(same, same, 0.25)
    assert math.isnan(found["recovered"])
    assert not make_record(**found).has_gap


def test_a_regressor_recovers_by_its_rmse():
    rng = np.random.default_rng(0)
    y = rng.normal(size=300)
    edge, hub = y + rng.normal(0, 2, 300), y + rng.normal(0, 0.5, 300)
    confidence = 1 / (1 + np.abs(edge - y))
    coded = regressor_outcomes(confidence, edge, hub, y, 0.5)
    found = compare_lossless(coded, coded, 0.5)
    assert found["recovered"] == pytest.approx(1)
    assert found["gap"] > 1
    assert found["pair_at"] < found["edge"]


def test_lossless_answers_replace_those_of_the_hub_for_samples_in_scope_only():
    part = DataPart((np.zeros((4, 1), np.float32),), np.array([0, -1, 1, 1]))
    data = Data(part, part, part, ("a", "b"))
    coded = Outcomes(np.array([0.1, 0.5, 0.9]), np.array([True, False, False]), np.zeros(3, bool))
    whole = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    assert replace_hub(coded, whole, data).hub_right.tolist() == [True, True, False]


def test_the_table_has_the_median_and_the_ends_over_seeds_and_judges_the_median():
    records = [
        make_record(KEY._replace(seed=seed), edge=0.90, hub=1.0, pair_at=pair, lossless_at=0.99, share=0.25)
        for seed, pair in ((11, 0.98), (12, 0.985), (13, 0.99))
    ]
    row = next(row for row in trial_table.build_rows(records) if "<= 300 B" in row.name and "Fashion" in row.name)
    assert trial_table.format_values(row) == "85.0 (80.0 to 90.0) %"
    assert row.held is True
    assert "lossless 90.0 %" in row.note


def test_a_refused_forging_is_a_row_that_was_not_measured_with_the_reason():
    rows = trial_table.build_rows([make_record(error="no code path meets the limits")])
    row = next(row for row in rows if "<= 300 B" in row.name and "Fashion" in row.name)
    assert trial_table.format_values(row) == "not measured"
    assert row.note == "no code path meets the limits"
    assert row.held is False


def test_a_set_without_a_gap_above_its_interval_is_not_judged_and_says_so():
    record = make_record(TrialKey("package-table", 11, "features", "quick"), gap_low=-0.01, gap_high=0.02, metric="x")
    row = next(row for row in trial_table.build_rows([record]) if row.name.startswith("package-table: recovered"))
    assert (row.values, row.held) == ((), None)
    assert "no gap above its interval" in row.note


def test_a_pair_worse_than_its_edge_counts_only_where_nothing_was_said():
    worse = make_record(gained_low=-0.03, gained_high=-0.01)
    told = make_record(KEY._replace(seed=12), gained_low=-0.03, gained_high=-0.01, warnings=("does not pay",))
    row = next(row for row in trial_table.build_rows([worse, told]) if "without a word" in row.name)
    assert row.values == (1.0,)
    assert row.held is False
    assert row.note.startswith("2 of 2 worse")


def test_every_set_is_measured_once_before_any_is_measured_with_the_second_seed():
    keys = run.plan_trials(list(CASES), (11, 12), Effort.QUICK)
    assert [key.seed for key in keys] == sorted(key.seed for key in keys)
    assert {key.set for key in keys if key.seed == 11} == set(CASES)
    assert {key.effort for key in keys if key.set in {COST, "cmapss"}} == {"normal"}
    assert {key.effort for key in keys if key.set not in {COST, "cmapss"}} == {"quick"}


def test_wishes_of_one_set_and_seed_run_one_after_another_and_what_is_timed_runs_alone():
    beside, alone = run.group_trials(run.plan_trials(["cmapss", COST, "mitbih"], (11, 12), Effort.QUICK))
    assert [{(key.set, key.seed) for key in group} for group in beside] == [
        {("cmapss", 11)},
        {("mitbih", 11)},
        {("cmapss", 12)},
        {("mitbih", 12)},
    ]
    assert [[key.wish for key in group] for group in beside] == [["features", "sample"]] * 4
    assert [group[0].set for group in alone] == [COST, COST]


def test_a_trial_that_breaks_off_is_told_and_the_others_are_run_and_printed(tmp_path, monkeypatch, capsys):
    def break_off(key, threads, _folder):
        if key.wish == "sample":
            raise TrialFailedError("cmapss: exit code 9; see log")
        return make_record(key, edge=0.5, seconds=threads)

    monkeypatch.setattr(run, "run_in_process", break_off)
    runner = run.TrialRunner(TrialLedger(tmp_path / "trials.jsonl", "r1"))
    runner.run_all(run.plan_trials(["cmapss", COST], (11,), Effort.QUICK), 2)
    assert [(record.set, record.seconds) for record in runner.records] == [("cmapss", 1), (COST, 2)]
    assert runner.failed == ["cmapss: exit code 9; see log"]
    told = capsys.readouterr()
    assert "exit code 9" in told.err
    assert "cmapss features seed 11" in told.out


@pytest.mark.parametrize("name", CASES)
def test_every_wish_of_a_set_can_be_wished_and_every_row_has_its_trial(name):
    for wish in CASES[name].wishes.values():
        validate_spec(wish)
    planned = {(plan.set, plan.wish) for plan in trial_table.plan_rows() if plan.set == name}
    assert planned
    assert planned <= {(name, wish) for wish in CASES[name].wishes}


def test_features_alone_leave_unless_the_wish_says_that_a_sample_may():
    for case in CASES.values():
        assert {name for name, wish in case.wishes.items() if wish.sample_level} == {
            name for name in case.wishes if name.startswith("sample")
        }


def test_rows_of_unseen_networks_name_those_that_failed_and_a_late_refusal_is_no_success(tmp_path):
    path = tmp_path / NETWORKS_FILE
    assert not networks.build_network_rows(networks.read_networks(path))[0].held
    for name, good, whole in (("swin", True, None), ("hubert", False, None), ("swin", True, True)):
        networks.keep_network(name, networks.NetworkFigures("abc", good, whole), tmp_path)
    exported, forged = networks.build_network_rows(networks.read_networks(path))
    assert (exported.values, exported.unit, exported.held) == ((1.0,), "of 2", False)
    assert "not: hubert" in exported.note
    assert (forged.values, forged.unit, forged.held) == ((1.0,), "of 1", True)


@pytest.mark.parametrize(
    ("made", "seconds", "forged"), [("", 3, None), ("refused: x", 9, True), ("refused", 99, False)]
)
def test_a_refusal_counts_where_it_comes_within_a_minute(tmp_path, monkeypatch, made, seconds, forged):
    monkeypatch.setattr(networks, "figures_folder", lambda: tmp_path)
    networks.record_run("swin", exported=True, made=made, seconds=seconds)
    assert networks.read_networks(tmp_path / NETWORKS_FILE)["swin"].forged is forged
