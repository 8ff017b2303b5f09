"""Installation of an assigned model: it installs, tries, commits, or rolls back; with a hub, and without one."""

import pytest

from edge_agent.__main__ import main
from edge_agent.question.records import Sample
from edge_agent.update.installed import read_installed
from edge_agent.update.machine import InstallMachine
from edge_agent.update.recovery import InstallTable, recover_install
from edge_agent.update.types import InstallRow
from models.runtime.runner import SampleError
from models.signing.roles import Permit
from models.update.floors import FloorDatabase
from tests.edge_agent.app.test_process_updates import by_tuf
from tests.edge_agent.doubles.hub_double import DEVICE, HubDouble, until
from tests.edge_agent.doubles.installing import QUICK, X, audited_policy, run_device
from tests.edge_agent.doubles.updates_bench import NAMES, open_bench
from wire.process.exit_codes import ExitCode
from wire.protocol.messages import HelloNote
from wire.protocol.rollout import InstallFailure, InstallState, RolloutCohort

S = InstallState
LATE_MS = 4_000_000_000_000  # an end of permits long after any of these tests


@pytest.fixture
def device(tmp_path):
    with open_bench(tmp_path) as made:
        made.publish_bundle(1)
        yield made


def floor(device) -> int:
    with FloorDatabase(device.store / "metadata") as floors:
        found = floors.read_floors().get("target/models/echo")
        return found.version if found else 0


@pytest.mark.further
async def test_a_control_device_reports_the_same_figures_of_what_it_runs(device, tmp_path):
    async with run_device(device, tmp_path / "agent") as life:
        life.send_assignment(1, 1, cohort=RolloutCohort.CONTROL)
        await until(lambda: life.rig.agent.answering.trial.assignment)
        await life.answer_samples(12)
        await until(lambda: any(r.signals and r.signals.inferences == 12 for r in life.reports_in_state(S.IDLE)), 30)
        report = life.reports_in_state(S.IDLE)[-1]
        assert (report.cohort, report.version, life.version) == (RolloutCohort.CONTROL, 1, 1)
        await until(lambda: life.newest_cell(S.IDLE).audited == 12, 30)
        assert (life.newest_cell(S.IDLE).worse, life.newest_cell(S.IDLE).better) == (0, 0)


@pytest.mark.heavy
async def test_a_class_that_may_not_be_audited_is_named_and_counted_by_signals_alone(device, tmp_path):
    async with run_device(device, tmp_path / "agent", rules=audited_policy(0.0)) as life:
        life.send_assignment(1, 1, cohort=RolloutCohort.CONTROL)
        await until(lambda: life.rig.agent.answering.trial.assignment)
        await life.answer_samples(5)
        counted = lambda report: report.signals and report.signals.inferences == 5  # noqa: E731
        await until(lambda: any(counted(report) for report in life.reports_in_state(S.IDLE)), 30)
        report = life.reports_in_state(S.IDLE)[-1]
        assert report.quality is not None
        assert report.signals is not None
        assert (report.quality.cells, report.quality.unaudited) == ((), ("open",))
        assert report.signals.classes[0].answers == 5


@pytest.mark.heavy
async def test_a_model_that_misbehaves_goes_back_without_a_hub_and_is_not_taken_again(device, tmp_path):
    async with run_device(device, tmp_path / "agent") as life:
        await life.answer_samples(250)
        device.publish_bundle(2)
        life.send_assignment(1, 2, soak_s=3600.0)
        await life.wait_for_state(S.PROBATION)
        await until(lambda: life.rig.agent.answering.trial.assignment)
        life.rig.hub.broker.up = False
        await life.rig.agent.reconnect()
        for _ in range(5):
            life.rig.agent.answering.trial.seen.add_failure()
        await life.wait_for_state(S.IDLE)
        assert (life.version, await life.answer_samples()) == (1, "echo@1")
        assert "errors" in life.install.machine.row.detail
        life.rig.hub.broker.up = True
        await until(lambda: life.reports_in_state(S.ROLLED_BACK), 30)
        report = life.reports_in_state(S.ROLLED_BACK)[-1]
        assert (report.failure, report.version) == (InstallFailure.HEALTH, 1)
        life.send_assignment(2, 2)
        await until(lambda: life.reports_in_state(S.REJECTED), 30)
        assert life.reports_in_state(S.REJECTED)[-1].failure is InstallFailure.QUARANTINED


@pytest.mark.further
async def test_a_bundle_of_another_input_is_rejected_unless_its_publisher_signed_that_change(device, tmp_path):
    """Every caller would be refused: what the model before takes is what callers send."""
    async with run_device(device, tmp_path / "agent") as life:
        device.publish_bundle(2, labels=8)
        life.send_assignment(1, 2)
        await until(lambda: life.reports_in_state(S.REJECTED), 30)
        report = life.reports_in_state(S.REJECTED)[-1]
        assert (report.failure, report.version, life.version) == (InstallFailure.INCOMPATIBLE, 1, 1)
        assert "other labels" in report.detail
        assert "new_interface" in report.detail
        assert not life.reports_in_state(S.PROBATION)
        device.publish_bundle(3, labels=8, new_interface=True)
        life.send_assignment(2, 3, soak_s=3600.0)
        await life.wait_for_state(S.PROBATION)


@pytest.mark.further
async def test_what_the_committed_model_takes_and_the_candidate_refuses_is_an_error_of_the_candidate(device, tmp_path):
    async with run_device(device, tmp_path / "agent") as life:
        await life.answer_samples(100)
        device.publish_bundle(2, labels=8, new_interface=True)
        life.send_assignment(1, 2, soak_s=3600.0)
        await life.wait_for_state(S.PROBATION)
        await until(lambda: life.rig.agent.answering.trial.assignment)
        with pytest.raises(SampleError):
            await life.rig.agent.infer(Sample(X[:5], "open"))  # neither model takes it: nobody's error
        assert life.rig.agent.answering.trial.seen.errors == 0
        for _ in range(3):
            with pytest.raises(SampleError):
                await life.answer_samples()
        await life.wait_for_state(S.IDLE)
        assert (life.version, await life.answer_samples()) == (1, "echo@1")
        await until(lambda: life.reports_in_state(S.ROLLED_BACK), 30)
        report = life.reports_in_state(S.ROLLED_BACK)[-1]
        assert (report.failure, report.detail) == (InstallFailure.HEALTH, "errors in 100.0% of answers, 0.0% before")


@pytest.mark.further
async def test_a_newly_signed_permit_lifts_a_quarantine_once_for_the_devices_that_it_names(device, tmp_path):
    async with run_device(device, tmp_path / "agent") as life:
        device.publish_bundle(2)
        device.publish_permit(Permit("echo", 3, 2, LATE_MS + 9000, devices=("demo--other",)))

        async def fail_on_trial(counter: int) -> None:
            life.send_assignment(counter, 2, soak_s=3600.0)
            await life.wait_for_state(S.PROBATION)
            await until(lambda: life.rig.agent.answering.trial.assignment)
            for _ in range(5):
                life.rig.agent.answering.trial.seen.add_failure()
            await life.wait_for_state(S.IDLE)

        async def refused(counter: int) -> None:
            life.send_assignment(counter, 2)
            await until(lambda: [r for r in life.reports_in_state(S.REJECTED) if r.counter == counter], 30)
            assert life.reports_in_state(S.REJECTED)[-1].failure is InstallFailure.QUARANTINED

        await fail_on_trial(1)
        await refused(2)
        device.publish_permit(Permit("echo", 3, 2, LATE_MS, devices=(DEVICE,)))
        await fail_on_trial(3)
        await refused(4)  # the same permit does not bring it back a second time
        device.publish_permit(Permit("echo", 3, 2, LATE_MS + 1000, devices=(DEVICE,)))
        await fail_on_trial(5)


@pytest.mark.heavy
async def test_withdrawn_on_trial_the_model_before_answers_at_once(device, tmp_path):
    async with run_device(device, tmp_path / "agent") as life:
        device.publish_bundle(2)
        life.send_assignment(1, 2, soak_s=3600.0)
        await life.wait_for_state(S.PROBATION)
        life.send_assignment(2, 2, withdraw=True)
        await life.wait_for_state(S.IDLE)
        assert await life.answer_samples() == "echo@1"
        assert [n.models for n in life.rig.hub.notes if isinstance(n, HelloNote)][-1][0].version == 1
        life.send_assignment(3, 2)
        await life.wait_for_state(S.PROBATION)


@pytest.mark.heavy
async def test_a_process_that_ends_on_trial_goes_on_with_what_it_had_counted(device, tmp_path):
    async with run_device(device, tmp_path / "agent") as life:
        device.publish_bundle(2)
        life.send_assignment(1, 2, soak_s=3600.0)
        await life.wait_for_state(S.PROBATION)
        await until(lambda: life.rig.agent.answering.trial.assignment)
        await life.answer_samples(30)
        await until(lambda: life.install.machine.row.seen.inferences == 30)
    async with run_device(device, tmp_path / "agent") as life:
        await until(lambda: life.rig.agent.answering.trial.assignment)
        assert (life.state, life.version) == (S.PROBATION, 2)
        committed = life.rig.agent.answering.committed
        assert committed is not None
        assert committed.manifest.version == 1
        assert life.rig.agent.answering.trial.seen.inferences == 30
        assert life.install.machine.row.attempts == 3


@pytest.mark.heavy
async def test_an_older_version_is_refused_without_a_permit_and_a_wrong_digest_always(device, tmp_path):
    device.publish_bundle(2)
    async with run_device(device, tmp_path / "agent") as life:
        assert life.version == 2
        life.send_assignment(1, 1)
        await until(lambda: life.reports_in_state(S.REJECTED), 30)
        assert life.reports_in_state(S.REJECTED)[-1].failure is InstallFailure.ROLLBACK
        life.send_assignment(2, 2, digest="f" * 64)
        await until(lambda: life.reports_in_state(S.FAILED), 30)
        assert life.reports_in_state(S.FAILED)[-1].failure is InstallFailure.INTEGRITY
        assert life.version == 2


@pytest.mark.heavy
async def test_a_newer_assignment_ends_the_errand_of_the_older(device, tmp_path):
    device.publish_bundle(2)
    device.publish_bundle(3)
    async with run_device(device, tmp_path / "agent") as life:
        device.publish_bundle(4)
        life.send_assignment(1, 3)
        await life.wait_for_state(S.CHECKING, S.DOWNLOADING)
        life.send_assignment(2, 4)
        await life.wait_for_state(S.PROBATION)
        assert life.version == 4
        assert {r.rollout for r in life.reports_in_state(S.SUPERSEDED)} <= {"r1"}  # said again until it is heard


@pytest.mark.heavy
async def test_a_disk_that_takes_no_row_lets_nothing_new_happen_but_a_bad_model_goes_back_in_memory(device, tmp_path):
    async with run_device(device, tmp_path / "agent") as life:
        device.publish_bundle(2)
        life.send_assignment(1, 2, soak_s=3600.0)
        await life.wait_for_state(S.PROBATION)
        await until(lambda: life.rig.agent.answering.trial.assignment)
        place = device.store / "install.db"
        kept = place.read_bytes()
        place.unlink()
        place.mkdir()  # no database can be made there
        for _ in range(5):
            life.rig.agent.answering.trial.seen.add_failure()
        await until(lambda: life.version == 1, 30)
        assert "install_disk" in life.rig.agent.status()["alarms"]
        place.rmdir()
        place.write_bytes(kept)
        await life.wait_for_state(S.IDLE)
        assert (life.version, life.rig.agent.status()["alarms"]) == (1, [])


@pytest.mark.heavy
async def test_a_store_whose_row_cannot_be_written_at_the_start_serves_the_committed_model(device, tmp_path):
    async with run_device(device, tmp_path / "agent") as life:
        device.publish_bundle(2)
        life.send_assignment(1, 2, soak_s=3600.0)
        await life.wait_for_state(S.PROBATION)
    place = device.store / "install.db"
    kept = place.read_bytes()
    place.unlink()
    place.mkdir()
    core = InstallMachine(DEVICE, InstallRow(), QUICK)
    shun = recover_install(device.store, NAMES, core, HubDouble.now_ms)
    assert shun
    found = read_installed(device.store, NAMES, shun=shun)
    assert found.slot is not None
    assert found.slot.version == 1
    place.rmdir()
    place.write_bytes(kept)


@pytest.mark.heavy
async def test_a_start_that_ends_before_any_model_was_asked_does_not_count_and_a_check_counts_nothing(device, tmp_path):
    async with run_device(device, tmp_path / "agent") as life:
        device.publish_bundle(2)
        life.send_assignment(1, 2, soak_s=3600.0)
        await life.wait_for_state(S.PROBATION)
        await until(lambda: life.install.machine.row.state is InstallTable(device.store).read_row().state)
    config = by_tuf(device, policy="policy.toml")
    (device.folder / "device" / "updates").parent.mkdir(exist_ok=True)
    device.store.rename(device.folder / "device" / "updates")
    table = InstallTable(device.folder / "device" / "updates")
    for _ in range(4):
        assert main(["--config", str(config), "--check"]) == ExitCode.OK
    assert table.read_row().attempts == 3
    (device.folder / "policy.toml").write_text("mode = nonsense")
    for _ in range(4):
        assert main(["--config", str(config)]) == ExitCode.POLICY
    assert (table.read_row().state, table.read_row().attempts, table.read_row().clean) == (S.PROBATION, 3, True)
