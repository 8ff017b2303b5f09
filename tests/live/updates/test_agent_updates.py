"""An agent and its update workers as processes: it starts with nothing, gets all by TUF, and tries what is assigned."""

import json

import pytest

from tests.edge_agent.app.test_process import address, ended, running
from tests.edge_agent.app.test_process_updates import by_tuf, waited
from tests.edge_agent.doubles.hub_double import HubDouble, sample, until
from tests.edge_agent.doubles.installing import X, run_device
from tests.edge_agent.doubles.updates_bench import open_bench
from tests.edge_agent.update.test_installer import floor
from tests.in_process import skerry
from tests.models.doubles.mirror import Faults
from wire.process.exit_codes import ExitCode
from wire.protocol.messages import Prediction
from wire.protocol.rollout import InstallState

pytestmark = pytest.mark.live
S = InstallState


@pytest.fixture
def empty(tmp_path):
    with open_bench(tmp_path) as made:
        yield made


@pytest.fixture
def device(empty):
    empty.publish_bundle(1)
    return empty


def test_it_starts_with_nothing_gets_all_by_tuf_and_starts_again_without_a_network(empty):
    config = by_tuf(empty)
    with running(config) as process:
        place = address(config, process)
        status = waited(place, lambda status: status["updates"]["polls"] > 0)
        assert (status["model"], status["alarms"]) == ("", ["no_model"])
        empty.publish_bundle(1)
        asked = skerry("agent", "refresh", "--url", place.url)
        assert (asked.returncode, asked.stderr) == (0, "")
        assert "echo@1" in asked.stdout
        assert "test 1" in asked.stdout
        assert "local 1" in asked.stdout
        shown = skerry("agent", "status", "--url", place.url)
        assert "echo@1" in shown.stdout
        assert ended(process)[0] == 0
    empty.mirror.faults = Faults(where="", status=503)
    with running(config) as process:
        place = address(config, process)
        status = waited(place, lambda status: status["updates"]["polls"] > 0)
        assert (status["model"], status["alarms"]) == ("echo@1", [])
        assert len(status["policy"]) == 32
        failed = skerry("agent", "refresh", "--url", place.url, "--json")
        assert failed.returncode == ExitCode.CHECK_FAILED
        assert json.loads(failed.stdout)["failures"][0].startswith("network: ")


async def test_an_assigned_version_is_tried_and_committed_and_each_step_is_reported(device, tmp_path):
    async with run_device(device, tmp_path / "agent") as life:
        assert life.version == 1
        device.publish_bundle(2)
        life.send_assignment(1, 2)
        await life.wait_for_state(S.PROBATION)
        assert await life.answer_samples() == "echo@2"
        await life.answers_until(lambda: life.reports_in_state(S.COMMITTED))
        assert (life.state, life.version, floor(device)) == (S.IDLE, 2, 2)
        told = [report.state for report in life.reports if report.rollout == "r1"]
        passed = [state for state in S if state in told]
        assert passed == [S.CHECKING, S.DOWNLOADING, S.SELF_TEST, S.PROBATION, S.COMMITTED]
        last = life.reports_in_state(S.COMMITTED)[-1]
        assert (last.version, last.counter, last.failure) == (2, 1, None)
        assert last.signals is not None


async def test_on_trial_the_committed_models_features_go_to_the_committed_tail_and_the_pairs_are_counted(
    device, tmp_path
):
    hub = HubDouble(prediction=Prediction(9, 0.99, (0.0,) * 9 + (1.0,), "big@1"))
    async with run_device(device, tmp_path / "agent", hub) as life:
        device.publish_bundle(2, scale=-1.0)  # it takes the lowest score for the highest
        life.send_assignment(1, 2, soak_s=3600.0)
        await life.wait_for_state(S.PROBATION)
        await until(lambda: life.rig.agent.answering.trial.assignment)
        asked = len(hub.questions)
        answers = [await life.rig.agent.infer(sample(X)) for _ in range(10)]
        assert {(answer.prediction.model, answer.prediction.label) for answer in answers} == {("echo@2", 0)}
        await until(lambda: len(hub.questions) == asked + 10)
        assert {question.model.version for _, _, question in hub.questions[asked:]} == {1}
        assert all(question.audit for _, _, question in hub.questions[asked:])
        await until(lambda: life.newest_cell(S.PROBATION).audited == 10, 30)
        cell = life.newest_cell(S.PROBATION)
        assert (cell.data_class, cell.share, cell.agreed, cell.worse, cell.better) == ("open", 1.0, 0, 10, 0)
        assert await life.rig.agent.feedback(answers[0].id, 9)
        assert await life.rig.agent.feedback(answers[0].id, 9)
        await until(lambda: life.newest_cell(S.PROBATION).told, 30)
        cell = life.newest_cell(S.PROBATION)
        assert (cell.told, cell.told_wrong, cell.told_worse, cell.told_better) == (1, 1, 1, 0)
