"""A field of a record that is left out says nothing: it is empty, 0 or None, but for those whose rest has a meaning."""

from math import inf

import pytest

from cloud_hub.core import commands, context, notes, policy_check, queues, replica_scaling, verification, web_requests
from cloud_hub.rollout import types
from policies.serving.fair_queue import NORMAL
from tests.defaults import list_filled_defaults

FILLED = {
    "BatchItem.band": NORMAL,
    "BatchItem.weight": 1.0,  # one item's worth of work
    "BatchItem.deadline": inf,  # no end
    "QuestionEnding.label": -1,  # not counted: 0 is a class of a model
    "OpenQuestion.keep_until_ms": context.BIGGEST_MS,  # no end
    "RolloutRow.state": types.RolloutDeviceState.QUEUED,
    "RolloutHead.state": types.RolloutState.DRAFT,
}


@pytest.mark.parametrize(
    "module",
    [commands, context, notes, policy_check, queues, replica_scaling, types, verification, web_requests],
    ids=lambda module: module.__name__,
)
def test_a_field_that_is_left_out_says_nothing(module):
    found = list_filled_defaults(module)
    assert found == {name: FILLED.get(name) for name in found}


def test_no_field_is_named_whose_default_is_empty():
    modules = (commands, context, types)
    assert {name for module in modules for name in list_filled_defaults(module)} == set(FILLED)
