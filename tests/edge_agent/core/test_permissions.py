"""What a device may send now: each input of a decision alone holds it back, and none of them is a hole."""

import msgspec
import pytest

from edge_agent.core.commands import CoreSnapshot
from edge_agent.core.core import EdgeCore
from edge_agent.core.permissions import ClassPermissions, PermissionCache, disclose_report
from policies.decisions.budget import BudgetSpend
from policies.model.context import DecisionContext
from policies.model.policy import Policy
from policies.model.reasons import DecisionReason, Denied
from tests.edge_agent.core.test_core import SETUP
from tests.edge_agent.doubles.hub_double import policy
from tests.policies.doubles.given import plain
from wire.protocol.rollout import (
    AuditAgreement,
    AuditQuality,
    ClassSignals,
    DeviceSignals,
    InstallReport,
    InstallState,
)

LISTS = ("quality", "signals")
REPORT = InstallReport(
    7, 1, 1, "r1", "digits", InstallState.PROBATION, None, 2, "2" * 64, 1,
    quality=AuditQuality((AuditAgreement("open", 0.5, 3), AuditAgreement("shut", 0.5, 4))),
    signals=DeviceSignals(9, classes=(ClassSignals("open", 4), ClassSignals("shut", 5))),
)  # fmt: skip


def listing(*names: str) -> Policy:
    """A policy that lists these fields of a report; class `shut` may report nothing."""
    fields = "".join(f'[[egress.field]]\nname = "{name}"\nlevel = "P1"\n' for name in names)
    rule = '[[rule]]\nname = "shut"\nwhen = { data_class = ["shut"] }\ndrop = ["quality", "signals"]\n' if names else ""
    edits = (("[egress.data_class]\nopen = true\n", f"{fields}[egress.data_class]\nopen = true\nshut = true\n"),)
    return plain(*edits, rules=rule).compile()


def may_send(ruling: PermissionCache) -> bool:
    return ruling.may_send


def test_without_a_policy_nothing_of_a_report_leaves_but_the_state_of_the_install():
    told = disclose_report(REPORT, PermissionCache(None, SETUP))
    assert told == msgspec.structs.replace(REPORT, quality=None, signals=None)


@pytest.mark.parametrize("listed", [(), ("quality",), ("signals",), LISTS])
def test_a_report_has_the_figures_that_the_policy_lists_and_no_others(listed):
    told = disclose_report(REPORT, PermissionCache(listing(*listed), SETUP))
    assert (told.quality is not None, told.signals is not None) == ("quality" in listed, "signals" in listed)
    assert told.quality is None or [cell.data_class for cell in told.quality.cells] == ["open"]
    assert told.signals is None or [each.data_class for each in told.signals.classes] == ["open"]
    nothing = msgspec.structs.replace(REPORT, quality=None, signals=None)
    assert disclose_report(nothing, PermissionCache(listing(*listed), SETUP)) == nothing


def test_a_deny_all_notice_holds_the_figures_back_until_a_policy_clears_it():
    ruling = PermissionCache(listing(*LISTS), SETUP)
    assert ruling.accept_notice(3)
    assert not ruling.accept_notice(3)
    assert not ruling.accept_notice(2)
    told = disclose_report(REPORT, ruling)
    assert (told.quality, told.signals) == (None, None)
    found = ruling.for_class("open")
    assert isinstance(found, ClassPermissions)
    assert found.denied is not None
    assert found.denied.why is DecisionReason.DENIED_NOTICE
    for clears, in_force in ((2, True), (3, False), (4, False)):
        ruling.set_policy(msgspec.structs.replace(listing(*LISTS), clears_notice=clears))
        assert ruling.notice_in_force is in_force
        assert (disclose_report(REPORT, ruling).quality is None) is in_force


def test_waiting_questions_are_held_until_the_hub_has_reported_our_spending():
    ruling = PermissionCache(policy(), SETUP)
    assert may_send(ruling)
    ruling.purse.load_spend(BudgetSpend(), mirrored=False)
    assert not may_send(ruling)
    ruling.purse.merge_hub_totals((), complete=True)
    assert may_send(ruling)


def test_where_rules_ask_for_the_time_nothing_is_sent_before_it_is_known():
    timed = msgspec.structs.replace(policy(), zones=("Europe/Berlin",))
    ruling = PermissionCache(timed, SETUP)
    assert not may_send(ruling)
    assert ruling.set_context(DecisionContext("", minute_of_week={"Europe/Berlin": 5}))
    assert not ruling.set_context(DecisionContext("", minute_of_week={"Europe/Berlin": 5}))
    assert may_send(ruling)
    ruling.set_context(DecisionContext(""))
    assert not may_send(ruling)
    ruling.set_policy(policy())
    assert may_send(ruling)


def test_a_threshold_that_was_calibrated_asks_less_often_and_never_more():
    ruling = PermissionCache(policy(), SETUP)  # its threshold is 0.8

    def threshold() -> float:
        found = ruling.for_class("open")
        assert isinstance(found, ClassPermissions)
        return found.terms.threshold

    for calibrated, used in ((None, 0.8), (0.5, 0.5), (0.8, 0.8), (0.9, 0.8), (None, 0.8)):
        ruling.set_threshold(calibrated)
        assert threshold() == used


def test_the_same_permissions_are_found_until_an_input_changes():
    ruling = PermissionCache(policy(), SETUP)
    found = ruling.for_class("open")
    assert ruling.for_class("open") is found
    ruling.set_link(up=True)
    changed = ruling.for_class("open")
    assert changed is not found
    ruling.set_link(up=True)
    assert ruling.for_class("open") is changed
    assert not ruling.set_context(DecisionContext("")), "the state of the link is not of the context"
    assert ruling.device_context.link_up is True
    ruling.accept_notice(1)
    assert ruling.for_class("open") is not changed


def test_as_many_data_classes_as_a_caller_makes_up_take_no_more_memory_than_64():
    ruling = PermissionCache(policy(), SETUP)
    first = ruling.for_class("class-0")
    for number in range(64):
        ruling.for_class(f"class-{number}")
    assert ruling.for_class("class-0") is first
    ruling.for_class("class-64")
    assert len(ruling._found) == 1
    for number in range(65):
        ruling.permit_question(f"class-{number}", audit=False)
    assert len(ruling._scopes) <= 64


def test_the_day_of_the_stored_spending_is_the_first_day_and_none_goes_back():
    edge = EdgeCore(SETUP, policy())
    edge.restore(CoreSnapshot(5, 1, BudgetSpend(day=20_000)), 0.0)
    assert edge.ruling.day == 20_000
    edge.on_day(19_999)
    assert edge.ruling.day == 20_000
    edge.on_day(20_001)
    assert edge.ruling.day == 20_001


def test_no_rule_and_no_policy_denies_all_for_a_reason():
    found = PermissionCache(None, SETUP).for_class("open")
    assert isinstance(found, Denied)
    permit = PermissionCache(None, SETUP).permit_question("open", audit=False)
    assert isinstance(permit, Denied)
    assert permit.why is found.why
