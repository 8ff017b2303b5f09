"""Attack effort: bounded, counted, and resumed where a killed attack has left it."""

import numpy as np
import pytest

from models.forge.leakage import inversion
from models.forge.leakage.effort import QUICK, AttackCost, AttackWork, reduce_codes
from models.forge.leakage.measure import ExposedData, measure_leakage

RNG = np.random.default_rng(8)
EFFORT = QUICK._replace(pairs=200, tests=60, steps=210, width=8, macs=1e12)
TABLE = RNG.normal(size=(300, 6)).astype(np.float32)
CODES = (np.abs(np.rint(3 * TABLE[:, :3])).astype(np.uint8),)  # without signs: no linear attack reads them all


class KilledError(Exception):
    """The process ends here."""


def attack(work: AttackWork) -> inversion.InversionResult:
    return inversion.invert_codes(inversion.prepare_samples(TABLE, EFFORT), CODES, EFFORT, work=work)


@pytest.mark.further
def test_a_killed_attack_goes_on_at_its_last_state_and_ends_the_same(tmp_path):
    def kill(_share: float) -> None:
        raise KilledError

    whole = attack(AttackWork())
    with pytest.raises(KilledError):
        attack(AttackWork(tmp_path, kill))
    shares: list[float] = []
    resumed = AttackWork(tmp_path, shares.append)
    assert attack(resumed).score == whole.score
    assert shares == [pytest.approx(200 / 210)]  # the first hundred steps were not run again
    assert not list(tmp_path.glob("*.state"))


@pytest.mark.further
def test_a_finished_attack_is_not_run_again_but_its_cost_is_told(tmp_path):
    first, second = AttackWork(tmp_path), AttackWork(tmp_path)
    found, again = attack(first), attack(second)
    assert again.score == found.score
    assert second.cost == first.cost
    assert first.cost.networks == 1
    assert 0 < first.cost.macs <= EFFORT.macs


@pytest.mark.further
def test_other_codes_are_another_attack(tmp_path):
    attack(AttackWork(tmp_path))
    work = AttackWork(tmp_path)
    truth = inversion.prepare_samples(TABLE, EFFORT)
    inversion.invert_codes(truth, (CODES[0][:, :2],), EFFORT, work=work)
    assert len(list(tmp_path.glob("*.guesses"))) == 2


def test_a_measurement_states_its_cost_and_tells_progress():
    told: list[tuple[str, float]] = []
    exposed = ExposedData(TABLE, CODES, (TABLE[:, 0] > 0).astype(np.int64))
    found = measure_leakage(exposed, "c" * 64, EFFORT, lambda stage, share: told.append((stage, share)))
    assert found.cost.networks >= 1
    assert found.cost.cpu_s > 0
    assert [share for _, share in told] == sorted(share for _, share in told)
    assert told[-1] == ("measured", 1.0)
    assert any("pairs" in stage for stage, _ in told)


def test_costs_add_up():
    assert AttackCost(1, 2.0, 3.0).plus(AttackCost(1, 1.0, 1.0)) == AttackCost(2, 3.0, 4.0)


def test_long_codes_are_seen_as_their_principal_components():
    hidden = RNG.normal(size=(200, 5))
    codes = (hidden @ RNG.normal(size=(5, 400))).astype(np.float32)
    small = reduce_codes(codes, np.arange(150), 8)
    assert small.shape == (200, 8)
    rebuilt = np.linalg.lstsq(small[:150], codes[:150] - codes[:150].mean(0), rcond=None)[0]
    assert np.abs(small[150:] @ rebuilt + codes[:150].mean(0) - codes[150:]).max() < 0.05 * np.abs(codes).max()
    assert reduce_codes(codes, np.arange(150), 400) is codes
