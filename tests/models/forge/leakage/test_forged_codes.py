"""Attacks on a new bundle: one without power is repeated with more samples and steps, never taken for an answer."""

import pytest

from models.forge.leakage.effort import EFFORTS, AttackCost
from models.forge.leakage.forged_codes import ATTACK_POWERS, AttackPower, measure_with_power
from models.forge.leakage.measure import LeakageMeasurement
from models.forge.spec import Effort

COST = AttackCost(1, 10.0, 0.5)


class Attack:
    """Attack that has its power from so many samples on at full effort."""

    def __init__(self, least_samples: int) -> None:
        self.least_samples = least_samples
        self.tried: list[AttackPower] = []

    def __call__(self, power: AttackPower) -> LeakageMeasurement:
        self.tried.append(power)
        has_power = power.effort == "full" and power.most_samples >= self.least_samples
        return LeakageMeasurement((), None, "" if has_power else f"no power from {power.most_samples}", cost=COST)


def test_a_quick_attack_without_power_is_repeated_at_full_effort_with_more_samples():
    attack = Attack(least_samples=10_000)
    found = measure_with_power(attack, ATTACK_POWERS[Effort.QUICK])
    assert found.void == ""
    quick, full = attack.tried
    assert (quick.effort, full.effort) == ("quick", "full")
    assert full.most_samples > quick.most_samples
    assert found.cost == COST.plus(COST)


def test_an_attack_with_power_is_not_repeated():
    attack = Attack(least_samples=0)
    assert measure_with_power(attack, ATTACK_POWERS[Effort.NORMAL]).cost == COST
    assert len(attack.tried) == 1


def test_where_no_attack_has_power_the_last_reason_is_given():
    found = measure_with_power(Attack(least_samples=10**9), ATTACK_POWERS[Effort.QUICK])
    assert found.void == f"no power from {ATTACK_POWERS[Effort.QUICK][-1].most_samples}"


@pytest.mark.parametrize("effort", Effort)
def test_every_effort_of_the_forge_ends_with_an_attack_at_full_effort(effort):
    assert ATTACK_POWERS[effort][-1].effort == "full"
    assert {power.effort for power in ATTACK_POWERS[effort]} <= EFFORTS.keys()
