"""What a run for JSON lines waits for before its first line."""

import pytest

from edge_agent.app.lines import AgentPrerequisites

READY = {"model": "digits@1", "policy": "ab", "mode": "answer_now", "link": "up"}


@pytest.mark.parametrize(
    ("status", "policy", "link", "met"),
    [
        ({}, False, True, True),
        ({"link": "down"}, False, True, False),
        ({"link": "down"}, False, False, True),  # an air-gapped device has no link to wait for
        ({"link": "down", "mode": "local_only"}, False, True, True),
        ({"link": "down", "mode": "disabled"}, False, True, True),
        ({"link": "down", "policy": ""}, False, True, True),  # without a policy nothing may leave
        ({"link": "down", "policy": ""}, True, True, False),  # it comes by updates
        ({"policy": ""}, True, True, False),
        ({"model": ""}, False, False, False),
    ],
)
def test_lines_wait_for_model_and_policy_and_for_the_link_where_the_policy_may_ask(status, policy, link, met):
    assert AgentPrerequisites(policy, link).are_met(READY | status) is met
