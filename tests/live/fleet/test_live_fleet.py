"""Real agents in one process against a real hub and broker, while links and processes are harmed."""

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from cloud_hub.registry.registry import Registry
from cloud_hub.runtime.config import load
from simulations.live.enrollment import Fleet, enrol_fleet, name_of
from simulations.live.run import Wish, live
from simulations.report.outcome import Outcome, Passed
from simulations.scenario.conditions import CALM
from simulations.scenario.types import Event, EventKind, Link, Load, Model, Region, Scenario
from wire.process.exit_codes import ExitError

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]
DEVICES = 12


def scenario(*events: Event, seconds: float = 6.0) -> Scenario:
    """Every device takes a sample a second, of which half are asked about."""
    return Scenario(
        name="test",
        devices=DEVICES,
        duration_s=seconds,
        step_s=2.0,
        regions=(Region(link=Link(climate=CALM)),),
        load=Load(samples_per_s=1.0),
        model=Model(unsure_share=0.5),
        events=events,
        heal_s=90.0,
        grace_s=90.0,
    )


def answers(outcome: Outcome, source: str) -> int:
    return sum(sum(series) for name, series in outcome.answers.items() if name.startswith(source))


def test_a_calm_fleet_answers_everything_and_the_report_counts_it_all(tmp_path: Path):
    outcome = live(scenario(), Wish(tmp_path / "run"))
    assert outcome.history.ok, outcome.history.text()
    assert outcome.complete
    assert sum(outcome.arrivals) == outcome.samples == answers(outcome, "local") + answers(outcome, "hub")
    assert outcome.history.accepted == outcome.history.effects == outcome.counts["agent.sent"] > 0
    assert outcome.states["online"][:3] == (DEVICES,) * 3
    assert sum(outcome.bytes_by_rule["sim@1"]) > 0
    assert len(list((tmp_path / "run" / "fleet").glob("*/*/agent.db"))) == DEVICES


def test_nothing_is_lost_or_doubled_while_links_and_processes_are_harmed():
    """The weather of the proxy, agents and the broker killed: what was accepted ends once all the same."""
    events = (
        Event(EventKind.PARTITION, 1.0, 3.0, share=0.4),
        Event(EventKind.SLICES, 0.5, 5.0, amount=9),
        Event(EventKind.KILL_AGENTS, 2.0, 1.5, share=0.2),
        Event(EventKind.RESETS, 4.0, 2.0, amount=60),
        Event(EventKind.KILL_BROKER, 5.0, 1.0),
    )
    outcome = live(scenario(*events, seconds=8.0), Wish(ask_s=5.0))
    assert outcome.history.ok, outcome.history.text()
    assert outcome.history.open == 0
    assert outcome.counts["proxy.sliced"] > 0
    assert outcome.counts["agent.link_lost"] > 0
    assert answers(outcome, "local.link_down") + answers(outcome, "correction") > 0


def test_who_stops_a_run_gets_the_report_so_far():
    def enough(passed: Passed) -> bool:
        return passed.until_s < 2.0

    outcome = live(scenario(seconds=60.0), progress=enough)
    assert not outcome.complete
    assert outcome.until_s < 40.0
    assert outcome.history.ok, outcome.history.text()
    assert 0 < outcome.samples < 60 * DEVICES


def test_a_used_folder_is_left_alone(tmp_path: Path):
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(ExitError, match="not empty"):
        live(scenario(), Wish(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_an_enrolled_fleet_has_real_certificates_and_real_rows_in_the_registry(tmp_path: Path):
    config = tmp_path / "hub.toml"
    config.write_text(f'state = "{tmp_path}/hub"\n')
    told = load(config)
    fleet = Fleet(tmp_path / "fleet", told, "http://127.0.0.1:9", lambda number: 1000 + number)
    identities = list(enrol_fleet(fleet, 3))
    registry = Registry.open(told.state_dir().devices)
    assert [device.id for device in registry.devices()] == [name_of(number) for number in range(3)]
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
        assert identity.tls().cert_store_stats()["x509_ca"] == 1
    assert len({identity.signing_id for identity in identities}) == len(identities)
    registry.close()
