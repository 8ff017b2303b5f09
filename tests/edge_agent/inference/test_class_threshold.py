"""Calibrated threshold of a device class: narrows the policy's until its risk bound is violated."""

import msgspec
import pytest

from edge_agent.inference.class_threshold import CalibratedThreshold, load_thresholds, make_risk_bound
from edge_agent.question.permissions import ClassPermissions, PermissionCache
from models.bundle.measurements import CalibrationFigures, QualityMetric, RiskGuarantee
from models.bundle.thresholds import ClassThreshold, Thresholds, encode_thresholds, update_thresholds
from policies.language.document import parse_policy
from policies.model.policy import Policy
from tests.edge_agent.doubles.hub_double import DEFAULTS, POLICY
from tests.edge_agent.question.test_decide import SETUP
from wire.process.exit_codes import ExitError
from wire.protocol.messages import Prediction

DIGEST = "ab" * 32


def policy(threshold: float) -> Policy:
    text = POLICY.format(**DEFAULTS)
    return parse_policy(text.replace("threshold = 0.8", f"threshold = {threshold}")).compile()


def entry(threshold: float) -> ClassThreshold:
    figures = CalibrationFigures(QualityMetric.ACCURACY, 500, 0.91, 0.94, 0.97, 0.98, threshold, 0.15, 0.05, 0.02)
    return ClassThreshold(threshold, "max-risk 0.02", 1, figures, RiskGuarantee(0.02, 0.95, 500, threshold, "ltt"))


def edition(counter: int = 1) -> Thresholds:
    found = update_thresholds(None, "digits@7", DIGEST, "camera", entry(0.5))
    return msgspec.structs.replace(found, counter=counter)


def device(tmp_path, counter=1, kind="camera", model="digits@7"):
    permissions = PermissionCache(policy(0.9), SETUP)
    found = CalibratedThreshold(edition(counter), kind, tmp_path)
    found.attach_permissions(permissions)
    found.on_model(model)
    return found, permissions


def asks_below(permissions):
    ruled = permissions.for_class("open")
    assert isinstance(ruled, ClassPermissions)
    return ruled.terms.threshold


def said(label, confidence=0.95):
    return Prediction(label, confidence, (confidence,), "digits@7")


def disagree(found, audits):
    for seq in range(audits):
        found.on_audit_stored(seq, said(1))
        found.on_verdict(seq, said(2), 0.0)


def test_it_narrows_and_never_widens(tmp_path):
    found, permissions = device(tmp_path)
    assert asks_below(permissions) == 0.5
    assert found.status_fields()["threshold"]["of"] == "class"
    wider = PermissionCache(policy(0.3), SETUP)
    found.attach_permissions(wider)
    found.on_model("digits@7")
    assert asks_below(wider) == 0.3


@pytest.mark.parametrize(("kind", "model"), [("gateway", "digits@7"), ("camera", "digits@8")])
def test_another_class_or_another_bundle_has_the_policys(tmp_path, kind, model):
    found, permissions = device(tmp_path, kind=kind, model=model)
    assert asks_below(permissions) == 0.9
    assert found.in_force is None


def test_a_broken_promise_alarms_and_goes_back_to_the_safe_threshold(tmp_path):
    found, permissions = device(tmp_path)
    disagree(found, 40)
    assert found.alarms() == {"threshold"}
    assert asks_below(permissions) == 0.9
    assert (found.status_fields()["threshold"]["of"], found.status_fields()["threshold"]["value"]) == ("policy", 0.5)


def test_drift_does_the_same(tmp_path):
    found, permissions = device(tmp_path)
    found.fail_threshold("drift")
    assert (found.alarms(), asks_below(permissions)) == ({"threshold"}, 0.9)


def test_a_failure_outlives_a_restart_and_ends_with_a_newer_edition(tmp_path):
    found, _ = device(tmp_path)
    found.fail_threshold("drift")
    again, permissions = device(tmp_path)
    assert (again.alarms(), asks_below(permissions)) == ({"threshold"}, 0.9)
    newer, permissions = device(tmp_path, counter=2)
    assert (newer.alarms(), asks_below(permissions)) == (set(), 0.5)


def test_audits_that_agree_keep_it(tmp_path):
    found, permissions = device(tmp_path)
    for seq in range(500):
        found.on_audit_stored(seq, said(1))
        found.on_verdict(seq, said(1), 0.0)
    assert (found.alarms(), asks_below(permissions)) == (set(), 0.5)


def test_the_promise_allows_for_the_hubs_own_mistakes():
    assert make_risk_bound(entry(0.5)).kept_wrong == pytest.approx(0.05)
    assert make_risk_bound(entry(0.5)).wrong == pytest.approx(0.12)


def test_a_file_that_cannot_be_used_stops_the_start_with_one_line(tmp_path):
    path = tmp_path / "x.calibration.json"
    with pytest.raises(ExitError):
        load_thresholds(path)
    path.write_bytes(b"[]")
    with pytest.raises(ExitError, match="calibration"):
        load_thresholds(path)
    path.write_bytes(encode_thresholds(edition()))
    assert load_thresholds(path) == edition()
