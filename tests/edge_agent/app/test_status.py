"""Expiry of the policy in the agent's status, alarms and metrics, from 14 days before its end."""

import pytest

from edge_agent.app.status import EXPIRY_NOTICE_DAYS, count_days_left
from policies.language.document import parse_policy
from policies.model.context import day_to_date
from policies.model.policy import Policy
from tests.edge_agent.doubles.api_double import serve_api
from tests.edge_agent.doubles.hub_double import DEFAULTS, HUB_TIME_MS, POLICY, AgentRig, policy

MS_A_DAY = 86_400_000
TODAY = HUB_TIME_MS // MS_A_DAY


def ending_in(days: int) -> Policy:
    """A policy whose last day is so many days after the hub's today."""
    text = POLICY.format(**DEFAULTS).replace("2099-12-31", day_to_date(TODAY + days))
    return parse_policy(text.replace("issued = 2026-01-01", "issued = 2020-01-01")).compile()


def test_the_last_day_counts_as_one_on_which_something_may_leave():
    assert count_days_left(ending_in(0), HUB_TIME_MS) == 0
    assert count_days_left(ending_in(0), HUB_TIME_MS + MS_A_DAY) == -1
    assert count_days_left(None, HUB_TIME_MS) is None


@pytest.mark.parametrize(
    ("days", "alarm"),
    [
        (EXPIRY_NOTICE_DAYS + 1, None),
        (EXPIRY_NOTICE_DAYS, "policy_expires_soon"),
        (0, "policy_expires_soon"),
        (-1, "policy_expired"),
    ],
)
async def test_a_policy_that_ends_is_an_alarm_from_14_days_before(tmp_path, days, alarm):
    async with AgentRig(tmp_path, ending_in(days)) as rig:
        status = rig.agent.status()
        assert (status["policy_expires"], status["policy_days_left"]) == (day_to_date(TODAY + days), days)
        rung = [each for each in status["alarms"] if each.startswith("policy_")]
        assert rung == ([alarm] if alarm else [])


async def test_a_device_without_a_policy_has_none_that_ends(tmp_path):
    async with AgentRig(tmp_path, None) as rig:
        status = rig.agent.status()
        assert (status["policy_expires"], status["policy_days_left"]) == ("", None)


async def test_a_policy_far_from_its_end_rings_nothing(tmp_path):
    async with AgentRig(tmp_path, policy()) as rig:
        assert not [each for each in rig.agent.status()["alarms"] if each.startswith("policy_")]


async def test_the_days_that_are_left_are_a_metric(tmp_path):
    async with AgentRig(tmp_path, ending_in(3)) as rig, serve_api(rig.agent) as session:
        text = await (await session.get("/metrics")).text()
    assert "skerry_agent_policy_days_left 3.0" in text
    assert 'skerry_agent_alarm{alarm="policy_expires_soon"} 1.0' in text
