"""Escalation threshold calibrated for this device's class, used while audits confirm its risk bound.

Rule: it only narrows: the device escalates less often than with the policy's threshold, never more. If the risk bound
is violated, or the inputs drift from the calibration data, the policy's threshold applies at once, over restarts too,
until a newer edition is installed.
"""

from pathlib import Path
from typing import Any

from edge_agent.inference.evaluation import has_no_label, predictions_agree
from edge_agent.question.permissions import PermissionCache
from models.bundle.manifest import BundleError
from models.bundle.measurements import QualityMetric
from models.bundle.thresholds import ClassThreshold, Thresholds, decode_thresholds
from policies.monitoring.risk import RiskBound, RiskMonitor, observe_audit
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_file_bytes
from wire.process.logging import JsonLog, safe_name
from wire.protocol.messages import Prediction

OFF_FILE = "threshold-off"  # holds the counter of the edition that has failed here
ANY_CLASS = "any"
MAX_PENDING = 1024


class CalibratedThreshold:
    """The calibrated threshold. `kind`: the device's class. `folder`: where a failure is recorded."""

    def __init__(self, edition: Thresholds, kind: str, folder: Path) -> None:
        self._edition = edition
        self._kind = kind if kind in edition.classes else ANY_CLASS
        self._off = folder / OFF_FILE
        self._permissions: PermissionCache | None = None
        self._failed = _read_counter(self._off) >= edition.counter
        self._kept = RiskMonitor()
        self._pending: dict[int, Prediction] = {}
        self._serving = ""

    @property
    def entry(self) -> ClassThreshold | None:
        """The threshold of this class; None if the edition has none, or is for another model."""
        return self._edition.classes.get(self._kind) if self._serving == self._edition.model else None

    @property
    def in_force(self) -> float | None:
        """The threshold in force; None = the policy's own."""
        return None if self._failed or self.entry is None else self.entry.threshold

    def attach_permissions(self, permissions: PermissionCache) -> None:
        """Connect it to the permissions that it sets the threshold of."""
        self._permissions = permissions

    def on_model(self, model: str) -> None:
        """Another model serves from now on: restart the count and apply or withdraw the threshold."""
        self._serving, self._kept = model, RiskMonitor()
        self._pending.clear()
        self._apply_threshold()

    def on_audit_stored(self, seq: int, said: Prediction) -> None:
        """An answer that was drawn for an audit was stored under this question number."""
        if self.in_force is not None:
            self._pending[seq] = said
            if len(self._pending) > MAX_PENDING:
                del self._pending[next(iter(self._pending))]

    def on_verdict(self, seq: int, said: Prediction, tolerance: float) -> None:
        """The hub's verdict on an audit: update the risk monitor, and fail if the bound is violated."""
        ours, entry = self._pending.pop(seq, None), self.entry
        if ours is None or entry is None or self._failed or has_no_label(said):
            return
        self._kept = observe_audit(
            self._kept, make_risk_bound(entry), ours.confidence, agrees=predictions_agree(ours, said, tolerance)
        )
        if self._kept.broken:
            self.fail_threshold("promise")

    def fail_threshold(self, why: str) -> None:
        """Return to the policy's threshold for good, and record that in a file."""
        if self._failed or self.entry is None:
            return
        self._failed = True
        JsonLog().warning("threshold_failed", about=safe_name(why))
        try:
            self._off.write_text(str(self._edition.counter), encoding="ascii")
        except OSError:
            JsonLog().warning("threshold_failure_not_kept")
        self._apply_threshold()

    def _apply_threshold(self) -> None:
        if self._permissions is not None:
            self._permissions.set_threshold(self.in_force)

    def status_fields(self) -> dict[str, Any]:
        """Fields of the status: which threshold applies, and how close the risk monitor is to its limit."""
        entry = self.entry
        if entry is None:
            return {"threshold": {"of": "policy"}}
        told: dict[str, Any] = {"of": "policy" if self._failed else "class", "value": entry.threshold}
        told |= {"class": self._kind, "counter": self._edition.counter, "audits": self._kept.audits}
        return {"threshold": told | {"level": round(self._kept.level, 3)}}

    def alarms(self) -> set[str]:
        """`threshold` after the calibrated threshold has failed."""
        return {"threshold"} if self._failed and self.entry is not None else set()


def make_risk_bound(entry: ClassThreshold) -> RiskBound:
    """The risk bound of a calibrated threshold, as audits by the hub can see it.

    The hub is wrong sometimes itself, so its own error rate is added to the bound.
    """
    figures = entry.figures
    # a regression error is no share of answers; only the guarantee is
    counts = figures.metric is QualityMetric.ACCURACY
    hub_wrong, wrong = (1.0 - figures.hub, 1.0 - figures.edge) if counts else (0.0, 1.0)
    sure = entry.guarantee.max_risk if entry.guarantee else wrong
    return RiskBound(entry.threshold, min(1.0, sure + hub_wrong), min(1.0, wrong + hub_wrong))


def load_thresholds(path: Path) -> Thresholds:
    """Read an edition of thresholds. ExitError(CONFIG) with one line if it cannot be used."""
    try:
        return decode_thresholds(read_file_bytes(path, ExitCode.CONFIG))
    except BundleError as error:
        raise ExitError(ExitCode.CONFIG, f"{path}: {error}") from None


def _read_counter(path: Path) -> int:
    """The edition counter in a failure file; -1 if there is none."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return -1
