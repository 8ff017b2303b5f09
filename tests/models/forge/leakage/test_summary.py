"""Summary of a leakage measurement: near-raw leakage in words, and every void or absent row said."""

import pytest

from models.bundle.measurements import LeakageRow, LeakKind
from models.forge.leakage.effort import AttackCost
from models.forge.leakage.forged_codes import decode_measurement, encode_measurement
from models.forge.leakage.measure import LeakageMeasurement
from models.forge.leakage.summary import describe_leakage, list_near_raw, share_of_raw

CHAIN = "a" * 64
REBUILT = LeakageRow(CHAIN, LeakKind.RECONSTRUCTION, "", "network", "ssim", 9000, 0.5, 0.52, 0.3, 0.9)
SPEAKER = LeakageRow(CHAIN, LeakKind.ATTRIBUTE, "speaker", "logistic", "advantage", 400, 0.78, 0.8, 0.1, 0.79)
MEMBER = LeakageRow(CHAIN, LeakKind.MEMBERSHIP, "", "loss", "advantage", 400, 0.15, 0.2, 0.01, 1.0)


def test_a_speaker_who_is_told_as_well_as_by_the_raw_sample_is_not_hidden():
    (warned,) = list_near_raw([REBUILT, SPEAKER, MEMBER])
    assert warned.startswith("nothing is hidden of the speaker")
    assert "0.78" in warned
    assert "0.79" in warned


def test_a_sample_rebuilt_as_from_itself_is_not_hidden():
    near = LeakageRow(CHAIN, LeakKind.RECONSTRUCTION, "", "linear", "ssim", 9000, 0.88, 0.9, 0.3, 0.9)
    assert list_near_raw([near])[0].startswith("nothing is hidden of the sample")
    assert list_near_raw([REBUILT]) == []


def test_every_row_and_the_cost_reach_the_terminal():
    told = describe_leakage(
        LeakageMeasurement((REBUILT, SPEAKER, MEMBER), None, cost=AttackCost(4, 3.2e12, 127.4)),
    )
    assert told[0].startswith("reconstruction of the sample: ssim 0.50 (at most 0.52, 9,000 pairs)")
    assert "33% of what the sample tells is told" in told[0]
    assert told[1].startswith("guess of speaker")
    assert "nothing is hidden" in told[1]
    assert "members show" in told[2]
    assert told[-1] == "attacks: 4 networks of 3.2e+12 multiply-accumulates in all, 127 s of processor time"


def test_d13_what_is_void_or_absent_is_said():
    told = describe_leakage(LeakageMeasurement((), None, "void: the attack reaches 0.4", ("membership: no outsiders",)))
    assert told == ["reconstruction is not measured: the attack reaches 0.4", "membership: no outsiders"]


@pytest.mark.parametrize(("score", "share"), [(0.3, 0.0), (0.2, 0.0), (0.9, 1.0), (0.6, 0.5)])
def test_the_share_of_the_raw_sample_starts_at_what_the_label_gives(score, share):
    row = LeakageRow(CHAIN, LeakKind.RECONSTRUCTION, "", "linear", "ssim", 9, score, 1.0, 0.3, 0.9)
    assert share_of_raw(row) == pytest.approx(share)


def test_a_raw_sample_that_tells_no_more_than_its_label_has_nothing_to_hide():
    row = LeakageRow(CHAIN, LeakKind.ATTRIBUTE, "sex", "logistic", "advantage", 9, 0.4, 0.5, 0.4, 0.42)
    assert share_of_raw(row) is None
    assert list_near_raw([row]) == []
    assert "hardly more than its label" in describe_leakage(LeakageMeasurement((row,), None))[0]


def test_a_cached_measurement_keeps_its_reasons_and_its_cost():
    measured = LeakageMeasurement((SPEAKER,), None, "void: few", ("membership: no outsiders",), AttackCost(2, 1e9, 3.5))
    assert decode_measurement(encode_measurement(measured)) == measured
