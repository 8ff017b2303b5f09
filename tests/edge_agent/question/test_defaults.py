"""A field of a record that is left out says nothing: it is empty, 0 or None, but for those whose rest has a meaning."""

import pytest

from edge_agent.question import commands, limits, permissions, records, seal
from policies.model.reasons import DecisionReason
from tests.defaults import list_filled_defaults

FILLED = {
    "CoreSetup.limits": limits.OutboxLimits(),
    "QuestionLabels.keep_days": commands.KEEP_DAYS,
    "RandomDraws.jitter": 0.5,  # the middle of what may be drawn
    "StoredQuestion.jitter": 0.5,
    "CoreSnapshot.mirrored": True,  # the spending is known, and a hub need not be asked for it
    "Store.labels": commands.QuestionLabels(),
    "Correction.why": DecisionReason.VERDICT,
}


@pytest.mark.parametrize("module", [commands, permissions, records, seal], ids=lambda module: module.__name__)
def test_a_field_that_is_left_out_says_nothing(module):
    found = list_filled_defaults(module)
    assert found == {name: FILLED.get(name) for name in found}


def test_a_link_whose_energy_nobody_gave_takes_none():
    assert limits.LinkEnergy() == limits.LinkEnergy(0.0, 0.0)
