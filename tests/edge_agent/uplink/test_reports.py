"""Rollouts on the device: assignments come in signed, and reports are sent until the hub acknowledges them."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from edge_agent.storage import database, schema, tables
from edge_agent.uplink import reports
from policies.language.document import parse_policy
from policies.model.policy import Policy
from tests.edge_agent.doubles.hub_double import DEFAULTS, DEVICE, HUB_TIME_MS, POLICY, AgentRig, HubDouble, until
from tests.edge_agent.stories.test_enforcement import DP, order
from tests.examples import SetTimes
from wire.protocol.messages import DenyAllNotice
from wire.protocol.rollout import (
    Assignment,
    AuditAgreement,
    AuditQuality,
    ClassSignals,
    DeviceSignals,
    InstallFailure,
    InstallReport,
    InstallState,
)
from wire.protocol.topics import TopicChannel

LISTED = """
[[egress.field]]
name = "quality"
level = "P1"
[[egress.field]]
name = "signals"
level = "P1"
"""
QUALITY = AuditQuality((AuditAgreement("open", 0.1, 9, 8, 1), AuditAgreement("private", 0.1, 3, 3)), ("secret",))
SIGNALS = DeviceSignals(20, classes=(ClassSignals("open", 17, 2), ClassSignals("private", 3)))


def ruled(fields: str = LISTED, more: str = "") -> Policy:
    document = POLICY.replace("[egress.data_class]", fields + "[egress.data_class]")
    return parse_policy(document.format(**DEFAULTS) + more).compile()


def report(state: InstallState = InstallState.PROBATION, rollout: str = "r1", **more: object) -> InstallReport:
    made = InstallReport(0, 0, 5, rollout, "digits", state, None, 2, "2" * 64, HUB_TIME_MS)
    return msgspec.structs.replace(made, **{"quality": QUALITY, "signals": SIGNALS, **more})


def assignment(**changes: object) -> Assignment:
    path, digest = "models/digits/digits-2.skb", "2" * 64
    made = Assignment(0, DEVICE, 5, HUB_TIME_MS, HUB_TIME_MS + 1000, "r1", "digits", path, 2, digest)
    return msgspec.structs.replace(made, **changes)


async def test_a_report_is_told_again_until_the_hub_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reports, "FIRST_S", 0.01)
    hub = HubDouble(acknowledges=False)
    async with AgentRig(tmp_path, ruled(), hub) as rig:
        rig.agent.outgoing.put_report(report())
        await until(lambda: len(hub.reports) >= 3)
        assert len({each.seq for each in hub.reports}) == 1
        hub.acknowledges = True
        await until(lambda: rig.event_count("reports_seen") and rig.agent.status()["reports_unheard"] == 0)
        assert hub.reports[0] == report(epoch=hub.reports[0].epoch, seq=hub.reports[0].seq)


async def test_a_report_that_no_hub_hears_waits_over_restarts(tmp_path: Path):
    hub = HubDouble()
    hub.broker.up = False
    async with AgentRig(tmp_path, ruled(), hub) as rig:
        rig.agent.outgoing.put_report(report(InstallState.COMMITTED))
    hub.broker.up = True
    async with AgentRig(tmp_path, ruled(), hub):
        await until(lambda: hub.reports)
        assert hub.reports[0].state is InstallState.COMMITTED


async def test_the_newest_of_each_state_is_told_in_order_and_numbers_only_grow(tmp_path: Path):
    hub = HubDouble()
    hub.broker.up = False
    async with AgentRig(tmp_path, ruled(), hub) as rig:
        for version in (2, 3):
            rig.agent.outgoing.put_report(report(version=version))
        rig.agent.outgoing.put_report(report(InstallState.ROLLED_BACK, failure=InstallFailure.HEALTH))
    hub.broker.up = True
    async with AgentRig(tmp_path, ruled(), hub) as rig:
        await until(lambda: len(hub.reports) >= 2)
        assert [(each.state.value, each.version) for each in hub.reports[:2]] == [("probation", 3), ("rolled_back", 2)]
        last = hub.reports[1].seq
        await until(lambda: rig.agent.status()["reports_unheard"] == 0)
        hub.reports.clear()
        rig.agent.outgoing.put_report(report())
        await until(lambda: hub.reports)
        assert hub.reports[0].seq > last


async def test_what_the_policy_does_not_list_stays_and_the_state_is_told(tmp_path: Path):
    hub = HubDouble()
    async with AgentRig(tmp_path, ruled(""), hub) as rig:
        rig.agent.outgoing.put_report(report())
        await until(lambda: hub.reports)
        assert (hub.reports[0].quality, hub.reports[0].signals) == (None, None)
        assert hub.reports[0].state is InstallState.PROBATION


@pytest.mark.parametrize(
    ("fields", "more"),
    [
        (LISTED.replace('"P1"', '"P0"'), ""),
        (LISTED.replace('"P1"', '"P1"\ntransforms = [{{ kind = "coarsen", factor = 10 }}]'), ""),
        (LISTED, DP),
        (LISTED, '[[rule]]\nname = "still"\ndrop = ["quality", "signals"]\n'),
    ],
    ids=["label too low", "a transform that cannot be done", "noise that cannot be had", "dropped by a rule"],
)
async def test_sums_leave_only_as_the_policy_says(tmp_path: Path, fields: str, more: str):
    hub = HubDouble()
    async with AgentRig(tmp_path, ruled(fields, more), hub) as rig:
        rig.agent.outgoing.put_report(report())
        await until(lambda: hub.reports)
        found = hub.reports[0]
        assert not found.quality or not found.quality.cells
        assert not found.signals or not found.signals.classes


async def test_a_class_whose_terms_drop_the_field_is_not_counted_in_it(tmp_path: Path):
    hub = HubDouble()
    rule = '[[rule]]\nname = "ward"\nwhen = { data_class = ["private"] }\ndrop = ["quality"]\n'
    async with AgentRig(tmp_path, ruled(more=rule), hub) as rig:
        rig.agent.outgoing.put_report(report())
        await until(lambda: hub.reports)
        found = hub.reports[0]
        assert found.quality
        assert found.signals
        assert [cell.data_class for cell in found.quality.cells] == ["open"]
        assert len(found.signals.classes) == 2


async def test_under_a_notice_no_sum_leaves(tmp_path: Path):
    hub = HubDouble()
    async with AgentRig(tmp_path, ruled(), hub) as rig:
        order(hub, DenyAllNotice(0, 7, "a leak"))
        await until(lambda: rig.agent.status()["notice"] == 7)
        rig.agent.outgoing.put_report(report())
        await until(lambda: hub.reports)
        assert (hub.reports[0].quality, hub.reports[0].signals) == (None, None)


async def test_a_report_with_sums_stands_in_the_ledger_under_the_policy_that_let_it_leave(tmp_path: Path):
    hub, policy = HubDouble(), ruled()
    async with AgentRig(tmp_path, policy, hub) as rig:
        rig.agent.outgoing.put_report(report())
        await until(lambda: hub.reports)
    with closing(sqlite3.connect(tmp_path / "agent.db")) as db:
        rows = db.execute("select rule, policy, fields from ledger where kind='report' and fields like '%quality%'")
        ((rule, named, fields),) = set(rows)
    assert (rule, named) == (policy.base.rule, policy.hash)
    assert msgspec.json.decode(fields)["signals"] == "P1"


@pytest.mark.further
async def test_a_report_outlives_a_disk_that_takes_nothing(tmp_path: Path, set_times: SetTimes):
    set_times(database, RETRY_S=0.05)
    hub = HubDouble()
    async with AgentRig(tmp_path, ruled(), hub) as rig:
        blocker = sqlite3.connect(tmp_path / "agent.db", isolation_level=None)
        blocker.execute("begin immediate")
        rig.agent.outgoing.put_report(report())
        await until(lambda: rig.agent.status()["disk"] != "ok", 20)
        blocker.execute("rollback")
        blocker.close()
        await until(lambda: hub.reports, 20)


# -- assignments


class Installer:
    """Installer double that keeps the assignments it receives."""

    def __init__(self) -> None:
        self.heard: list[Assignment] = []

    def attach_agent(self, *_: object) -> None: ...

    def on_assignment(self, assignment: Assignment) -> None:
        self.heard.append(assignment)

    def status_fields(self) -> dict[str, object]:
        return {}

    def alarms(self) -> set[str]:
        return set()


def installer(rig: AgentRig) -> list[Assignment]:
    installs = Installer()
    rig.agent.attach_installer(installs)  # type: ignore[arg-type] # no more of it is used here
    return installs.heard


async def test_an_assignment_of_our_hub_reaches_whoever_installs(tmp_path: Path):
    hub = HubDouble()
    async with AgentRig(tmp_path, ruled(), hub) as rig:
        heard = installer(rig)
        for _ in range(3):
            order(hub, assignment())
        await until(lambda: len(heard) == 3)
        assert heard[0] == assignment()
        assert rig.event_count("assignments") == 3


async def test_an_assignment_signed_for_another_purpose_or_device_is_refused(tmp_path: Path):
    hub = HubDouble()
    async with AgentRig(tmp_path, ruled(), hub) as rig:
        heard = installer(rig)
        order(hub, assignment(), channel=TopicChannel.REPLY)
        await until(lambda: rig.event_count("refused_signature") == 1)
        assert not heard


EARLIER = Ed25519PrivateKey.from_private_bytes(b"e" * 32)  # signing key of an enrolment of the same name before this


@pytest.mark.parametrize("kept", [assignment(), DenyAllNotice(0, 7, "a leak")], ids=["assignment", "deny-all"])
async def test_an_order_of_an_earlier_enrolment_that_the_brokers_owner_replays_is_refused(tmp_path: Path, kept: Any):
    hub = HubDouble()
    async with AgentRig(tmp_path, ruled(), hub) as rig:
        heard = installer(rig)
        hub.send_order(hub.sign_order(kept, receiver=EARLIER))
        await until(lambda: rig.event_count("refused_signature") == 1)
        assert not heard
        assert rig.agent.status()["notice"] == 0
        hub.send_order(hub.sign_order(kept))
        await until(lambda: heard or rig.agent.status()["notice"] == 7)


def test_reports_that_nobody_hears_do_not_pile_up():
    with closing(sqlite3.connect(":memory:")) as db:
        schema.migrate_schema(db, "memory")
        for number in range(tables.MAX_REPORTS + 20):
            tables.store_report(db, report(rollout=f"r{number}"), 1000)
        held = tables.read_reports(db)
        assert len(held) == tables.MAX_REPORTS
        assert held[-1].rollout == f"r{tables.MAX_REPORTS + 19}"
        tables.drop_reports(db, held[-1].seq)
        assert not tables.read_reports(db)
