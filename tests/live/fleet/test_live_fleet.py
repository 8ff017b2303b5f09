"""Real agents in a few processes against a real hub and broker, while links and processes are harmed."""

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from cloud_hub.registry.registry import Registry
from cloud_hub.runtime.config import load_hub_config
from simulations.live.fleet.enrollment import FleetConfig, enrol_fleet, format_live_device_id, prepare_hub
from simulations.live.run import LiveRunConfig, run_live_scenario
from simulations.report.outcome import Outcome, RunProgress
from simulations.scenario.conditions import IDEAL_CONDITIONS
from simulations.scenario.types import EventKind, Link, Load, Model, Region, Scenario, ScenarioEvent
from wire.process.exit_codes import ExitError

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
DEVICES = 12


def scenario(*events: ScenarioEvent, seconds: float = 6.0) -> Scenario:
    """Every device takes a sample a second, of which half are asked about."""
    return Scenario(
        name="test",
        devices=DEVICES,
        duration_s=seconds,
        step_s=2.0,
        regions=(Region(link=Link(climate=IDEAL_CONDITIONS)),),
        load=Load(samples_per_s=1.0),
        model=Model(unsure_share=0.5),
        events=events,
        heal_s=90.0,
        grace_s=90.0,
    )


def answers(outcome: Outcome, source: str) -> int:
    return sum(sum(series) for name, series in outcome.answers.items() if name.startswith(source))


def test_a_calm_fleet_answers_everything_and_the_report_counts_it_all(tmp_path: Path):
    outcome = run_live_scenario(scenario(), LiveRunConfig(tmp_path / "run", processes=2))
    assert outcome.history.ok, outcome.history.format_text()
    assert outcome.complete
    assert sum(outcome.arrivals) == outcome.samples == answers(outcome, "local") + answers(outcome, "hub")
    assert outcome.history.accepted == outcome.history.effects == outcome.counts["agent.sent"] > 0
    assert outcome.states["online"][:3] == (DEVICES,) * 3
    assert outcome.wall.processes == 2
    assert outcome.counts["cpu_ms.agents"] > 0
    assert sum(outcome.bytes_by_rule["sim@1"]) > 0
    assert len(list((tmp_path / "run" / "fleet").glob("*/*/agent.db"))) == DEVICES


def test_nothing_is_lost_or_doubled_while_links_and_processes_are_harmed():
    """The weather of the proxy, agents and the broker killed: what was accepted ends once all the same."""
    events = (
        ScenarioEvent(EventKind.PARTITION, 1.0, 3.0, share=0.4),
        ScenarioEvent(EventKind.SLICES, 0.5, 5.0, amount=9),
        ScenarioEvent(EventKind.KILL_AGENTS, 2.0, 1.5, share=0.2),
        ScenarioEvent(EventKind.RESETS, 4.0, 2.0, amount=60),
        ScenarioEvent(EventKind.KILL_BROKER, 5.0, 1.0),
    )
    outcome = run_live_scenario(scenario(*events, seconds=8.0), LiveRunConfig(ask_s=5.0))
    assert outcome.history.ok, outcome.history.format_text()
    assert outcome.history.open == 0
    assert outcome.counts["proxy.sliced"] > 0
    assert outcome.counts["agent.link_lost"] > 0
    assert answers(outcome, "local.link_down") + answers(outcome, "correction") > 0


def test_who_stops_a_run_gets_the_report_so_far():
    def enough(passed: RunProgress) -> bool:
        return passed.until_s < 2.0

    outcome = run_live_scenario(scenario(seconds=60.0), progress=enough)
    assert not outcome.complete
    assert outcome.until_s < 40.0
    assert outcome.history.ok, outcome.history.format_text()
    assert 0 < outcome.samples < 60 * DEVICES


def test_a_used_folder_is_left_alone(tmp_path: Path):
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(ExitError, match="not empty"):
        run_live_scenario(scenario(), LiveRunConfig(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_an_enrolled_fleet_has_real_certificates_and_real_rows_in_the_registry(tmp_path: Path):
    config = tmp_path / "hub.toml"
    config.write_text(f'state = "{tmp_path}/hub"\n')
    told = load_hub_config(config)
    fleet = FleetConfig(tmp_path / "fleet", told, "http://127.0.0.1:9", lambda number: 1000 + number)
    prepare_hub(told)
    identities = list(enrol_fleet(fleet, range(3)))
    registry = Registry.open(told.database_urls().registry)
    assert [device.id for device in registry.devices()] == [format_live_device_id(number) for number in range(3)]
    for number, identity in enumerate(identities):
        assert identity.folder is not None
        pem = (identity.folder / "device.pem").read_bytes()
        certificate = x509.load_pem_x509_certificate(pem)
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(identity.trusted[0].encode()))
        assert certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == identity.device
        device = registry.device(identity.device)
        assert device is not None
        assert device.signing_key == identity.signing.public_key()
        assert device.serial == f"{certificate.serial_number:x}"
        assert identity.broker_port == 1000 + number
        assert identity.tls_context().cert_store_stats()["x509_ca"] == 1
    assert len({identity.signing_id for identity in identities}) == len(identities)
    registry.close()
