"""Scenario files: reading gives back what was written, and an invalid file is one line that names the key."""

import contextlib
import importlib.util
import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from models.forge.evaluation.outcomes import classifier_outcomes, encode_outcomes
from simulations.scenario import types
from simulations.scenario.arrivals import ArrivalProcess
from simulations.scenario.conditions import EnvironmentConditions
from simulations.scenario.schema import ScenarioError
from simulations.scenario.writer import format_scenario
from simulations.scenario_files import find_scenario, list_scenarios, load_scenario, parse_scenario
from wire.process.exit_codes import ExitCode, ExitError

TOP = 'schema = 1\nquestion = "Does it hold?"\ndevices = 100\nduration = "10min"\n'
TWO = '[[region]]\nname = "eu"\nshare = 0.5\nhubs = 2\n[[region]]\nname = "us"\nshare = 0.5\n'


def test_shipped_scenarios_each_ask_a_question_and_expect_an_answer():
    assert {"steady", "storm", "partition", "region-loss", "week-offline", "million"} <= set(list_scenarios())
    for name in list_scenarios():
        scenario = load_scenario(name)
        assert scenario.name == name
        assert scenario.question.endswith("?")
        assert scenario.expect


def test_a_scenario_says_the_least_and_the_rest_is_usual():
    scenario = parse_scenario(TOP)
    assert (scenario.devices, scenario.duration_s, scenario.step_s) == (100, 600.0, 5.0)
    assert scenario.regions == (types.Region(),)
    assert scenario.load == types.Load()


@pytest.mark.parametrize(
    ("words", "seconds"), [("250ms", 0.25), ("1.5h", 5400.0), ("2 d", 172_800.0), ("1_000s", 1000.0)]
)
def test_times_are_written_as_people_write_them(words, seconds):
    assert parse_scenario(TOP.replace("10min", words)).duration_s == pytest.approx(seconds)


def test_a_link_of_the_whole_is_that_of_regions_that_say_none():
    scenario = parse_scenario(TOP + 'link = { latency = "80ms" }\n' + TWO + "link = { loss = 0.2 }\n")
    assert scenario.regions[0].link.climate == replace(EnvironmentConditions(), latency_s=0.08)
    assert scenario.regions[1].link.climate == replace(EnvironmentConditions(), loss=0.2)


AGAIN = TOP + '[[event]]\nkind = "kill_broker"\nat = "1min"\nlasts = "5s"\nevery = "2min"\n'


def test_an_event_that_comes_again_stands_once_for_each_time_until_its_end_or_that_of_the_samples():
    assert [each.at_s for each in parse_scenario(AGAIN).events] == [60.0, 180.0, 300.0, 420.0, 540.0]
    assert [each.at_s for each in parse_scenario(AGAIN + 'until = "5min"').events] == [60.0, 180.0, 300.0]
    assert [each.at_s for each in parse_scenario(AGAIN + 'until = "30s"').events] == [60.0]


EVENT = TOP + "[[event]]\nat = 1\n"
TRACE = TOP + '[load]\nkind = "trace"\ntrace = '
WRONG = {
    "not TOML": ("schema = ", "not TOML"),
    "no question": ('schema = 1\ndevices = 1\nduration = "1s"', "question: is missing"),
    "a later format": (TOP.replace("schema = 1", "schema = 2"), "schema: must be 1, not 2"),
    "again before it is over": (AGAIN.replace('"5s"', '"2min"'), "every: longer than lasts"),
    "an end of what comes once": (EVENT + 'kind = "kill_hub"\nuntil = 5\n', "until: allowed beside every alone"),
    "again without end": (AGAIN.replace('"2min"', '"6ms"').replace('"5s"', "0"), "event: 10001 events"),
    "misspelt key": (TOP + "devcies = 3", "unknown key 'devcies'; did you mean 'devices'?"),
    "misspelt key of a table": (TOP + "[load]\nswign = 0.3", "load: unknown key 'swign'; did you mean 'swing'?"),
    "no devices": (TOP.replace("100", "0"), "devices: "),
    "no time": (TOP.replace("10min", "10 fortnights"), "duration: '10 fortnights' is no time"),
    "not a number": (TOP + "[load]\nswing = nan", "load.swing: "),
    "no share": (TOP + "[model]\nunsure_share = 1.2", "model.unsure_share: "),
    "an unknown figure": (TOP + '[[expect]]\nfigure = "p99"\nat_most = 1', "expect[0].figure: 'p99' is no figure"),
    "an expectation of nothing": (TOP + '[[expect]]\nfigure = "p99_s"', "expect[0]: needs at_most or at_least"),
    "an unknown reason": (TOP + '[[expect]]\nfigure = "why.bored"\nat_most = 1', "'bored' is no reason of an answer"),
    "an unknown event": (EVENT + 'kind = "flood"', "event[0].kind: 'flood' is no kind of event"),
    "too late": (TOP + '[[event]]\nkind = "kill_hub"\nat = "11min"', "event[0].at: 660 s is after the last sample"),
    "no such region": (EVENT + 'kind = "kill_hub"\nregion = "mars"', "event[0].region: 'mars' is none of"),
    "no such hub": (EVENT + 'kind = "kill_hub"\nhub = "eu-9"', "event[0].hub: 'eu-9' is none of local-1"),
    "no such device": (EVENT + 'kind = "kill_agents"\ndevice = 100', "event[0].device: 100 is none of"),
    "no such label": (EVENT + 'kind = "regressed"\nlabel = 10', "event[0].label: 10 is none of"),
    "weather without any": (EVENT + 'kind = "weather"', "event[0]: link: required for kind 'weather'"),
    "regions too large": (TOP + TWO.replace("0.5", "0.6"), "region: shares sum to 1.2, not to 1"),
    "twice the same region": (TOP + TWO.replace("us", "eu"), "region names 'eu' twice"),
    "failover to nowhere": (TOP + '[[region]]\nname = "eu"\nfailover = ["us"]', "region[0].failover: 'us' is no other"),
    "classes that are not all": (TOP + "[load]\nclasses = { open = 0.5 }", "load: classes: shares sum to 0.5"),
    "nothing may leave": (TOP + "[load]\nclasses = { private = 1.0 }", "load.classes: none of them may leave"),
    "too fine": (TOP + 'step = "0.1s"\nheal = "10h"', "step: 0.1 s makes 366000 buckets"),
    "no trace": (TOP + '[load]\nkind = "trace"', "load: trace names a file where kind is 'trace'"),
    "a trace of nowhere": (TRACE + '"no.csv"', "load.trace: No such file"),
    "a trace with a gap": (TRACE + "[[0, 1], [60, 1], [180, 1]]", "row 3: 120 s after the row before"),
    "a trace that ends": (TRACE + "[[0, 1], [60, 1]]", "load.trace: ends at 60 s"),
    "a trace that begins late": (TRACE + "[[60, 1], [960, 1]]", "load.trace: begins at 60 s"),
    "a trace of less than none": (TRACE + "[[0, -1], [900, 1]]", "load.trace: row 1: -1 samples"),
    "a policy of nowhere": (TOP + 'policy = "no.toml"', "policy: No such file"),
    "a policy that is none": (TOP + 'policy = """\nschema = 2\n"""', "policy: name: is missing"),
    "recorded nowhere": (TOP + '[model]\nreplay = "no.npz"', "model.replay: no.npz: cannot be read as outcomes"),
    "recorded and stated": (TOP + "[model]\nbundle = 'b'\nreplay = 'r'", "model: replay and bundle: give only one"),
    "recorded in part": (
        TOP + "[model]\nreplay = { confidence = [0.5], edge_right = [], hub_right = [true] }",
        "confidence, edge_right and hub_right are of one length",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_meant_is_one_line_that_names_the_key(case):
    text, words = WRONG[case]
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text)
    said = str(caught.value)
    assert words in said
    assert "\n" not in said
    assert len(said) <= 500


def test_a_policy_whose_hubs_are_not_there_is_refused():
    text = types.build_permissive_policy((types.Region("mars"),))
    with pytest.raises(ScenarioError, match="policy: lets hubs mars-1 answer; this scenario has local-1"):
        parse_scenario(f'{TOP}policy = """\n{text}"""')


def test_a_scenario_written_out_reads_back_equal(tmp_path):
    for name in list_scenarios():
        assert parse_scenario(format_scenario(load_scenario(name))) == load_scenario(name)
    recorded = types.RecordedOutcomes((0.25, 0.5), (True, False), (True, True))
    full = types.Scenario(
        name="full", question='Does "it" hold?', seed=9, duration_s=100.0, step_s=0.7, devices=7, begins_minute=61,
        regions=(
            types.Region("eu", 0.25, 2, 3, 8, 0.1, 0.2, types.HubLimits(max_queued=5, max_wait_s=1.5),
                        types.Link(replace(EnvironmentConditions(), loss=0.3), 9000.0, 0.5), ("us",), -60.0, (), 3),
            types.Region("us", 0.75),
        ),
        load=types.Load(
            types.LoadKind.BURSTY, 1 / 7.3, 0.1, 5.0, 3.0, 40.0, 4.0, (), (("open", 0.5), ("private", 0.5))
        ),
        model=types.Model(0.5, 0.9, 0.1, 0.8, 3, (), recorded),
        policy=types.build_permissive_policy((types.Region("eu", hubs=2),), version=3),
        events=tuple(
            types.ScenarioEvent(kind, 1.5, 2.25, "eu", 0.3, 1, "eu-2", 4.5, 2, True,
                       EnvironmentConditions(loss=0.7) if kind is types.EventKind.WEATHER else None,
                       types.build_permissive_policy((types.Region("eu", hubs=2),))
                       if kind is types.EventKind.POLICY else "", 2)
            for kind in types.EventKind
        ),
        expect=(types.Expectation("lost", 0.0), types.Expectation("why.verdict", None, 0.1, 5.0, 50.0)),
        heal_s=1.0, grace_s=2.0, commit_s=0.25,
    )  # fmt: skip
    assert parse_scenario(format_scenario(full)) == full
    assert tomllib.loads(format_scenario(full))["event"][0]["kind"] == "kill_agents"


def test_a_recorded_run_is_read_from_the_report_of_a_forge(tmp_path):
    labels = np.array([0, 1, 2])
    outcomes = classifier_outcomes(np.array([0.9, 0.5, 0.7]), labels, np.array([0, 1, 1]), np.array([0, 1, 1]))
    (tmp_path / "outcomes.npz").write_bytes(encode_outcomes(outcomes))
    recorded = parse_scenario(TOP + "[model]\nreplay = '.'", tmp_path).model.replay
    assert recorded == types.RecordedOutcomes((0.9, 0.5, 0.7), (True, True, False), (True, True, True))


def test_a_trace_is_read_from_csv_and_followed(tmp_path):
    (tmp_path / "load.csv").write_text("at_s,samples,note\n" + "".join(f"{n * 60},{n},x\n" for n in range(11)))
    scenario = parse_scenario(TRACE + '"load.csv"', tmp_path)
    taken = ArrivalProcess(scenario, 0, np.random.default_rng(1)).draw_between(0.0, 600.0)
    assert len(taken.at_s) == sum(range(10))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("at_s,samples\n0,1\n60,\n120,1\n", "line 3: samples is '', no number: a gap"),
        ("at_s,samples\n0,1\n60,many\n", "line 3: samples is 'many'"),
        ("at_s,samples\n0,1\n60\n", "line 3: samples is None"),
        ("at_s,n\n0,1\n", "has no column samples"),
        ("at_s,samples\n0,1\n", "1 rows; a trace has 2"),
        ("at_s,samples\n0,0\n900,0\n", "no samples at all"),
        ("", "has no column at_s"),
    ],
)
def test_a_trace_with_a_hole_is_not_filled_by_a_guess(tmp_path, text, words):
    (tmp_path / "load.csv").write_text(text)
    with pytest.raises(ScenarioError, match=r"load\.trace: load\.csv: ") as caught:
        parse_scenario(TRACE + '"load.csv"', tmp_path)
    assert words in str(caught.value)


def test_parquet_without_pyarrow_says_what_is_missing(tmp_path):
    if importlib.util.find_spec("pyarrow") is not None:
        pytest.skip("pyarrow is here")
    (tmp_path / "load.parquet").write_bytes(b"PAR1")
    with pytest.raises(ScenarioError, match="Parquet needs pyarrow"):
        parse_scenario(TRACE + '"load.parquet"', tmp_path)


def test_a_trace_is_read_from_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(
        pa.table({"at_s": [0.0, 900.0], "samples": [10, 0]}), tmp_path / "load.parquet"
    )
    assert len(parse_scenario(TRACE + '"load.parquet"', tmp_path).load.trace) == 2


def test_a_scenario_that_is_not_there_names_those_that_are():
    with pytest.raises(ExitError, match=r"nope: no such file; scenarios that are shipped: .*steady") as missing:
        load_scenario("nope")
    assert missing.value.code is ExitCode.MISSING
    assert find_scenario("steady").name == "steady.toml"


@given(st.sampled_from(list_scenarios()), st.integers(0, 3000), st.text(max_size=6), st.integers(0, 30))
def test_a_damaged_scenario_is_read_or_refused(name, at, put, cut):
    """Whatever is cut out of a file and put in: a scenario, or a ScenarioError and nothing else."""
    text = find_scenario(name).read_text(encoding="utf-8")
    at %= len(text)
    with contextlib.suppress(ScenarioError):
        parse_scenario(text[:at] + put + text[at + cut :])
