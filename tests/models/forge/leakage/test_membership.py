"""Membership attack: outsiders of the members' own distribution, or no measurement and the reason for it."""

import numpy as np
import pytest

from models.forge.leakage.membership import (
    HubPredictions,
    SampleSet,
    choose_outsiders,
    explain_no_outsiders,
    measure_blind_advantage,
    measure_membership,
)
from tests.examples import further

RNG = np.random.default_rng(3)


def drawn(count: int = 600, shift: float = 0.0) -> SampleSet:
    x = RNG.normal(shift, 1, (count, 4)).astype(np.float32)
    return SampleSet(x, (x.sum(1) > 4 * shift).astype(np.int64))


@pytest.mark.further
def test_d3_a_shifted_part_is_no_outsider_and_the_calibration_part_is_taken():
    members = drawn()
    chosen = choose_outsiders(members, {"held-out": drawn(shift=1.0), "calibration": drawn()})
    assert chosen.part == "calibration"
    assert 0 <= chosen.blind < 0.15
    assert len(chosen.refused) == 1
    assert "training and held-out samples differ" in chosen.refused[0]


@pytest.mark.further
def test_d3_the_shift_alone_would_look_like_membership():
    """A model that learned nothing of its members, only of where they lie: its loss is larger on shifted samples."""
    members, same, shifted = drawn(), drawn(), drawn(shift=2.0)

    def answer(part: SampleSet) -> HubPredictions:
        return HubPredictions(np.stack([-part.x.sum(1), part.x.sum(1)], 1), part.y)

    false_alarm = measure_membership(answer(members), answer(shifted))
    honest = measure_membership(answer(members), answer(same))
    assert false_alarm is not None
    assert honest is not None
    assert false_alarm.advantage.low > 0.2
    assert honest.advantage.low <= 0.05


def test_d3_where_no_part_fits_nothing_is_measured_and_the_reason_is_said():
    chosen = choose_outsiders(drawn(), {"calibration": drawn(20), "held-out": drawn(shift=1.0)})
    assert chosen.part == ""
    said = explain_no_outsiders(chosen)
    assert "not measured" in said
    assert "fewer than 40" in said
    assert "held-out samples differ" in said


@pytest.mark.parametrize("kind", ["ids", further("wide"), further("values")])
def test_a_blind_guesser_sees_every_kind_of_sample(kind):
    def sample(low: int) -> SampleSet:
        if kind == "ids":
            return SampleSet(RNG.integers(low, low + 40, (300, 6)), RNG.integers(0, 3, 300))
        x = RNG.normal(low / 20, 1, (300, 900 if kind == "wide" else 3)).astype(np.float32)
        return SampleSet(x, x[:, 0])

    same, other = measure_blind_advantage(sample(0), sample(0)), measure_blind_advantage(sample(0), sample(20))
    assert same is not None
    assert other is not None
    assert same.low <= 0.05
    assert other.low > 0.3


def test_d3_a_part_too_small_to_show_its_shift_for_certain_is_no_outsider_either():
    members, few = drawn(300, 0.0), drawn(60, 0.5)
    blind = measure_blind_advantage(members, few)
    assert blind is not None
    assert blind.value > 0.1
    assert choose_outsiders(members, {"held-out": few}).part == ""
