"""A whole trial: forged, measured from the bundle and its report, one line as another process prints it."""

import math

import msgspec
import pytest

from benchmarks.forge import datasets, trial
from benchmarks.forge.datasets import ForgeCase
from benchmarks.forge.trials import TrialKey, TrialRecord, encode_record
from models.forge.spec import ForgeSpec

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]  # a whole run of the forge


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.setenv(datasets.BUNDLES, str(tmp_path))
    wishes = {"features": ForgeSpec(), "sample": ForgeSpec(sample_level="P2"), "hopeless": ForgeSpec(max_leakage=0.0)}
    monkeypatch.setitem(datasets.CASES, "tiny", ForgeCase("tests.benchmarks.forge.tiny_set", wishes))


def test_a_trial_measures_its_bundle_beside_a_hub_that_lost_nothing(tiny):
    made = trial.run_trial(TrialKey("tiny", 11, "features", "quick"), 1)
    assert not made.error
    record = msgspec.json.decode(encode_record(made), type=TrialRecord)
    assert (record.samples, record.metric, record.share) == (200, "accuracy", 0.25)
    assert record.route in {"early", "learned"}
    assert record.payload_bytes > 0
    assert record.sealed_bytes > record.payload_bytes
    assert 0 <= record.asked <= 1
    assert record.edge <= record.lossless_at
    assert record.gap_low <= record.gap <= record.gap_high
    assert record.seconds > 0
    assert record.peak_mib > 100


def test_a_wish_that_cannot_be_met_is_a_record_with_the_reason(tiny):
    made = trial.run_trial(TrialKey("tiny", 11, "hopeless", "quick"), 1)
    assert "max-leakage" in made.error
    assert math.isnan(made.pair)
