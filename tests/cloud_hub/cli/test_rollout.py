"""`skerry rollout`: output and exit codes, for people and for programs."""

from pathlib import Path

import msgspec
import pytest

from cloud_hub.cli import rollout_text
from cloud_hub.cli.rollout import RolloutClient, parse_parameters
from cloud_hub.rollout.types import RolloutState
from cloud_hub.rollout.view import RolloutView, build_view
from policies.rollout_rules.gate import GateOutcome, GateResult
from tests.cloud_hub.doubles.rollout_bench import PASS, Bench
from wire.process.exit_codes import ExitCode, ExitError
from wire.protocol.rollout import InstallFailure, InstallState

S = RolloutState
GATE = GateResult(
    GateOutcome.INCONCLUSIVE, "210 audits do not rule out 8.0 points", 0.081, ("vitals",), False, -0.004, -0.081, 0.066,
    210, ("open: 210 audits, -0.4 points",),
)  # fmt: skip


@pytest.fixture(scope="module")
def running() -> RolloutView:
    bench = Bench(20, judge=PASS, waves=["1", "25%", "100%"])
    bench.to(S.SOAKING)
    return msgspec.structs.replace(build_view(bench.core), gate=GATE)


def test_a_status_shows_the_sample_what_is_unaudited_and_what_the_gate_leaves_open(running):
    page = "\n".join(rollout_text.format_page(running))
    assert "r1  soaking, wave 1 of 3" in page
    assert "digits@2, from digits@1" in page
    assert "gate       inconclusive: 210 audits do not rule out 8.0 points" in page
    assert "-0.4 points over 210 audits, between -8.1 and +6.6; worse by 8.1 at most" in page
    assert "unaudited  vitals: for these only the devices' own signals count" in page
    assert (
        "0 failures of 1 results in this wave; 0 would exclude, with 95 % confidence, only failure rates above 95.0%"
        in page
    )
    assert all(len(line) < 160 for line in page.splitlines())


def test_a_status_names_devices_the_next_step_and_when_it_aborts():
    bench = Bench(1000)
    first, second = bench.plan.waves[0][:2]
    bench.breaks([first], InstallState.FAILED, InstallFailure.DISK)
    bench.devices[second].takes_s = 9000.0
    bench.to(S.RUNNING)
    bench.run(300.0)
    page = "\n".join(rollout_text.format_page(build_view(bench.core)))
    assert f"failed     {first} (disk)" in page
    assert f"waits for  {second}" in page
    assert "next       devices install it and pass their own trial" in page
    assert "aborts at  2 failures and more than 5 % of a wave; evidence of harm; 3 more looks" in page


def test_a_status_goes_through_json_and_back(running):
    assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(running)), RolloutView) == running


ENDS = {
    S.RUNNING: (ExitCode.OK, "Waiting for r1 to finish: 0 of 20 devices have committed, wave 1 of 3 is running"),
    S.SOAKING: (ExitCode.OK, "wave 1 of 3 is watched"),
    S.WAITING_APPROVAL: (ExitCode.WAITING, "skerry rollout approve r1 --plan "),
    S.PAUSED_INCONCLUSIVE: (ExitCode.WAITING, "Paused: r1, wave 1 of 3: because"),
    S.PAUSED_MANUAL: (ExitCode.WAITING, "Paused: r1"),
    S.COMPLETED: (ExitCode.OK, "rollout r1 successfully rolled out"),
    S.COMPLETED_PARTIAL: (ExitCode.UNFINISHED, "except to devices that were not reached in time"),
    S.ABORTED: (ExitCode.STOPPED, "rollout r1 aborted: because"),
    S.REVERTED: (ExitCode.STOPPED, "reverted"),
    S.DENIED: (ExitCode.STOPPED, "denied"),
    S.EXPIRED: (ExitCode.STOPPED, "expired"),
}


@pytest.mark.parametrize("state", S)
def test_each_state_has_its_line_and_its_exit_code(running, state):
    code, words = ENDS.get(state, (ExitCode.OK, "r1"))
    found = msgspec.structs.replace(running, state=state, why="because")
    assert rollout_text.exit_code_for(found) is code
    assert words in rollout_text.format_line(found)


def test_lists_devices_and_history_are_tables(running):
    bench = Bench(3)
    bench.to(S.COMPLETED)
    table = list(rollout_text.format_rollouts([build_view(bench.core)]))
    assert table[0].split() == ["ROLLOUT", "VERSION", "STATE", "WAVE", "COMMITTED", "STARTED", "WHY"]
    assert table[1].split()[:3] == ["r1", "digits@2", "completed"]
    assert "3/3" in table[1]
    lines = list(rollout_text.format_history(bench.store.read_history("r1")))
    assert lines[0].split() == ["REVISION", "TIME", "BY", "WHAT", "WHY"]
    assert lines[1].split()[3:5] == ["ann", "started"]


def test_parameters_are_json_words_and_lists():
    words = ["soak_s=600", "waves=1, 25%,100%", "strict=true", "gate.expected=-0.01", "gate.signals.p95=2", "x=abc"]
    assert parse_parameters(words) == {
        "soak_s": 600,
        "waves": ["1", "25%", "100%"],
        "strict": True,
        "gate": {"expected": -0.01, "signals": {"p95": 2}},
        "x": "abc",
    }


@pytest.mark.parametrize("text", ["soak_s", "=1", "gate.=1", ".x=1"])
def test_a_parameter_without_name_or_value_is_refused(text):
    with pytest.raises(ExitError) as caught:
        parse_parameters([text])
    assert caught.value.code is ExitCode.USAGE


class Told(RolloutClient):
    """A hub that has these rollouts."""

    views: tuple[RolloutView, ...] = ()

    def list_all(self):
        return list(self.views)


def test_a_rollout_is_named_by_its_id_the_start_of_it_or_its_family(running):
    clerk = object.__new__(Told)
    older = msgspec.structs.replace(running, id="digits-1-aa")
    newer = msgspec.structs.replace(running, id="digits-2-bb")
    Told.views = (newer, older)
    assert (
        clerk.find_rollout("").id
        == clerk.find_rollout("digits").id
        == clerk.find_rollout("digits-2").id
        == "digits-2-bb"
    )
    assert clerk.find_rollout("digits-1-aa").id == "digits-1-aa"
    for name, code in (("digits-", ExitCode.USAGE), ("beats", ExitCode.NOT_FOUND)):
        with pytest.raises(ExitError) as caught:
            clerk.find_rollout(name)
        assert caught.value.code is code


def test_without_a_hub_a_command_says_how_to_start_one(tmp_path: Path):
    config = tmp_path / "hub.toml"
    config.write_text(f'state = "{tmp_path / "hub"}"\n')
    (tmp_path / "hub").mkdir()
    with pytest.raises(ExitError, match="skerry hub run"):
        RolloutClient.for_hub(config, None, None)
