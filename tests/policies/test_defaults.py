"""What a record does not say is nothing: no count, no limit reached, no time, no fault.

Records that say what is in force when nobody says anything are named here, and tested by what they do.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from math import inf

import msgspec
import pytest

import policies
import wire.ledger
import wire.protocol
from policies.serving.retry_budget import RetryLimits, earn_retries, open_budget, spend_retry
from wire.protocol.messages import SensitivityLevel

# Parameters: their pages and their own tests say what each is.
PARAMETERS = {
    "AdmissionLimits", "BehaviourLimits", "ComputeOptions", "DecoderLoad", "GateRules", "ProbationLimits",
    "RetryLimits", "RolloutRules", "RoundLimits", "SampleFacts", "SampleField", "ScalingRules", "TransformerShape",
    "Assignment", "Escalation",
}  # fmt: skip
# Of an attribute that is not known the narrower, and of a record that is not damaged that it is known.
NARROW = {
    "DecisionContext.level": SensitivityLevel.P4, "BudgetSpend.known": True, "SpendMirror.complete": True,
    "GateResult.bound": 1.0, "GateResult.low": -1.0, "GateResult.high": 1.0, "MeanInterval.low": -1.0,
    "MeanInterval.high": 1.0, "RetentionTerms.keep_days": 7, "DeviceMemory.process_bytes": 256 * 2**20,
}  # fmt: skip
ONE = {
    "BudgetAccount.period_days", "RateLimit.hubs", "SpreadOption.nodes", "WaitingItem.weight", "DeviceMemory.count",
    "DeviceMemory.nodes",
}  # fmt: skip


def list_records() -> Iterator[tuple[str, dict[str, object]]]:
    """Each record of the pure packages, with the defaults of its fields."""
    for package in (policies, wire.protocol, wire.ledger):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for name, record in inspect.getmembers(importlib.import_module(found.name), inspect.isclass):
                if record.__module__ != found.name or name in PARAMETERS:
                    continue
                if issubclass(record, msgspec.Struct):
                    fields = msgspec.structs.fields(record)
                    yield name, {each.name: each.default for each in fields if each.default is not msgspec.NODEFAULT}
                elif issubclass(record, tuple) and hasattr(record, "_field_defaults"):
                    yield name, record._field_defaults


@pytest.mark.parametrize(("record", "defaults"), list(list_records()))
def test_what_a_record_does_not_say_is_nothing(record, defaults):
    for field, value in defaults.items():
        place = f"{record}.{field}"
        if isinstance(value, str) or callable(value) or value in (inf, -inf):
            continue  # a word, a function, or without an end
        numbers = value if type(value) is tuple else list(value) if isinstance(value, Mapping) else [value]
        nothing = NARROW.get(place, 1 if place in ONE else 0)
        assert value is None or isinstance(value, msgspec.Struct) or all(each == nothing for each in numbers), place


def test_labels_and_priorities_count_from_nothing_to_what_never_leaves():
    assert [(each.name, each.value) for each in SensitivityLevel] == [(f"P{level}", level) for level in range(5)]


def test_by_itself_a_tenant_may_retry_a_tenth_of_its_first_tries_and_once_in_five_seconds():
    limits = RetryLimits()
    budget = open_budget(limits, 0.0)
    while (spent := spend_retry(budget, limits, 0.0)) is not None:
        budget = spent
    for later, tries in ((4.9, 0), (0.0, 9)):
        assert spend_retry(earn_retries(budget, limits, later, tries), limits, later) is None
    for later, tries in ((5.0, 0), (0.0, 10)):
        assert spend_retry(earn_retries(budget, limits, later, tries), limits, later) is not None
    assert earn_retries(budget, limits, 0.0, 10**6).left == 100.0
