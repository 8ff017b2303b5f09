"""What a device may send now: each input of a decision alone holds it back, and none of them is a hole."""

from datetime import date
from unittest.mock import ANY

import msgspec
import pytest

from edge_agent.question.commands import CoreSnapshot
from edge_agent.question.decide import EdgeCore
from edge_agent.question.permissions import ClassPermissions, PermissionCache, disclose_report
from policies.decisions.budget import AccountCharge, BudgetSpend
from policies.model.context import DecisionContext
from policies.model.policy import Policy
from policies.model.reasons import DecisionReason, Denied
from tests.edge_agent.doubles.hub_double import policy
from tests.edge_agent.question.test_decide import SETUP
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


OUTPUT = (
    'name = "features"\nlevel = "P2"\n',
    'name = "features"\nlevel = "P2"\n[[egress.field]]\nname = "answers"\nlevel = "P2"\n',
)
TOPIC = ("bytes_per_day = 1000000\n", "bytes_per_day = 1000000\n[budget.topics]\nreport = 100\n")


def listing(*names: str) -> Policy:
    """A policy that lists these fields of a report; class `shut` may report nothing."""
    fields = "".join(f'[[egress.field]]\nname = "{name}"\nlevel = "P1"\n' for name in names)
    rule = '[[rule]]\nname = "shut"\nwhen = { data_class = ["shut"] }\ndrop = ["quality", "signals"]\n' if names else ""
    edits = (("[egress.data_class]\nopen = true\n", f"{fields}[egress.data_class]\nopen = true\nshut = true\n"),)
    return plain(*edits, rules=rule).compile()


def may_send(permissions: PermissionCache) -> bool:
    return permissions.may_send


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
    permissions = PermissionCache(listing(*LISTS), SETUP)
    assert permissions.accept_notice(3)
    assert not permissions.accept_notice(3)
    assert not permissions.accept_notice(2)
    told = disclose_report(REPORT, permissions)
    assert (told.quality, told.signals) == (None, None)
    found = permissions.for_class("open")
    assert isinstance(found, ClassPermissions)
    assert found.denied is not None
    assert found.denied.why is DecisionReason.DENIED_NOTICE
    for clears, in_force in ((2, True), (3, False), (4, False)):
        permissions.set_policy(msgspec.structs.replace(listing(*LISTS), clears_notice=clears))
        assert permissions.notice_in_force is in_force
        assert (disclose_report(REPORT, permissions).quality is None) is in_force


def test_waiting_questions_are_held_until_the_hub_has_reported_our_spending():
    permissions = PermissionCache(policy(), SETUP)
    assert may_send(permissions)
    permissions.spend.load_spend(BudgetSpend(), mirrored=False)
    assert not may_send(permissions)
    permissions.spend.merge_hub_totals((), complete=True)
    assert may_send(permissions)


def test_where_rules_ask_for_the_time_nothing_is_sent_before_it_is_known():
    timed = msgspec.structs.replace(policy(), zones=("Europe/Berlin",))
    permissions = PermissionCache(timed, SETUP)
    assert not may_send(permissions)
    assert permissions.set_context(DecisionContext("", minute_of_week={"Europe/Berlin": 5}))
    assert not permissions.set_context(DecisionContext("", minute_of_week={"Europe/Berlin": 5}))
    assert may_send(permissions)
    permissions.set_context(DecisionContext(""))
    assert not may_send(permissions)
    permissions.set_policy(policy())
    assert may_send(permissions)


def test_a_threshold_that_was_calibrated_asks_less_often_and_never_more():
    permissions = PermissionCache(policy(), SETUP)  # its threshold is 0.8

    def threshold() -> float:
        found = permissions.for_class("open")
        assert isinstance(found, ClassPermissions)
        return found.terms.threshold

    for calibrated, used in ((None, 0.8), (0.5, 0.5), (0.8, 0.8), (0.9, 0.8), (None, 0.8)):
        permissions.set_threshold(calibrated)
        assert threshold() == used


def test_the_same_permissions_are_found_until_an_input_changes():
    permissions = PermissionCache(policy(), SETUP)
    found = permissions.for_class("open")
    assert permissions.for_class("open") is found
    permissions.set_link(up=True)
    changed = permissions.for_class("open")
    assert changed is not found
    permissions.set_link(up=True)
    assert permissions.for_class("open") is changed
    assert not permissions.set_context(DecisionContext("")), "the state of the link is not of the context"
    assert permissions.device_context.link_up is True
    permissions.accept_notice(1)
    assert permissions.for_class("open") is not changed


def test_as_many_data_classes_as_a_caller_makes_up_take_no_more_memory_than_64():
    permissions = PermissionCache(policy(), SETUP)
    first = permissions.for_class("class-0")
    for number in range(64):
        permissions.for_class(f"class-{number}")
    assert permissions.for_class("class-0") is first
    permissions.for_class("class-64")
    assert len(permissions._by_class) == 1
    for number in range(65):
        permissions.permit_question(f"class-{number}", audit=False)
    assert len(permissions._scopes) <= 64


def test_an_answer_may_be_handed_on_by_the_later_of_two_days_and_under_no_notice():
    last = (date(2099, 12, 31) - date(1970, 1, 1)).days
    permissions = PermissionCache(plain(OUTPUT).compile(), SETUP)
    assert permissions.check_output("open", last) is None
    for day, known in ((last + 1, 0), (0, last + 1)):
        permissions = PermissionCache(plain(OUTPUT).compile(), SETUP)
        permissions.advance_day(known)
        denied = permissions.check_output("open", day)
        assert denied is not None
        assert denied.why is DecisionReason.DENIED_POLICY_EXPIRED
    permissions = PermissionCache(plain(OUTPUT).compile(), SETUP)
    permissions.accept_notice(1)
    assert permissions.check_output("open", 0) is not None
    denied = PermissionCache(None, SETUP).check_output("open", 0)
    assert denied is not None
    assert denied.why is DecisionReason.DENIED_POLICY_ERROR


def test_a_message_without_sample_data_is_charged_to_the_account_of_its_topic():
    permissions = PermissionCache(plain(TOPIC).compile(), SETUP)
    (charge,) = permissions.charge_message("report", 60)  # type: ignore[misc]
    assert charge.amount == 60
    assert permissions.spend.current.totals[charge.key, charge.period] == 60
    assert permissions.charge_message("report", 41) == Denied(DecisionReason.DENIED_BUDGET, ANY)
    assert permissions.charge_message("state", 1000) == ()
    permissions.spend.load_spend(BudgetSpend(0, {}, known=False))
    assert permissions.charge_message("report", 1000) == (), "before the accounts are known"
    assert PermissionCache(None, SETUP).charge_message("report", 1000) == ()


def test_features_of_the_committed_model_leave_by_its_own_setup_and_the_state_of_the_device():
    permissions = PermissionCache(policy(), SETUP)
    assert permissions.for_committed_model() is permissions
    permissions.set_committed_setup(msgspec.structs.replace(SETUP, frame_bytes=999))
    committed = permissions.for_committed_model()
    assert (committed.frame_bytes, permissions.frame_bytes) == (999, SETUP.frame_bytes)
    found = committed.for_class("open")
    assert permissions.for_committed_model().for_class("open") is found, "nothing has changed"
    permissions.set_link(up=True)
    permissions.advance_day(7)
    permissions.spend.load_spend(BudgetSpend(7, {("bytes", 7): 5}))
    committed = permissions.for_committed_model()
    assert (committed.device_context.link_up, committed.day, committed.spend.current.totals) == (
        True,
        7,
        {("bytes", 7): 5},
    )
    assert committed.for_class("open") is not found
    permissions.accept_notice(3)
    assert permissions.for_committed_model().notice == 3
    other = policy(version=2)
    permissions.set_policy(other)
    assert permissions.for_committed_model().policy is other
    permissions.set_committed_setup(None)
    assert permissions.for_committed_model() is permissions


def test_a_question_names_its_subject_only_where_the_policy_names_a_subject_field():
    for subject_field, named in (("", False), ('\nsubject_field = "patient"', True)):
        edit = ('purpose = "test"', f'purpose = "test"\nkeep_days = 5{subject_field}')
        found = PermissionCache(plain(edit).compile(), SETUP).for_class("open")
        assert isinstance(found, ClassPermissions)
        assert (found.labels.subject, found.labels.keep_days) == (named, 5)


def test_an_account_is_overspent_above_its_limit_and_not_at_it():
    permissions = PermissionCache(policy(), SETUP)
    charge = AccountCharge("bytes", 3, 10, 100)
    for spent, over in ((100, False), (101, True)):
        permissions.spend.load_spend(BudgetSpend(3, {("bytes", 3): spent}))
        assert permissions.spend.is_overspent([charge]) is over
    permissions.spend.load_spend(BudgetSpend(4, {("bytes", 4): 500}))
    assert not permissions.spend.is_overspent([charge]), "of another day"


def test_the_day_of_the_stored_spending_is_the_first_day_and_none_goes_back():
    edge = EdgeCore(SETUP, policy())
    edge.restore(CoreSnapshot(5, 1, BudgetSpend(day=20_000)), 0.0)
    assert edge.permissions.day == 20_000
    edge.on_day(19_999)
    assert edge.permissions.day == 20_000
    edge.on_day(20_001)
    assert edge.permissions.day == 20_001


def test_no_rule_and_no_policy_denies_all_for_a_reason():
    found = PermissionCache(None, SETUP).for_class("open")
    assert isinstance(found, Denied)
    permit = PermissionCache(None, SETUP).permit_question("open", audit=False)
    assert isinstance(permit, Denied)
    assert permit.why is found.why
